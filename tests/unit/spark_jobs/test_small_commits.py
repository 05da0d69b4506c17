"""Small commits that the driver's own process reads: the changes of file groups, and what it leaves to Spark."""

from __future__ import annotations

import datetime
import json
import threading
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from airflow_lake_provider.replication.change import CommitRef
from lake_jobs.replication import small_commits
from lake_jobs.replication.file_slices import DataFile, FileSlice, GroupStatistics
from lake_jobs.replication.log_records import NotAlikeError
from lake_jobs.replication.plain_columns import can_be_key, java_double, names_in, plain_columns
from lake_jobs.replication.slice_changes import TouchedGroup
from lake_jobs.replication.small_commits import SmallCommit, list_local, may_be_small

FIRST, SECOND = "20260301100000000", "20260301110000000"
COMMIT = CommitRef(SECOND, "20260301110000500")
SCHEMA = {
    "type": "record",
    "name": "row",
    "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"]}],
}


def group_of(deletes: int = 0, *, is_log: bool = False) -> GroupStatistics:
    return GroupStatistics("p=1", "f1", (), FIRST, 1, 1, deletes, 3, is_log=is_log)


def write(folder: Path, instant: str, rows: list[tuple[str, str, int, str | None]]) -> FileSlice:
    """Write a base file of rows: commit time, record key, id, name."""
    columns: dict[str, Any] = {
        "_hoodie_commit_time": pa.array([row[0] for row in rows], pa.string()),
        "_hoodie_commit_seqno": pa.array([f"{row[0]}_{row[1]}" for row in rows], pa.string()),
        "_hoodie_record_key": pa.array([row[1] for row in rows], pa.string()),
        "id": pa.array([row[2] for row in rows], pa.int64()),
        "name": pa.array([row[3] for row in rows], pa.string()),
    }
    return write_columns(folder, instant, columns)


def write_columns(folder: Path, instant: str, columns: dict[str, Any]) -> FileSlice:
    path = folder / "p=1" / f"f1_0-1-2_{instant}.parquet"
    path.parent.mkdir(exist_ok=True)
    parquet.write_table(pa.table(columns), path)
    return FileSlice(DataFile(path.name, "f1", instant, is_log=False, length=path.stat().st_size), ())


def small(folder: Path, group: TouchedGroup, schema: dict[str, Any] = SCHEMA, **changed: Any) -> SmallCommit:
    columns = plain_columns(json.dumps(schema))
    assert columns is not None
    commit = SmallCommit(COMMIT, (group,), columns, ("id",), with_before=True, open=lambda path: str(folder / path))
    return replace(commit, **changed)


def changes(commit: SmallCommit) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in commit.read().to_pylist()]


def row(number: int, name: str) -> str:
    return f'{{"id":{number},"name":"{name}"}}'


def test_rows_that_the_commit_wrote_are_changes_with_the_row_before(tmp_path: Path) -> None:
    before = write(tmp_path, FIRST, [(FIRST, "1", 1, "a"), (FIRST, "2", 2, "b")])
    after = write(tmp_path, SECOND, [(FIRST, "1", 1, "a"), (SECOND, "2", 2, "B"), (SECOND, "3", 3, "c")])
    commit = small(tmp_path, TouchedGroup(group_of(), before, after))
    inserted = ("i", '{"id":3}', None, row(3, "c"), 0)
    assert changes(commit) == [inserted, ("u", '{"id":2}', row(2, "b"), row(2, "B"), 0)]
    latest = replace(commit, with_before=False)
    assert changes(latest) == [("u", '{"id":2}', None, row(2, "B"), 0), ("u", '{"id":3}', None, row(3, "c"), 0)]


def test_where_rows_may_be_gone_both_sides_are_compared_and_deletes_come_first(tmp_path: Path) -> None:
    before = write(tmp_path, FIRST, [(FIRST, "1", 1, "a"), (FIRST, "2", 2, "b"), (FIRST, "3", 3, "c")])
    # A version is named by time and number: the same name is the same row, whatever it holds.
    after = write(tmp_path, SECOND, [(FIRST, "1", 1, "x"), (SECOND, "2", 2, "B"), (SECOND, "4", 4, "d")])
    commit = small(tmp_path, TouchedGroup(group_of(deletes=1), before, after))
    assert changes(commit) == [
        ("d", '{"id":3}', row(3, "c"), None, 0),
        ("i", '{"id":4}', None, row(4, "d"), 0),
        ("u", '{"id":2}', row(2, "b"), row(2, "B"), 0),
    ]
    assert [change[2] for change in changes(replace(commit, with_before=False))] == [None] * 3


