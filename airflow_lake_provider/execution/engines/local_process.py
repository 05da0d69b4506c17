"""A job that is a process of this machine: its output goes to the task's log, a mark in its arguments finds it.

The mark finds the whole family (shell, launcher, JVM, Python), even when the process that started it has ended.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import selectors
import signal
import socket
import subprocess
import time
from collections import deque
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from airflow_lake_provider.errors import EngineAwayError, EngineError
from airflow_lake_provider.execution.engines.engine import Handle, Login, find_failed_login, find_last_exception
from airflow_lake_provider.job_contract import EXIT_NO_CLUSTER, Submitter

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from airflow_lake_provider.execution.engines.engine import Death, EngineJob

log = logging.getLogger(__name__)

KILL_PATIENCE_S = 10.0
TERM_PATIENCE_S = 12.0
"""For a Spark driver's Python, which ends its JVM while it does not hold the table's lock (`driver/shutdown.py`)."""
LINGER_S = 5.0
"""How long to read the output after the process has ended: a child that outlives it may hold it open indefinitely."""
_PAUSE_S = 0.05
_POLL_INTERVAL_S = 0.2
_CHUNK_BYTES = 65_536
_TAIL_LINES = 200
"""So many of the last lines may say why a job died: an exception with its causes."""


class LocalProcess:
    """A process with its output. Started by the task's main thread; any thread may end it by its mark."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.tail: deque[str] = deque(maxlen=_TAIL_LINES)
        """The last lines of the output that `follow` has logged."""

    @classmethod
    def start(cls, command: Sequence[str], env: Mapping[str, str] | None = None) -> LocalProcess:
        """Start a command, without a shell. Raises EngineError when there is no such program."""
        try:
            process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                bufsize=0,
                env=None if env is None else dict(env),
            )
        except OSError as error:
            # sudo, by which Airflow runs tasks with `run_as_user`.
            by_sudo = ", which sudo's `secure_path` replaces" if "SUDO_USER" in os.environ else ""
            raise EngineError(f"cannot run {command[0]}: {error}; is it on the worker's PATH{by_sudo}?") from error
        return cls(process)

    def follow(self, linger_s: float = LINGER_S) -> int:
        """Log the output line by line until the process ends, its children's `linger_s` longer; return its code."""
        output = self._process.stdout
        if output is not None:
            with output, selectors.DefaultSelector() as selector:
                selector.register(output, selectors.EVENT_READ)
                self._log_lines(output.fileno(), selector, linger_s)
        return self._process.wait()

    def _log_lines(self, output: int, selector: selectors.BaseSelector, linger_s: float) -> None:
        rest = b""
        until = math.inf
        while time.monotonic() < until:
            if until == math.inf and self._process.poll() is not None:
                until = time.monotonic() + linger_s
            if not selector.select(_POLL_INTERVAL_S):
                continue
            chunk = os.read(output, _CHUNK_BYTES)
            if not chunk:
                break
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._log_line(line)
        if rest:
            self._log_line(rest)

    def _log_line(self, line: bytes) -> None:
        self.tail.append(line.decode(errors="replace").rstrip())
        log.info("%s", self.tail[-1])

    def kill(self) -> None:
        """Kill this process alone."""
        self._process.kill()


def kill_marked(mark: str, patience_s: float = KILL_PATIENCE_S) -> int:
    """End every process of this machine with `mark` among its arguments; return how many there were.

    A Python driver gets a SIGTERM and `TERM_PATIENCE_S`: it ends its JVM where no lock file is left behind. All others,
    and what is left then, get a SIGKILL: a JVM continues to write after a SIGTERM. Raises EngineError when one still
    runs.
    """
    killed = _end_drivers(mark)
    deadline = time.monotonic() + patience_s
    # Repeatedly: a process on the list may just have started the next one.
    while found := _find_processes(mark):
        if time.monotonic() > deadline:
            raise EngineError(f"processes {', '.join(map(str, found))} of job {mark} do not end")
        for process in found.values():
            _send(process, signal.SIGKILL)
        killed.update(found)
        time.sleep(_PAUSE_S)
    return len(killed)


def _end_drivers(mark: str) -> set[int]:
    deadline = time.monotonic() + TERM_PATIENCE_S
    signalled: set[int] = set()
    while time.monotonic() < deadline:
        drivers = {pid: process for pid, process in _find_processes(mark).items() if _is_python(process)}
        if not drivers:
            break
        for pid in drivers.keys() - signalled:
            _send(drivers[pid], signal.SIGTERM)
        signalled.update(drivers)
        time.sleep(_PAUSE_S)
    return signalled


def _send(process: psutil.Process, number: signal.Signals) -> None:
    # psutil sends nothing to another process that has got the same id since.
    with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        process.send_signal(number)


def _is_python(process: psutil.Process) -> bool:
    command: list[str] = process.info["cmdline"]
    return os.path.basename(command[0]).startswith("python")


def find_marked(mark: str) -> Iterator[int]:
    """Find the running processes of this machine with `mark` among their arguments."""
    yield from _find_processes(mark)


def _find_processes(mark: str) -> dict[int, psutil.Process]:
    # Without arguments: another user's process, or one that has just ended.
    return {
        process.pid: process
        for process in psutil.process_iter(["cmdline"])
        if process.pid != os.getpid() and mark in (process.info["cmdline"] or ())
    }


def is_of_this_host(host: str) -> bool:
    """Whether a job was started on this machine."""
    return host == socket.gethostname()


