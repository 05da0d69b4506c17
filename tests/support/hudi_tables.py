"""One real Spark session with real Hudi for the whole run, and tables that tests may spoil.

Writing a table takes seconds, so each kind is written once and copied for every test: a Hudi table holds no absolute
path of its own.
"""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

ROOT = Path(__file__).parents[2]
SPARK_JOBS = ROOT / "spark_jobs"
sys.path[:0] = [str(SPARK_JOBS), str(ROOT)]

from airflow_lake_provider.job_contract import JobRequest, Mode, Service, ServiceRequest, ServiceResult  # noqa: E402
from lake_jobs.driver.java_names import prepare_java_names  # noqa: E402
from local_stack import hudi_bundle, lake_writer  # noqa: E402
from tests.support.spark_session import ONE_TASK, SMALL_BLOOM_FILTERS, open_test_session  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


LOCK = SMALL_BLOOM_FILTERS | {
    key: value
    for key, value in lake_writer.MANAGED_LAKE.items()
    if key.startswith("hoodie.write.lock.") or key == "hoodie.table.services.enabled"
}


def prepare_pytest(config: pytest.Config) -> None:
    """Prepare a run of pytest for Spark."""
    prepare_java_names()
    # py4j and DataFrame.collect leave their loopback sockets to the garbage collector.
    config.addinivalue_line("filterwarnings", "ignore:unclosed <socket:ResourceWarning")


def mark_integration(items: list[pytest.Item], folder: Path) -> None:
    """Mark the tests below a folder: they start real Spark."""
    for item in items:
        if folder in item.path.parents:
            item.add_marker(pytest.mark.integration)


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a test, and what may be asked about it without Hudi's help."""

    written: lake_writer.WrittenTable

    @property
    def path(self) -> Path:
        return Path(self.written.base_path)

    @property
    def timeline(self) -> Path:
        return self.path / ".hoodie" / ("timeline" if self.written.version >= 8 else "")

    def files(self) -> set[str]:
        return {path.name for path in self.timeline.iterdir() if path.is_file() and not path.name.endswith(".crc")}

    def pending(self) -> set[str]:
        """Requested times of compaction plans that have no completed commit."""
        plans = {name.split(".")[0] for name in self.files() if name.endswith(".compaction.requested")}
        return plans - self.completed()

    def completed(self, action: str = "commit") -> set[str]:
        return {name.split(".")[0].split("_")[0] for name in self.files() if name.endswith(f".{action}")}

    def spans(self, action: str) -> list[tuple[str, str]]:
        """Requested and completed time of each completed instant of an action, from the names of table version 8 on."""
        names = [name.removesuffix(f".{action}") for name in self.files() if name.endswith(f".{action}")]
        return sorted((requested, completed) for requested, _, completed in (name.partition("_") for name in names))

    def properties(self) -> dict[str, str]:
        text = (self.path / ".hoodie" / "hoodie.properties").read_text(encoding="utf-8")
        return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)

    def request(
        self,
        mode: Mode,
        *instants: str,
        options: dict[str, str] | None = None,
        service: Service = Service.COMPACTION,
        service_options: dict[str, str] | None = None,
    ) -> JobRequest:
        return JobRequest(
            job_id="job-1",
            base_path=str(self.path),
            table_name=self.written.name,
            services=(ServiceRequest(service, mode, instants, service_options or {}),),
            result_path=str(self.path.parent / "result.json"),
            hudi_options=LOCK if options is None else options,
        )


MakeTable = Callable[..., Table]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    if not hudi_bundle.JAR.exists():
        pytest.skip(f"{hudi_bundle.JAR} is missing: run `make install`")
    session = open_test_session(tmp_path_factory.mktemp("session"))
    yield session
    session.stop()


@pytest.fixture(scope="session")
def template(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., lake_writer.WrittenTable]:
    """Return a function that writes a kind of table once: one base commit and two with log files."""
    made: dict[tuple[object, ...], lake_writer.WrittenTable] = {}

    def make(*, version: int = 9, type: str = "MOR", **options: str) -> lake_writer.WrittenTable:
        key = (version, type, *sorted(options.items()))
        if key not in made:
            folder = tmp_path_factory.mktemp("template") / "orders"
            made[key] = lake_writer.WrittenTable(
                "orders", str(folder), type, version, commits=3, keys=400, rows=80, hudi_options=ONE_TASK | options
            )
            for commit in range(made[key].commits):
                write(spark, made[key], commit)
        return made[key]

    return make


@pytest.fixture
def make_table(template: Callable[..., lake_writer.WrittenTable], tmp_path: Path) -> MakeTable:
    """Return a function that gives this test a table of its own."""

    def make(name: str = "orders", *, version: int = 9, type: str = "MOR", **options: str) -> Table:
        source = template(version=version, type=type, **options)
        folder = tmp_path / "lake" / name
        shutil.copytree(source.base_path, folder)
        return Table(replace(source, name=name, base_path=str(folder)))

    return make


def write(spark: SparkSession, table: lake_writer.WrittenTable, commit: int) -> None:
    lake_writer.write_commit(spark, table, commit, lake_writer.write_options(table, commit, None, {}))


def run(spark: SparkSession, request: JobRequest) -> ServiceResult:
    run_services = importlib.import_module("run_services")
    return run_services.run_job(spark, request).services[0]


def rows(spark: SparkSession, table: Table) -> list[tuple[object, ...]]:
    """Return all rows, sorted, as a reader of the table sees them."""
    found = spark.read.format("hudi").load(str(table.path)).select("id", "city", "amount", "ts").collect()
    return sorted(tuple(row) for row in found)


def content(spark: SparkSession, table: Table) -> list[tuple[object, ...]]:
    """Return every column of all rows but those that say which file they lie in, sorted."""
    found = spark.read.format("hudi").load(str(table.path)).drop("_hoodie_file_name", "_hoodie_commit_seqno")
    return sorted(tuple(row) for row in found.collect())


def file_groups(spark: SparkSession, table: Table) -> set[tuple[str, str]]:
    """Return partition and file id of each file group that holds rows."""
    found = spark.read.format("hudi").load(str(table.path)).select("_hoodie_partition_path", "_hoodie_file_name")
    # The name of a base file goes on with a write token and the instant.
    return {(partition, name.split("_")[0]) for partition, name in map(tuple, found.distinct().collect())}


def rows_written(spark: SparkSession, table: lake_writer.WrittenTable, commits: int) -> list[tuple[object, ...]]:
    """Return the rows that a table must have after these commits, from what was written and not from the table."""
    latest: dict[int, tuple[object, ...]] = {}
    for commit in range(commits):
        for row in lake_writer.orders_of_commit(spark, table, commit).select("id", "city", "amount", "ts").collect():
            latest[row["id"]] = tuple(row)
    return sorted(latest.values())


def require_rows(spark: SparkSession, table: Table, commits: int) -> None:
    """Assert that readers, with and without the metadata table, see what these commits wrote."""
    expected = rows_written(spark, table.written, commits)
    for uses_metadata in ("true", "false"):
        read = spark.read.format("hudi").option("hoodie.metadata.enable", uses_metadata).load(str(table.path))
        assert sorted(map(tuple, read.select("id", "city", "amount", "ts").collect())) == expected