def test_a_file_group_that_begins_or_ends_is_read_from_one_side(tmp_path: Path) -> None:
    rows = write(tmp_path, SECOND, [(SECOND, "1", 1, "a")])
    assert changes(small(tmp_path, TouchedGroup(group_of(), None, rows))) == [("i", '{"id":1}', None, row(1, "a"), 0)]
    assert changes(small(tmp_path, TouchedGroup(group_of(), rows, None))) == [("d", '{"id":1}', row(1, "a"), None, 0)]


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        pytest.param({"name": pa.array(["2", "1"], pa.large_string())}, "column name is large_string", id="type"),
        pytest.param({"name": None}, "column name is None", id="column-missing"),
        pytest.param({"_hoodie_record_key": pa.array(["1", "1"])}, "two rows of one record key", id="key-twice"),
        pytest.param({"id": pa.array([1, 2], pa.int32())}, "column id is int32", id="narrower"),
    ],
)
def test_what_is_not_certain_to_be_alike_is_left_to_spark(tmp_path: Path, broken: dict[str, Any], said: str) -> None:
    after = write(tmp_path, SECOND, [(SECOND, "1", 1, "a"), (SECOND, "2", 2, "b")])
    before = write(tmp_path, FIRST, [(FIRST, "1", 1, "a"), (FIRST, "2", 2, "b")])
    assert before.base is not None
    columns = {**pq_columns(tmp_path / "p=1" / before.base.name), **broken}
    write_columns(tmp_path, FIRST, {name: column for name, column in columns.items() if column is not None})
    with pytest.raises(NotAlikeError, match=said):
        small(tmp_path, TouchedGroup(group_of(), before, after)).read()


def pq_columns(path: Path) -> dict[str, Any]:
    table = parquet.ParquetFile(path).read()
    return {name: table[name] for name in table.column_names}


def test_log_files_large_files_and_missing_ones_are_left_to_spark(tmp_path: Path) -> None:
    rows = write(tmp_path, SECOND, [(SECOND, "1", 1, "a")])
    assert rows.base is not None
    log = DataFile(".f1_1.log.1_0-1-2", "f1", SECOND, is_log=True)
    large = replace(rows, base=replace(rows.base, length=2**30))
    (tmp_path / "p=1" / "gone").mkdir()
    gone = replace(rows, base=replace(rows.base, name="f1_0-1-2_3.parquet"))
    for side, said in ((replace(rows, logs=(log,)), "log files"), (large, "large"), (gone, "FileNotFoundError")):
        with pytest.raises(NotAlikeError, match=said):
            small(tmp_path, TouchedGroup(group_of(), None, side)).read()
    assert not may_be_small([group_of(is_log=True)], with_logs=False)
    assert may_be_small([group_of(is_log=True)], with_logs=True)
    assert not may_be_small([group_of()] * 65, with_logs=True)


def test_files_of_the_commits_file_groups_are_listed_with_their_lengths(tmp_path: Path) -> None:
    for instant in (FIRST, SECOND):
        write(tmp_path, instant, [(instant, "1", 1, "a")])
    (tmp_path / "p=1" / f"f2_0-1-2_{FIRST}.parquet").write_bytes(b"")
    (tmp_path / "p=1" / f".f1_{FIRST}.log.1_0-1-2").write_bytes(b"123")
    (tmp_path / "p=1" / f".f1_0-1-2_{FIRST}.parquet.crc").write_bytes(b"")
    gone = replace(group_of(), partition="p=2")
    ((key, found),) = list_local(tmp_path, [group_of(), gone]).items()
    assert key == ("p=1", "f1")
    assert sorted((file.instant, file.is_log) for file in found) == [(FIRST, False), (FIRST, True), (SECOND, False)]
    assert {file.length for file in found if file.is_log} == {3}


WIDE = [
    (
        {"type": "string", "avro.java.string": "String"},
        pa.array(['q"\\/\n\x1f\x7fé🚀']),
        '"q\\"\\\\/\\n\\u001F\x7fé🚀"',
    ),
    ("int", pa.array([-5], pa.int32()), "-5"),
    ("boolean", pa.array([True]), "true"),
    ("double", pa.array([12345678.9]), "1.23456789E7"),
    ("bytes", pa.array([b"ab\x00\xff"]), '"YWIA/w=="'),
    ({"type": "int", "logicalType": "date"}, pa.array([datetime.date(2026, 3, 1)]), '"2026-03-01"'),
    (
        {"type": "long", "logicalType": "timestamp-micros"},
        pa.array([1_772_326_923_000_045], pa.timestamp("us", "UTC")),
        '"2026-03-01T01:02:03.000045Z"',
    ),
    (
        {"type": "long", "logicalType": "local-timestamp-micros"},
        pa.array([1_772_323_200_000_000], pa.timestamp("us")),
        '"2026-03-01T00:00:00.000000"',
    ),
    (
        {"type": "fixed", "name": "price", "size": 16, "logicalType": "decimal", "precision": 38, "scale": 10},
        pa.array([Decimal("0.0000000000")], pa.decimal128(38, 10)),
        "0E-10",
    ),
]


