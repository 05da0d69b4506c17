"""One table, its stock writers, the provider's services, and the rows that it must have, kept in a dictionary.

Services run as owners run them: `hudi_options` has the lock alone; index, keys and codec are the writers' own.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import random
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.indexing.index_spec import parse_indexes, requested_options
from airflow_lake_provider.job_contract import (
    CHECKPOINT_DAYS,
    INDEX_WAIT_S,
    TTL_COLUMN,
    TTL_COLUMN_DAYS,
    TTL_COLUMN_UNIT,
    TTL_MAX_FILE_GROUPS,
    FailureKind,
    JobRequest,
    Mode,
    Outcome,
    Service,
    ServiceRequest,
)
from airflow_lake_provider.planner import small_files
from airflow_lake_provider.shared.hudi_settings import INDEX_CHECK_TIMEOUT, TTL_DAYS
from tests.oracle.actions import CITIES, FEW_GROUPS, HOUR_S, KEYS, PATIENCE_S, NothingToDoError, World
from tests.oracle.history import Step
from tests.oracle.hudi_answers import WRITES, Hudi
from tests.row_oracle.history import MORE_BUCKETS, NAMED, NEW_YORK, SIMPLE_BLOOM, TOKYO, UTC, RowSetup

TIMELINE = "org.apache.hudi.common.table.timeline"
_clock = time.time
Row = tuple[int, str, float, int]
Rows = dict[int, Row]
DAY_MS = 86_400_000
SIMPLE = {"hoodie.index.type": "BUCKET", "hoodie.index.bucket.engine": "SIMPLE", "hoodie.bucket.index.num.buckets": "2"}
CONSISTENT = {
    "hoodie.index.type": "BUCKET",
    "hoodie.index.bucket.engine": "CONSISTENT_HASHING",
    "hoodie.bucket.index.num.buckets": "2",
    "hoodie.bucket.index.min.num.buckets": "1",
    "hoodie.bucket.index.max.num.buckets": "8",
}
MODE = "hoodie.write.concurrency.mode"
NON_BLOCKING = {
    **SIMPLE,
    MODE: "NON_BLOCKING_CONCURRENCY_CONTROL",
    # Hudi asks for it by the writer's own setting.
    "hoodie.table.type": "MERGE_ON_READ",
}
BY_INDEX: Mapping[str, Mapping[str, str]] = {
    "plain": {},
    "simple_bucket": SIMPLE,
    "consistent_bucket": CONSISTENT,
    "non_blocking": NON_BLOCKING,
}
NAMED_BY_OWNER: Mapping[str, tuple[str, ...]] = {
    "plain": (),
    "simple_bucket": ("hoodie.index.type",),
    "consistent_bucket": tuple(CONSISTENT),
    "non_blocking": ("hoodie.index.type", MODE),
}
"""Which of the writers' settings an owner has in `hudi_options`, where docs/conflicts.md asks for them."""
ZONES = {TOKYO: "Asia/Tokyo", NEW_YORK: "America/New_York"}
RESIZE = {
    "hoodie.bucket.index.merge.threshold": "0.0",
    "hoodie.bucket.index.split.threshold": "0.0001",
    "hoodie.parquet.max.file.size": "1000000",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.clustering.plan.strategy.class": (
        "org.apache.hudi.client.clustering.plan.strategy.SparkConsistentBucketClusteringPlanStrategy"
    ),
    "hoodie.clustering.execution.strategy.class": (
        "org.apache.hudi.client.clustering.run.strategy.SparkConsistentBucketClusteringExecutionStrategy"
    ),
}
CHECKPOINT = "streamer.checkpoint.key.v2"
"""The key under which Hudi's streamer keeps its position in the metadata of a commit."""
BLOOM_FILTER = "hoodie.bloom.index.filter.type"
LOCK_FOLDER = "hoodie.write.lock.filesystem.path"
"""Named by a writer that is not alone, or is held."""
NESTED = "archive/old_orders"
_WHOLE = 0.5
INDEXES = ("record_index", "column_stats:amount", "bloom_filters")


