"""A database that refuses a record, is in another zone, or is locked: read back by plain SQL."""

from __future__ import annotations

import json
import logging
import time
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_lake_provider.errors import RecordRefusedError, SinkRefusedError, SinkUnavailableError
from local_stack.postgres import LocalPostgres
from tests.support.patience import patient
from tests.support.refusing_target import Target


@pytest.mark.parametrize("constraint", ["", ", unique (id, part)"])
def test_null_in_a_key_is_a_value(postgres: LocalPostgres, constraint: str) -> None:
    target = Target(postgres, f"id bigint, part text, v integer{constraint}")
    target.send(*(("i", {"id": i, "part": part}, {"v": 1}) for i, part in ((1, None), (2, None), (3, "a"), (4, "a"))))
    target.send(("u", {"id": 1, "part": None}, {"v": 2}), ("u", {"id": 3, "part": "a"}, {"v": 2}))
    target.send(("d", {"id": 2, "part": None}, None), ("d", {"id": 4, "part": "a"}, None))
    assert target.rows() == [(1, None, 2), (3, "a", 2)]


MISFITS = [
    pytest.param("name text", {"name": "b\0c"}, r"column name \(TEXT\) cannot have a text with U\+0000", id="NUL"),
    pytest.param("body jsonb", {"body": {"a": "b\0c"}}, "unsupported Unicode escape", id="NUL in json"),
    pytest.param("v integer", {"v": 3_000_000_000}, "alter column v type bigint", id="widened"),
    pytest.param("v varchar(3)", {"v": "long text"}, "alter column v type text", id="too long"),
    pytest.param("t timestamptz", {"t": "+10000-01-01T00:00:00.000Z"}, r"column t \(TIMESTAMP\)", id="year 10000"),
    pytest.param("v integer check (v < 5)", {"v": 7}, "violates check constraint", id="check"),
]


@pytest.mark.parametrize(("column", "bad", "said"), MISFITS)
def test_record_that_the_table_refuses(postgres: LocalPostgres, column: str, bad: dict[str, Any], said: str) -> None:
    target = Target(postgres, f"id bigint primary key, {column}")
    changes = [("i", {"id": i}, dict.fromkeys(bad) if i != 13 else bad) for i in range(30)]
    with pytest.raises(RecordRefusedError, match=f"(?s){said}") as refused:
        target.send(*changes)
    assert '"id": ' in str(refused.value)
    assert "13" in str(refused.value)
    assert target.rows() == []
    target.send(*changes, on_record_error="dead_letter")
    assert {row[0] for row in target.rows()} == {*range(30)} - {13}
    letters = target.sql(f"select record_key, change_json from lake_dead_letter where stream = '{target.name}.s'")
    (letter,) = letters
    assert json.loads(letter[1])["key"] == {"id": 13}
    assert json.loads(letter[1])["after"].keys() == {"id", *bad}
    target.send(("u", {"id": 13}, bad), ("u", {"id": 14}, dict.fromkeys(bad)), on_record_error="skip")
    assert len(target.rows()) == 29
    assert len(target.sql(f"select 1 from lake_dead_letter where stream = '{target.name}.s'")) == 1


def test_other_time_zone_of_the_database_moves_no_time(postgres: LocalPostgres) -> None:
    target = Target(postgres, "id bigint primary key, t timestamp, z timestamptz")
    target.sql("alter database airflow set timezone to 'Asia/Kolkata'")
    try:
        row = {"t": "2026-03-01T10:00:00.123456Z", "z": "2026-03-01T10:00:00.123456"}
        target.send(("i", {"id": 1}, row))
        found = target.rows("t::text, (z at time zone 'UTC')::text")
    finally:
        target.sql("alter database airflow reset timezone")
    assert found == [("2026-03-01 10:00:00.123456", "2026-03-01 10:00:00.123456")]


def test_lock_of_another_session_ends_the_run_and_is_named(postgres: LocalPostgres) -> None:
    target = Target(postgres, "id bigint primary key, v integer")
    target.send(("i", {"id": 1}, {"v": 1}))
    engine = sa.create_engine(postgres.url)
    with engine.begin() as other:
        other.execute(sa.text(f"lock table {target.name} in share mode"))
        began_s = time.monotonic()
        with pytest.raises(SinkUnavailableError, match=r"lock timeout.*after timeout_s; it is locked by process \d+"):
            target.send(("u", {"id": 1}, {"v": 2}), timeout_s="2")
        assert time.monotonic() - began_s < patient(20)
    engine.dispose()
    target.send(("u", {"id": 1}, {"v": 3}), timeout_s="2")
    assert target.rows() == [(1, 3)]


def test_columns_without_the_key_have_it_all_the_same(postgres: LocalPostgres) -> None:
    target = Target(postgres, "id bigint, name text, price numeric")
    target.send(("i", {"id": 1}, {"name": "a", "price": 1.5, "other": 1}), columns="name,price")
    target.send(("u", {"id": 1}, {"name": "b", "price": 2.5, "other": 1}), columns="name,price")
    assert target.rows("id, name") == [(1, "b")]


def test_columns_in_other_letters_are_refused_and_not_added(
    postgres: LocalPostgres, caplog: pytest.LogCaptureFixture
) -> None:
    target = Target(postgres, "orderId bigint, customer text")
    with pytest.raises(SinkRefusedError, match="no column 'orderId', but 'orderid': rename it"):
        target.send(("i", {"orderId": 1}, {"customer": "x"}))
    assert len(target.sql(f"select 1 from information_schema.columns where table_name = '{target.name}'")) == 2
    with caplog.at_level(logging.WARNING):
        target.send(("i", {"orderid": 1}, {"customer": "x"}))
    assert "has no index on the key (orderid)" in caplog.text


def test_address_without_a_driver_takes_the_one_that_is_installed(postgres: LocalPostgres) -> None:
    target = Target(postgres, "id bigint primary key, v integer")
    for begins in ("postgresql://", "postgres://"):
        target.url = postgres.url.replace("postgresql+psycopg2://", begins)
        sink = target.sink()
        sink.open()
        sink.close()
