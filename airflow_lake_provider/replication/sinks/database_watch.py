"""Ends the wait for a PostgreSQL that hangs: its kernel still confirms what it gets, so no time-out of TCP passes.

The server's own time-outs stop with it. So while a connection is in use, a second one is tried now and then; where the
server does not answer that either, the first one is shut, and the call that waits for it fails. A statement that lasts
longer than the server was asked to let it is ended in the same way: a server may send notices without an end.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_lake_provider.replication.sinks.database_columns import STATEMENT_SINCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow_lake_provider.replication.sinks.database_columns import Waits


class ServerWatch:
    """Watches the connections of one engine while they are in use. `answers` says whether the server still does."""

    def __init__(self, waits: Waits, answers: Callable[[], bool]) -> None:
        self._waits = waits
        self._answers = answers
        self._used: dict[int, threading.Event] = {}
        self.problem = ""
        """Why a connection was shut; empty when none was."""

    def begin(self, connection: Any, record: Any, *_: object) -> None:
        """Watch a connection from now on, unless that has begun."""
        if id(connection) in self._used:
            return
        # SQLAlchemy asks a new connection something before anyone may listen.
        record.info[STATEMENT_SINCE_S] = time.monotonic()
        done = self._used[id(connection)] = threading.Event()
        watched = (connection, record.info, done)
        threading.Thread(target=self._watch, args=watched, name="lake-database-watch", daemon=True).start()

    def end(self, connection: Any, *_: object) -> None:
        """Watch it no longer."""
        done = self._used.pop(id(connection), None)
        if done is not None:
            done.set()

    def _watch(self, connection: Any, info: Mapping[Any, Any], done: threading.Event) -> None:
        began_s = time.monotonic()
        while not (done.wait(self._waits.connect_s) or connection.closed):
            lasted_s = time.monotonic() - info.get(STATEMENT_SINCE_S, time.monotonic())
            if lasted_s > self._waits.statement_s + self._waits.connect_s:
                problem = f"the server has not ended a statement for {lasted_s:.0f} s (statement_timeout_s)"
            elif not self._answers() and not done.is_set():
                problem = (
                    f"the server has not answered for {time.monotonic() - began_s:.0f} s, and answers no new "
                    "connection either (timeout_s)"
                )
            else:
                continue
            self.problem = problem
            with suppress(Exception), closing(socket.socket(fileno=os.dup(connection.fileno()))) as wire:
                wire.shutdown(socket.SHUT_RDWR)
            return


def watch_engine(engine: sa.Engine, waits: Waits) -> ServerWatch:
    """Watch all connections of an engine of PostgreSQL from now on."""
    arguments, settings = engine.dialect.create_connect_args(engine.url)

    def answers() -> bool:
        began_s = time.monotonic()
        try:
            dbapi: Any = engine.dialect.loaded_dbapi
            settings.setdefault("connect_timeout", max(2, int(waits.connect_s)))
            dbapi.connect(*arguments, **settings).close()
        except Exception:  # noqa: BLE001 - a refusal is an answer: another one takes longer
            return time.monotonic() - began_s < waits.connect_s * 0.9
        return True

    def note_begin(connection: sa.Connection, *_: object) -> None:
        connection.info[STATEMENT_SINCE_S] = time.monotonic()

    def note_end(connection: sa.Connection, *_: object) -> None:
        connection.info.pop(STATEMENT_SINCE_S, None)

    watch = ServerWatch(waits, answers)
    sa.event.listen(engine, "connect", watch.begin, insert=True)
    sa.event.listen(engine, "checkout", watch.begin)
    sa.event.listen(engine, "checkin", watch.end)
    sa.event.listen(engine, "before_cursor_execute", note_begin)
    sa.event.listen(engine, "after_cursor_execute", note_end)
    return watch
