"""Services of ours on tables that stock writers of older Hudi write, of the table version that each writes by itself.

After each service the table is read by its own version of Hudi and by ours, and its writer writes on. Part of
`make soak`, which fetches the bundles; indexes: test_indexing_next_to_older_hudi.py.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import pytest
from conftest import Table, rows, rows_written, run
from test_archive_on_hudi import COMPACTION_COUNTS_ONE, EAGER_ARCHIVE
from test_clean_on_hudi import KEEP_ONE_VERSION
from test_indexing_next_to_older_hudi import processes  # noqa: F401 - a fixture
from test_log_compaction_on_hudi import TWO_LOG_FILES
from test_orphans_on_hudi import Clock, attempt_of, base_files, clock, plant, search  # noqa: F401 - a fixture
from test_partition_ttl_on_hudi import pass_days, ttl
from test_real_processes import wait_for
from test_rollback_on_hudi import make_old

from airflow_lake_provider.job_contract import Mode, Outcome, Service, ServiceResult
from airflow_lake_provider.replication.change import ChangeMode as Delivery
from airflow_lake_provider.replication.job import ReplicationRequest
from airflow_lake_provider.replication.transactions import Order
from airflow_lake_provider.shared.hudi_settings import TTL_MAX_PARTITIONS
from local_stack import hudi_bundle, lake_writer
from local_stack.writer_process import StandingWriter
from replicate import replicate

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.soak(covered_by="tests/integration/spark/test_every_service.py")

OWN_TABLE_VERSION = {"0.15.0": 6, "1.0.2": 8, "1.1.1": 9}
COMMITS = 3
GetProcess = Callable[[str], StandingWriter]


@dataclass
class OlderTable:
    """A table, and the process of the version of Hudi that writes it."""

    spark: SparkSession
    table: Table
    process: StandingWriter
    commits: int = COMMITS

    def write(self) -> None:
        self.process.write(asdict(self.table.written), self.commits)
        self.commits += 1

    def serve(self, service: Service, mode: Mode = Mode.SCHEDULE_AND_EXECUTE, **options: str) -> ServiceResult:
        result = run(self.spark, self.table.request(mode, service=service, service_options=options))
        assert result.outcome is Outcome.COMPLETED, (service, result.message)
        return result

    def require(self, expected: list[tuple[object, ...]]) -> None:
        """Require these rows, as its own Hudi reads them, and ours with and without the metadata table."""
        assert rows(self.spark, self.table) == expected
        listed = self.spark.read.format("hudi").option("hoodie.metadata.enable", "false").load(str(self.table.path))
        assert listed.count() == len(expected)
        found = self.process.read(self.table.path)
        cents = round(sum(float(str(row[2])) for row in expected) * 100)
        assert (found["rows"], found["ids"], found["cents"]) == (len(expected), len(expected), cents)

    def require_going_on(self, version: str) -> None:
        """Require that its writer writes on, that all is there, and that the table's version is as it was."""
        self.require(rows_written(self.spark, self.table.written, self.commits))
        self.write()
        self.require(rows_written(self.spark, self.table.written, self.commits))
        assert self.table.properties()["hoodie.table.version"] == str(OWN_TABLE_VERSION[version])


BeginTable = Callable[..., OlderTable]


@pytest.fixture(scope="module")
def templates(
    processes: GetProcess,  # noqa: F811
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str, str], lake_writer.WrittenTable]:
    """Return a function that lets a version of Hudi write a kind of table once."""
    made: dict[tuple[str, str], lake_writer.WrittenTable] = {}

    def make(version: str, type: str) -> lake_writer.WrittenTable:
        if (version, type) not in made:
            path = str(tmp_path_factory.mktemp("older") / "orders")
            written = lake_writer.WrittenTable("orders", path, type, OWN_TABLE_VERSION[version], keys=400, rows=80)
            for commit in range(COMMITS):
                processes(version).write(asdict(written), commit)
            made[version, type] = written
        return made[version, type]

    return make


@pytest.fixture
def begin(
    spark: SparkSession,
    processes: GetProcess,  # noqa: F811
    templates: Callable[[str, str], lake_writer.WrittenTable],
    tmp_path: Path,
) -> BeginTable:
    """Return a function that gives this test a table of its own, of a version of Hudi."""

    def make(version: str, type: str) -> OlderTable:
        folder = tmp_path / "lake" / "orders"
        source = templates(version, type)
        shutil.copytree(source.base_path, folder)
        return OlderTable(spark, Table(replace(source, base_path=str(folder))), processes(version))

    return make


@pytest.fixture(params=OWN_TABLE_VERSION)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_compaction(begin: BeginTable, version: str) -> None:
    older = begin(version, "MOR")
    result = older.serve(Service.COMPACTION)
    assert set(result.completed_instants) == older.table.completed()
    older.require_going_on(version)


def test_log_compaction(begin: BeginTable, version: str) -> None:
    older = begin(version, "MOR")
    older.serve(Service.LOGCOMPACTION, **TWO_LOG_FILES)
    older.require_going_on(version)


