"""What the process of the manager's loop does: it runs the loop and watches tables until its parent's end."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from airflow_lake_provider.manager.loop.loop_process import END_LINE, END_S, REPORT_EVERY_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_lake_provider.manager.api.services import ManagerServices

log = logging.getLogger(__name__)

_STDIN = 0
_CHECK_PARENT_S = 1.0


class Parent:
    """The parent at the other end of two pipes. Made before all else, so that the process never outlives its parent."""

    def __init__(self, reports: int) -> None:
        self._reports = reports
        self._lock = threading.Lock()
        self._on_line: Callable[[bytes], None] = lambda _line: None
        self._on_end: Callable[[], None] = lambda: os._exit(0)
        self._ended = threading.Event()
        threads = (self._read, self._watch, self._end)
        for number, target in enumerate(threads):
            threading.Thread(target=target, name=f"lake-parent-{number}", daemon=True).start()

    def listen(self, on_line: Callable[[bytes], None], on_end: Callable[[], None]) -> None:
        """Call `on_line` for each line from now on, and `on_end` when the parent has ended or wants this to end."""
        with self._lock:
            self._on_line = on_line
            self._on_end = on_end

    def report(self, line: bytes) -> None:
        """Send a line. Raises OSError when the parent is gone."""
        os.write(self._reports, line)

    def _read(self) -> None:
        rest = b""
        while content := _read_some():
            *lines, rest = (rest + content).split(b"\n")
            with self._lock:
                for line in lines:
                    if line == END_LINE:
                        self._ended.set()
                        return
                    self._on_line(line)
        self._ended.set()

    def _watch(self) -> None:
        parent = os.getppid()
        while os.getppid() == parent:
            if self._ended.wait(_CHECK_PARENT_S):
                return
        self._ended.set()

    def _end(self) -> None:
        self._ended.wait()
        # What hangs must not keep the process.
        timer = threading.Timer(END_S, os._exit, (1,))
        timer.daemon = True
        timer.start()
        self._on_end()


def _read_some() -> bytes:
    try:
        return os.read(_STDIN, 65_536)
    except OSError:
        return b""


async def serve(services: ManagerServices, parent: Parent) -> None:
    """Run loop and timelines until the parent ends; then save what is known."""
    ending = asyncio.Event()
    event_loop = asyncio.get_running_loop()

    def end() -> None:
        event_loop.call_soon_threadsafe(ending.set)

    parent.listen(lambda line: _obey(services, line), end)
    jobs = [
        asyncio.create_task(services.timeline_server.run(), name="lake-timeline-server"),
        asyncio.create_task(services.loop.run(), name="lake-manager-loop"),
        asyncio.create_task(_report(services, parent), name="lake-report"),
    ]
    waiting = asyncio.create_task(ending.wait())
    try:
        done, _ = await asyncio.wait((waiting, *jobs), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for job in (waiting, *jobs):
            job.cancel()
        for job in jobs:
            with suppress(asyncio.CancelledError):
                await job
    for job in done - {waiting}:
        job.result()  # its error ends the process


def _obey(services: ManagerServices, line: bytes) -> None:
    if not line:
        services.loop.wake()
        return
    try:
        table_ids = json.loads(line)["postpone"]
        services.loop.postpone(table_ids)
    except Exception:  # the outermost call of this thread: such tables are evaluated once more
        log.exception("silent tables are evaluated, because that they are silent cannot be recorded")


async def _report(services: ManagerServices, parent: Parent) -> None:
    while True:
        await asyncio.to_thread(parent.report, services.loop.status().to_line())
        await asyncio.sleep(REPORT_EVERY_S)
