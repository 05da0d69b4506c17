"""What a Kubernetes of this machine is made of, built once into `.work`: its programs, and the image of Spark's pods.

`python -m local_stack.kubernetes_build` makes it (nothing to do when it is there). It needs root on Debian, Go, and
about five gigabytes: Kubernetes and etcd are compiled from Go's module proxy, containerd and runc are Debian's, and the
image is a Debian of `debootstrap` with Spark and Hudi's bundle, because no registry of images may be in reach.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from local_stack.hudi_bundle import JAR, WORK, find_spark_home

SOURCES = Path(__file__).parent / "kubernetes"
BUILT = WORK / "kubernetes-cluster"
KUBE = BUILT / "bin" / "kube"
PAUSE = BUILT / "bin" / "pause"
ROOT_OF_IMAGES = BUILT / "root"
"""A Debian with Java and Python."""
PLUGINS = Path("/usr/lib/cni")
PROGRAMS = {
    "containerd": "containerd",
    "runc": "runc",
    "iptables": "iptables",
    "debootstrap": "debootstrap",
    "openssl": "openssl",
    "ip": "iproute2",
}
"""Debian's package of each program."""
PACKAGES_OF_THE_IMAGE = "openjdk-17-jre-headless,python3-minimal,python3,procps"
USER = 10_001
"""The user and the group of Spark's pods, as of the image in docker/."""
PAUSE_IMAGE = "docker.io/lake/pause:local"
SPARK_IMAGE = "docker.io/lake/spark:local"
BUILD_TIMEOUT_S = 3600


class ClusterMissingError(RuntimeError):
    """This machine cannot run a Kubernetes; the message says what is missing."""


def build() -> None:
    """Make what is not there yet. Raises ClusterMissingError."""
    _require_machine()
    _build_programs()
    if not (BUILT / "pause.tar").exists():
        write_image(BUILT / "pause.tar", PAUSE_IMAGE, {"/pause": PAUSE}, {"Entrypoint": ["/pause"]})
    if not (BUILT / "spark.tar").exists():
        _build_spark()


def _require_machine() -> None:
    if os.geteuid() != 0:
        raise ClusterMissingError("a Kubernetes of this machine needs root: for network, mounts and control groups")
    if shutil.which("go") is None:
        raise ClusterMissingError("Go is missing: Kubernetes is compiled from its module proxy")
    missing = [package for program, package in PROGRAMS.items() if shutil.which(program) is None]
    if not (PLUGINS / "bridge").exists():
        missing.append("containernetworking-plugins")
    if not missing:
        return
    if shutil.which("apt-get") is None:
        raise ClusterMissingError(f"install {', '.join(missing)}")
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    # Another program may be installing something at this moment.
    wait = ["-o", "DPkg::Lock::Timeout=300"]
    run(["apt-get", *wait, "update", "-qq"], env)
    run(["apt-get", *wait, "install", "-y", "-qq", "--no-install-recommends", *missing], env)


def _build_programs() -> None:
    source = BUILT / "source"
    if KUBE.exists() and PAUSE.exists():
        return
    shutil.copytree(SOURCES, source, dirs_exist_ok=True)
    env = os.environ | {"CGO_ENABLED": "0", "GOFLAGS": "-mod=mod"}
    run(["go", "mod", "tidy"], env, source)
    # Without the tables of a debugger it is half as large.
    run(["go", "build", "-ldflags", "-s -w", "-o", str(PAUSE), "pause/main.go"], env, source)
    run(["go", "build", "-ldflags", "-s -w", "-o", str(KUBE), "."], env, source)


