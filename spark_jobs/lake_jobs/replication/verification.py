"""Compare what a sink has with what its table has, row by row, in a file: memory does not grow with the table."""

from __future__ import annotations

import hashlib
import sqlite3
import tempfile
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.replication.change import Change, Op, canonical
from airflow_lake_provider.replication.sink import CountedSink, ReadableSink
from lake_jobs.replication.one_moment import MovingTable, plan_at_one_moment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from airflow_lake_provider.replication.checkpoint import Checkpoint
    from airflow_lake_provider.replication.sink import Row, Sink

_NAMED_KEYS = 5
_ROWS_AT_ONCE = 10_000


class ComparedTable(MovingTable, Protocol):
    """A table whose rows are compared."""

    def plan_rows(self) -> Callable[[], Iterator[tuple[str, str]]]:
        """Decide now which files are read; the function that is returned reads each row's key and JSON."""

    @property
    def key(self) -> Sequence[str]:
        """The names of the key's fields."""

    @property
    def columns(self) -> Sequence[str]:
        """The names of the table's columns, in its newest schema."""


@dataclass(frozen=True, slots=True)
class Verification:
    """What the comparison found. Counts are of rows, or of keys where the table has a key twice."""

    instant: str
    """Requested time of the last commit that both sides have."""
    rows: int
    keys: int
    in_sink: int
    missing: int
    foreign: int
    """In the sink, and not in the table."""
    different: int
    doubled: int = 0
    """Rows of the sink that are one more of a key; a table's key is in it once."""
    examples: tuple[str, ...] = ()
    """Some keys of each kind, with what is the matter."""
    wrong_keys: frozenset[str] = frozenset()
    """Of the table's rows that the sink lacks, has otherwise, or has more than once."""
    foreign_keys: tuple[str, ...] = ()
    repaired: int = 0
    """How many keys differed before they were sent again."""

    @property
    def is_same(self) -> bool:
        """Whether the sink has the table's rows and no others."""
        return not (self.missing or self.foreign or self.different or self.doubled)

    def __str__(self) -> str:
        same = f"the sink has the table's {self.keys} rows as of commit {self.instant}"
        if self.rows != self.keys:
            same += f" (the table has {self.rows}: several share a key)"
        if self.is_same:
            return f"{same}; {self.repaired} keys differed, and their rows were sent again" if self.repaired else same
        return (
            f"as of commit {self.instant} the table has {self.keys} rows and the sink {self.in_sink}: {self.missing} "
            f"are missing in the sink, {self.foreign} are in the sink alone, {self.different} differ, {self.doubled} "
            f"share the key of another one; {', '.join(self.examples)}"
        )


Repair: TypeAlias = "Callable[[Verification, Callable[[], Iterator[tuple[str, str]]], Checkpoint], None]"
"""Sends what differs once more; it gets what was found, what reads the table's rows again, and the sink's position."""


def verify(
    table: ComparedTable, sink: Sink, catch_up: Callable[[], Checkpoint | None], repair: Repair | None = None
) -> Verification:
    """Bring the sink up to date, and compare it with the table. `catch_up` returns what is durable then.

    With `repair` a sink that differs is repaired, once, and compared again.

    Raises ConfigError for a sink that cannot be read back, SinkUnavailableError where commits come faster than they are
    replicated, and what reading raises.
    """
    if not isinstance(sink, ReadableSink):
        raise ConfigError(f"sink {type(sink).__name__} cannot be read back: it has no read_rows")
    checkpoint, read = plan_at_one_moment(table, catch_up, table.plan_rows)
    found = compare(read(), sink, checkpoint, table.key, table.columns)
    if found.is_same or repair is None:
        return found
    repair(found, read, checkpoint)
    checkpoint, read = plan_at_one_moment(table, catch_up, table.plan_rows)
    again = compare(read(), sink, checkpoint, table.key, table.columns)
    return replace(again, repaired=len(found.wrong_keys) + len(found.foreign_keys))


def compare(
    rows: Iterator[tuple[str, str]],
    sink: ReadableSink,
    checkpoint: Checkpoint,
    key: Sequence[str],
    columns: Sequence[str],
) -> Verification:
    """Compare the table's rows with the sink's, both as digests in a file of this process."""
    # A column that was dropped since is in the sink's older rows, and in none of the table's.
    names = frozenset(columns)
    with tempfile.TemporaryDirectory(prefix="lake-verify-") as folder, closing(_open(Path(folder))) as database:
        stored = (sink.as_read(Change(Op.READ, key_text, None, row)) for key_text, row in rows)
        count = _load(database, _TABLE, stored, names)
        _load(database, _SINK, sink.read_rows(key, checkpoint), names)
        keys, in_sink = (_count(database, side) for side in (_TABLE, _SINK))
        kinds = {name: list(database.execute(query)) for name, query in _QUERIES.items()}
        return Verification(
            checkpoint.commit.requested_time if checkpoint.commit is not None else "",
            count,
            keys,
            in_sink,
            missing=len(kinds["missing"]),
            foreign=len(kinds["in the sink alone"]),
            different=len(kinds["different"]),
            doubled=max(0, sink.count_rows() - in_sink) if isinstance(sink, CountedSink) else 0,
            examples=tuple(f"{name}: {text}" for name in _DIFFERENCES for (text,) in kinds[name][:_NAMED_KEYS]),
            wrong_keys=frozenset(text for name in ("missing", "different", "twice") for (text,) in kinds[name]),
            foreign_keys=tuple(text for (text,) in kinds["in the sink alone"]),
        )


_TABLE = 0
_SINK = 1
_QUERIES: Mapping[str, str] = {
    "missing": "select key from rows where side = 0 except select key from rows where side = 1 order by 1",
    "in the sink alone": "select key from rows where side = 1 except select key from rows where side = 0 order by 1",
    "different": "select a.key from rows a join rows b on a.key = b.key and a.side = 0 and b.side = 1 "
    "where a.digest <> b.digest order by 1",
    "twice": "select key from rows where side = 1 and copies > 1",
}
_DIFFERENCES = ("missing", "in the sink alone", "different")


def _open(folder: Path) -> sqlite3.Connection:
    database = sqlite3.connect(folder / "rows.db", isolation_level=None)
    # The file is this process's alone, and gone afterwards.
    for statement in ("pragma journal_mode = off", "pragma synchronous = off"):
        database.execute(statement)
    database.execute(
        "create table rows (side int, key text, digest blob not null, copies int not null default 1, "
        "primary key (side, key)) without rowid"
    )
    return database


def _load(database: sqlite3.Connection, side: int, rows: Iterable[Row], columns: frozenset[str]) -> int:
    count, rows = 0, iter(rows)
    while some := list(islice(rows, _ROWS_AT_ONCE)):
        count += len(some)
        database.execute("begin")
        for key, values in some:
            if values is None:
                database.execute("delete from rows where side = ? and key = ?", (side, key))
            else:
                digest = _digest({name: value for name, value in values.items() if name in columns})
                database.execute(
                    "insert into rows (side, key, digest) values (?, ?, ?) on conflict (side, key) do update set "
                    "digest = excluded.digest, copies = copies + 1",
                    (side, key, digest),
                )
        database.execute("commit")
    return count


def _digest(values: Mapping[str, object]) -> bytes:
    return hashlib.blake2b(canonical(values).encode(), digest_size=16).digest()


def _count(database: sqlite3.Connection, side: int) -> int:
    return int(database.execute("select count(*) from rows where side = ?", (side,)).fetchone()[0])