@pytest.mark.parametrize("type", ["MOR", "COW"])
def test_clustering(begin: BeginTable, version: str, type: str) -> None:
    older = begin(version, type)
    older.serve(Service.CLUSTERING)
    older.require_going_on(version)


def test_clean_and_archive_and_what_holds_the_archive_back(begin: BeginTable, version: str) -> None:
    older = begin(version, "COW")
    files = set(base_files(older.table))
    older.serve(Service.CLEAN, **KEEP_ONE_VERSION)
    assert set(base_files(older.table)) < files
    older.require_going_on(version)
    older.serve(Service.METACOMPACTION, Mode.EXECUTE)
    older.require_going_on(version)
    before = older.table.files()
    older.serve(Service.ARCHIVE, Mode.EXECUTE, **(EAGER_ARCHIVE | COMPACTION_COUNTS_ONE))
    assert not before <= older.table.files()
    older.require_going_on(version)


def test_rollback_of_a_writer_that_was_killed(begin: BeginTable, version: str, tmp_path: Path) -> None:
    older = begin(version, "COW")
    dead = kill_writer(older, version, tmp_path)
    result = older.serve(Service.ROLLBACK, Mode.EXECUTE)
    assert result.completed_instants == (dead,)
    older.require_going_on(version)


def kill_writer(older: OlderTable, version: str, folder: Path) -> str:
    """Kill a second writer of a table in the middle of a write, long ago by its heartbeat; return the instant."""
    known = older.table.files()
    killed = StandingWriter(folder / "killed", {"spark.jars": str(hudi_bundle.fetch(version))})
    try:
        killed.wait_until_ready()
        many = {**asdict(older.table.written), "keys": 200_000}
        killed.begin({"do": "write", "table": many, "commit": 0, "callback": None, "hudi_options": {}})
        wait_for(lambda: any(name.endswith("inflight") for name in older.table.files() - known), "the write")
    finally:
        killed.stop()
    (dead,) = {name.split(".")[0] for name in older.table.files() - known}
    assert dead not in older.table.completed()
    make_old(older.table.path / ".hoodie" / ".heartbeat" / dead)
    return dead


def test_partition_ttl(spark: SparkSession, begin: BeginTable, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    older = begin(version, "COW")
    before = rows(spark, older.table)
    pass_days(monkeypatch, 60)
    result = run(spark, ttl(older.table, **{TTL_MAX_PARTITIONS: "1"}))
    assert result.outcome is Outcome.COMPLETED, result.message
    left = rows(spark, older.table)
    (gone,) = {row[1] for row in before} - {row[1] for row in left}
    older.require([row for row in before if row[1] != gone])
    older.write()
    written = rows_written(spark, older.table.written, older.commits)
    kept = [row for row in written if row[1] != gone or row[3] == older.commits - 1]
    older.require(kept)


def test_savepoint(begin: BeginTable, version: str) -> None:
    older = begin(version, "COW")
    older.serve(Service.SAVEPOINT, Mode.EXECUTE, **{"lake.savepoint.keep": "1"})
    older.require_going_on(version)
    older.serve(Service.SAVEPOINT, Mode.EXECUTE, **{"lake.savepoint.keep": "1"})
    assert len(older.table.completed("savepoint")) == 1
    older.require_going_on(version)


@pytest.mark.parametrize("type", ["MOR", "COW"])
def test_orphan_files(
    spark: SparkSession,
    begin: BeginTable,
    clock: Clock,  # noqa: F811
    version: str,
    type: str,
) -> None:
    older = begin(version, type)
    base = base_files(older.table)[0]
    planted = plant(older.table, base, attempt_of(base))
    clock.days_ahead = 10
    result = run(spark, search(older.table))
    assert result.outcome is Outcome.COMPLETED, result.message
    assert not (older.table.path / planted).exists()
    older.require_going_on(version)


@pytest.mark.parametrize("type", ["MOR", "COW"])
def test_replication(spark: SparkSession, begin: BeginTable, tmp_path: Path, version: str, type: str) -> None:
    older = begin(version, type)
    request = ReplicationRequest(
        str(older.table.path),
        "orders",
        "file",
        Order("orders.files"),
        str(tmp_path / "result.json"),
        Delivery.LATEST,
        options={"path": str(tmp_path / "files")},
    )
    for _ in range(3):
        assert replicate(spark, request).message == ""
        latest: dict[int, dict[str, object]] = {}
        for path in sorted((tmp_path / "files").glob("[0-9]*.jsonl")):
            *lines, _ = path.read_text(encoding="utf-8").splitlines()
            latest |= {record["id"]: record for record in map(json.loads, lines)}
        expected = {row[0]: row for row in rows_written(spark, older.table.written, older.commits)}
        assert {key: (key, row["city"], row["amount"], row["ts"]) for key, row in latest.items()} == expected
        older.write()
    older.require_going_on(version)