def _build_spark() -> None:
    root = ROOT_OF_IMAGES
    if not root.exists():
        part = BUILT / "root.part"
        _remove_tree(part)
        options = ["--variant=minbase", f"--include={PACKAGES_OF_THE_IMAGE}"]
        run(["debootstrap", *options, _debian_codename(), str(part)], os.environ)
        _unmount_below(part)
        part.replace(root)
    for unused in ("var/cache/apt/archives", "var/lib/apt/lists", "usr/share/doc", "usr/share/locale"):
        shutil.rmtree(root / unused, ignore_errors=True)
    passwd = root / "etc" / "passwd"
    # Hadoop asks for the name of its user.
    if "\nspark:" not in passwd.read_text(encoding="utf-8"):
        with passwd.open("a", encoding="utf-8") as users:
            users.write(f"spark:x:{USER}:{USER}::/tmp:/usr/sbin/nologin\n")
    files = {"/": root, "/opt/spark": find_spark_home(), f"/opt/spark/jars/{JAR.name}": JAR}
    settings = {
        "Entrypoint": ["/opt/entrypoint.sh"],
        "User": f"{USER}:{USER}",
        "WorkingDir": "/tmp",
        "Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin", "SPARK_HOME=/opt/spark", "PYSPARK_PYTHON=python3"],
    }
    write_image(BUILT / "spark.tar", SPARK_IMAGE, files | {"/opt/entrypoint.sh": SOURCES / "entrypoint.sh"}, settings)


def _remove_tree(folder: Path) -> None:
    """Remove what an interrupted debootstrap left, and nothing of what it had mounted there, as the machine's /proc."""
    _unmount_below(folder)
    if folder.exists():
        shutil.rmtree(folder)


def _unmount_below(folder: Path) -> None:
    mounted = [line.split()[1] for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
    for place in reversed([each for each in mounted if each.startswith(f"{folder.resolve()}/")]):
        run(["umount", place], os.environ)


def _debian_codename() -> str:
    lines = Path("/etc/os-release").read_text(encoding="utf-8").splitlines()
    known = dict(line.split("=", 1) for line in lines if "=" in line)
    return known.get("VERSION_CODENAME", "bookworm").strip('"')


def write_image(archive: Path, name: str, files: Mapping[str, Path], settings: Mapping[str, object]) -> None:
    """Write an image of one layer, in the form of `docker save`."""
    layer = archive.with_suffix(".layer")
    with tarfile.open(layer, "w") as tar:
        for target, source in files.items():
            tar.add(source, target.lstrip("/") or ".", filter=_readable)
    digest = hashlib.sha256()
    with layer.open("rb") as stream:
        for chunk in iter(lambda: stream.read(1 << 20), b""):
            digest.update(chunk)
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": settings,
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest.hexdigest()}"]},
        }
    ).encode()
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = json.dumps([{"Config": config_name, "RepoTags": [name], "Layers": ["layer.tar"]}]).encode()
    part = archive.with_suffix(".part")
    with tarfile.open(part, "w") as tar:
        for member, body in ((config_name, config), ("manifest.json", manifest)):
            entry = tarfile.TarInfo(member)
            entry.size = len(body)
            tar.addfile(entry, io.BytesIO(body))
        tar.add(layer, "layer.tar")
    layer.unlink()
    part.replace(archive)


def _readable(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if entry.name.startswith(("opt/spark/examples", "./proc/", "./sys/", "./dev/")):
        return None
    # What is compiled for the image itself is below `site-packages`.
    if "__pycache__" in entry.name and "/site-packages/" not in entry.name:
        return None
    if entry.name.startswith("opt/"):
        entry.uid = entry.gid = 0
        entry.mode |= 0o555 if entry.isdir() or entry.mode & 0o100 else 0o444
    return entry


def run(command: Iterable[str], env: Mapping[str, str], cwd: Path | None = None) -> None:
    """Run a program to its end. Raises ClusterMissingError with what it printed."""
    done = subprocess.run(
        list(command),
        env=dict(env),
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=BUILD_TIMEOUT_S,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode:
        raise ClusterMissingError(f"{' '.join(command)} failed: {(done.stdout + done.stderr)[-3000:]}")


def main() -> int:
    try:
        build()
    except ClusterMissingError as error:
        print(error, file=sys.stderr)
        return 1
    print(BUILT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
