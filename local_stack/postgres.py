"""A real PostgreSQL server on a free loopback port, in a folder of its own.

`python -m local_stack.postgres` makes sure that the server's programs are there: it installs Debian's package where
that is possible, and otherwise prints what to do. The server refuses to run as root; then it runs as `postgres`.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from local_stack.processes import free_port, wait_until


def find_programs() -> Path | None:
    """Return the folder of `initdb` and `pg_ctl`, the newest installed version's."""
    on_path = shutil.which("pg_ctl")
    if on_path:
        return Path(on_path).resolve().parent
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"), key=lambda path: int(path.parts[4]))
    return installed[-1].parent if installed else None


def install() -> Path:
    """Return the programs' folder, installing Debian's package if it is missing."""
    found = find_programs()
    if found is not None:
        return found
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise SystemExit("PostgreSQL's server programs are missing: install your system's postgresql package")
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update", "-qq"], check=True, env=env)
    subprocess.run(
        ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "postgresql"],
        check=True,
        env=env,
        stdout=subprocess.DEVNULL,
    )
    found = find_programs()
    if found is None:
        raise SystemExit("the postgresql package has no pg_ctl where it is expected")
    return found


@dataclass
class LocalPostgres:
    """One server with one database `airflow`."""

    port: int = field(default_factory=free_port)
    folder: Path | None = None
    network: str = ""
    """Of this machine, with its address there, as `10.0.0.1/24`: connections from there need the user's password."""

    @property
    def url(self) -> str:
        return self.url_of("airflow")

    def url_of(self, database: str) -> str:
        return f"postgresql+psycopg2://airflow@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Start it with an empty database; after `kill` with what was committed."""
        is_new = self.folder is None
        if is_new:
            self._make_folder()
        addresses = ",".join(filter(None, ("127.0.0.1", self.network.partition("/")[0])))
        options = f"-p {self.port} -c listen_addresses={addresses} -c max_connections=200 -k {self.folder}"
        self._control("-o", options, "-l", f"{self.folder}/server.log", "-w", "start")
        if is_new:
            self.create_database("airflow")

    def _make_folder(self) -> None:
        # The postgres user must be able to enter the folder; a checkout below /root would keep it out.
        self.folder = Path(tempfile.mkdtemp(prefix="lake-postgres-", dir="/tmp" if os.geteuid() == 0 else None))
        user = self._give_folder_away()
        self._run([str(install() / "initdb"), "-A", "trust", "-U", "airflow", "-D", str(self.folder / "data")], user)
        if self.network:
            with (self.folder / "data" / "pg_hba.conf").open("a", encoding="utf-8") as rules:
                rules.write(f"host all all {self.network} scram-sha-256\n")

    def _control(self, *arguments: str) -> None:
        command = [str(install() / "pg_ctl"), "-D", f"{self.folder}/data", *arguments]
        self._run(command, "postgres" if os.geteuid() == 0 else None)

    def kill(self) -> None:
        """Kill -9 the server and the process of each connection, as the crash of a machine does."""
        assert self.folder is not None
        found = self._signal(signal.SIGKILL)
        # What it shares with the next one is free when all have ended.
        wait_until(lambda: not any(_is_alive(pid) for pid in found), 30, "the end of PostgreSQL")
        # To the next one a zombie, whose parent has not asked for its end yet, seems to run.
        for lock in (self.folder / "data" / "postmaster.pid", self.folder / f".s.PGSQL.{self.port}.lock"):
            lock.unlink(missing_ok=True)

    def pause(self) -> None:
        """Stop all of its processes, as a machine that hangs: sockets stay open, and new connections wait."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let them go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> list[int]:
        """Send a signal to the server and the process of each connection; return them."""
        assert self.folder is not None
        server = int((self.folder / "data" / "postmaster.pid").read_text().split()[0])
        # Listed before the server is gone, which they are the children of.
        found = [server, *_children_of(server)]
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return found

    def create_database(self, name: str, template: str = "template1") -> str:
        """Create a database as a copy of another one without connections; return its URL."""
        command = [str(install() / "createdb"), "-h", "127.0.0.1", "-p", str(self.port), "-U", "airflow"]
        self._run([*command, "-T", template, name], "postgres" if os.geteuid() == 0 else None)
        return self.url_of(name)

    def stop(self) -> None:
        if self.folder is None:
            return
        self._control("-m", "immediate", "-w", "stop")
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder = None

    def query(self, statement: str, database: str = "airflow") -> list[str]:
        """Return the rows that `psql` prints, columns separated by `|`. Raises RuntimeError."""
        command = [str(install() / "psql"), "-h", "127.0.0.1", "-p", str(self.port), "-U", "airflow", "-At"]
        run = subprocess.run([*command, "-c", statement, database], capture_output=True, text=True, check=False)
        if run.returncode:
            raise RuntimeError(f"psql failed: {run.stderr[-2000:]}")
        return run.stdout.splitlines()

    def _give_folder_away(self) -> str | None:
        if os.geteuid() != 0 or self.folder is None:
            return None
        entry = pwd.getpwnam("postgres")
        os.chown(self.folder, entry.pw_uid, entry.pw_gid)
        return "postgres"

    def _run(self, command: list[str], user: str | None) -> None:
        result = subprocess.run(
            command,
            user=user,
            group=user,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        if result.returncode:
            raise RuntimeError(f"{command[0]} failed: {result.stdout[-2000:]}{result.stderr[-2000:]}")


def _children_of(parent: int) -> list[int]:
    return [pid for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))) if _stat_of(pid)[1:2] == [str(parent)]]


def _is_alive(pid: int) -> bool:
    return _stat_of(pid)[:1] not in ([], ["Z"])


def _stat_of(pid: int) -> list[str]:
    """Return the fields of a process behind its name: its state, its parent, and so on; none when it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


if __name__ == "__main__":
    sys.stdout.write(f"{install()}\n")
