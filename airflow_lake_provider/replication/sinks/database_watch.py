"""Ends the wait for a PostgreSQL that hangs: its kernel still confirms what it gets, so no time-out of TCP passes.

The server's own time-outs stop with it. So while a connection is in use, a second one is tried now and then; where the
server does not answer that either, the first one is shut, and the call that waits for it fails.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

if TYPE_CHECKING:
    from collections.abc import Callable


class ServerWatch:
    """Watches the connections of one engine while they are in use. `answers` says whether the server still does."""

    def __init__(self, interval_s: float, answers: Callable[[], bool]) -> None:
        self._interval_s = interval_s
        self._answers = answers
        self._used: dict[int, threading.Event] = {}
        self.problem = ""
        """Why a connection was shut; empty when none was."""

    def begin(self, connection: Any, *_: object) -> None:
        """Watch a connection from now on."""
        done = self._used[id(connection)] = threading.Event()
        threading.Thread(target=self._watch, args=(connection, done), name="lake-database-watch", daemon=True).start()

    def end(self, connection: Any, *_: object) -> None:
        """Watch it no longer."""
        done = self._used.pop(id(connection), None)
        if done is not None:
            done.set()

    def _watch(self, connection: Any, done: threading.Event) -> None:
        began_s = time.monotonic()
        while not done.wait(self._interval_s):
            if self._answers() or done.is_set():
                continue
            self.problem = (
                f"the server has not answered for {time.monotonic() - began_s:.0f} s, and answers no new connection "
                "either (timeout_s)"
            )
            with suppress(Exception), closing(socket.socket(fileno=os.dup(connection.fileno()))) as wire:
                wire.shutdown(socket.SHUT_RDWR)
            return


def watch_engine(engine: sa.Engine, timeout_s: float) -> ServerWatch:
    """Watch all connections of an engine of PostgreSQL from now on."""
    arguments, settings = engine.dialect.create_connect_args(engine.url)

    def answers() -> bool:
        began_s = time.monotonic()
        try:
            dbapi: Any = engine.dialect.loaded_dbapi
            settings.setdefault("connect_timeout", max(2, int(timeout_s)))
            dbapi.connect(*arguments, **settings).close()
        except Exception:  # noqa: BLE001 - a refusal is an answer: another one takes longer
            return time.monotonic() - began_s < timeout_s * 0.9
        return True

    watch = ServerWatch(timeout_s, answers)
    sa.event.listen(engine, "checkout", watch.begin)
    sa.event.listen(engine, "checkin", watch.end)
    return watch
