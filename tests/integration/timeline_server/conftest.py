"""A timeline server in a process of its own, that can be killed and started again on the same port."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from airflow_lake_provider.timeline_server.client import TimelineEndpoint
from local_stack.processes import free_port, pause, resume
from tests.support.tables import HandMadeTable

TOKEN = "timeline-secret"


@dataclass
class ServerProcess:
    root: Path
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> TimelineEndpoint:
        return TimelineEndpoint(f"http://127.0.0.1:{self.port}/v1/hoodie", TOKEN, read_timeout_s=5)

    def start(self) -> None:
        module = "tests.integration.timeline_server.serve"
        self.process = subprocess.Popen([sys.executable, "-m", module, str(self.root), str(self.port), TOKEN])
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                self.get("health")
                return
            except httpx.HTTPError:
                assert self.process.poll() is None
                time.sleep(0.05)
        raise AssertionError("the timeline server did not come up")

    def get(self, path: str, **params: str | int) -> httpx.Response:
        """Ask the server. With TLS at hand httpx would read all certificates for each question: 40 ms of computing."""
        headers = {"Authorization": f"Bearer {TOKEN}"}
        return httpx.get(f"{self.endpoint.url}/timeline/{path}", params=params, headers=headers, verify=False)

    def kill(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.process = None

    def pause(self) -> None:
        pause(self.process.pid)

    def resume(self) -> None:
        resume(self.process.pid)

    def calls(self) -> dict[str, float]:
        lines = [line.rsplit(" ", 1) for line in self.get("metrics").text.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, value in lines}


@pytest.fixture(scope="session")
def server_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path_factory.mktemp("lakes"))
    yield process
    process.kill()


@pytest.fixture
def server(server_process: ServerProcess) -> ServerProcess:
    """One process serves all tests; one that a test killed is started again."""
    if server_process.process is None:
        server_process.start()
    return server_process


@pytest.fixture
def lake(server_process: ServerProcess) -> Path:
    return Path(tempfile.mkdtemp(dir=server_process.root))


@pytest.fixture
def table(lake: Path) -> HandMadeTable:
    return HandMadeTable.create(lake / "orders")