class RowWorld(World):
    """A table of a history. `expected` are its rows by key, of the writes that were acknowledged."""

    setup: RowSetup

    def __init__(self, hudi: Hudi, folder: Path, setup: RowSetup) -> None:
        super().__init__(hudi, folder, setup)
        self.expected: Rows = {}
        self.saved: dict[str, Rows] = {}
        """The rows at each savepoint."""
        self.checkpoint = ""
        """The newest position that a stream has committed."""
        self.complaints: list[str] = []
        """What the owner's writer failed with although nothing else was at work."""
        self.lost_in_other_table = 0
        """Rows that a service took from another table, which lay in this one's folder."""
        self.begun_after: dict[str, int] = {}
        """How many writes were acknowledged before each held one began."""
        self.partitions_of_plan: tuple[str, ...] = ()
        """Which partitions this step's clustering is due for; empty for all."""
        self.base_files: frozenset[str] = frozenset()
        """Names of the base files before this step."""

    def create(self) -> None:
        self._take_zone(self.zone)
        self._save(self._orders(random.Random(0), KEYS), {"hoodie.datasource.write.operation": "upsert"})

    def end(self) -> None:
        super().end()
        self._take_zone("UTC")

    @property
    def zone(self) -> str:
        """Where writers and jobs live."""
        return next((name for trait, name in ZONES.items() if trait in self.setup.traits), "UTC")

    def _take_zone(self, name: str) -> None:
        """Let writers and jobs live in a zone, and let Hudi's clock in this JVM begin again."""
        zones = self.spark._jvm.java.util.TimeZone
        zones.setDefault(zones.getTimeZone(name))
        clock = self.spark._jvm.java.lang.Class.forName(f"{TIMELINE}.HoodieInstantTimeGenerator")
        # Or it waits for hours until its time is later than that of a history further east.
        newest, is_open = clock.getDeclaredField("LAST_INSTANT_TIME"), True
        newest.setAccessible(is_open)
        newest.get(None).set("0")

    def do(self, step: Step) -> str:
        self.partitions_of_plan, self.base_files = (), frozenset(self.list_base_files())
        try:
            return super().do(step)
        except (OSError, ValueError) as error:
            return repr(error)

    # --- writers --------------------------------------------------------------------------------------------

    def _write_settings(self, more: Mapping[str, str]) -> dict[str, str]:
        index = dict(BY_INDEX[self.setup.index])
        if MORE_BUCKETS in self.setup.traits and index:
            index["hoodie.bucket.index.num.buckets"] = "4"
        keys = {"hoodie.populate.meta.fields": "false", "hoodie.index.type": "SIMPLE"} if self.setup.is_virtual else {}
        codec = {"hoodie.parquet.compression.codec": self.setup.codec, BLOOM_FILTER: self.bloom_filter}
        zone = {"hoodie.table.timeline.timezone": "UTC"} if UTC in self.setup.traits else {}
        # Or the metadata table stays listed without these commits, and readers that use it do not see their rows.
        gone = {"hoodie.metadata.auto.delete.partitions": "true"} if self.setup.metadata == "off" else {}
        return {**super()._write_settings({}), **codec, **zone, **index, **keys, **gone, **more}

    @property
    def bloom_filter(self) -> str:
        return "SIMPLE" if SIMPLE_BLOOM in self.setup.traits else "DYNAMIC_V0"

    def _save(self, orders: DataFrame, more: Mapping[str, str]) -> None:
        operation = more.get("hoodie.datasource.write.operation", "upsert")
        rows = [(int(r.id), str(r.city), float(r.amount), int(r.ts)) for r in orders.collect()]
        is_alone = not self.held
        try:
            super()._save(orders, more)
        except (Py4JError, PySparkException) as error:
            # A writer next to others may lose a conflict; one that is alone must not fail.
            if is_alone and LOCK_FOLDER not in more:
                self.complaints.append(last_cause(error))
            raise
        self._acknowledge(operation, rows, more)

    def _acknowledge(self, operation: str, rows: list[Row], more: Mapping[str, str]) -> None:
        if operation == "delete":
            self.deleted |= {row[0] for row in rows}
            for row in rows:
                self.expected.pop(row[0], None)
            return
        if operation == "delete_partition":
            gone = {more["hoodie.datasource.write.partitions.to.delete"]}
        elif operation == "insert_overwrite":
            gone = {row[1] for row in rows}
        else:
            gone = set()
        self.expected = {key: row for key, row in self.expected.items() if row[1] not in gone}
        for row in rows if operation != "delete_partition" else ():
            known = self.expected.get(row[0])
            if known is None or known[3] <= row[3]:
                self.expected[row[0]] = row

    def _begin(self, chance: random.Random) -> None:
        super()._begin(chance)
        self.settle()
        self.begun_after |= {held.instant: self.commits for held in self.held if held.instant not in self.begun_after}

    def settle(self) -> bool:
        """Let go of held writes that have completed; return whether there was one.

        A small write may commit just before it meets its lock, and be seen so by the second of two readers only.
        """
        completed = self._completed()
        through = [held for held in self.held if held.instant in completed]
        for held in through:
            self.held.remove(held)
            held.lock.unlink(missing_ok=True)
            held.outcome.result(PATIENCE_S)
        return bool(through)

    def _finish(self, chance: random.Random) -> None:
        before = list(self.held)
        try:
            super()._finish(chance)
        except (Py4JError, PySparkException) as error:
            (ended,) = [held for held in before if held not in self.held]
            if self.begun_after.get(ended.instant) == self.commits:
                self.complaints.append(f"a writer failed next to services alone: {last_cause(error)}")
            raise

    def _completed(self) -> set[str]:
        return {m.requested for m in self.hudi.ask(self.path).timeline if m.state == "COMPLETED"}

    def _write(self, chance: random.Random) -> None:
        self._save(self._orders(chance, chance.choice((2, 9))), {})

    def _write_late(self, chance: random.Random) -> None:
        """Write rows into each partition, also into one that has expired."""
        self._save(self._orders(chance, 6), {})

    def _write_old(self, chance: random.Random) -> None:
        """Write rows that are late: as old as those of an earlier commit.

        No key that a writer deleted: whether its deletion or a late row wins depends on what was compacted meanwhile.
        """
        hours = chance.randint(1, max(1, self.commits))
        rows = self._orders(chance, 6).withColumn("ts", F.col("ts") - hours * HOUR_S)
        self._save(rows.where(~F.col("id").isin([-1, *sorted(self.deleted)])), {})

    def _delete(self, chance: random.Random) -> None:
        self._require_order()
        self._save(self._orders(chance, 4), {"hoodie.datasource.write.operation": "delete"})

    def _require_order(self) -> None:
        """Let no older row come after a deletion, which only writers that do not block each other can do."""
        if self.setup.index == "non_blocking":
            self._require_alone()

    def _overwrite(self, chance: random.Random) -> None:
        self._require_order()
        city = chance.choice(CITIES)
        rows = self._orders(chance, 9).where(F.col("city") == city)
        self._save(rows, {"hoodie.datasource.write.operation": "insert_overwrite"})

    def _delete_partition(self, chance: random.Random) -> None:
        self._require_order()
        super()._delete_partition(chance)

    def _checkpoint(self, chance: random.Random) -> None:
        """Commit as a stream does: with its position in the commit's metadata."""
        position = f"position-{self.commits}-{chance.randrange(10_000)}"
        more = {"hoodie.datasource.write.commitmeta.key.prefix": "streamer.checkpoint.", CHECKPOINT: position}
        self._save(self._orders(chance, 2), more)
        self.checkpoint = position

    def _switch_metadata(self, chance: random.Random) -> None:
        """Let the writers switch the metadata table off, or on again."""
        self._require_alone()
        self.setup = replace(self.setup, metadata="1" if self.setup.metadata == "off" else "off")

    def _delete_metadata(self, chance: random.Random) -> None:
        """Delete the metadata table as Hudi's own procedure does; the next writer builds it again."""
        self._require_alone()
        with self.client() as client:
            util = self.hudi.hudi.metadata.HoodieTableMetadataUtil
            util.deleteMetadataTable(self.hudi.open(self.path), client.getEngineContext(), False)

    # --- services of the provider -----------------------------------------------------------------------------

    def _run(self, service: Service, mode: Mode, options: Mapping[str, str], instants: tuple[str, ...] = ()) -> None:
        patience = {INDEX_WAIT_S: "2", INDEX_CHECK_TIMEOUT: "2"} if service is Service.INDEXING else {}
        request = JobRequest(
            job_id=f"rows-{self.commits}/{time.monotonic_ns()}",
            base_path=self.path,
            table_name="orders",
            services=(ServiceRequest(service, mode, instants, {**options, **patience}),),
            result_path=str(self.folder / "result.json"),
            hudi_options={**self.lock, **FEW_GROUPS, **self._named()},
        )
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            self.result = importlib.import_module("run_services").run_job(self.spark, request).services[0]
        if self.result.outcome is Outcome.FAILED and self.result.failure_kind is FailureKind.OTHER:
            # What is retried with no end in sight. Other failures say what they wait for, or what to change.
            self.complaints.append(f"{service} failed: {self.result.message}")

    def _named(self) -> dict[str, str]:
        writers = self._write_settings({})
        keys = NAMED_BY_OWNER[self.setup.index] if NAMED in self.setup.traits else ()
        return {key: writers[key] for key in keys}

    def _compact(self, chance: random.Random) -> None:
        self._run(Service.COMPACTION, Mode.SCHEDULE_AND_EXECUTE, {})

    def _log_compact(self, chance: random.Random) -> None:
        self._run(Service.LOGCOMPACTION, Mode.SCHEDULE_AND_EXECUTE, {"hoodie.log.compaction.blocks.threshold": "1"})

    def _cluster(self, chance: random.Random) -> None:
        pending = self._answers().pending("clustering", "replacecommit")
        if pending:
            # What the owner of a plan asks for by its name, or the default policy does after a while.
            self._run(Service.CLUSTERING, Mode.EXECUTE, {})
            return
        if chance.random() < _WHOLE:
            self._run(Service.CLUSTERING, Mode.SCHEDULE_AND_EXECUTE, {})
            return
        # By the options of the planner, which counts the small files of each partition.
        self.partitions_of_plan = (chance.choice(CITIES),)
        policy = TablePolicy.model_validate({"clustering": {"enabled": True}, "hudi_options": self.lock})
        options = small_files.clustering_options(policy, self.partitions_of_plan)
        self._run(Service.CLUSTERING, Mode.SCHEDULE_AND_EXECUTE, options)

    def _clean(self, chance: random.Random) -> None:
        kept = {"hoodie.clean.commits.retained": str(chance.randint(1, 2))}
        self._run(Service.CLEAN, Mode.SCHEDULE_AND_EXECUTE, kept)

    def _archive(self, chance: random.Random) -> None:
        kept = chance.choice((2, 3))
        options = {
            CHECKPOINT_DAYS: "30",
            "hoodie.clean.commits.retained": "1",
            "hoodie.keep.min.commits": str(kept),
            "hoodie.keep.max.commits": str(kept + 1),
        }
        self._run(Service.ARCHIVE, Mode.EXECUTE, options)

    def _metadata_compact(self, chance: random.Random) -> None:
        self._run(Service.METACOMPACTION, Mode.SCHEDULE_AND_EXECUTE, {})

    def _roll_back(self, chance: random.Random) -> None:
        """Roll back what the dead left; the clock of this process may be minutes ahead of the store's."""
        ahead_s = chance.choice((0.0, 300.0))
        with swapped(time, "time", lambda: _clock() + ahead_s):
            self._run(Service.ROLLBACK, Mode.EXECUTE, {})
        gone = [held.instant for held in self.held if held.instant not in self._requested()]
        self.complaints += [f"the write {instant} of a living writer was rolled back" for instant in gone]

    def _expire(self, chance: random.Random) -> None:
        """Delete a partition as the service of expired partitions does; which one has expired is drawn here."""
        city = chance.choice(CITIES)
        ttl = importlib.import_module("lake_jobs.services.ttl")
        expired = swapped(ttl, "find_expired", lambda last_writes, now, rules: (city,))
        with expired, swapped(ttl, "MAX_WAIT_S", 2.0):
            self._run(Service.TTL, Mode.EXECUTE, {TTL_DAYS: "50"})
        if self.result is not None and self.result.outcome is Outcome.COMPLETED:
            self.expected = {key: row for key, row in self.expected.items() if row[1] != city}

    def _expire_rows(self, chance: random.Random) -> None:
        """Let rows expire by the column `ts`; the limit is drawn, and the job's clock set by it.

        One file group in each run, or all in one.
        """
        times = sorted({row[3] for row in self.expected.values()})
        if not times:
            raise NothingToDoError
        limit_s = chance.choice(times) + chance.randint(0, 1)
        options = {TTL_COLUMN: "ts", TTL_COLUMN_UNIT: "s", TTL_COLUMN_DAYS: "50"}
        if not self.held and chance.random() < _WHOLE:
            options[TTL_MAX_FILE_GROUPS] = "1"
        ttl, expiry = (importlib.import_module(f"lake_jobs.services.{name}") for name in ("ttl", "row_expiry"))
        now_ms = limit_s * 1000 + 50 * DAY_MS
        has_deleted = False
        with swapped(expiry, "store_now_ms", lambda *_: now_ms), swapped(ttl, "MAX_WAIT_S", 2.0):
            for _ in range(len(CITIES) * KEYS):
                self._run(Service.TTL, Mode.EXECUTE, options)
                is_deletion = self.result is not None and self.result.outcome is Outcome.COMPLETED
                has_deleted = has_deleted or is_deletion
                if not is_deletion or TTL_MAX_FILE_GROUPS not in options:
                    break
        if not has_deleted:
            return
        gone = {key for key, row in self.expected.items() if row[3] < limit_s}
        self.expected = {key: row for key, row in self.expected.items() if key not in gone}
        if self.setup.type == "MOR":
            # A late row brings the deleted one back, until a compaction (limitations.md).
            self.deleted |= gone

    def _index(self, chance: random.Random) -> None:
        self._require_metadata()
        options = requested_options(parse_indexes([chance.choice(INDEXES)]))
        self._run(Service.INDEXING, Mode.SCHEDULE_AND_EXECUTE, options)

    def _resize(self, chance: random.Random) -> None:
        """Plan a change of buckets as the owner's writer does; a service executes it later."""
        with self.client(**CONSISTENT, **RESIZE) as client:
            client.scheduleClustering(self._none())

    def _save_point(self, chance: random.Random) -> None:
        completed = [m for m in self.hudi.ask(self.path).timeline if m.completed and m.action in WRITES]
        # Hudi's savepoint is of the write that was requested last, and a restore takes those back that completed later.
        if not completed or max(completed, key=lambda m: m.requested) != max(completed, key=lambda m: m.completed):
            raise NothingToDoError
        with self.client() as client:
            client.savepoint("oracle", "a step of a history")
        # The step ends without another write, so the newest savepoint is this one.
        self.saved[max(self._savepoints())] = dict(self.expected)

    def _savepoints(self) -> list[str]:
        return [m.requested for m in self.hudi.ask(self.path).timeline if m.action == "savepoint"]

    def _restore(self, chance: random.Random) -> None:
        self._require_alone()
        # Hudi rolls back half of a restore that passes a younger savepoint, and then refuses it.
        savepoint = max(self.saved, default="")
        if not savepoint or savepoint != max(self._savepoints(), default=""):
            raise NothingToDoError
        try:
            with self.client() as client:
                client.restoreToSavepoint(savepoint)
        except Py4JError:
            # It may be half done, which is no service's doing.
            self.expected = {row[0]: row for row in self.read(metadata=False)}
            raise
        self.expected = dict(self.saved[savepoint])
        self.checkpoint = ""

    def _find_orphans(self, chance: random.Random) -> None:
        """Search for orphans in ten days' time, with another table's folder inside this one's, which leaves then.

        Where it stays, most services are refused.
        """
        settings = self._write_settings({}) | {"hoodie.table.name": "old_orders"}
        rows = self._orders(chance, KEYS)
        rows.write.format("hudi").options(**settings).mode("append").save(f"{self.path}/{NESTED}")
        options = {
            "lake.orphans.mode": "quarantine",
            "lake.orphans.min_age_days": "2",
            "lake.orphans.keep_days": "30",
            "lake.orphans.max_files": "1000",
        }
        orphans = importlib.import_module("lake_jobs.services.orphans")
        later_ms = int(time.time() * 1000) + 10 * DAY_MS
        with swapped(orphans, "_now_ms", lambda *_: later_ms):
            self._run(Service.ORPHANS, Mode.EXECUTE, options)
        self.lost_in_other_table = KEYS - self.count_rows(NESTED)
        shutil.rmtree(Path(self.path) / Path(NESTED).parts[0])

    def check_integrity(self) -> list[str]:
        """Return what a check of files and keys finds, or fails with; next to writers that have not ended."""
        self._run(Service.INTEGRITY, Mode.EXECUTE, {})
        complaints, self.complaints = self.complaints, []
        is_alarm = self.result is not None and self.result.outcome is Outcome.COMPLETED
        return [*complaints, *([self.result.message] if self.result is not None and is_alarm else [])]

    # --- what readers find ------------------------------------------------------------------------------------

    def read(self, *, metadata: bool) -> list[Row]:
        """Return the rows that a plain reader finds, sorted; what it fails with is a row of its own."""
        options = {"hoodie.metadata.enable": str(metadata).lower()}
        try:
            found = self.spark.read.format("hudi").options(**options).load(self.path)
            return sorted(tuple(row) for row in found.select("id", "city", "amount", "ts").collect())
        except (Py4JError, PySparkException) as error:
            return [(-1, last_cause(error), 0.0, 0)]

    def list_base_files(self) -> list[str]:
        """Return the base files, each with its partition."""
        return sorted(
            f"{file.parent.name}/{file.name}"
            for file in Path(self.path).glob("*/*.parquet")
            if not file.parent.name.startswith(".")
        )

    def count_rows(self, folder: str) -> int:
        try:
            return self.spark.read.format("hudi").load(f"{self.path}/{folder}").count()
        except (Py4JError, PySparkException):
            return 0

    def has_on_timeline(self, text: str) -> bool:
        """Return whether a file of the active timeline contains a text."""
        folder = Path(self.path) / ".hoodie" / ("timeline" if self.version >= 8 else "")
        return any(text.encode() in file.read_bytes() for file in folder.iterdir() if file.is_file())


@contextlib.contextmanager
def swapped(module: Any, name: str, value: Any) -> Iterator[None]:
    """Give a module another function for a while: what a history draws instead of waiting for days."""
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


def last_cause(error: Exception) -> str:
    """Return the first cause, or what py4j says in the line after its own."""
    lines = [line.strip() for line in str(error).splitlines()]
    causes = [line for line in lines if line.startswith("Caused by")]
    thrown = [line for line in lines if line.startswith(": ")]
    return [*lines[:1], *thrown[:1], *causes][-1][:300]
