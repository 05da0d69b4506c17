"""A job that is a process of this machine: its output goes to the task's log, a mark in its arguments finds it.

The mark finds the whole family (shell, launcher, JVM, Python), also when the process that started it is gone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_lake_provider.errors import EngineError
from airflow_lake_provider.job_contract import Submitter

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

log = logging.getLogger(__name__)

KILL_PATIENCE_S = 10.0
_PAUSE_S = 0.05
PROC = Path("/proc")


class LocalProcess:
    """A process with its output. Started by the task's main thread; any thread may end it by its mark."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
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
                text=True,
                errors="replace",
                env=None if env is None else dict(env),
            )
        except OSError as error:
            raise EngineError(f"cannot run {command[0]}: {error}; is it on the worker's PATH?") from error
        return cls(process)

    def follow(self) -> int:
        """Log the output line by line until the process ends; return its exit code."""
        output = self._process.stdout
        if output is not None:
            with output:
                for line in output:
                    log.info("%s", line.rstrip())
        return self._process.wait()

    def kill(self) -> None:
        """Kill this process alone, for machines without /proc."""
        self._process.kill()


def kill_marked(mark: str, patience_s: float = KILL_PATIENCE_S) -> int:
    """Kill -9 every process of this machine with `mark` among its arguments; return how many there were.

    Not a gentler signal: a JVM that is asked to end goes on writing meanwhile. Raises EngineError when one lives on.
    """
    killed: set[int] = set()
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
