"""Random histories of a table and of its mirror in PostgreSQL, which is replaced, locked, full or in another zone.

The judge keeps the table's rows itself, and reads the mirror by plain SQL after each run.
"""

from __future__ import annotations

import json
import random
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_lake_provider.errors import RecordRefusedError, SinkUnavailableError
from airflow_lake_provider.replication.change import Change, ChangeMode, CommitRef
from airflow_lake_provider.replication.checkpoint import SnapshotProgress
from airflow_lake_provider.replication.pump import Pump
from airflow_lake_provider.replication.sink import SinkSettings, create_sink
from airflow_lake_provider.replication.transactions import Order
from tests.support.plain_sql import run_sql
from tests.unit.replication.table_model import ModelTable

TOO_LARGE = 3_000_000_000
"""A value for which the mirror's column has no place."""
ZONES = ("UTC", "Asia/Kolkata", "America/New_York")
KEYS = 9

# Each shape of keys: its columns in the mirror, and the key of a number.
SHAPES: dict[str, tuple[dict[str, str], Any]] = {
    "plain": ({"id": "bigint"}, lambda number: {"id": number}),
    "composite": (
        {"id": "bigint", "part": "text"},
        lambda number: {"id": number // 2, "part": "ab"[number % 2]},
    ),
    "null partition": (
        {"id": "bigint", "part": "text"},
        lambda number: {"id": number, "part": None if number % 3 == 0 else "a"},
    ),
    "nested": ({"st.a": "bigint"}, lambda number: {"st.a": number}),
    # As of timestamp-based and custom key generators: unique by path, in which a row stays while its day moves.
    "made path": (
        {"id": "bigint", "_hoodie_partition_path": "text"},
        lambda number: {"id": number // 2, "_hoodie_partition_path": f"2026/01/0{1 + number % 2}"},
    ),
}
CONSTRAINTS = ("none", "unique", "primary key")


class ShapedTable(ModelTable):
    """A model of a table whose numbers are rows with keys of one shape."""

    shape = "plain"

    def row(self, number: int, value: int) -> dict[str, Any]:
        key = SHAPES[self.shape][1](number)
        plain = {name: part for name, part in key.items() if "." not in name and not name.startswith("_")}
        moment = f"2026-03-01T1{number}:00:00.123456Z"
        return {**plain, "value": value, "at": moment, "bare": moment}

    def read(self, commit: CommitRef) -> Iterator[Change]:
        return map(self._shaped, super().read(commit))

    def read_snapshot(self, progress: SnapshotProgress) -> Iterator[Change]:
        rows = map(self._shaped, super().read_snapshot(replace(progress, after=None)))
        for row in sorted(rows, key=lambda row: row.key):
            if progress.after is None or row.key > progress.after:
                yield row

    def schema_of(self, commit: CommitRef) -> str:
        moment = {"type": "long", "logicalType": "timestamp-micros"}
        kinds = {"id": "long", "part": "string", "value": "long", "at": moment, "bare": moment}
        fields = [{"name": name, "type": ["null", kind]} for name, kind in kinds.items() if name in self.row(1, 1)]
        return json.dumps({"type": "record", "name": "r", "fields": fields})

    def _shaped(self, change: Change) -> Change:
        number = json.loads(change.key)["id"]

        def image(text: str | None) -> str | None:
            return None if text is None else json.dumps(self.row(number, json.loads(text)["value"]))

        return change._replace(
            key=json.dumps(SHAPES[self.shape][1](number)), before=image(change.before), after=image(change.after)
        )


@dataclass
class History:
    """One table, its mirror, and what chance does to both."""

    url: str
    chance: random.Random
    name: str = field(default_factory=lambda: f"t{uuid.uuid4().hex[:12]}")
    clock: int = 10
    log: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.source = ShapedTable()
        self.source.shape = self.chance.choice(list(SHAPES))
        has_nulls = self.source.shape == "null partition"
        self.constraint = self.chance.choice(CONSTRAINTS[:2] if has_nulls else CONSTRAINTS)
        self.policy = self.chance.choice(["stop", "skip", "dead_letter"])
        self.is_wide = False
        self.table = self.name
        self.make(self.table)
        self.log.append(f"{self.source.shape}, {self.constraint}, on_record_error: {self.policy}")

    def make(self, table: str) -> None:
        key = SHAPES[self.source.shape][0]
        kinds = {**key, "value": "bigint" if self.is_wide else "integer", "at": "timestamptz", "bare": "timestamp"}
        columns = ", ".join(f'"{name}" {kind}' for name, kind in kinds.items())
        quoted = ", ".join(f'"{name}"' for name in key)
        constraint = "" if self.constraint == "none" else f", {self.constraint} ({quoted})"
        self.sql(f'create table "{table}" ({columns}{constraint})')

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        return run_sql(self.url, statement)

    def run(self, **options: str) -> None:
        settings = {"url": self.url, "table": self.table, "on_record_error": self.policy, **options}
        sink = create_sink("database", SinkSettings(f"{self.name}.mirror", "t", ChangeMode.LATEST, settings))
        order = Order(f"{self.name}.mirror", meaning={"key": self.source.shape, "mode": "latest"})
        Pump(self.source, sink, order).run()

    def check(self) -> None:
        """Compare the mirror with the table."""
        names = list(SHAPES[self.source.shape][0])
        shown = ", ".join(f'"{name}"' for name in names)
        found = self.sql(f"""select {shown}, value, (at at time zone 'UTC')::text, bare::text from "{self.table}" """)
        wanted = []
        for number, value in self.source.rows().items():
            if value == TOO_LARGE and not self.is_wide:
                continue
            key = SHAPES[self.source.shape][1](number)
            moment = f"2026-03-01 1{number}:00:00.123456"
            wanted.append((*(key[name] for name in names), value, moment, moment))
        assert sorted(found, key=str) == sorted(wanted, key=str), "; ".join(self.log)

    # --- What happens

    def commit(self, rows: dict[int, int | None] | None = None) -> None:
        self.clock += 10
        state = self.source.rows()
        changes: dict[int, int | None] = {}
        for number in self.chance.sample(range(KEYS), self.chance.randrange(1, 6)):
            is_gone = number in state and self.chance.random() < 0.3
            changes[number] = None if is_gone else self.clock
        self.source.complete(self.clock, self.clock + 1, changes if rows is None else rows)

    def made_again(self) -> None:
        self.sql(f'drop table "{self.table}"')
        self.make(self.table)

    def made_again_with_some_rows(self) -> None:
        self.sql(f'alter table "{self.table}" rename to "{self.table}_o{self.clock}"')
        self.make(self.table)
        self.sql(f'insert into "{self.table}" select * from "{self.table}_o{self.clock}" limit 2')

    def another_one(self) -> None:
        self.table = f"{self.name}_n{self.clock}"
        self.make(self.table)

    def emptied(self) -> None:
        self.sql(f'truncate "{self.table}"')

    def renamed(self) -> None:
        self.sql(f'alter table "{self.table}" rename to "{self.table}_r"')
        self.table += "_r"

    def in_another_zone(self) -> None:
        self.sql(f"alter database airflow set timezone to '{self.chance.choice(ZONES)}'")

    def too_large(self) -> None:
        """A value that does not fit comes, in a key that had none: the target has no earlier row of it."""
        number = self.chance.choice([*({*range(KEYS)} - self.source.rows().keys())] or [0])
        self.source.complete(self.clock + 1, self.clock + 2, {number: None})
        self.source.complete(self.clock + 3, self.clock + 4, {number: TOO_LARGE})
        self.clock += 10
        if self.policy == "stop" and not self.is_wide:
            with pytest.raises(RecordRefusedError, match="alter column value type bigint"):
                self.run()
            self.sql(f'alter table "{self.table}" alter column value type bigint')
            self.is_wide = True

    def locked(self) -> None:
        engine = sa.create_engine(self.url)
        with engine.connect() as other:
            other.execute(sa.text(f'lock table "{self.table}" in share mode'))
            # Without time-outs the run would wait for this test.
            timer = threading.Timer(8.0, other.invalidate)
            timer.start()
            with pytest.raises(SinkUnavailableError, match="locked by process"):
                self.run(timeout_s="1")
            timer.cancel()
        engine.dispose()

    def full(self) -> None:
        """The server says that its disk is full, at some row."""
        self.sql(
            f"create function full_{self.name}() returns trigger language plpgsql as "
            "$$ begin raise exception 'could not extend file' using errcode = '53100'; end $$"
        )
        self.sql(
            f'create trigger full_disk before insert or update or delete on "{self.table}" for each statement '
            f"execute function full_{self.name}()"
        )
        with pytest.raises(SinkUnavailableError, match="could not extend file"):
            self.run()
        self.sql(f'drop trigger full_disk on "{self.table}"; drop function full_{self.name}()')

    def go(self, steps: int) -> None:
        """Let chance decide; a commit follows whatever becomes of the mirror."""
        kinds = [
            self.commit, self.made_again, self.made_again_with_some_rows, self.another_one, self.emptied, self.renamed,
            self.in_another_zone, self.too_large, self.locked, self.full,
        ]  # fmt: skip
        try:
            self.commit({number: 1 for number in range(KEYS) if self.chance.random() < 0.8})
            self.run()
            self.check()
            for _ in range(steps):
                kind = self.chance.choice(kinds)
                self.log.append(kind.__name__)
                if kind in (self.locked, self.full):
                    self.commit()
                    kind()
                else:
                    kind()
                    self.commit()
                self.run()
                self.check()
        finally:
            self.sql("alter database airflow reset timezone")
