"""Sees every Spark driver of the provider that lives on this machine, from the outside: which ran when, for what."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

INTERVAL_S = 0.1
YOUNG_S = 60.0
"""For so long a new process may still become a JVM; older ones are read only when they are drivers."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Driver:
    """One driver's JVM. `name` is the job's (`lake-<service>-<table id>`); times are seconds since the boot."""

    pid: int
    start_ticks: int
    name: str
    last_seen_s: float

    @property
    def began_s(self) -> float:
        return self.start_ticks / _TICKS_PER_S

    def __str__(self) -> str:
        return f"pid {self.pid} of {self.name} from {self.began_s:.2f} to {self.last_seen_s:.2f}"


class DriverWatch:
    """Reads /proc ten times a second for drivers whose request lies below a folder of job files."""

    def __init__(self, job_folder: Path) -> None:
        self._folder = str(job_folder).encode()
        self._known: dict[tuple[int, int], Driver | None] = {}
        self._born_s: dict[int, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="driver-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def drivers(self, table_id: str) -> list[Driver]:
        """Return all drivers of a table so far, also the dead."""
        return [driver for driver in list(self._known.values()) if driver and driver.name.endswith(f"-{table_id}")]

    def living(self, table_id: str) -> list[Driver]:
        return [driver for driver in self.drivers(table_id) if is_running(driver.pid, driver.start_ticks)]

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL_S):
            now_s = time.monotonic()
            pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
            self._born_s = {pid: self._born_s.get(pid, now_s) for pid in pids}
            drivers = {driver.pid for driver in self._known.values() if driver is not None}
            for pid in pids:
                if pid in drivers or now_s - self._born_s[pid] < YOUNG_S:
                    self._see(pid)

    def _see(self, pid: int) -> None:
        fields = stat_fields(pid)
        if len(fields) < 20 or fields[0] in "ZX":
            return
        key = (pid, int(fields[19]))
        if key not in self._known:
            arguments = _arguments(pid)
            # A process that is only now becoming a JVM is read again.
            if not arguments or not arguments[0].endswith(b"java"):
                return
            self._known[key] = self._recognise(key, int(fields[1]), arguments)
        driver = self._known[key]
        if driver is not None:
            driver.last_seen_s = time.clock_gettime(time.CLOCK_BOOTTIME)

    def _recognise(self, key: tuple[int, int], parent: int, arguments: Sequence[bytes]) -> Driver | None:
        is_driver = b"org.apache.spark.deploy.SparkSubmit" in arguments
        is_launcher = b"org.apache.spark.launcher.Main" in arguments
        if not is_driver or is_launcher or b"--name" not in arguments or not arguments[-1].startswith(self._folder):
            return None
        # A JVM that starts a command seems two of itself for a moment.
        if any(driver is not None and driver.pid == parent for driver in self._known.values()):
            return None
        name = arguments[arguments.index(b"--name") + 1].decode()
        return Driver(*key, name, time.clock_gettime(time.CLOCK_BOOTTIME))


def find_overlaps(drivers: Sequence[Driver]) -> list[str]:
    """Return every pair of drivers of one job that lived at the same time."""
    return [
        f"{first} next to {second}"
        for first, second in combinations(drivers, 2)
        if first.name == second.name
        and first.began_s < second.last_seen_s - INTERVAL_S
        and second.began_s < first.last_seen_s - INTERVAL_S
    ]


def stat_fields(pid: int) -> list[str]:
    """Return what follows the command's name in /proc/<pid>/stat: state, parent, group, session, ...; or nothing."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def is_running(pid: int, start_ticks: int) -> bool:
    fields = stat_fields(pid)
    return len(fields) > 19 and fields[0] not in "ZX" and int(fields[19]) == start_ticks


def parent_of(pid: int) -> int | None:
    fields = stat_fields(pid)
    return int(fields[1]) if fields else None


def members_of_session(session: int) -> list[int]:
    """Return the processes of a session, whatever groups they are in."""
    others = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
    return [pid for pid in others if stat_fields(pid)[3:4] == [str(session)]]


def _arguments(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    except OSError:
        return []


def kill_all(pids: list[int]) -> bool:
    """Kill -9 each; True when at least one was there."""
    killed = False
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
            killed = True
        except ProcessLookupError:
            continue
    return killed
