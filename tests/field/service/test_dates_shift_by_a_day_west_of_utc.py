"""Dates were a day early, and times shifted, where the sink's zone was not UTC.

Report: https://github.com/confluentinc/kafka-connect-jdbc/pull/1398
Report: https://github.com/confluentinc/kafka-connect-jdbc/pull/910
Report: https://github.com/confluentinc/kafka-connect-jdbc/issues/174
Report: https://github.com/apache/flink-cdc/issues/1321
Verdict: right
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from local_stack.postgres import LocalPostgres
from tests.support.postgres_target import LONG, MICROS, NESTED, Target

DAY = {"type": "int", "logicalType": "date"}
BARE = {"type": "long", "logicalType": "local-timestamp-micros"}


@pytest.fixture(params=["America/Los_Angeles", "Asia/Kolkata", "Asia/Shanghai"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("TZ", request.param)
    monkeypatch.setenv("PGTZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("is_nested", [False, True], ids=["in blocks", "by value"])
def test_dates_and_times_are_those_of_the_table(postgres: LocalPostgres, zone: str, is_nested: bool) -> None:
    postgres.query(f"alter database airflow set timezone = '{zone}'")
    fields = {"id": LONG, "day": DAY, "at": MICROS, "bare": BARE} | ({"st": NESTED} if is_nested else {})
    # Shanghai had summer time in 1949 and 1987.
    days = ["0001-01-01", "1949-05-01", "1969-12-31", "1987-09-05", "2026-03-08", "2026-11-01"]
    rows = [
        {"id": number, "day": day, "at": f"{day}T00:00:00Z", "bare": f"{day}T00:00:00"}
        for number, day in enumerate(days)
    ]
    target = Target(postgres)
    # What a column holds is the owner's choice: each kind of time goes into the other kind of column.
    target.sql(f"create table {target.name} (id bigint primary key, day date, at timestamp, bare timestamptz, st json)")
    for _ in range(2):
        target.send(fields, *(row | ({"st": {"a": 1}} if is_nested else {}) for row in rows))
    shown = postgres.query(
        "set time zone 'UTC'; select day::text, to_char(at, 'YYYY-MM-DD HH24:MI:SS'), "
        f"to_char(bare, 'YYYY-MM-DD HH24:MI:SS') from {target.name} order by id"
    )
    postgres.query("alter database airflow reset timezone")
    assert shown[-len(days) :] == [f"{day}|{day} 00:00:00|{day} 00:00:00" for day in days]
