"""The stack of docker/ in containers, with secrets and a project of its own, next to one of the same machine."""

from __future__ import annotations

import json
import os
import re
import runpy
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml

from local_stack.docker_engine import LocalDocker
from local_stack.processes import PATIENCE, NotReadyError, free_port

ROOT = Path(__file__).resolve().parent.parent
DOCKER = ROOT / "docker"


@dataclass
class ComposeStack:
    """One stack; `folder` gets its .env, its tables file and an override of the compose file."""

    docker: LocalDocker
    folder: Path
    images: Mapping[str, str]
    tables: str
    name: str = "lake-test"
    version: str = "0.1.0"
    port: int = field(default_factory=free_port)
    env: dict[str, str] = field(default_factory=dict)

    def prepare(self) -> None:
        """Write the files that Compose reads."""
        (self.folder / "lake").mkdir(parents=True, exist_ok=True)
        (self.folder / "lake" / "tables.yaml").write_text(self.tables, encoding="utf-8")
        fill_in = runpy.run_path(str(DOCKER / "make_env.py"))["fill_in"]
        text = fill_in((DOCKER / ".env.example").read_text(encoding="utf-8"))
        self.env = dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))
        self.env |= {**self.images, "PUBLISH_PORT": str(self.port), "LAKE_VERSION": self.version}
        self._write_env()
        services = yaml.safe_load((DOCKER / "compose.yaml").read_text(encoding="utf-8"))["services"]
        changed: dict[str, Any] = {}
        for service, settings in services.items():
            if "./lake:/etc/lake:ro" in settings.get("volumes", []):
                changed[service] = {"volumes": [f"{self.folder}/lake:/etc/lake:ro"]}
            if "build" in settings:
                # So that the images of two versions differ.
                build: dict[str, Any] = {"labels": {"version": "${LAKE_VERSION}"}}
                changed.setdefault(service, {})["build"] = build | self.docker.build_options
        (self.folder / "override.yaml").write_text(yaml.safe_dump({"services": changed}), encoding="utf-8")

    def compose(self, *words: str, timeout_s: float = 600) -> str:
        """Return what `docker compose` prints; raises RuntimeError with its errors."""
        files = ["--file", str(DOCKER / "compose.yaml"), "--file", str(self.folder / "override.yaml")]
        own = ["--project-name", self.name, "--env-file", str(self.folder / "env")]
        return self.docker.run("compose", *own, *files, *words, timeout_s=timeout_s)

    def use_version(self, version: str) -> None:
        """Let the next `up` take other images of our own."""
        self.version = self.env["LAKE_VERSION"] = version
        self._write_env()

    def states(self) -> dict[str, dict[str, Any]]:
        """Return what Docker says of each service's container, also of those that have ended."""
        lines = self.compose("ps", "--all", "--format", "json").splitlines()
        return {found["Service"]: found for found in map(json.loads, lines)}

    def inspect(self, service: str) -> dict[str, Any]:
        """Return what Docker knows of a service's container."""
        container = self.compose("ps", "--all", "--quiet", service).strip()
        (found,) = json.loads(self.docker.run("inspect", container))
        return dict(found)

    def unhealthy(self, services: tuple[str, ...]) -> dict[str, str]:
        """Return those of the services that are not healthy, and what they are."""
        states = self.states()
        return {
            name: f"{states[name]['State']} {states[name]['Health']}" if name in states else "missing"
            for name in services
            if name not in states or states[name]["Health"] != "healthy"
        }

    def crash(self, service: str) -> None:
        """Kill -9 the first process of a service's container, as a crash does; Docker's own kill is no crash for it."""
        os.kill(self.inspect(service)["State"]["Pid"], signal.SIGKILL)

    def wait_until(self, ready: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Wait for a condition. Raises NotReadyError with the state of all services."""
        deadline = time.monotonic() + timeout_s * PATIENCE
        while not ready():
            if time.monotonic() > deadline:
                states = {name: (found["State"], found["Health"]) for name, found in self.states().items()}
                raise NotReadyError(f"no {what} after {timeout_s * PATIENCE:.0f} s; services: {states}")
            time.sleep(2)

    def get(self, path: str, **params: Any) -> dict[str, Any]:
        """Return the manager's answer; empty while there is none."""
        token = self.env["LAKE_SERVICE_TOKENS"]
        try:
            answer = httpx.get(
                f"http://127.0.0.1:{self.port}/v1/hoodie{path}",
                params=params,
                headers={"Authorization": f"Bearer {token}"},
                timeout=30,
            )
            return dict(answer.json()) if answer.is_success else {}
        except (httpx.HTTPError, ValueError):
            return {}

    def instances(self, table: str) -> list[dict[str, Any]]:
        """Return the instances of a table's services that the manager lists, the newest ended ones last."""
        tables = self.get("/tables").get("tables", [])
        ids = [found["table_id"] for found in tables if found["table_name"] == table]
        return list(self.get(f"/tables/{ids[0]}/instances", ended=50).get("instances", [])) if ids else []

    def write(self, table: str, commits: int, timeout_s: float = 900) -> None:
        """Let the stock writer of docker/ make commits."""
        words = ["spark-submit", "/jobs/orders.py", table, str(commits)]
        self.compose("run", "--rm", "spark-writer", *words, timeout_s=timeout_s)

    def run_job(self, job: Path, *arguments: str, timeout_s: float = 900) -> str:
        """Return what a job of the caller prints, run as a writer is."""
        mount = f"{job.parent}:/tests:ro"
        words = ["run", "--rm", "--volume", mount, "spark-writer", "spark-submit", f"/tests/{job.name}", *arguments]
        return self.compose(*words, timeout_s=timeout_s)

    def remove(self) -> None:
        """Remove containers, networks and volumes; images stay."""
        self.compose("--profile", "writers", "--profile", "kafka", "down", "--volumes", "--remove-orphans")

    def _write_env(self) -> None:
        (self.folder / "env").write_text(
            "".join(f"{key}={value}\n" for key, value in self.env.items()), encoding="utf-8"
        )
