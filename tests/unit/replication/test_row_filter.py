"""Rows that fit `where` are the sink's table, whatever happens to a row; the judge applies the rule to whole tables."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.replication.change import Change, ChangeMode, Op
from airflow_lake_provider.replication.row_filter import RowFilter, filter_for
from airflow_lake_provider.sink_options.where import parse_where

TYPES = {
    "id": "bigint", "city": "string", "price": "decimal(10,2)", "ratio": "double", "ok": "boolean", "day": "date",
    "at": "timestamp", "bare": "timestamp_ntz", "tags": "map<string,string>",
}  # fmt: skip
ROW: dict[str, Any] = {
    "id": 7, "city": "Köln", "price": 10.50, "ratio": "Infinity", "ok": True, "day": "2026-06-01",
    "at": "2026-06-01T10:00:00.500000Z", "bare": "2026-06-01T10:00:00.000000", "tags": {"a": "b"}, "gone": None,
}  # fmt: skip


def rule(text: str) -> RowFilter:
    return filter_for("orders", parse_where(text), TYPES)


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("id = 7", True), ("id = 7.0", True), ("id > 7", False), ("id in (1, 7)", True), ("id != 7", False),
        ("city = 'Köln'", True), ("city < 'L'", True), ("city >= 'L'", False), ("city is null", False),
        ("price = 10.5", True), ("price > 10.49", True), ("price <= 10.4", False), ("ratio > 1000000", True),
        ("ok = true", True), ("ok != true", False), ("day > '2026-05-31'", True), ("day = '2026-06-01'", True),
        ("at = '2026-06-01T12:00:00.5+02:00'", True), ("at > '2026-06-01T10:00:00.5Z'", False),
        ("bare = '2026-06-01T10:00:00'", True), ("tags is not null", True), ("id = 7 and ok = false", False),
    ],
)  # fmt: skip
def test_values_are_compared_by_the_columns_types(text: str, fits: bool) -> None:
    assert rule(text).fits(json.dumps(ROW)) is fits


@pytest.mark.parametrize("sign", ["=", "!=", "<", ">="])
def test_null_and_what_is_no_number_fit_no_comparison(sign: str) -> None:
    assert not rule(f"id {sign} 7").fits(json.dumps(ROW | {"id": None}))
    assert not rule(f"ratio {sign} 7").fits(json.dumps(ROW | {"ratio": "NaN"}))
    assert not rule(f"id {sign} 7").fits("{}")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("town = 'x'", "has no column 'town' that reaches the sink as it is", id="unknown column"),
        pytest.param("id = '7'", "id of table orders is a bigint, and where has '7': write a number", id="text"),
        pytest.param("city = 7", "write a text, '7'", id="number"),
        pytest.param("ok = 'true'", "write true or false", id="flag"),
        pytest.param("ok > true", "by = and != alone", id="order of flags"),
        pytest.param("day = 'June'", "write a date", id="date"),
        pytest.param("at = '2026-06-01T10:00:00'", "with its zone", id="zone is missing"),
        pytest.param("bare = '2026-06-01T10:00:00Z'", "without a zone", id="zone too much"),
        pytest.param("tags = 'x'", "where asks it for null alone", id="nested"),
    ],
)
def test_what_does_not_fit_a_column_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        rule(text)


@pytest.mark.parametrize("mode", list(ChangeMode))
@pytest.mark.parametrize("seed", range(5))
def test_sink_has_the_rows_that_fit_after_each_change(mode: ChangeMode, seed: int) -> None:
    chance, wanted = random.Random(seed), rule("price >= 5")
    table, sink, versions = dict[int, str](), dict[str, str](), list[tuple[Op, str]]()
    for _ in range(200):
        key, before = chance.randrange(6), None
        after = None if chance.random() < 0.3 else json.dumps({"price": chance.choice([None, 1, 5, 9])})
        before = table.get(key)
        if before is None and after is None:
            continue
        op = Op.DELETE if after is None else Op.INSERT if before is None else Op.UPDATE
        shown = before if mode is ChangeMode.CHANGES else None
        for change in wanted.changes([Change(op, str(key), shown, after)], mode):
            versions.append((change.op, change.key))
            if mode is ChangeMode.CHANGES:
                # A reader of changes can count on what each says that there was.
                assert sink.get(change.key) == change.before
                assert (change.op is Op.INSERT) is (change.before is None)
            assert (change.op is Op.DELETE) is (change.after is None)
            sink.pop(change.key, None)
            if change.after is not None:
                sink[change.key] = change.after
        table.pop(key, None)
        if after is not None:
            table[key] = after
        fitting = {str(key): row for key, row in table.items() if (json.loads(row)["price"] or 0) >= 5}
        assert sink == fitting
    assert {op for op, _ in versions} == {Op.INSERT, Op.UPDATE, Op.DELETE}


def test_row_of_a_snapshot_that_does_not_fit_is_left_out_without_a_delete() -> None:
    rows = [Change(Op.READ, str(price), None, json.dumps({"price": price})) for price in (4, 5)]
    assert rule("price >= 5").changes(rows, ChangeMode.LATEST) == rows[1:]
