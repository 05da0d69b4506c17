"""Leases go by the database's time, which all servers share; between two questions it is carried on."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy.engine import Engine
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session, sessionmaker

from airflow_lake_provider.errors import ExecutorBusyError
from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.manager.db.database import MEASURE_EVERY_S, DatabaseClock
from airflow_lake_provider.manager.db.leases import Executors
from airflow_lake_provider.manager.db.registry import Registry
from airflow_lake_provider.manager.db.rows import Notice, Source


class Stopwatch:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class FixedClock(DatabaseClock):
    """A database whose time is set by hand; counts how often it is asked."""

    def __init__(self, open_session: sessionmaker[Session], stopwatch: Stopwatch) -> None:
        super().__init__(open_session, stopwatch)
        self.database_ms = 5_000_000
        self.asked = 0
        self.is_down = False

    def read_ms(self, session: Session) -> int:
        if self.is_down:
            raise OperationalError("select", {}, Exception("no connection"))
        self.asked += 1
        return self.database_ms


def test_database_time_of_sqlite_is_the_time(engine: Engine) -> None:
    clock = DatabaseClock(sessionmaker(engine))
    before_ms = time.time() * 1000 - 2
    with Session(engine) as session:
        read_ms = clock.read_ms(session)
    assert before_ms <= read_ms <= time.time() * 1000 + 2
    assert abs(clock.now_ms() - read_ms) < 60_000


def test_now_is_carried_on_and_asked_again(engine: Engine) -> None:
    stopwatch = Stopwatch()
    clock = FixedClock(sessionmaker(engine), stopwatch)
    assert clock.now_ms() == 5_000_000
    stopwatch.now_s += 2.5
    assert (clock.now_ms(), clock.asked) == (5_002_500, 1)
    stopwatch.now_s += MEASURE_EVERY_S
    clock.database_ms = 7_000_000
    assert (clock.now_ms(), clock.asked) == (7_000_000, 2)


def test_now_while_the_database_is_down_is_carried_on_further(engine: Engine) -> None:
    stopwatch = Stopwatch()
    clock = FixedClock(sessionmaker(engine), stopwatch)
    clock.is_down = True
    with pytest.raises(OperationalError):
        clock.now_ms()
    clock.is_down = False
    clock.now_ms()
    clock.is_down = True
    stopwatch.now_s += 60
    assert clock.now_ms() == 5_060_000


class WrongClock(DatabaseClock):
    """A server whose own clock is off: what it carries on is wrong, what the database says is not."""

    def __init__(self, open_session: sessionmaker[Session], off: timedelta) -> None:
        super().__init__(open_session)
        self._off = off

    def now_ms(self) -> int:
        return int((datetime.now(UTC) + self._off).timestamp() * 1000)


def test_a_server_whose_clock_is_an_hour_ahead_takes_no_lease_of_another(engine: Engine) -> None:
    make = sessionmaker(engine)
    honest, ahead = (Registry(make, WrongClock(make, off)) for off in (timedelta(), timedelta(hours=1)))
    Executors(honest, 60).acquire("orders-1", Service.COMPACTION, "run 1", 1)
    with pytest.raises(ExecutorBusyError):
        Executors(ahead, 60).acquire("orders-1", Service.COMPACTION, "run 2", 1)
    honest.mark_dirty(Notice("/lake/orders", "orders", Source.HINT))
    assert len(honest.acquire(1, 60)) == 1
    assert ahead.acquire(1, 60) == []
