"""A seeded random history of a real table: what is done to it, and what the table held after each step.

Nothing here shares code with what is tested: the table's rows come from an ordinary query after each step, and instants
from the names of files. Steps come from a shuffled deck, so that a history of some length has every kind of step.
"""

from __future__ import annotations

import base64
import datetime
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from held_writers import take_lock, wait_until
from pyspark.sql import functions as F
from pyspark.sql import types as T
from test_replication_next_to_compaction import PATIENCE_S, gated_write
from test_replication_on_hudi import Lake

from airflow_lake_provider.job_contract import SAFEPOINT, Outcome, Service
from airflow_lake_provider.job_contract import Mode as ServiceMode
from tests.support.spark_session import ONE_TASK

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEYS, PARTITIONS = 24, ("p0", "p1")
FIELDS = (
    T.StructField("id", T.LongType()),
    T.StructField("name", T.StringType()),
    T.StructField("price", T.DecimalType(24, 4)),
    T.StructField("tags", T.MapType(T.StringType(), T.StringType())),
    T.StructField("day", T.DateType()),
    T.StructField("moment", T.TimestampType()),
    T.StructField("blob", T.BinaryType()),
    T.StructField("ts", T.LongType()),
    T.StructField("part", T.StringType()),
)
LOST_IN_CHANGE_DATA = ("price", "tags")
ADDED = "city"
AT_ONCE = {"hoodie.compact.inline.max.delta.commits": "1"}
GIVES_UP = {
    # The test's own lock never expires.
    "hoodie.write.lock.filesystem.expire": "0",
    "hoodie.write.lock.num_retries": "1",
    "hoodie.write.lock.client.num_retries": "1",
    "hoodie.write.lock.client.wait_time_ms_between_retry": "50",
    "hoodie.write.lock.wait_time_ms": "50",
}
Key = tuple[int, str]
Rows = dict[Key, dict[str, Any]]


@dataclass(frozen=True)
class Kind:
    """A kind of table."""

    type: str
    version: int
    has_change_data: bool = False
    is_plain: bool = False
    """Without a map, so that no small commit of it needs a Spark job."""

    def __str__(self) -> str:
        ends = ("-cdc" if self.has_change_data else "", "-plain" if self.is_plain else "")
        return f"{self.type}-v{self.version}{''.join(ends)}"

    @property
    def schema(self) -> T.StructType:
        """The columns that Hudi's change data keeps, where the table has it."""
        left_out = LOST_IN_CHANGE_DATA if self.has_change_data else ("tags",) if self.is_plain else ()
        return T.StructType([field for field in FIELDS if field.name not in left_out])


class ExactLake(Lake):
    """Reads decimals with all of their digits."""

    parse_float = Decimal

    def plans(self) -> set[str]:
        """Requested times of compaction plans that were not executed yet."""
        plans = {path.name.split(".")[0] for path in self.timeline.glob("*.compaction.requested")}
        return plans - {path.name.split(".")[0].split("_")[0] for path in self.timeline.glob("*.commit")}

    def newest_write(self) -> str:
        """Return the requested time of the completed write of any kind that completed last."""

        def completed(path: Path) -> str:
            requested, _, at = path.name.split(".")[0].partition("_")
            return at or f"{path.stat().st_mtime_ns:020}{requested}"

        return max(self._completed_writes(), key=completed).name.split(".")[0].split("_")[0]

    def youngest_write(self) -> str:
        """Return the requested time of the completed write of any kind that was requested last."""
        return max(path.name.split(".")[0].split("_")[0] for path in self._completed_writes())

    def _completed_writes(self) -> list[Path]:
        return [path for end in ("commit", "deltacommit", "replacecommit") for path in self.timeline.glob(f"*.{end}")]


