"""The steps of a history, carried out by real Hudi in the JVM of this process.

A step that cannot be done now (nothing to finish, no savepoint to restore) does nothing; one that Hudi refuses counts
as done: what it left behind is compared like anything else.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import random
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from airflow_lake_provider.indexing.index_spec import parse_indexes, requested_options
from airflow_lake_provider.job_contract import (
    INDEX_CHECK,
    INDEX_WAIT_S,
    JobRequest,
    Mode,
    Service,
    ServiceRequest,
    ServiceResult,
)
from airflow_lake_provider.shared.hudi_settings import INDEX_CHECK_TIMEOUT
from lake_jobs.hudi.table import open_client
from local_stack import lake_writer
from tests.oracle.history import Setup, Step
from tests.oracle.hudi_answers import WRITES, FileGroups, Hudi, HudiAnswers
from tests.oracle.places import Files
from tests.support.spark_session import ONE_TASK

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PATIENCE_S = 60.0
KEYS, ROWS = 36, 9
HOUR_S = 3600
CITIES = ("Aachen", "Bilbao", "Cork")

LOCK = {
    "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
    "hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider",
    "hoodie.write.lock.filesystem.expire": "2",
    "hoodie.write.lock.client.wait_time_ms_between_retry": "50",
    "hoodie.write.lock.client.num_retries": "400",
}
SERVICE = {
    "hoodie.table.services.enabled": "true",
    "hoodie.clean.failed.writes.policy": "LAZY",
    "hoodie.clean.automatic": "false",
    "hoodie.archive.automatic": "false",
    "hoodie.compact.inline": "false",
    "hoodie.clustering.inline": "false",
    "hoodie.metadata.auto.delete.partitions": "false",
    "hoodie.write.auto.upgrade": "false",
    "hoodie.compact.inline.max.delta.commits": "1",
    "hoodie.clustering.async.max.commits": "1",
    "hoodie.clustering.inline.max.commits": "1",
    "hoodie.log.compaction.enable": "true",
    "hoodie.log.compaction.blocks.threshold": "1",
    "hoodie.metadata.index.column.stats.enable": "false",
    "hoodie.metadata.index.partition.stats.enable": "false",
}
EAGER_ARCHIVE = {
    "hoodie.keep.min.commits": "1",
    "hoodie.keep.max.commits": "2",
    "hoodie.clean.policy": "KEEP_LATEST_FILE_VERSIONS",
}
INDEXES = (
    "column_stats:amount",
    "record_index",
    "record_index",
    "bloom_filters",
    "secondary_index:customer",
    "partition_stats",
    "expression_index:by_day:from_unixtime(ts):format=yyyy-MM-dd",
)
FEW_GROUPS = {
    "hoodie.metadata.global.record.level.index.min.filegroup.count": "1",
    "hoodie.metadata.global.record.level.index.max.filegroup.count": "1",
}
"""Ten unless said otherwise, each a file and a task of every commit from then on."""
ENABLE = {
    "hoodie.metadata.index.async": "true",
    "hoodie.metadata.index.column.stats.enable": "true",
    "hoodie.metadata.index.bloom.filter.enable": "true",
    "hoodie.metadata.global.record.level.index.enable": "true",
    **FEW_GROUPS,
}


class NothingToDoError(Exception):
    """The step has no place at this moment of the history."""


@dataclass(slots=True)
class HeldWrite:
    """A write that has written its files and waits for its lock, which the history holds."""

    folder: Path
    is_announced: bool
    instant: str = ""
    outcome: Future[None] = field(default_factory=Future)

    @property
    def lock(self) -> Path:
        return self.folder / "lock"


class World:
    """One table, its writers and services. `now` is what Hudi said of the table after the step before."""

    def __init__(self, hudi: Hudi, folder: Path, setup: Setup) -> None:
        self.hudi = hudi
        self.spark = hudi.spark
        self.setup = setup
        self.path = hudi.place.table(folder)
        self.files = Files(self.spark, self.path)
        self.folder = folder
        """Of this machine: what holds writers, and results of jobs."""
        self.lock = LOCK | hudi.place.lock_options(folder)
        self.commits = 0
        self.columns = 0
        self.held: list[HeldWrite] = []
        self.savepoints: list[str] = []
        self.inserted: set[int] = set()
        """Keys that were inserted into a table that had them: two rows once stood in it."""
        self.deleted: set[int] = set()
        """Keys that were deleted by their rows."""
        self.emptied: set[str] = set()
        """Indexes that were built after a savepoint to which the table was restored since (`known.py`)."""
        self.given_up: set[str] = set()
        """Plans of indexes whose build Hudi's own client has given up; it lists them all the same."""
        self.unindexed_keys: frozenset[int] = frozenset()
        """Keys of this step's bulk insert when its writer streams metadata, which leaves them out of a secondary index
        (`known.py`)."""
        self.is_announced = False
        """Whether the commits of this step are announced to the announced view."""
        self.result: ServiceResult | None = None
        """What a job of ours returned in this step."""
        self.now: HudiAnswers | None = None
        self.table_name = f"orders_{zlib.crc32(self.path.encode())}"
        self._is_in_catalog = False

    # --- carrying out ---------------------------------------------------------------------------------------

    def create(self) -> None:
        """Write the first commit, which makes the table."""
        self._save(self._orders(random.Random(0), KEYS), {"hoodie.datasource.write.operation": "insert"})

    def do(self, step: Step) -> str:
        """Carry a step out; return what Hudi complained of, empty when it was content. Raises NothingToDoError."""
        self.is_announced, self.result, self.unindexed_keys = False, None, frozenset()
        act: Callable[[random.Random], None] = getattr(self, f"_{step.kind}")
        try:
            act(step.chance())
        except (Py4JError, PySparkException) as error:
            return _complaint(error)
        finally:
            self.is_announced = self.is_announced or self.setup.is_announcing
        return ""

    def end(self) -> None:
        """Let each held write end, so that no thread outlives the history."""
        while self.held:
            with contextlib.suppress(Py4JError, PySparkException):
                self._finish(random.Random(0))

    @property
    def version(self) -> int:
        return self.setup.version if self.now is None else self.now.version

    # --- writers --------------------------------------------------------------------------------------------

    def _orders(self, chance: random.Random, rows: int = ROWS) -> DataFrame:
        first = 0 if rows == KEYS else chance.randrange(KEYS)
        ids = self.spark.range(first, first + rows, 1, 1)
        orders = ids.select(
            "id",
            (F.col("id") % 7).alias("customer"),
            F.element_at(F.array(*map(F.lit, CITIES)), (F.col("id") % len(CITIES) + 1).cast("int")).alias("city"),
            ((F.col("id") * 31 + self.commits * 17) % 1000 / 10).alias("amount"),
            F.lit(1_767_225_600 + self.commits * 3600).cast("long").alias("ts"),
        )
        for number in range(self.columns):
            orders = orders.withColumn(f"extra_{number}", F.lit(self.commits))
        return orders

    def _metadata_settings(self) -> dict[str, str]:
        if self.setup.metadata == "off":
            return {"hoodie.metadata.enable": "false"}
        return {
            "hoodie.metadata.enable": "true",
            "hoodie.metadata.compact.max.delta.commits": self.setup.metadata,
            "hoodie.metadata.streaming.write.enabled": str(self.setup.streaming).lower(),
        }

    def _write_settings(self, more: Mapping[str, str]) -> dict[str, str]:
        written = lake_writer.WrittenTable("orders", self.path, type=self.setup.type, version=self.version)
        partitions = () if self.now is None else self.now.metadata_partitions
        # Hudi's writers fail on these without it.
        needs_server = any(name == "partition_stats" or name.startswith("expr_index") for name in partitions)
        return {
            **lake_writer.write_options(written, 1, None, {}),
            **ONE_TASK,
            **self.lock,
            **self._metadata_settings(),
            "hoodie.embed.timeline.server": str(needs_server).lower(),
            "hoodie.write.set.null.for.missing.columns": "true",
            **more,
        }

    def _keys_there(self) -> set[int]:
        """Return the keys that stand in the table, by a full scan of its files."""
        return _keys_of(self.spark.read.format("hudi").option("hoodie.metadata.enable", "false").load(self.path))

    def _save(self, orders: DataFrame, more: Mapping[str, str]) -> None:
        orders.write.format("hudi").options(**self._write_settings(more)).mode("append").save(self.path)
        self.commits += 1

    def _write(self, chance: random.Random) -> None:
        self.is_announced = chance.random() < 0.6
        operation = chance.choice(("upsert", "upsert", "upsert", "insert", "bulk_insert", "delete"))
        rows = self._orders(chance, chance.choice((2, ROWS)))
        keys = _keys_of(rows)
        if operation in {"insert", "bulk_insert"}:
            self.inserted |= keys & self._keys_there()
        if operation == "bulk_insert" and self.setup.streaming:
            self.unindexed_keys = frozenset(keys)
        if operation == "delete":
            self.deleted |= keys
        self._save(rows, {"hoodie.datasource.write.operation": operation})

    def _delete(self, chance: random.Random) -> None:
        self.is_announced = chance.random() < 0.6
        rows = self._orders(chance, 4)
        self.deleted |= _keys_of(rows)
        self._save(rows, {"hoodie.datasource.write.operation": "delete"})

    def _overwrite(self, chance: random.Random) -> None:
        self._save(self._orders(chance, 3), {"hoodie.datasource.write.operation": "insert_overwrite"})

    def _delete_partition(self, chance: random.Random) -> None:
        more = {
            "hoodie.datasource.write.operation": "delete_partition",
            "hoodie.datasource.write.partitions.to.delete": chance.choice(CITIES),
        }
        self._save(self._orders(chance, 1), more)

    def _evolve(self, chance: random.Random) -> None:
        self.columns += 1
        self._save(self._orders(chance), {})

    def _write_alone(self, chance: random.Random) -> None:
        """Write as Hudi does by default: without lock and heartbeat, and taking back what it finds unfinished."""
        self._require_alone()
        self.is_announced = chance.random() < 0.5
        more = {
            "hoodie.write.concurrency.mode": "single_writer",
            "hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.InProcessLockProvider",
            "hoodie.clean.failed.writes.policy": "EAGER",
        }
        self._save(self._orders(chance), more)

    def _write_dropping(self, chance: random.Random) -> None:
        """Write with Hudi's default that drops each index which the writer does not name."""
        self.is_announced = True
        self._save(self._orders(chance), {"hoodie.metadata.auto.delete.partitions": "true"})

    def _merge_into(self, chance: random.Random) -> None:
        """Change one column of some rows in SQL: a partial update where Hudi can."""
        if not self._is_in_catalog:
            self.spark.sql(f"create table {self.table_name} using hudi location '{self.path}'")
            self._is_in_catalog = True
        settings = self._write_settings({})
        kept = {key: value for key, value in settings.items() if not key.startswith("hoodie.datasource.")}
        kept.pop("hoodie.table.name")
        first = chance.randrange(KEYS)
        for key, value in kept.items():
            self.spark.conf.set(key, value)
        try:
            new = f"select id, 5.5D as amount, {2_000_000_000 + self.commits}L as ts from range({first}, {first + 4})"
            self.spark.sql(
                f"merge into {self.table_name} t using ({new}) s on t.id = s.id "
                "when matched then update set amount = s.amount, ts = s.ts"
            )
        finally:
            for key in kept:
                self.spark.conf.unset(key)
        self.commits += 1

    def _begin(self, chance: random.Random) -> None:
        self.held.append(self._hold(chance, {}))
        if self.held[-1].outcome.done():
            self.held.pop()

    def _finish(self, chance: random.Random) -> None:
        if not self.held:
            raise NothingToDoError
        held = self.held.pop(chance.randrange(len(self.held)))
        self.is_announced = held.is_announced
        held.lock.unlink(missing_ok=True)
        held.outcome.result(PATIENCE_S)

    def _die(self, chance: random.Random) -> None:
        """Begin a write that ends without its commit; its heartbeat is old, or gone."""
        impatient = {"hoodie.write.lock.client.num_retries": "1", "hoodie.write.lock.num_retries": "1"}
        dying = self._hold(chance, impatient)
        if dying.outcome.exception(PATIENCE_S) is None:
            return
        beat = f".hoodie/.heartbeat/{dying.instant}"
        if chance.random() < 0.7 and self.hudi.place.can_date_files:
            self.files.touch(beat, int((time.time() - HOUR_S) * 1000))
        else:
            self.files.delete(beat)

    def _hold(self, chance: random.Random, more: Mapping[str, str]) -> HeldWrite:
        """Begin a write in a thread, and stop it before it commits: it has a lock of its own, which is held here."""
        if self.now is None or len(self.held) > 1:
            raise NothingToDoError
        folder = self.folder / f"writer-{self.commits}-{len(list(self.folder.iterdir()))}"
        folder.mkdir()
        held = HeldWrite(folder, chance.random() < 0.5)
        before = self._requested()
        orders = self._orders(chance, chance.choice((2, ROWS)))
        own = {"hoodie.write.lock.filesystem.path": f"file://{folder}", "hoodie.write.lock.filesystem.expire": "0"}
        patient = {"hoodie.write.lock.client.num_retries": "100000"}

        def write() -> None:
            try:
                self._save(orders, {**own, **patient, **more})
                held.outcome.set_result(None)
            except BaseException as error:  # noqa: BLE001 - the step that ends the write raises it
                held.outcome.set_exception(error)

        threading.Thread(target=write, name=f"held-{folder.name}", daemon=True).start()
        _wait_until(lambda: bool(self._requested() - before) or held.outcome.done())
        held.instant = min(self._requested() - before, default="")
        _wait_until(lambda: self._has_markers(held.instant) or held.outcome.done())
        _wait_until(lambda: held.outcome.done() or _take(held.lock))
        return held

    def _requested(self) -> set[str]:
        names = self.files.names(".hoodie/timeline" if self.version >= 8 else ".hoodie")
        return {name.split(".")[0] for name in names if name.endswith("commit.requested")}

    def _has_markers(self, instant: str) -> bool:
        sizes = self.files.sizes_below(f".hoodie/.temp/{instant}")
        return any(size or ".marker." in name for name, size in sizes.items() if name != "MARKERS.type")

    # --- services -------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def client(self, **more: str) -> Iterator[Any]:
        """Open a write client of Hudi's."""
        version = {"hoodie.write.table.version": str(self.version)}
        settings = {**ONE_TASK, **self.lock, **SERVICE, **self._metadata_settings(), **version}
        with open_client(self.spark, self.path, {**settings, **more}, {}) as client:
            yield client

    def _none(self) -> Any:
        return self.hudi.hudi.common.util.Option.empty()

    def _pending(self, *actions: str) -> str:
        found = self._answers().pending(*actions)
        if not found:
            raise NothingToDoError
        return found[0]

    def _answers(self) -> HudiAnswers:
        if self.now is None:
            raise NothingToDoError
        return self.now

    def _require_alone(self) -> None:
        if self.held:
            raise NothingToDoError

    def _require_log_files(self) -> None:
        if self.setup.type != "MOR":
            raise NothingToDoError

    def _schedule_compaction(self, chance: random.Random) -> None:
        self._require_log_files()
        with self.client() as client:
            client.scheduleCompaction(self._none())

    def _execute_compaction(self, chance: random.Random) -> None:
        instant = self._pending("compaction")
        with self.client() as client:
            client.compact(instant, True)

    def _schedule_log_compaction(self, chance: random.Random) -> None:
        self._require_log_files()
        with self.client() as client:
            client.scheduleLogCompaction(self._none())

    def _execute_log_compaction(self, chance: random.Random) -> None:
        instant = self._pending("logcompaction")
        with self.client() as client:
            client.logCompact(instant, True)

    def _log_compaction(self, chance: random.Random) -> None:
        self._require_log_files()
        with self.client() as client:
            planned = client.scheduleLogCompaction(self._none())
            if planned.isPresent():
                client.logCompact(planned.get(), True)

    def _schedule_clustering(self, chance: random.Random) -> None:
        with self.client() as client:
            client.scheduleClustering(self._none())

    def _execute_clustering(self, chance: random.Random) -> None:
        pending = sorted(set(self._answers().plans) & set(self._answers().pending("clustering", "replacecommit")))
        if not pending:
            raise NothingToDoError
        with self.client() as client:
            client.cluster(pending[0], True)

    def _clean(self, chance: random.Random) -> None:
        with self.client(**{"hoodie.clean.commits.retained": str(chance.randint(1, 2))}) as client:
            client.clean()

    def _archive(self, chance: random.Random) -> None:
        """Archive, but not beyond savepoints: readers lose what is archived behind one (docs/limitations.md)."""
        keep = {"hoodie.keep.min.commits": "2", "hoodie.keep.max.commits": "3"} if chance.random() < 0.4 else {}
        small = {"hoodie.timeline.compaction.batch.size": "3"}
        with self.client(**{**EAGER_ARCHIVE, **keep, **small}) as client:
            client.archive()

    def _roll_back(self, chance: random.Random) -> None:
        if chance.random() < 0.6:
            self._run(Service.ROLLBACK, Mode.EXECUTE, {})
            return
        with self.client() as client:
            client.rollbackFailedWrites(self.hudi.open(self.path))

    def _roll_back_last(self, chance: random.Random) -> None:
        self._require_alone()
        writes = [m for m in self._answers().timeline if m.action in WRITES and m.completed]
        if len(writes) < 2:
            raise NothingToDoError
        with self.client() as client:
            client.rollback(writes[-1].requested)

    def _savepoint(self, chance: random.Random) -> None:
        with self.client() as client:
            client.savepoint("oracle", "a step of a history")

    def _delete_savepoint(self, chance: random.Random) -> None:
        with self.client() as client:
            client.deleteSavepoint(self._find_savepoint(chance))

    def _restore(self, chance: random.Random) -> None:
        self._require_alone()
        savepoint = self._find_savepoint(chance)
        built_by = self._answers().built_by
        with self.client() as client:
            client.restoreToSavepoint(savepoint)
        self.emptied |= {name for instant, names in built_by.items() if instant > savepoint for name in names}

    def _find_savepoint(self, chance: random.Random) -> str:
        found = [m.requested for m in self._answers().timeline if m.action == "savepoint" and m.completed]
        if not found:
            raise NothingToDoError
        return chance.choice(found)

    # --- indexes --------------------------------------------------------------------------------------------

    def _require_metadata(self) -> None:
        if self.setup.metadata == "off" or self.version < 8 or "files" not in self._answers().metadata_partitions:
            raise NothingToDoError

    def _index(self, chance: random.Random) -> None:
        """Build by a job of ours."""
        self._require_metadata()
        wanted = [chance.choice(INDEXES)]
        wanted += ["record_index"] if wanted[0].startswith("secondary") else []
        wanted += ["column_stats"] if wanted[0] == "partition_stats" else []
        options = {**requested_options(parse_indexes(wanted)), INDEX_CHECK: chance.choice(("cheap", "cheap", "full"))}
        self._run(Service.INDEXING, Mode.SCHEDULE_AND_EXECUTE, options)

    def _plan_indexes(self, chance: random.Random) -> None:
        """Write one plan of several indexes, as Hudi's client does."""
        self._require_metadata()
        types, partitions = self.hudi.jvm.java.util.ArrayList(), self.hudi.jvm.java.util.ArrayList()
        kinds = self.hudi.hudi.metadata.MetadataPartitionType
        taken = {*self._answers().metadata_partitions, *sum(self._answers().index_plans.values(), ())}
        names = [name for name in ("column_stats", "bloom_filters", "record_index") if name not in taken]
        if not names:
            raise NothingToDoError
        for name in chance.sample(names, min(len(names), chance.randint(1, 3))):
            types.add(kinds.valueOf(name.upper()))
        with self.client(**ENABLE) as client:
            client.scheduleIndexing(types, partitions)

    def _build_indexes(self, chance: random.Random) -> None:
        """Build whatever is planned, by a job of ours."""
        self._pending("indexing")
        self._run(Service.INDEXING, Mode.EXECUTE, {})

    def _build_indexes_by_hudi(self, chance: random.Random) -> None:
        """Build as planned, unless Hudi would make an empty record index of it (`known.py`)."""
        instant = self._pending("indexing")
        if "record_index" in self._answers().index_plans[instant][:-1]:
            raise NothingToDoError
        self._build_any_by_hudi(chance)

    def _build_any_by_hudi(self, chance: random.Random) -> None:
        instant = self._pending("indexing")
        with self.client(**{**ENABLE, "hoodie.metadata.streaming.write.enabled": "false"}) as client:
            try:
                client.index(instant)
            except Py4JError:
                self.given_up.add(instant)
                raise

    def _drop_index(self, chance: random.Random) -> None:
        self._require_alone()
        found = [name for name in self._answers().metadata_partitions if name != "files"]
        if not found:
            raise NothingToDoError
        names = self.hudi.jvm.java.util.ArrayList()
        names.add(chance.choice(found))
        with self.client() as client:
            client.dropIndex(names)

    def _run(self, service: Service, mode: Mode, options: Mapping[str, str]) -> None:
        """Run a job of ours in this process."""
        patience = {INDEX_WAIT_S: "2", INDEX_CHECK_TIMEOUT: "2"} if service is Service.INDEXING else {}
        request = JobRequest(
            job_id=f"oracle-{self.commits}/{time.monotonic_ns()}",
            base_path=self.path,
            table_name="orders",
            services=(ServiceRequest(service, mode, (), {**options, **patience}),),
            result_path=str(self.folder / "result.json"),
            hudi_options={**self.lock, **FEW_GROUPS, **self._metadata_settings()},
        )
        with contextlib.redirect_stdout(io.StringIO()):
            self.result = importlib.import_module("run_services").run_job(self.spark, request).services[0]

    # --- versions -------------------------------------------------------------------------------------------

    def _upgrade(self, chance: random.Random) -> None:
        self._change_version({6: 8, 8: 9})

    def _downgrade(self, chance: random.Random) -> None:
        self._change_version({9: 8, 8: 6})

    def _change_version(self, targets: Mapping[int, int]) -> None:
        self._require_alone()
        target = targets.get(self.version)
        if target is None:
            raise NothingToDoError
        versions = self.hudi.hudi.common.table.HoodieTableVersion
        upgrade = self.hudi.hudi.table.upgrade
        more = {"hoodie.write.auto.upgrade": "true", "hoodie.write.table.version": str(target)}
        with self.client(**more) as client:
            helper = upgrade.SparkUpgradeDowngradeHelper.getInstance()
            meta = self.hudi.open(self.path)
            runner = upgrade.UpgradeDowngrade(meta, client.getConfig(), client.getEngineContext(), helper)
            runner.run(versions.fromVersionCode(target), None)

    # --- what only a client can answer ----------------------------------------------------------------------

    def hudis_markers(self) -> dict[str, FileGroups]:
        """Return the file groups that the markers of the held writes name."""
        if not self.held:
            return {}
        with self.client() as client:
            return {held.instant: self.hudi.markers(self.path, client, held.instant) for held in self.held}


def _keys_of(rows: DataFrame) -> set[int]:
    return {int(row.id) for row in rows.select("id").collect()}


def _complaint(error: Exception) -> str:
    causes = [line.strip() for line in str(error).splitlines() if line.strip().startswith("Caused by")]
    first = next((line.strip() for line in str(error).splitlines() if "Exception" in line or "Error" in line), "")
    return " | ".join([first[:200], *(cause[:200] for cause in causes[-2:])]) or repr(error)[:200]


def _wait_until(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > deadline_s:
            raise TimeoutError
        time.sleep(0.005)


def _take(lock: Path) -> bool:
    try:
        lock.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
