"""Sessions of the manager on Airflow's metadata database, by connections of their own.

Airflow 3.3 writes its audit log on the API server's event loop. While all connections of its pool are in use by
requests that need that loop to end, the loop waits for one of them: the server answers none until the pool's time-out
(30 s), and then the next request is the same. The manager's threads therefore never take connections of that pool.
"""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING

from airflow import settings as airflow_process
from airflow.utils.orm_event_handlers import setup_event_handlers
from sqlalchemy.orm import sessionmaker

from airflow_lake_provider.errors import StorageError

if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy.orm import Session


def open_session() -> Session:
    """Return a new session. Raises StorageError in a process that has no access to Airflow's metadata database."""
    return _session_maker()()


@cache
def _session_maker() -> sessionmaker[Session]:
    # As Airflow makes its own: what it does with a session of ours must find the same behaviour.
    return sessionmaker(_make_engine(), autoflush=False, expire_on_commit=False)


def _make_engine() -> Engine:
    """Return an engine with the settings of Airflow's own, pool size and overflow included."""
    airflow_engine = airflow_process.engine
    if airflow_engine is None:
        raise StorageError("Airflow's metadata database is not configured in this process")
    if airflow_engine.dialect.name == "sqlite":
        return airflow_engine  # its lock, not its pool, is what all wait for
    engine = airflow_process.create_metadata_engine(
        airflow_engine.url.render_as_string(hide_password=False),
        engine_args=airflow_process.prepare_engine_args(),  # type: ignore[no-untyped-call]
        connect_args=airflow_process._get_connect_args("sync"),
    )
    setup_event_handlers(engine)  # type: ignore[no-untyped-call]
    # A connection that two processes use is spoilt for both.
    os.register_at_fork(after_in_child=lambda: engine.dispose(close=False))
    return engine
