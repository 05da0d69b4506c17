"""The manager's loop in a process of its own: started, watched, started again and ended by the server next to it.

Python runs one thread of a process at a time, so whatever evaluates tables in an API server makes all of its requests
wait. Leases keep any number of loops apart, so a process that ends, hangs, or runs twice for a moment loses nothing.

The child ends with its parent, however that ends: by a line on its standard input, by the end of that, or because it
has another parent (a process that the parent forked may hold the other end of the pipe). An empty line wakes the loop.
Its standard output says every few seconds how the loop is; its log goes to the parent's standard error.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import select
import signal
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_lake_provider.errors import backoff
from airflow_lake_provider.manager.loop.loop_status import LoopStatus, describe_loop

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

log = logging.getLogger(__name__)

REPORT_EVERY_S = 5.0
FIRST_PAUSE_S = 1.0
MAX_PAUSE_S = 60.0
"""Maximum pause before a process that ended is started again (seconds)."""
STEADY_S = 300.0
"""A process that ran for so long did not fail at its start: the pauses begin again."""
MAX_START_S = 180.0
MAX_SILENT_S = 120.0
"""A process that says nothing for so long hangs, and is killed."""
END_LINE = b"end"
END_S = 10.0
"""For the child to save what it knows and end."""
IDS_IN_LINE = 50
"""A line of so many ids has fewer bytes than a pipe takes whole (PIPE_BUF)."""
MAX_WRITE_S = 1.0
_NOT_READY_S = 60.0
"""After so long without a first word it is a problem that the loop has not begun."""


@dataclass(frozen=True, slots=True)
class _Down:
    since_s: float
    cause: str = ""
    """Empty: it starts for the first time."""


class LoopProcess:
    """Runs a command that serves `loop_child`, again whenever it ends. Safe from any thread."""

    def __init__(
        self, command: Sequence[str], interval_s: float, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._command = tuple(command)
        self._interval_s = interval_s
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._down: _Down | None = None
        self._reported: tuple[float, LoopStatus] | None = None

    async def run(self) -> None:
        """Keep the process running until cancelled; then end it."""
        self._stopping.clear()
        self._down = _Down(self._monotonic_s())
        supervisor = threading.Thread(target=self._supervise, name="lake-loop-process", daemon=True)
        supervisor.start()
        try:
            await asyncio.Event().wait()
        finally:
            self._stopping.set()
            self._hang_up()
            await asyncio.to_thread(self._finish, supervisor)

    @property
    def pid(self) -> int | None:
        """Return the id of the process; None while there is none."""
        process = self._process
        return None if process is None else process.pid

    def wake(self) -> None:
        """Wake the loop: a table was marked."""
        self._write(b"\n")

    def postpone(self, table_ids: Sequence[str]) -> None:
        """Have the loop record that these silent tables have no new commit.

        What does not arrive is evaluated once, because it seems silent.
        """
        deadline_s = self._monotonic_s() + MAX_WRITE_S
        for begin in range(0, len(table_ids), IDS_IN_LINE):
            line = json.dumps({"postpone": list(table_ids[begin : begin + IDS_IN_LINE])}).encode() + b"\n"
            while not self._write(line):
                if self._monotonic_s() > deadline_s:
                    return
                time.sleep(0.01)

    def find_problems(self, sees: Callable[[str], bool]) -> tuple[str, ...]:
        """Return why no loop runs, or what the running one says."""
        down = self._down
        reported = self._reported
        if down is not None:
            down_s = self._monotonic_s() - down.since_s
            if not down.cause and down_s < _NOT_READY_S:
                return ()
            cause = down.cause or "it is still starting"
            return (
                f"the process of the manager's loop has not run for {down_s:,.0f} s ({cause}): this API server "
                "evaluates no table; it starts the process again by itself, and its log has the process's last words",
            )
        if reported is None:
            return ()
        reported_s, status = reported
        age_s = self._monotonic_s() - reported_s
        if age_s > 10 * REPORT_EVERY_S:
            return (
                f"the process of the manager's loop has said nothing for {age_s:,.0f} s: see this API server's log",
            )
        return describe_loop(status, self._interval_s, sees)

    # --- The supervisor's thread

    def _supervise(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            began_s = self._monotonic_s()
            try:
                cause = self._run_once()
            except OSError as error:
                cause = f"it cannot be started: {error}"
            if self._stopping.is_set():
                return
            now_s = self._monotonic_s()
            failures = 1 if now_s - began_s > STEADY_S else failures + 1
            self._down = _Down(now_s if self._down is None else self._down.since_s, cause)
            pause_s = backoff(FIRST_PAUSE_S, failures, MAX_PAUSE_S)
            log.error("the process of the manager's loop is gone (%s); it is started again in %.0f s", cause, pause_s)
            self._stopping.wait(pause_s)

    def _run_once(self) -> str:
        """Run the process until it ends; return why it did."""
        with self._lock:
            if self._stopping.is_set():
                return ""
            process = self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            assert process.stdin is not None
            os.set_blocking(process.stdin.fileno(), False)
        try:
            hangs = self._follow(process)
            return self._end(process, hangs=hangs)
        finally:
            with self._lock:
                self._process = None
            for pipe in (process.stdin, process.stdout):
                with suppress(OSError):
                    assert pipe is not None
                    pipe.close()

    def _follow(self, process: subprocess.Popen[bytes]) -> bool:
        """Take the process's reports until they end; return whether it has to be killed, because it hangs."""
        assert process.stdout is not None
        rest = b""
        patience_s = MAX_START_S
        poll = select.poll()
        poll.register(process.stdout)
        while poll.poll(patience_s * 1000):
            content = os.read(process.stdout.fileno(), 65_536)
            if not content:
                return False
            *lines, rest = (rest + content).split(b"\n")
            for line in lines:
                with suppress(ValueError, TypeError, KeyError):  # not ours: a library printed it
                    self._reported = self._monotonic_s(), LoopStatus.of_line(line)
                    self._down = None
                    patience_s = MAX_SILENT_S
        return not self._stopping.is_set()

    def _end(self, process: subprocess.Popen[bytes], *, hangs: bool) -> str:
        if hangs:
            process.kill()
        try:
            code = process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        if hangs:
            return "it ended: it hung, and was killed"
        return f"it ended with {code if code >= 0 else signal.Signals(-code).name}"

    # --- The child's standard input

    def _write(self, line: bytes) -> bool:
        """Write a line, whole or not; false when the pipe is full."""
        with self._lock:
            if self._process is None or self._process.stdin is None or self._process.stdin.closed:
                return True  # what the loop was to hear it finds in the registry when it begins
            try:
                os.write(self._process.stdin.fileno(), line)
            except BlockingIOError:
                return False
            except OSError:  # it ends just now
                return True
            return True

    def _finish(self, supervisor: threading.Thread) -> None:
        supervisor.join(END_S)
        with self._lock:
            if self._process is not None:
                self._process.kill()
        supervisor.join(END_S)

    def _hang_up(self) -> None:
        self._write(END_LINE + b"\n")
        with self._lock:
            if self._process is not None and self._process.stdin is not None:
                with suppress(OSError):
                    self._process.stdin.close()
