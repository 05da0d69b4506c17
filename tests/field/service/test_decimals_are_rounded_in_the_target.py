"""Decimals silently lost digits in the target.

Report: https://github.com/confluentinc/kafka-connect-jdbc/issues/1237
Report: https://github.com/apache/inlong/issues/8341
Verdict: refused
Way out: run the error's statement, or set `evolve: widen`
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

import pytest

from airflow_lake_provider.errors import RecordRefusedError
from local_stack.postgres import LocalPostgres
from tests.support.postgres_target import LONG, NESTED, Target


def decimal(precision: int, scale: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


EXACT = [{"id": 1, "n": 7}, {"id": 2, "n": 1.25}, {"id": 3, "n": None}, {"id": 4, "n": 1.2}]
FINER = {"id": 5, "n": 1.2345}


@pytest.mark.parametrize("is_nested", [False, True], ids=["in blocks", "by value"])
def test_decimal_that_a_column_would_round(postgres: LocalPostgres, is_nested: bool) -> None:
    target = Target(postgres)
    target.sql(f"create table {target.name} (id bigint primary key, n numeric(10,2), st json)")
    fields = {"id": LONG, "n": decimal(20, 4)} | ({"st": NESTED} if is_nested else {})
    more = {"st": {"a": 1}} if is_nested else {}
    target.send(fields, *(row | more for row in EXACT))
    with pytest.raises(RecordRefusedError, match=r'"id": ?5.*column n \(NUMERIC\(10, 2\)\) would round') as raised:
        target.send(fields, FINER | more)
    target.send(fields, FINER | more, EXACT[0] | {"n": 8} | more, on_record_error="dead_letter")
    found = dict(target.sql(f"select id, n from {target.name}"))  # type: ignore[arg-type]
    assert (found[1], found[2], found.get(5)) == (8, Decimal("1.25"), None)
    statement = re.search(r"run (alter table .*?); on_record_error", str(raised.value))
    assert statement is not None
    target.sql(statement[1])
    target.send(fields, FINER | more)
    assert target.sql(f"select n from {target.name} where id = 5") == [(Decimal("1.2345"),)]


def test_decimal_that_a_column_of_integers_would_round(postgres: LocalPostgres) -> None:
    target = Target(postgres)
    target.sql(f"create table {target.name} (id bigint primary key, n int)")
    fields = {"id": LONG, "n": decimal(9, 2)}
    target.send(fields, {"id": 1, "n": 7.00})
    with pytest.raises(RecordRefusedError, match=r"column n \(INTEGER\) would round"):
        target.send(fields, {"id": 2, "n": 7.5})
    # The owner of the table chose to have fewer digits of doubles.
    target.send({"id": LONG, "n": "double"}, {"id": 2, "n": 7.6})
    assert target.sql(f"select id, n from {target.name} order by id") == [(1, 7), (2, 8)]
