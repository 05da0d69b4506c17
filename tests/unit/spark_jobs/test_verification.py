"""A sink's rows compared with its table's: what differs is said, and nothing that only seems different."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from airflow_lake_provider.errors import ConfigError, LakeError, SinkUnavailableError
from airflow_lake_provider.replication.change import Batch, Change, ChangeMode, CommitRef, Op, canonical, load_json
from airflow_lake_provider.replication.checkpoint import Checkpoint
from airflow_lake_provider.replication.feed import SourceTimeline
from airflow_lake_provider.replication.sink import NoopSink, Sink, SinkSettings, create_sink
from lake_jobs.replication.one_moment import MAX_TRIES
from lake_jobs.replication.verification import verify

COMMIT = CommitRef("20260101000000001", "20260101000000002")
LATER = CommitRef("20260101000000003", "20260101000000004")
COLUMNS = ("id", "price", "at", "tags", "city")
DONE = Checkpoint("t.sink", 1, 1, COMMIT, done=(COMMIT.requested_time,))


def row(i: int, price: str = "1234567890123456.5000", **more: str) -> str:
    rest = "".join(f',"{name}":{value}' for name, value in more.items())
    return f'{{"id":{i},"price":{price},"at":"2026-01-01T10:00:00.000000Z","tags":{{"b":1,"a":null}}{rest}}}'


@dataclass
class Table:
    """A table of rows in JSON; commits complete while its rows are looked up."""

    rows: dict[int, str]
    busy: int = 0
    columns: tuple[str, ...] = COLUMNS
    key: tuple[str, ...] = ("id",)
    reads: list[int] = field(default_factory=list)

    def read_timeline(self, known: Checkpoint | None = None) -> SourceTimeline:
        return SourceTimeline((COMMIT, LATER) if self.busy and len(self.reads) % 2 else (COMMIT,))

    def plan_rows(self) -> Callable[[], Iterator[tuple[str, str]]]:
        self.reads.append(self.busy)
        found = [(f'{{"id":{i}}}', text) for i, text in self.rows.items()]
        return lambda: iter(found)


def file_sink(folder: Path, mode: ChangeMode) -> Sink:
    return create_sink("file", SinkSettings("t.sink", "t", mode, {"path": str(folder / "files")}))


def database_sink(folder: Path, mode: ChangeMode) -> Sink:
    with closing(sqlite3.connect(folder / "mirror.db")) as connection:
        connection.execute(
            "create table if not exists mirror (id integer primary key, price text, at datetime, tags text, city text)"
        )
    options = {"url": f"sqlite:///{folder}/mirror.db", "table": "mirror"}
    return create_sink("database", SinkSettings("t.sink", "t", mode, options))


def deliver(sink: Sink, checkpoint: Checkpoint, *changes: Change, begins: bool = False) -> None:
    sink.open()
    sink.write(Batch(checkpoint.commit or COMMIT, changes, checkpoint.generation, begins))
    sink.commit(checkpoint)
    sink.close()


def snapshot(rows: dict[int, str]) -> list[Change]:
    return [Change(Op.READ, f'{{"id":{i}}}', None, text) for i, text in rows.items()]


SINKS = [
    pytest.param(file_sink, ChangeMode.CHANGES, id="file-changes"),
    pytest.param(file_sink, ChangeMode.LATEST, id="file-latest"),
    pytest.param(database_sink, ChangeMode.LATEST, id="database"),
]
MakeSink = Callable[[Path, ChangeMode], Sink]


@pytest.mark.parametrize(("make", "mode"), SINKS)
def test_sink_that_has_the_tables_rows_is_the_same_whatever_form_they_have(
    tmp_path: Path, make: MakeSink, mode: ChangeMode
) -> None:
    rows = {i: row(i) for i in range(20)}
    # Of an earlier generation, a row that the table has no more; since then another version, and one deleted.
    deliver(make(tmp_path, mode), replace(DONE, generation=0), *snapshot({99: row(99)}), begins=True)
    second = replace(DONE, sequence=2)
    deliver(make(tmp_path, mode), second, *snapshot({**rows, 3: row(3, "1"), 50: row(50)}), begins=True)
    changes = [
        Change(Op.UPDATE, '{"id":3}', row(3, "1"), row(3)),
        Change(Op.DELETE, '{"id":50}', row(50), None),
    ]
    deliver(make(tmp_path, mode), replace(DONE, sequence=3), *changes)
    # A column that was added since is null in rows that lack it.
    table = Table({i: text[:-1] + ',"city":null}' for i, text in rows.items()})
    found = verify(table, make(tmp_path, mode), lambda: replace(DONE, sequence=3))
    assert found.is_same, str(found)
    assert (found.rows, found.in_sink, found.instant) == (20, 20, COMMIT.requested_time)
    assert f"has the table's 20 rows as of commit {COMMIT.requested_time}" in str(found)


@pytest.mark.parametrize(("make", "mode"), SINKS)
def test_what_differs_is_counted_and_named(tmp_path: Path, make: MakeSink, mode: ChangeMode) -> None:
    rows = {i: row(i) for i in range(10)}
    wrong = {**rows, 2: row(2, "1234567890123456.5001"), 70: row(70)}
    del wrong[4], wrong[5]
    deliver(make(tmp_path, mode), DONE, *snapshot(wrong), begins=True)
    found = verify(Table(rows), make(tmp_path, mode), lambda: DONE)
    assert (found.keys, found.in_sink, found.missing, found.foreign, found.different) == (10, 9, 2, 1, 1)
    assert not found.is_same
    assert "2 are missing in the sink, 1 are in the sink alone, 1 differ" in str(found)
    # A database's key may be of another type than the table's.
    shown = str(found).replace(': "', ":").replace('"}', "}")
    for text in ('missing: {"id":4}', 'in the sink alone: {"id":70}', 'different: {"id":2}'):
        assert text in shown


def test_second_row_of_a_key_is_a_difference(tmp_path: Path) -> None:
    table = Table({1: row(1), 2: row(2)})
    with closing(sqlite3.connect(tmp_path / "mirror.db")) as connection:
        connection.execute("create table mirror (id integer, price text, at datetime, tags text, city text)")
    deliver(database_sink(tmp_path, ChangeMode.LATEST), DONE, *snapshot(table.rows), begins=True)
    with closing(sqlite3.connect(tmp_path / "mirror.db", isolation_level=None)) as connection:
        connection.execute("insert into mirror select * from mirror where id = 2")
    found = verify(table, database_sink(tmp_path, ChangeMode.LATEST), lambda: DONE)
    assert (found.is_same, found.doubled) == (False, 1)
    assert "1 share the key of another one" in str(found)


def test_rows_are_of_a_moment_at_which_the_sink_has_all_commits(tmp_path: Path) -> None:
    rows = {1: row(1)}
    deliver(file_sink(tmp_path, ChangeMode.CHANGES), DONE, *snapshot(rows), begins=True)
    # Each time a commit completes between the two reads, all begins again.
    busy, tries = Table(rows, busy=1), []
    with pytest.raises(SinkUnavailableError, match="commits came faster"):
        verify(busy, file_sink(tmp_path, ChangeMode.CHANGES), lambda: tries.append(1) or DONE)
    assert len(tries) == MAX_TRIES
    with pytest.raises(LakeError, match="no snapshot of the table yet"):
        verify(Table(rows), file_sink(tmp_path, ChangeMode.CHANGES), lambda: None)


def test_sink_without_a_way_back_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="NoopSink cannot be read back"):
        verify(Table({}), NoopSink(SinkSettings("t.sink", "t")), lambda: DONE)
    parquet = create_sink("file", SinkSettings("t.s", "t", options={"path": str(tmp_path), "format": "parquet"}))
    with pytest.raises(ConfigError, match="rows are read back from format json"):
        verify(Table({}), parquet, lambda: DONE)


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ('{"a":1.50,"b":null}', '{"a":1.5}', True),
        ('{"a":{"y":1,"x":[1.0]}}', '{"a":{"x":[1],"y":1}}', True),
        ('{"a":1234567890123456.7891}', '{"a":1234567890123456.7892}', False),
        ('{"a":"1"}', '{"a":1.5}', False),
        ('{"a":[1,2]}', '{"a":[2,1]}', False),
    ],
)
def test_equal_rows_have_one_text(one: str, other: str, is_same: bool) -> None:
    assert (canonical(load_json(one)) == canonical(load_json(other))) is is_same
