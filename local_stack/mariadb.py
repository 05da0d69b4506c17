"""A real MariaDB server on a free loopback port, in a folder of its own.

It is Debian's, unpacked below `.work` and not installed. `python -m local_stack.mariadb` fetches it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from local_stack.debian_packages import DebianPackages, libraries_of
from local_stack.gateway import SUITE
from local_stack.processes import ServerProcess, accepts_connections, free_port, start, wait_until

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / ".work" / "mariadb"
PACKAGES = ("mariadb-server-core", "mariadb-common", "libaio1", "liburing2", "libpmem1", "libsnappy1v5", "libnuma1")
"""The server, and the libraries that a machine may lack."""
CLIENT_PACKAGES = ("python3-mysqldb", "libmariadb3")
"""`mysqlclient`, which Airflow needs: compiled for the Python of the suite, 3.11."""


def unpack() -> Path:
    """Return the folder of the server's files; fetch them if they are missing. Raises PackagesMissingError."""
    return DebianPackages(WORK.resolve(), SUITE).unpack(PACKAGES)


def client_env() -> dict[str, str]:
    """Return the environment in which this Python finds `mysqlclient`. Raises PackagesMissingError."""
    programs = DebianPackages((WORK / "client").resolve(), SUITE).unpack(CLIENT_PACKAGES)
    modules = WORK / "client" / "modules"
    if not modules.exists():  # alone: Debian's folder may have more than this one
        shutil.copytree(programs / "usr" / "lib" / "python3" / "dist-packages" / "MySQLdb", modules / "MySQLdb")
    return {"PYTHONPATH": os.pathsep.join((str(ROOT), str(modules))), **libraries_of(programs)}


@dataclass
class LocalMariaDb:
    """One server, in an absolute folder, with an empty database `lake` and a user `lake` who may do all."""

    folder: Path
    port: int = field(default_factory=free_port)
    options: Sequence[str] = ()
    server: ServerProcess | None = None

    @property
    def url(self) -> str:
        return f"mysql+pymysql://lake@127.0.0.1:{self.port}/lake?charset=utf8mb4"

    def start(self) -> None:
        """Start it and wait until clients can connect. Raises PackagesMissingError, NotReadyError."""
        programs = unpack()
        self.folder.mkdir(parents=True, exist_ok=True)
        data = self.folder / "data"
        messages = programs / "usr" / "share" / "mysql"
        options = [f"--datadir={data}", f"--lc-messages-dir={messages}", "--no-defaults"]
        command = [str(programs / "usr" / "sbin" / "mariadbd"), options.pop(), *options]
        if os.geteuid() == 0:  # which it refuses without a name
            command.append("--user=root")
        env = os.environ | libraries_of(programs)
        if not data.exists():
            self._make_tables(command, messages, data, env)
        serve = [
            "--bind-address=127.0.0.1", f"--port={self.port}", f"--socket={self.folder}/s", "--skip-name-resolve",
            f"--pid-file={self.folder}/pid", f"--plugin-dir={programs}/usr/lib/mysql/plugin",
            "--innodb-buffer-pool-size=64M", *self.options,
        ]  # fmt: skip
        self.server = start("mariadb", [*command, *serve], self.folder / "mariadb.log", env=env, cwd=self.folder)
        wait_until(lambda: accepts_connections(self.port), 60, "MariaDB", [self.server])

    def _make_tables(self, command: list[str], scripts: Path, data: Path, env: dict[str, str]) -> None:
        """Make the server's own tables, a database and its user, as `mariadb-install-db` does."""
        data.mkdir()
        named = ("mysql_system_tables.sql", "mysql_system_tables_data.sql", "mysql_performance_tables.sql")
        own = (
            "create database lake;\n"
            "create user lake@'%' identified by '';\n"
            "grant all on *.* to lake@'%' with grant option;\n"
        )
        script = "create database mysql;\nuse mysql;\n" + "".join((scripts / name).read_text() for name in named)
        run = subprocess.run(
            [*command, "--bootstrap", "--innodb-buffer-pool-size=64M"],
            input=f"{script}\nflush privileges;\n{own}", env=env, cwd=self.folder, capture_output=True, text=True,
            timeout=300, check=False,
        )  # fmt: skip
        if run.returncode:
            shutil.rmtree(data)
            raise RuntimeError(f"MariaDB's own tables cannot be made: {run.stderr[-2000:]}")

    def stop(self) -> None:
        if self.server is not None:
            self.server.stop()


if __name__ == "__main__":
    print(unpack())
