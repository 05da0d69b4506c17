"""A Docker: the one of this machine where it answers, otherwise one of our own, as root, out of Debian's packages.

The own one has its images and containers in the work folder, a socket of its own, and leaves the machine's bridges and
its firewall alone: containers reach each other, and no other machine. Builds use the machine's network.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from local_stack.debian_packages import DebianPackages
from local_stack.processes import PATIENCE, ServerProcess, SingleServer, start, wait_until

ENGINE = ("docker.io", "containerd", "runc", "tini")
FIREWALL = ("iptables", "libxtables12", "libip4tc2", "libip6tc2", "libnftnl11", "libmnl0")
"""By it Docker leads a container's questions for names to its own server, inside the container's network."""
COMPOSE = ("docker-compose",)
"""Bookworm's is Compose 1, which knows neither `name:` nor `pids:`."""
START_TIMEOUT_S = 60
OWN_ADDRESSES = "10.213.0.0/16"


class DockerMissingError(RuntimeError):
    """No Docker answers, and none can be started; the message names the remedy."""


@dataclass
class LocalDocker(SingleServer):
    """One Docker with Compose 2, in an absolute folder."""

    folder: Path
    server: ServerProcess | None = None
    containerd: ServerProcess | None = None
    env: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    is_own: bool = False

    @property
    def address(self) -> str:
        return self.env.get("DOCKER_HOST", "the Docker of this machine")

    def start(self) -> None:
        """Find or start it. Raises DockerMissingError, PackagesMissingError, NotReadyError."""
        if shutil.which("docker") and self._succeeds("info") and self._succeeds("compose", "version"):
            return
        if os.geteuid() != 0:
            raise DockerMissingError("no Docker with Compose 2 answers: start it, or run this as root on a Debian")
        self.is_own = True
        self.folder.mkdir(parents=True, exist_ok=True)
        packages = DebianPackages(self.folder / "bookworm", "bookworm")
        programs = packages.unpack(ENGINE)
        if shutil.which("iptables") is None:
            self._use_firewall(packages.unpack(FIREWALL))
        compose = DebianPackages(self.folder / "trixie", "trixie").unpack(COMPOSE)
        self._use(programs, compose)
        socket = self.folder / "containerd.sock"
        state = ["--root", str(self.folder / "containerd"), "--state", str(self.folder / "containerd-state")]
        self.containerd = start(
            "containerd",
            ["containerd", *state, "--address", str(socket), "--log-level", "warn"],
            self.folder / "containerd.log",
            env=self.env,
        )
        wait_until(socket.exists, START_TIMEOUT_S, "containerd", [self.containerd])
        self.server = start("dockerd", self._command(socket), self.folder / "dockerd.log", env=self.env)
        wait_until(lambda: self._succeeds("info"), START_TIMEOUT_S, "dockerd", [self.containerd, self.server])

    @property
    def build_options(self) -> dict[str, str]:
        """Return what each build needs; the own one has no other network with a way out."""
        return {"network": "host"} if self.is_own else {}

    def stop(self) -> None:
        """Stop the own one with what runs in it; the machine's stays."""
        super().stop()
        if self.containerd is not None:
            self.containerd.stop()
            self.containerd = None

    def run(self, *words: str, timeout_s: float = 300, env: Mapping[str, str] | None = None) -> str:
        """Return what a command of docker prints; raises RuntimeError with its errors."""
        ran = subprocess.run(
            ["docker", *words],
            env=self.env | dict(env or {}),
            capture_output=True,
            text=True,
            timeout=timeout_s * PATIENCE,
            stdin=subprocess.DEVNULL,
        )
        if ran.returncode:
            said = ran.stdout[-3000:] + ran.stderr[-3000:]
            raise RuntimeError(f"docker {' '.join(words)}: exit code {ran.returncode}\n{said}")
        return ran.stdout

    def build(self, folder: Path, tag: str, *more: str, timeout_s: float = 1200) -> None:
        """Build an image of a folder with a Dockerfile."""
        network = [f"--{key}={value}" for key, value in self.build_options.items()]
        env = {"DOCKER_BUILDKIT": "1", "BUILDKIT_PROGRESS": "plain"}
        self.run("build", *network, "--tag", tag, *more, str(folder), timeout_s=timeout_s, env=env)

    def has_image(self, tag: str) -> bool:
        return self._succeeds("image", "inspect", tag)

    def _succeeds(self, *words: str) -> bool:
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.run(["docker", *words], env=self.env, timeout=120, **quiet).returncode == 0

    def _use_firewall(self, programs: Path) -> None:
        link = programs / "usr" / "sbin" / "iptables"
        link.unlink(missing_ok=True)
        link.symlink_to("xtables-nft-multi")
        (libraries,) = (programs / "usr" / "lib").glob("*-linux-gnu")
        self.env |= {"LD_LIBRARY_PATH": str(libraries), "XTABLES_LIBDIR": str(libraries / "xtables")}

    def _use(self, programs: Path, compose: Path) -> None:
        config = self.folder / "config"
        config.mkdir(exist_ok=True)
        plugins = compose / "usr" / "libexec" / "docker" / "cli-plugins"
        (config / "config.json").write_text(json.dumps({"cliPluginsExtraDirs": [str(plugins)]}), encoding="utf-8")
        folders = [programs / "usr" / "bin", programs / "usr" / "sbin"]
        self.env |= {
            "PATH": ":".join([*map(str, folders), self.env["PATH"]]),
            "DOCKER_HOST": f"unix://{self.folder}/docker.sock",
            "DOCKER_CONFIG": str(config),
        }

    def _command(self, containerd: Path) -> Sequence[str]:
        own = self.folder
        return [
            "dockerd",
            *("--data-root", str(own / "data"), "--exec-root", str(own / "exec"), "--pidfile", str(own / "docker.pid")),
            *("--host", f"unix://{own}/docker.sock", "--containerd", str(containerd)),
            *("--bridge", "none", "--iptables=false", "--ip-forward=false"),
            *("--default-address-pool", f"base={OWN_ADDRESSES},size=24"),
            *("--init-path", str(own / "bookworm" / "unpacked" / "usr" / "bin" / "tini-static")),
        ]