@pytest.mark.parametrize(("kind", "values", "text"), WIDE, ids=str)
def test_values_are_printed_as_sparks_json(tmp_path: Path, kind: Any, values: Any, text: str) -> None:
    fields = [{"name": "id", "type": "long"}, {"name": "value", "type": ["null", kind]}]
    meta = {
        "_hoodie_commit_time": pa.array([SECOND] * 2),
        "_hoodie_commit_seqno": pa.array(["1", "2"]),
        "_hoodie_record_key": pa.array(["1", "2"]),
        "id": pa.array([1, 2]),
    }
    both = pa.concat_arrays([values, pa.nulls(1, values.type)])
    rows = write_columns(tmp_path, SECOND, {**meta, "value": both})
    commit = small(tmp_path, TouchedGroup(group_of(), None, rows), {**SCHEMA, "fields": fields})
    assert [change[3] for change in changes(commit)] == [f'{{"id":1,"value":{text}}}', '{"id":2,"value":null}']


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"), (-0.0, "-0.0"), (0.001, "0.001"), (9999999.0, "9999999.0"), (1e7, "1.0E7"), (-1.5e-7, "-1.5E-7"),
        (1e22, "1.0E22"), (123456789.125, "1.23456789125E8"), (9.5e-4, "9.5E-4"), (float("nan"), '"NaN"'),
        (float("inf"), '"Infinity"'), (float("-inf"), '"-Infinity"'),
    ],
)  # fmt: skip
def test_doubles_are_printed_as_java_prints_them(value: float, text: str) -> None:
    assert java_double(value) == text


@pytest.mark.parametrize(
    "kind",
    [
        "float",
        {"type": "array", "items": "string"},
        {"type": "map", "values": "string"},
        {"type": "long", "logicalType": "timestamp-millis"},
        {"type": "string", "logicalType": "uuid"},
        ["int", "string"],
        "of_another_name",
        {"type": "bytes", "logicalType": "decimal", "precision": 10**12, "scale": 0},
    ],
    ids=str,
)
def test_columns_of_other_types_are_left_to_spark(kind: Any) -> None:
    assert plain_columns(json.dumps({**SCHEMA, "fields": [{"name": "value", "type": kind}]})) is None


@pytest.mark.parametrize("text", ["[" * 100_000, '{"fields":[{"name":1}]}', '{"fields":5}', "5"], ids=lambda t: t[:20])
def test_text_that_is_no_schema_is_left_to_spark(text: str) -> None:
    assert plain_columns(text) is None
    assert names_in(text) in {(), ("1",)}


def test_a_key_is_of_columns_whose_text_is_always_the_same() -> None:
    fields = [{"name": "id", "type": "long"}, {"name": "ratio", "type": "double"}, {"name": "_hoodie_x", "type": "int"}]
    columns = plain_columns(json.dumps({**SCHEMA, "fields": fields})) or ()
    assert [column.name for column in columns] == ["id", "ratio"]
    assert can_be_key(columns, ("id",))
    assert not can_be_key(columns, ("id", "ratio"))
    assert not can_be_key(columns, ("inner.x",))


def test_times_of_the_old_calendar_are_left_to_spark(tmp_path: Path) -> None:
    fields = [{"name": "id", "type": "long"}, {"name": "day", "type": {"type": "int", "logicalType": "date"}}]
    columns = {
        "_hoodie_commit_time": pa.array([SECOND]),
        "_hoodie_commit_seqno": pa.array(["1"]),
        "_hoodie_record_key": pa.array(["1"]),
        "id": pa.array([1]),
        "day": pa.array([datetime.date(1500, 1, 1)]),
    }
    rows = write_columns(tmp_path, SECOND, columns)
    with pytest.raises(NotAlikeError, match="year 1500"):
        small(tmp_path, TouchedGroup(group_of(), None, rows), {**SCHEMA, "fields": fields}).read()


@pytest.mark.parametrize("bomb", ["rows", "texts", "pages"])
def test_small_file_that_unpacks_to_many_times_its_size_is_left_to_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bomb: str
) -> None:
    monkeypatch.setattr(small_commits, "MAX_BASE_VALUES", 1_000_000)
    monkeypatch.setattr(small_commits, "MAX_BASE_BYTES", 16 * 2**20)
    rows, text = {"rows": (300_000, "x"), "texts": (500, "x" * 2**17), "pages": (9, "x" * 2**22)}[bomb]
    names = ("_hoodie_commit_time", "_hoodie_commit_seqno", "_hoodie_record_key", "name")
    columns: dict[str, Any] = {name: pa.repeat(text if name == "name" else "x", rows) for name in names}
    path = tmp_path / "p=1" / f"f1_0-1-2_{SECOND}.parquet"
    path.parent.mkdir()
    table = pa.table(columns | {"id": pa.repeat(0, rows)})
    parquet.write_table(table, path, compression="gzip", use_dictionary=bomb != "pages")
    del columns, table
    side = FileSlice(DataFile(path.name, "f1", SECOND, is_log=False, length=path.stat().st_size), ())
    assert side.length < 2**17
    most_bytes = 0
    begun_bytes = pa.total_allocated_bytes()
    is_read = threading.Event()

    def watch() -> None:
        nonlocal most_bytes
        while not is_read.wait(0.001):
            most_bytes = max(most_bytes, pa.total_allocated_bytes() - begun_bytes)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        with pytest.raises(NotAlikeError, match=r"many rows|long texts"):
            small(tmp_path, TouchedGroup(group_of(), None, side)).read()
    finally:
        is_read.set()
        watching.join()
    assert most_bytes < 16 * 2**20
