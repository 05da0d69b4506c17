"""An S3-compatible store, on the loopback address unless it gets another: moto's server, its objects in memory.

`python -m local_stack.object_store` starts one, prints its address and runs until it is interrupted.
"""

from __future__ import annotations

import sys
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

from local_stack.processes import ServerProcess, SingleServer, accepts_connections, free_port, start, wait_until

ROOT = Path(__file__).parent.parent
SERVER = ROOT / ".venv-spark" / "bin" / "moto_server"
START_TIMEOUT_S = 60


class ServerMissingError(RuntimeError):
    """moto is not installed; the message names the remedy."""


@dataclass
class HttpStore(SingleServer):
    """A store of one process that answers by HTTP. It keeps its port over a kill and a second start."""

    folder: Path
    port: int = field(default_factory=free_port)
    server: ServerProcess | None = None
    host: str = "127.0.0.1"

    @property
    def endpoint(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def address(self) -> str:
        return self.endpoint


class S3Store(HttpStore):
    """One that speaks S3's protocol, without signatures."""

    @property
    def storage_options(self) -> dict[str, str]:
        """Return the options of `open_storage`; the server accepts any keys."""
        return {
            "endpoint_override": self.endpoint,
            "scheme": "http",
            "access_key": "local",
            "secret_key": "local",
            "region": "us-east-1",
        }

    def make_bucket(self, name: str) -> None:
        request = urllib.request.Request(f"{self.endpoint}/{name}", data=b"", method="PUT")
        with urllib.request.urlopen(request, timeout=10):
            return


class LocalObjectStore(S3Store):
    """One server; it loses its objects with a kill."""

    def start(self) -> None:
        """Start it and wait until it answers. Raises ServerMissingError, NotReadyError."""
        if not SERVER.exists():
            raise ServerMissingError(f"{SERVER} is missing: run `make install`")
        command = [str(SERVER), "-H", self.host, "-p", str(self.port)]
        self.server = start("object-store", command, self.folder / "object_store.log")
        wait_until(lambda: accepts_connections(self.port, self.host), START_TIMEOUT_S, "object store", [self.server])


def main() -> int:
    try:
        LocalObjectStore(ROOT / ".work" / "object_store").serve()
    except ServerMissingError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
