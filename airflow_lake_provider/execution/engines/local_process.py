"""A job that is a process of this machine: its output goes to the task's log, a mark in its arguments finds it.

The mark finds the whole family (shell, launcher, JVM, Python), also when the process that started it is gone.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import selectors
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_lake_provider.errors import EngineError
from airflow_lake_provider.execution.engines.engine import Handle
from airflow_lake_provider.job_contract import Submitter

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from airflow_lake_provider.execution.engines.engine import EngineJob

log = logging.getLogger(__name__)

KILL_PATIENCE_S = 10.0
TERM_PATIENCE_S = 12.0
"""For a Spark driver's Python, which ends its JVM at a moment without the table's lock (`spark_jobs/driver_end.py`)."""
LINGER_S = 5.0
"""How long output is followed when its process has ended: a child that outlives it may hold it open for good."""
_PAUSE_S = 0.05
_LOOK_EVERY_S = 0.2
_CHUNK_BYTES = 65_536
PROC = Path("/proc")


class LocalProcess:
    """A process with its output. Started by the task's main thread; any thread may end it by its mark."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

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
            raise EngineError(f"cannot run {command[0]}: {error}; is it on the worker's PATH?") from error
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
        rest, until = b"", math.inf
        while time.monotonic() < until:
            if until == math.inf and self._process.poll() is not None:
                until = time.monotonic() + linger_s
            if not selector.select(_LOOK_EVERY_S):
                continue
            chunk = os.read(output, _CHUNK_BYTES)
            if not chunk:
                break
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                log.info("%s", line.decode(errors="replace").rstrip())
        if rest:
            log.info("%s", rest.decode(errors="replace").rstrip())

    def kill(self) -> None:
        """Kill this process alone, for machines without /proc."""
        self._process.kill()


def kill_marked(mark: str, patience_s: float = KILL_PATIENCE_S) -> int:
    """End every process of this machine with `mark` among its arguments; return how many there were.

    A Python driver is asked (SIGTERM) and given `TERM_PATIENCE_S`: it ends its JVM where no lock file is left behind.
    All others, and what is left then, are killed (-9): a JVM that is asked to end goes on writing meanwhile. Raises
    EngineError when one lives on.
    """
    killed = _end_drivers(mark)
    deadline = time.monotonic() + patience_s
    # Again and again: a process that was found may just have started the next one.
    while found := list(find_marked(mark)):
        if time.monotonic() > deadline:
            raise EngineError(f"processes {', '.join(map(str, found))} of job {mark} do not end")
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed.update(found)
        time.sleep(_PAUSE_S)
    return len(killed)


def _end_drivers(mark: str) -> set[int]:
    deadline = time.monotonic() + TERM_PATIENCE_S
    asked: set[int] = set()
    while (drivers := [pid for pid in find_marked(mark) if _is_python(pid)]) and time.monotonic() < deadline:
        for pid in drivers:
            if pid not in asked:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
        asked.update(drivers)
        time.sleep(_PAUSE_S)
    return asked


def _is_python(pid: int, proc: Path = PROC) -> bool:
    try:
        command = (proc / str(pid) / "cmdline").read_bytes().split(b"\0", 1)[0]
    except OSError:
        return False
    return os.path.basename(os.fsdecode(command)).startswith("python")


def find_marked(mark: str, proc: Path = PROC) -> Iterator[int]:
    """Find the living processes with `mark` among their arguments; none where there is no /proc."""
    wanted = os.fsencode(mark)
    for entry in proc.glob("[0-9]*/cmdline"):
        pid = int(entry.parent.name)
        if pid == os.getpid():
            continue
        # Another user's process, or one that is gone meanwhile.
        with contextlib.suppress(OSError):
            if wanted in entry.read_bytes().split(b"\0"):
                yield pid


def is_of_this_host(host: str) -> bool:
    """Whether a job was started on this machine."""
    return host == socket.gethostname()


def this_submitter() -> Submitter | None:
    """Describe this process to the driver, so that it ends with it; None where /proc does not tell."""
    try:
        # The command's name stands in parentheses and may contain anything; the fields after it are fixed.
        after_name = (PROC / "self" / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    return Submitter(host=socket.gethostname(), pid=os.getpid(), start_ticks=int(after_name[19]))


# --- What engines share whose job is a process of the worker's machine, with the request's path among its arguments

FAMILY_PATIENCE_S = 5.0
_END_CHECK_PAUSE_S = 0.1


class LocalJob:
    """A job that ends with the process that started it, so it has no external id."""

    def __init__(self) -> None:
        self._process: LocalProcess | None = None

    def start(self, job: EngineJob, command: Sequence[str], env: Mapping[str, str] | None = None) -> Handle:
        """Start the command, which must hold the request's path. Raises EngineError."""
        self._process = LocalProcess.start(command, env)
        return Handle(job)

    def wait(self, handle: Handle) -> None:
        """Log the job's output until it ends; of another process's job, only wait for its end."""
        mark = handle.job.request_path
        if self._process is not None:
            code = self._process.follow(FAMILY_PATIENCE_S)
            # Not the verdict: a driver may die after its plan was completed.
            log.log(logging.INFO if code == 0 else logging.WARNING, "%s ended with code %d", handle.job.name, code)
            # A JVM outlives its Python by a moment, or for good, and would go on writing.
            _wait_for_family(mark, FAMILY_PATIENCE_S)
            kill_marked(mark)
        elif is_of_this_host(handle.job.host):
            _wait_for_family(mark, math.inf)

    def stop(self, handle: Handle) -> None:
        """Kill the whole family of the job's processes. Raises EngineError when one lives on.

        A driver of another host cannot be reached, and need not be: it watches its submitter, which ends it before it
        loses its lease.
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