def this_submitter() -> Submitter | None:
    """Describe this process to the driver, so that it ends with it; None where /proc does not show it."""
    start_ticks = find_start_ticks(os.getpid())
    return None if start_ticks is None else Submitter(socket.gethostname(), os.getpid(), start_ticks)


# --- The shared part of engines whose job is a process of the worker's machine, with the request's path in its
# arguments

FAMILY_PATIENCE_S = 5.0
_END_CHECK_PAUSE_S = 0.1


class LocalJob:
    """A job that ends with the process that started it, so it has no external id."""

    def __init__(self) -> None:
        self._process: LocalProcess | None = None
        self._login = Login()

    def start(
        self, job: EngineJob, command: Sequence[str], env: Mapping[str, str] | None = None, login: Login | None = None
    ) -> Handle:
        """Start the command, which must contain the request's path. Raises EngineError."""
        self._login = login or Login()
        self._process = LocalProcess.start(command, env)
        return Handle(job)

    def wait(self, handle: Handle) -> Death | None:
        """Log the job's output until it ends; of another process's job, only wait for its end.

        Returns why it ended where that was no good end: a ticket that it did not get, or its last exception. Raises
        EngineAwayError for a driver that got no session, because its cluster did not answer.
        """
        mark = handle.job.request_path
        if self._process is not None:
            code = self._process.follow(FAMILY_PATIENCE_S)
            # Not the verdict: a driver may die after its plan was completed.
            log.log(logging.INFO if code == 0 else logging.WARNING, "%s ended with code %d", handle.job.name, code)
            # A JVM outlives its Python by a moment, or indefinitely, and would continue to write.
            _wait_for_family(mark, FAMILY_PATIENCE_S)
            kill_marked(mark)
            if code == EXIT_NO_CLUSTER:
                raise EngineAwayError(
                    f"{handle.job.name}: Spark's cluster does not answer or is full; the driver's output is above"
                )
            tail = self._process.tail
            return (find_failed_login(tail, self._login) or find_last_exception(tail, code)) if code else None
        if is_of_this_host(handle.job.host):
            _wait_for_family(mark, math.inf)
        return None

    def stop(self, handle: Handle) -> None:
        """Kill the whole family of the job's processes. Raises EngineError when one still runs.

        This cannot reach a driver of another host, and need not: that driver watches its submitter, which ends it
        before it loses its lease.
        """
        if not is_of_this_host(handle.job.host):
            return
        killed = kill_marked(handle.job.request_path)
        if self._process is not None:
            self._process.kill()
        if killed:
            log.info("killed %d processes of %s", killed, handle.job.name)


def _wait_for_family(mark: str, patience_s: float) -> None:
    deadline = time.monotonic() + patience_s
    while any(find_marked(mark)) and time.monotonic() < deadline:
        time.sleep(_END_CHECK_PAUSE_S)


# --- The identity of a process on a machine, so that another process can verify that it has ended

PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A unique process: operating systems reuse ids, and each container numbers its processes from 1."""

    boot_id: str
    """Of the machine's start: another id is another machine, or the same one after a restart."""
    pid_namespace: str
    """Of the container: only there is the process visible."""
    pid: int
    start_ticks: int

    @property
    def is_here(self) -> bool:
        """Whether this process can see the other one, and so verify that it has ended."""
        here = this_process()
        return here is not None and (here.boot_id, here.pid_namespace) == (self.boot_id, self.pid_namespace)

    @property
    def is_alive(self) -> bool:
        """Whether a process that is here still runs; a zombie does not. When unknown, it counts as running."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        fields = _stat_fields(self.pid)
        return fields is None or (fields[0] not in ("Z", "X") and int(fields[19]) == self.start_ticks)

    def kill(self, patience_s: float = KILL_PATIENCE_S) -> bool:
        """Kill -9 a process that is here; return whether it has ended within `patience_s`."""
        deadline_s = time.monotonic() + patience_s
        while self.is_alive:
            if time.monotonic() > deadline_s:
                return False
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, signal.SIGKILL)
            time.sleep(_PAUSE_S)
        return True


def this_process() -> ProcessIdentity | None:
    """Return this process; None where /proc does not show it."""
    start_ticks = find_start_ticks(os.getpid())
    try:
        boot_id = (PROC / "sys" / "kernel" / "random" / "boot_id").read_text(encoding="ascii").strip()
        pid_namespace = os.readlink(PROC / "self" / "ns" / "pid")
    except OSError:
        return None
    return None if start_ticks is None else ProcessIdentity(boot_id, pid_namespace, os.getpid(), start_ticks)


def identity_to_text(identity: ProcessIdentity) -> str:
    """Return a process as JSON."""
    return json.dumps(asdict(identity))


def identity_from_text(text: str) -> ProcessIdentity | None:
    """Return what `identity_to_text` wrote; None when the text is incomplete."""
    try:
        body = json.loads(text)
        return ProcessIdentity(
            str(body["boot_id"]), str(body["pid_namespace"]), int(body["pid"]), int(body["start_ticks"])
        )
    except (ValueError, KeyError, TypeError):
        return None


def find_start_ticks(pid: int) -> int | None:
    """Return when a process started, in clock ticks since the machine's start; None where /proc does not show it."""
    fields = _stat_fields(pid)
    return None if fields is None else int(fields[19])


def _stat_fields(pid: int) -> list[str] | None:
    """Return what follows the command's name in /proc/<pid>/stat; None when that cannot be read."""
    try:
        # The name is in parentheses and may contain anything; the fields after it are fixed.
        fields = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return fields if len(fields) > 19 else None
