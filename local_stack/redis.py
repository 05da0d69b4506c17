"""A Redis on the loopback address, as the broker of Airflow's CeleryExecutor.

It is Debian's, unpacked below `.work` and not installed. `python -m local_stack.redis` fetches it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from local_stack.debian_packages import DebianPackages, libraries_of
from local_stack.gateway import SUITE
from local_stack.processes import ServerProcess, SingleServer, accepts_connections, free_port, start, wait_until

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / ".work" / "redis"
PACKAGES = (
    "redis-tools", "libhiredis0.14", "liblua5.1-0", "lua-cjson", "lua-bitop", "libjemalloc2", "liblzf1", "libatomic1",
)  # fmt: skip
"""The server, which is in the package of the tools, and the libraries that a machine may lack."""


def unpack() -> Path:
    """Return the folder of the server's files; fetch them if they are missing. Raises PackagesMissingError."""
    return DebianPackages(WORK.resolve(), SUITE).unpack(PACKAGES)


@dataclass
class LocalRedis(SingleServer):
    """One server, which keeps nothing on disk."""

    folder: Path
    port: int = field(default_factory=free_port)
    server: ServerProcess | None = None

    @property
    def address(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start it and wait until clients can connect. Raises PackagesMissingError, NotReadyError."""
        programs = unpack()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.server = start(
            "redis",
            [
                str(programs / "usr" / "bin" / "redis-server"), "--bind", "127.0.0.1", "--port", str(self.port),
                "--save", "", "--appendonly", "no",
            ],
            self.folder / "redis.log",
            env=os.environ | libraries_of(programs),
            cwd=self.folder,
        )  # fmt: skip
        wait_until(lambda: accepts_connections(self.port), 30, "Redis", [self.server])


if __name__ == "__main__":
    print(unpack())