@dataclass
class History:
    """One table, what was done to it, and what it held after each step."""

    lake: ExactLake
    kind: Kind
    random: random.Random
    hold: Callable[[], str]
    """The requested time that every stream still needs."""
    quiet: Callable[[], None] = lambda: None
    """Called where streams should catch up in the middle of a step."""
    said: list[str] = field(default_factory=list)
    ts: int = 100
    wide: bool = False
    has_evolved: bool = False
    rows_after: dict[str, Rows] = field(default_factory=dict)
    """What the table held when the write of this requested time had completed."""
    table: Rows = field(default_factory=dict)
    deck: list[Callable[[], None]] = field(default_factory=list)
    only: tuple[str, ...] = ()
    """Names of the operations that are in the deck; all without any."""
    dead: list[str] = field(default_factory=list)
    """Writes that ended before they were completed, and were not rolled back yet."""

    def rows(self, keys: list[Key], ts: int) -> DataFrame:
        moment = datetime.datetime(2026, 3, 1, 10, 0, 0, 123456, tzinfo=datetime.UTC)
        day = datetime.date(2026, 3, 1)
        found = []
        for i, part in keys:
            price = Decimal(self.random.randrange(10**23)) / 10**4
            tags = {"a": None, "b": f"{ts}"} if i % 2 else None
            values = {"id": i, "name": f'zö"{i}-{ts}', "price": price, "tags": tags, "day": day, "moment": moment}
            values |= {"blob": b"ab\x00\xff", "ts": ts, "part": part}
            found.append(tuple(values[name] for name in self.kind.schema.names))
        rows = self.lake.spark.createDataFrame(found, self.kind.schema)
        return rows.withColumn(ADDED, F.concat(F.lit("c"), "id", F.lit(f"-{ts}"))) if self.wide else rows

    def known(self, most: int = 4, part: str = "") -> list[Key]:
        """Return some rows that are there."""
        there = sorted(key for key in self.table if part in {"", key[1]})
        return self.random.sample(there, min(len(there), self.random.randint(1, most)))

    def any_keys(self, most: int = 4) -> list[Key]:
        """Return rows that may be there; some ids are rows of both partitions."""
        ids = self.random.sample(range(KEYS), self.random.randint(1, most))
        return [(i, self.random.choice(PARTITIONS)) for i in ids]

    def some_keys(self) -> list[Key]:
        return sorted({*self.known(), *self.any_keys()})

    def new_keys(self, base: int) -> list[Key]:
        # Of their own: Hudi's insert looks up none, and a second row of one key is no row of a keyed table.
        first = base + self.next_ts()
        return [(first + i, self.random.choice(PARTITIONS)) for i in range(self.random.randint(1, 3))]

    def next_ts(self) -> int:
        self.ts += 10
        return self.ts

    # --- Writers

    def upsert(self) -> None:
        self.lake.write(self.rows(self.some_keys(), self.next_ts()))

    def upsert_that_is_late(self) -> None:
        """Some rows have a higher ordering value already, and stay."""
        keys = sorted({*self.known(6), *self.any_keys(2)})
        half = len(keys) // 2
        # Below every value that was written, and below some.
        self.lake.write(self.rows(keys[half:], 1).unionByName(self.rows(keys[:half], self.ts - 15)))

    def both_partitions(self) -> None:
        """One id is a row of each partition, and then of one."""
        i, ts = self.random.randrange(KEYS), self.next_ts()
        self.lake.write(self.rows([(i, part) for part in PARTITIONS], ts))
        self.note()
        self.quiet()
        self.lake.write(self.rows([(i, self.random.choice(PARTITIONS))], self.next_ts()), "delete")

    def insert(self) -> None:
        self.lake.write(self.rows(self.new_keys(1_000), self.ts), "insert")

    def bulk_insert(self) -> None:
        self.lake.write(self.rows(self.new_keys(2_000), self.ts), "bulk_insert")

    def delete(self) -> None:
        self.lake.write(self.rows(sorted({*self.known(), (77, "p0")}), self.next_ts()), "delete")

    def insert_overwrite(self) -> None:
        self.lake.write(self.rows(self.any_keys(3), self.next_ts()), "insert_overwrite")

    def delete_partition(self) -> None:
        gone = {"hoodie.datasource.write.partitions.to.delete": self.random.choice(PARTITIONS)}
        self.lake.write(self.rows([(0, "p0")], self.next_ts()).limit(0), "delete_partition", **gone)

    def merge_into(self) -> None:
        """A partial update by SQL: of merge-on-read tables it writes the named columns alone."""
        spark, name = self.lake.spark, f"history_{self.lake.folder.name.replace('-', '_')}"
        source = self.rows(self.some_keys(), self.next_ts()).select("id", "part", "price", "ts")
        source.createOrReplaceTempView("history_source")
        spark.sql(f"create table if not exists {name} using hudi location '{self.lake.path}'")
        settings = {**self.lake.options, "hoodie.spark.sql.insert.into.operation": "upsert"}
        kept = {key: spark.conf.get(key, None) for key in settings}
        for key, value in settings.items():
            spark.conf.set(key, value)
        try:
            spark.sql(
                f"merge into {name} t using history_source s on t.id = s.id and t.part = s.part "
                "when matched then update set price = s.price, ts = s.ts"
            )
        finally:
            for key, value in kept.items():
                spark.conf.unset(key) if value is None else spark.conf.set(key, value)
            spark.sql(f"drop table {name}")

    def add_column(self) -> None:
        self.wide = self.has_evolved = True
        self.upsert()

    def drop_column(self) -> None:
        """The newest schema lacks a column of which the commit before it wrote values."""
        self.upsert()
        self.note()
        self.wide = False
        drop = {"hoodie.datasource.write.schema.allow.auto.evolution.column.drop": "true"}
        keep = {"hoodie.datasource.write.reconcile.schema": "false"}
        self.lake.write(self.rows(self.some_keys(), self.next_ts()), **drop, **keep)

    def slow(self) -> None:
        """A writer that began earlier completes later than another one."""
        slow, fast = self.random.sample(PARTITIONS, 2)
        if not self.known(1, slow):
            return self.upsert()
        with self.gated(self.known(2, slow)) as write:
            self.lake.write(self.rows([(KEYS + 1, fast), *self.known(2, fast)], self.next_ts()))
            self.note()
            self.quiet()
            write.finish()
        return None

    def overtaken(self) -> None:
        """A compaction is planned while a write is under way: the write's log files belong to the plan's slice."""
        if not self.table:
            return self.upsert()
        keys = self.known(3)
        # Log files, which alone are planned to be compacted.
        self.lake.write(self.rows(keys, self.next_ts()))
        self.note()
        with self.gated(keys) as write:
            self.service(Service.COMPACTION, ServiceMode.SCHEDULE, **AT_ONCE)
            write.finish()
        self.note()
        self.quiet()
        return None

    def dying(self) -> None:
        """A writer that has written its files never completes: the table's lock is another's."""
        kept, lock = dict(self.lake.options), Path(self.lake.path) / ".hoodie" / "lock"
        self.lake.options |= GIVES_UP
        try:
            with self.gated(self.known(3) or [(0, "p0")]) as write:
                # Not before the writer has given it back: it began under the lock, and would remove ours with its own.
                wait_until(lambda: take_lock(lock))
                write.gate.touch()
                assert write.thread is not None
                write.thread.join(PATIENCE_S)
                assert write.errors, "the writer was to die, and has completed"
                self.dead.append(write.instant)
        finally:
            lock.unlink(missing_ok=True)
            self.lake.options = kept

    def gated(self, keys: list[Key]) -> Any:
        ts = self.next_ts()
        return gated_write(self.lake, keys, ts, self.rows)

    # --- Table services

    def roll_back(self) -> None:
        for instant in self.dead:
            beat = Path(self.lake.path) / ".hoodie" / ".heartbeat" / instant
            if beat.exists():
                then_s = time.time() - 600
                os.utime(beat, (then_s, then_s))
            done = self.lake.service(Service.ROLLBACK, ServiceMode.EXECUTE)
            assert done.outcome in {Outcome.COMPLETED, Outcome.NOTHING_TO_DO}, done.message
        self.dead.clear()

    def execute_plans(self) -> None:
        if self.lake.plans():
            self.service(Service.COMPACTION, ServiceMode.EXECUTE)

    def compact(self) -> None:
        self.service(Service.COMPACTION, ServiceMode.SCHEDULE_AND_EXECUTE, **AT_ONCE)

    def cluster(self) -> None:
        self.service(
            Service.CLUSTERING,
            ServiceMode.SCHEDULE_AND_EXECUTE,
            **{
                "hoodie.clustering.async.max.commits": "1",
                "hoodie.clustering.plan.strategy.single.group.clustering.enabled": "true",
                "hoodie.clustering.plan.strategy.sort.columns": "id",
            },
        )

    def clean(self) -> None:
        """As the service does it: nothing that a stream still needs."""
        held = {SAFEPOINT: self.hold(), "hoodie.clean.commits.retained": "1"}
        self.service(Service.CLEAN, ServiceMode.SCHEDULE_AND_EXECUTE, **held)

    def restore(self) -> None:
        """What was replicated is undone."""
        kept = self.lake.newest_write()
        # Hudi leaves what completed before a compaction and was requested after it, and then refuses its own restore.
        if self.dead or kept != self.lake.youngest_write():
            return self.upsert()
        self.call("create_savepoint", commit_time=kept)
        self.upsert()
        self.note()
        self.quiet()
        self.call("rollback_to_savepoint", instant_time=kept)
        self.call("delete_savepoint", instant_time=kept)
        return None

    def call(self, procedure: str, **options: str) -> None:
        spark, named = self.lake.spark, "".join(f", {name} => '{value}'" for name, value in options.items())
        settings = {"hoodie.clean.failed.writes.policy": "LAZY", "hoodie.metadata.index.column.stats.enable": "false"}
        # A procedure upgrades the table otherwise, and the restore then leaves the log files of what it undoes.
        settings |= {
            name: self.lake.options[name] for name in ("hoodie.write.auto.upgrade", "hoodie.write.table.version")
        }
        for name, value in settings.items():
            spark.conf.set(name, value)
        try:
            spark.sql(f"call {procedure}(path => '{self.lake.path}'{named})").collect()
        finally:
            for name in settings:
                spark.conf.unset(name)

    def service(self, service: Service, mode: ServiceMode, **options: str) -> None:
        done = self.lake.service(service, mode, **options)
        fine = {Outcome.COMPLETED, Outcome.SCHEDULED, Outcome.NOTHING_TO_DO}
        assert done.outcome in fine, f"{service}: {done.message}"

    # --- The history

    def operations(self) -> list[Callable[[], None]]:
        found = [self.upsert, self.upsert_that_is_late, self.both_partitions, self.insert, self.bulk_insert]
        found += [self.delete, self.insert_overwrite, self.delete_partition, self.cluster, self.clean, self.slow]
        found += [self.dying, self.roll_back, self.add_column, self.drop_column]
        found.append(self.restore)
        if self.kind.version >= 8 and not self.kind.has_change_data:
            found.append(self.merge_into)
        if self.kind.type == "MOR":
            found.append(self.compact)
            if self.kind.version >= 8:
                found += [self.overtaken, self.execute_plans]
        return [operation for operation in found if not self.only or operation.__name__ in self.only]

    def is_possible(self, operation: Callable[[], None]) -> bool:
        """Whether Hudi 1.2 does it at this point."""
        if operation == self.merge_into:
            # Before version 8 all columns are written. On merge-on-read tables with change data Hudi 1.2 failed at one.
            # Where a column was added behind the partition's it writes garbled rows: its catalog differs in order.
            return not self.has_evolved
        if operation == self.drop_column:
            return self.wide
        if operation == self.add_column:
            # Once: a column of the name of a dropped one would have the old files' values.
            return not self.has_evolved
        if operation == self.roll_back:
            return bool(self.dead)
        if operation == self.delete_partition:
            # It refuses a partition of which a file group is planned to be compacted.
            return not self.lake.plans()
        return True

    def draw(self) -> Callable[[], None]:
        """Return the next operation: each kind comes once before one comes twice."""
        while True:
            if not self.deck:
                self.deck = self.operations()
                self.random.shuffle(self.deck)
            at = next((at for at, found in enumerate(self.deck) if self.is_possible(found)), None)
            if at is not None:
                return self.deck.pop(at)
            self.deck = []

    def step(self, operation: Callable[[], None] | None = None) -> None:
        operation = operation or self.draw()
        self.said.append(operation.__name__)
        operation()
        self.note()

    def note(self) -> None:
        """Record what the table holds now."""
        self.lake.spark.conf.set("spark.sql.session.timeZone", "UTC")
        rows = self.lake.spark.read.format("hudi").load(self.lake.path)
        names = [name for name in rows.columns if not name.startswith("_hoodie_")]
        found = rows.select(*names).collect()
        self.table = {(row["id"], row["part"]): {name: as_json(row[name]) for name in names} for row in found}
        assert len(self.table) == len(found), self.said
        self.rows_after[self.lake.newest_write()] = self.table


def as_json(value: Any) -> Any:
    """Return a value of Spark's as the documents say that it is written."""
    if isinstance(value, datetime.datetime):
        return value.astimezone(datetime.UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode()
    return exact(value)


def exact(value: Any) -> Any:
    return value.normalize() if isinstance(value, Decimal) else value


def begin(spark: SparkSession, folder: Path, kind: Kind, seed: int, hold: Callable[[], str]) -> History:
    options = {
        **ONE_TASK,
        "hoodie.table.cdc.enabled": str(kind.has_change_data).lower(),
        "hoodie.datasource.write.reconcile.schema": "true",
    }
    lake = ExactLake(spark, folder, kind.type, kind.version, **options)
    history = History(lake, kind, random.Random(seed), hold)
    keys = [(i, PARTITIONS[i // 2 % 2]) for i in range(0, KEYS, 2)]
    history.lake.write(history.rows(keys, history.ts))
    history.note()
    return history
