"""PgBouncer before a PostgreSQL of this machine.

It is Debian's, unpacked below `.work` and not installed. `python -m local_stack.pgbouncer` fetches it.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from local_stack.debian_packages import DebianPackages, libraries_of
from local_stack.gateway import SUITE, answers
from local_stack.processes import ServerProcess, free_port, start, wait_until

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / ".work" / "pgbouncer"


def unpack() -> Path:
    """Return the folder of the program; fetch it if it is missing. Raises PackagesMissingError."""
    return DebianPackages(WORK.resolve(), SUITE).unpack(("pgbouncer", "libevent-2.1-7", "libc-ares2"))


@dataclass
class PgBouncer:
    """A pool of connections in transaction mode, as Airflow's own chart sets it, before a PostgreSQL."""

    folder: Path
    postgres_port: int
    database: str
    port: int = field(default_factory=free_port)
    server: ServerProcess | None = None

    def url(self, driver: str) -> str:
        """Return the database's address for a driver of SQLAlchemy's."""
        return f"postgresql+{driver}://airflow@127.0.0.1:{self.port}/{self.database}"

    def start(self) -> None:
        """Start it, also after `kill`."""
        programs = unpack()
        conf = self.folder / "pgbouncer.ini"
        conf.write_text(
            f"[databases]\n{self.database} = host=127.0.0.1 port={self.postgres_port} user=airflow\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {self.port}\nauth_type = any\nunix_socket_dir =\n"
            "pool_mode = transaction\nmax_client_conn = 400\ndefault_pool_size = 20\n"
            "ignore_startup_parameters = extra_float_digits\n",
            encoding="utf-8",
        )
        command = [str(programs / "usr" / "sbin" / "pgbouncer"), str(conf)]
        if os.geteuid() == 0:  # which PgBouncer refuses
            user = "postgres"
            shutil.chown(self.folder, user)
            command = [*command[:1], "-u", user, *command[1:]]
        self.server = start(
            "pgbouncer",
            command,
            self.folder / "pgbouncer.log",
            env=os.environ | libraries_of(programs),
            cwd=self.folder,
        )
        wait_until(lambda: answers(self.port), 30, "PgBouncer", [self.server])

    def kill(self) -> None:
        """Kill -9; clients lose their connections."""
        if self.server is not None:
            self.server.kill()


if __name__ == "__main__":
    print(unpack())
