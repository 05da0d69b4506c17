"""Histories of stock writers of older Hudi with services of ours between their writes; all rows are kept outside Hudi.

After each step the table is read by its writer's Hudi and by ours, with the metadata table and without it, and the
writer writes on. No service changes the table's version. Part of `make soak`, which fetches the bundles.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import pytest
from conftest import Table, run
from test_archive_on_hudi import COMPACTION_COUNTS_ONE
from test_indexing_next_to_older_hudi import processes  # noqa: F401 - a fixture

from airflow_lake_provider.job_contract import FailureKind, Mode, Outcome, Service
from local_stack import hudi_bundle, lake_writer
from local_stack.writer_process import StandingWriter, WriterFailedError
from tests.support.spark_session import ONE_TASK

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.soak(covered_by="tests/integration/spark/test_every_service.py")

GetProcess = Callable[[str], StandingWriter]
Row = tuple[int, str, float, int]

SCHEMA = "id long, city string, amount double, ts long"
COLUMNS = ("id", "city", "amount", "ts")
CITIES = ("Cork", "Bonn")
KEYS, ROUNDS = 12, 6
DAY_S = 86_400
WRITES = ("upsert", "upsert", "upsert", "upsert", "late", "delete", "overwrite", "die")

FLAT = {
    "hoodie.datasource.write.partitionpath.field": "",
    "hoodie.datasource.write.keygenerator.class": "org.apache.hudi.keygen.NonpartitionedKeyGenerator",
}
NO_METADATA = {"hoodie.metadata.enable": "false"}
SIMPLE = {"hoodie.index.type": "SIMPLE"}
BUCKETS = {
    "hoodie.index.type": "BUCKET",
    "hoodie.index.bucket.engine": "SIMPLE",
    "hoodie.bucket.index.num.buckets": "2",
    "hoodie.bucket.index.hash.field": "id",
}
VIRTUAL = SIMPLE | {
    "hoodie.populate.meta.fields": "false",
    "hoodie.datasource.write.keygenerator.class": "org.apache.hudi.keygen.SimpleKeyGenerator",
}
BUSY = {
    "hoodie.table.services.enabled": "true",
    "hoodie.compact.inline": "true",
    "hoodie.compact.inline.max.delta.commits": "3",
    "hoodie.clean.automatic": "true",
    "hoodie.clean.commits.retained": "1",
    "hoodie.archive.automatic": "true",
    "hoodie.keep.min.commits": "4",
    "hoodie.keep.max.commits": "5",
}
"""The writer compacts, cleans and archives in its commits as well."""
NO_VALIDATOR = {"hoodie.precommit.validators": "lake.NoSuchValidator"}
"""With it a write fails once its files are written."""
BY_EVENT_TIME = {
    "hoodie.datasource.write.payload.class": "org.apache.hudi.common.model.DefaultHoodieRecordPayload",
    "hoodie.compaction.payload.class": "org.apache.hudi.common.model.DefaultHoodieRecordPayload",
}
KINDS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "MOR": ("MOR", BY_EVENT_TIME),
    "MOR-flat-without-metadata": ("MOR", BY_EVENT_TIME | FLAT | SIMPLE | NO_METADATA),
    "MOR-buckets": ("MOR", BY_EVENT_TIME | BUCKETS),
    "MOR-busy": ("MOR", BY_EVENT_TIME | BUSY),
    "COW": ("COW", BY_EVENT_TIME),
    "COW-flat": ("COW", BY_EVENT_TIME | FLAT | SIMPLE),
    "COW-buckets-without-metadata": ("COW", BY_EVENT_TIME | BUCKETS | NO_METADATA),
    "COW-virtual": ("COW", BY_EVENT_TIME | VIRTUAL),
}
WRITERS = (*(("0.15.0", 6, kind) for kind in KINDS), ("1.0.2", 8, "MOR-busy"), ("1.1.1", 9, "MOR-busy"))
"""Versions of Hudi, and the table version that each writes."""

COMPARE_ALL = {"lake.verify": "all"}
SERVICES: tuple[tuple[Service, Mode, Mapping[str, str]], ...] = (
    (Service.COMPACTION, Mode.SCHEDULE_AND_EXECUTE, COMPARE_ALL),
    (Service.COMPACTION, Mode.SCHEDULE_AND_EXECUTE, COMPARE_ALL),
    (Service.LOGCOMPACTION, Mode.SCHEDULE_AND_EXECUTE, COMPARE_ALL | {"hoodie.log.compaction.blocks.threshold": "2"}),
    (Service.CLUSTERING, Mode.SCHEDULE_AND_EXECUTE, COMPARE_ALL),
    (Service.CLEAN, Mode.SCHEDULE_AND_EXECUTE, {"hoodie.clean.commits.retained": "1"}),
    (
        Service.ARCHIVE,
        Mode.EXECUTE,
        {"hoodie.keep.min.commits": "2", "hoodie.keep.max.commits": "3", "hoodie.clean.commits.retained": "1"}
        | COMPACTION_COUNTS_ONE,
    ),
    (Service.METACOMPACTION, Mode.EXECUTE, {}),
    (Service.SAVEPOINT, Mode.EXECUTE, {"lake.savepoint.keep": "1"}),
)
OF_LOGS = (Service.COMPACTION, Service.LOGCOMPACTION)


@dataclass
class OlderHistory:
    """A table, the process that writes it, and the rows that it must have."""

    spark: SparkSession
    process: StandingWriter
    table: Table
    rng: random.Random
    expected: dict[int, Row] = field(default_factory=dict)
    deleted: set[int] = field(default_factory=set)
    commits: int = 0
    log: list[str] = field(default_factory=list)

    def put(self, rows: list[Row], operation: str, more: Mapping[str, str] = MappingProxyType({})) -> None:
        """Write one commit; raises WriterFailedError."""
        self.commits += 1
        self.log.append(f"{operation} {rows}")
        options = lake_writer.write_options(self.table.written, 0, None, {})
        order = {"do": "put", "base_path": str(self.table.path), "rows": rows, "schema": SCHEMA}
        self.process.order(
            {**order, "hudi_options": {**options, "hoodie.datasource.write.operation": operation, **more}}
        )

    def write(self, kind: str) -> None:
        """Write one commit of the kind, and keep what it means."""
        keys = self.rng.sample(range(KEYS), self.rng.randint(2, 6))
        if kind == "late":
            keys = [key for key in keys if key not in self.deleted] or [min(set(range(KEYS)) - self.deleted)]
        age = 2 if kind == "late" else 0
        rows: list[Row] = [
            (key, CITIES[key % 2], float(100 * self.commits + key), 10 * (self.commits - age)) for key in sorted(keys)
        ]
        if kind == "die":
            self._die(rows)
        elif kind == "delete":
            self.put(rows, "delete")
            for row in rows:
                self.expected.pop(row[0], None)
            self.deleted |= {row[0] for row in rows}
        elif kind == "overwrite":
            is_flat = not self.table.written.hudi_options.get("hoodie.datasource.write.partitionpath.field", "city")
            city = self.rng.choice(CITIES)
            rows = [row for row in rows if row[1] == city] or [(0, CITIES[0], 1.0, 10 * self.commits)]
            self.put(rows, "insert_overwrite")
            gone = {key for key, row in self.expected.items() if is_flat or row[1] == rows[0][1]}
            self.expected = {key: row for key, row in self.expected.items() if key not in gone}
            self._keep(rows)
        else:
            self.put(rows, "upsert")
            self._keep(rows)

    def _keep(self, rows: list[Row]) -> None:
        for row in rows:
            known = self.expected.get(row[0])
            if known is None or known[3] <= row[3]:
                self.expected[row[0]] = row

    def _die(self, rows: list[Row]) -> None:
        """Let a write end after its files and before its commit, long ago by its heartbeat; a service takes it back."""
        before = self.table.files()
        with pytest.raises(WriterFailedError, match="Failed to upsert"):
            self.put(rows, "upsert", NO_VALIDATOR)
        left = {name.split(".")[0] for name in self.table.files() - before if name.endswith("commit.requested")}
        instant = max(left)
        beat = self.table.path / ".hoodie" / ".heartbeat" / instant
        beat.parent.mkdir(exist_ok=True)
        beat.touch()
        long_ago_s = time.time() - DAY_S
        os.utime(beat, (long_ago_s, long_ago_s))
        result = run(self.spark, self.table.request(Mode.EXECUTE, service=Service.ROLLBACK))
        self.log.append(f"rollback of {instant}: {result.outcome} {result.message}")
        assert result.completed_instants == (instant,), self.say()

    def serve(self, service: Service, mode: Mode, options: Mapping[str, str]) -> Outcome:
        result = run(self.spark, self.table.request(mode, service=service, service_options=dict(options)))
        self.log.append(f"{service} {mode}: {result.outcome} {result.message}")
        assert result.outcome is not Outcome.FAILED or result.failure_kind is FailureKind.REFUSED, self.say()
        return result.outcome

    def write_under_a_plan(self) -> None:
        """Write keys that were never deleted, as limitations.md asks before table version 8."""
        keys = [key for key in range(KEYS) if key not in self.deleted]
        rows: list[Row] = [(key, CITIES[key % 2], self.commits + 0.5, 10 * self.commits) for key in keys[:4]]
        self.put(rows, "upsert")
        self._keep(rows)
        self.require_rows()

    def serve_under_a_plan(self) -> Outcome:
        self.serve(Service.COMPACTION, Mode.SCHEDULE, {})
        self.write_under_a_plan()
        return self.serve(Service.COMPACTION, Mode.EXECUTE, COMPARE_ALL)

    def require_rows(self) -> None:
        """Require that its writer's Hudi and ours find the rows that were kept, and the table's version as it was."""
        expected = sorted(self.expected.values())
        for metadata in ("true", "false"):
            read = self.spark.read.format("hudi").option("hoodie.metadata.enable", metadata)
            ours = sorted(map(tuple, read.load(str(self.table.path)).select(*COLUMNS).collect()))
            assert ours == expected, f"ours, metadata {metadata}\n{self.say()}"
        assert self.read_by_writer({}) == expected, f"theirs\n{self.say()}"
        assert self.table.properties()["hoodie.table.version"] == str(self.table.written.version), self.say()

    def read_by_writer(self, options: Mapping[str, str]) -> list[Row]:
        order = {"do": "rows", "base_path": str(self.table.path), "columns": COLUMNS, "hudi_options": dict(options)}
        return sorted(tuple(row) for row in self.process.order(order)["rows"])

    def say(self) -> str:
        return "\n".join(self.log)


@pytest.mark.parametrize(("hudi", "version", "kind"), WRITERS)
def test_rows_that_older_writers_wrote_stay(
    spark: SparkSession,
    processes: GetProcess,  # noqa: F811
    tmp_path: Path,
    hudi: str,
    version: int,
    kind: str,
) -> None:
    type, options = KINDS[kind]
    written = lake_writer.WrittenTable(
        "t", str(tmp_path / "lake" / "t"), type, version, hudi_options=ONE_TASK | dict(options)
    )
    seed = os.environ.get("LAKE_OLDER_SEED", "1")
    history = OlderHistory(spark, processes(hudi), Table(written), random.Random(f"{hudi} {version} {kind} {seed}"))
    possible = [entry for entry in SERVICES if type == "MOR" or entry[0] not in OF_LOGS]
    for _ in range(2):
        history.write("upsert")
    completed = 0
    for number in range(ROUNDS):
        history.write(history.rng.choice(WRITES))
        if type == "MOR" and number == ROUNDS // 2:
            completed += history.serve_under_a_plan() is Outcome.COMPLETED
        else:
            completed += history.serve(*history.rng.choice(possible)) is Outcome.COMPLETED
        history.require_rows()
    assert completed, history.say()
    assert history.read_by_writer(NO_METADATA) == sorted(history.expected.values()), history.say()


PLANS = ("none", "planned", "begun")
SCHEDULES = {
    "hoodie.table.services.enabled": "true",
    "hoodie.compact.schedule.inline": "true",
    "hoodie.compact.inline.max.delta.commits": "1",
}
UPGRADES = {"hoodie.write.auto.upgrade": "true"}


@pytest.mark.parametrize("version", [8, 9])
@pytest.mark.parametrize("plan", PLANS)
def test_table_of_0_15_that_a_writer_has_upgraded_is_served(
    spark: SparkSession,
    processes: GetProcess,  # noqa: F811
    tmp_path: Path,
    plan: str,
    version: int,
) -> None:
    """It has log files below and above the plan of a compaction that was not run, or died in the middle."""
    written = lake_writer.WrittenTable(
        "t", str(tmp_path / "lake" / "t"), "MOR", 6, hudi_options=ONE_TASK | dict(BY_EVENT_TIME)
    )
    history = OlderHistory(spark, processes("0.15.0"), Table(written), random.Random(f"upgrade {plan}"))
    for kind in ("upsert", "upsert", "delete"):
        history.write(kind)
    if plan != "none":
        planned = replace(written, hudi_options={**written.hudi_options, **SCHEDULES})
        history.table = Table(planned)
        history.write("upsert")
        history.table = Table(written)
        (instant,) = history.table.pending()
        history.write_under_a_plan()
        if plan == "begun":
            (history.table.timeline / f"{instant}.compaction.inflight").touch()
    history.require_rows()
    history.process = processes(hudi_bundle.VERSION)
    history.table = Table(replace(written, version=version, hudi_options={**written.hudi_options, **UPGRADES}))
    if plan == "none":
        history.write("upsert")
    else:
        # Until the plan has run, Hudi hides what was written under it (limitations.md): no key is searched for.
        rows: list[Row] = [(100, CITIES[0], 1.0, 10 * history.commits)]
        history.put(rows, "upsert")
        history.expected[100] = rows[0]
        assert history.serve(Service.COMPACTION, Mode.EXECUTE, COMPARE_ALL) is Outcome.COMPLETED
    history.require_rows()
    for service, mode, options in SERVICES:
        history.write(history.rng.choice(WRITES))
        history.serve(service, mode, options)
        history.require_rows()
