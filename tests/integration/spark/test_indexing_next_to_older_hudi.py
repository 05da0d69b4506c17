"""Indexes next to writers of older Hudi, and built with it: each writer and builder is a process with its own bundle.

Part of `make soak`, which fetches the bundles.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest
from conftest import Table, run
from test_indexing_on_hudi import (
    BOTH,
    FULL_OPTION,
    OF_ANY_TABLE,
    OF_COLUMNS,
    OF_EXPRESSION,
    complete,
    found_by_key,
    indexing,
    missing,
    plans,
)
from test_real_processes import result_of, submit  # noqa: F401 - a fixture

from airflow_lake_provider.job_contract import WRITERS_FIRST, FailureKind, JobRequest, Mode, Outcome
from local_stack import hudi_bundle, lake_writer
from local_stack.writer_process import StandingWriter, WriterFailedError

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.soak(covered_by="tests/integration/spark/test_indexing_on_hudi.py")

AT_COMMIT = {"hoodie.metadata.streaming.write.enabled": "false", "hoodie.embed.timeline.server": "true"}
# What docs/indexing.md asks of writers of 1.1: name each index, and leave the building of it to others.
NAMED = AT_COMMIT | {
    "hoodie.metadata.index.async": "true",
    "hoodie.metadata.index.column.stats.enable": "true",
    "hoodie.metadata.index.column.stats.column.list": "amount,customer,ts",
    "hoodie.metadata.index.partition.stats.enable": "true",
    "hoodie.metadata.index.bloom.filter.enable": "true",
    "hoodie.metadata.record.index.enable": "true",
}
COLUMNS, EXPRESSION = ({**kinds, **OF_ANY_TABLE} for kinds in (OF_COLUMNS, OF_EXPRESSION))
Submit = Callable[..., "subprocess.Popen[str]"]


class OlderWriter:
    """A standing writer and the one table that it writes; `commits` is how many it made."""

    def __init__(self, process: StandingWriter, table: Table, options: dict[str, str]) -> None:
        self.table, self.commits = table, 0
        self._process, self._options = process, options

    def write(self) -> None:
        """Write the next commit; raises WriterFailedError."""
        fields: dict[str, Any] = asdict(self.table.written)
        self._process.write(fields, self.commits, hudi_options=self._options)
        self.commits += 1

    def require_all_rows(self, spark: SparkSession) -> None:
        """Every row is there once, for this writer's Hudi and for ours, with and without the metadata table."""
        expected = lake_writer.rows_expected(self.table.written, self.commits - 1)
        read = self._process.read(self.table.path)
        assert (read["rows"], read["ids"]) == (expected, expected)
        for metadata in ("true", "false"):
            rows = spark.read.format("hudi").option("hoodie.metadata.enable", metadata).load(str(self.table.path))
            assert rows.count() == expected

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Write one commit after the other meanwhile."""
        stop, errors = threading.Event(), []

        def write() -> None:
            while not stop.is_set():
                try:
                    self.write()
                except WriterFailedError as error:
                    errors.append(error)
                    return

        thread = threading.Thread(target=write, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(timeout=300)
        assert not errors, str(errors[0])


BeginWriter = Callable[..., OlderWriter]


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], StandingWriter]]:
    """Return a function that gives the writer process of a version of Hudi; one each."""
    started: dict[str, StandingWriter] = {}

    def get(version: str) -> StandingWriter:
        if version not in started:
            conf = {"spark.jars": str(hudi_bundle.fetch(version))}
            started[version] = StandingWriter(tmp_path_factory.mktemp(f"hudi-{version}"), conf)
            started[version].wait_until_ready()
        return started[version]

    yield get
    for process in started.values():
        process.stop()


@pytest.fixture
def begin_writer(processes: Callable[[str], StandingWriter], tmp_path: Path) -> BeginWriter:
    """Return a function that begins a table with two commits of a version of Hudi."""

    def begin(version: str, table_version: int, type: str, options: dict[str, str]) -> OlderWriter:
        written = lake_writer.WrittenTable(
            "orders", str(tmp_path / "lake" / "orders"), type, table_version, keys=400, rows=80
        )
        writer = OlderWriter(processes(version), Table(written), options)
        for _ in range(2):
            writer.write()
        return writer

    return begin


@pytest.mark.parametrize(
    ("table_version", "type", "kinds"),
    [
        pytest.param(9, "MOR", COLUMNS, id="MOR-9-columns"),
        pytest.param(8, "COW", COLUMNS, id="COW-8-columns"),
        pytest.param(9, "MOR", EXPRESSION, id="MOR-9-expression"),
    ],
)
def test_writer_of_1_1_that_names_the_indexes_goes_on_next_to_their_builds(
    spark: SparkSession, begin_writer: BeginWriter, table_version: int, type: str, kinds: dict[str, str]
) -> None:
    writer = begin_writer("1.1.1", table_version, type, NAMED)
    table = writer.table
    # It leaves them to us.
    assert complete(table) == {"files"}
    with writer.going_on():
        result = run(spark, indexing(table, BOTH, *kinds, **FULL_OPTION))
    assert result.outcome is Outcome.COMPLETED, result.message
    require_whole_after_a_write(spark, writer, set(kinds.values()))
    assert found_by_key(spark, table, 399) == 1


def test_writer_of_1_1_drops_an_index_that_it_does_not_name(spark: SparkSession, begin_writer: BeginWriter) -> None:
    writer = begin_writer("1.1.1", 9, "MOR", AT_COMMIT)
    result = run(spark, indexing(writer.table, BOTH, "record_index"))
    assert result.outcome is Outcome.COMPLETED, result.message
    writer.write()
    assert complete(writer.table) == {"files"}
    writer.require_all_rows(spark)


def test_table_of_writers_of_1_0_is_refused_and_they_go_on(spark: SparkSession, begin_writer: BeginWriter) -> None:
    writer = begin_writer("1.0.2", 8, "MOR", NAMED)
    table = writer.table
    before = table.files()
    for mode in ("schedule", "schedule_and_execute"):
        result = run(spark, indexing(table, type(BOTH)(mode), "record_index"))
        assert result.outcome is Outcome.FAILED
        assert "made with Hudi 1.0" in result.message
    assert (table.files(), complete(table)) == (before, {"files"})
    writer.write()
    writer.require_all_rows(spark)


def test_table_of_writers_of_1_0_is_compacted_while_they_commit(spark: SparkSession, begin_writer: BeginWriter) -> None:
    """They roll back what streams into the metadata table, and fail by a compaction that is planned meanwhile."""
    writer = begin_writer("1.0.2", 8, "MOR", {})
    request = writer.table.request(Mode.SCHEDULE_AND_EXECUTE, service_options={WRITERS_FIRST: "true"})
    results = []
    with writer.going_on():
        for _ in range(40):
            results.append(run(spark, request))
            if sum(result.outcome is Outcome.COMPLETED for result in results) == 3:
                break
    failed = [result for result in results if result.outcome is Outcome.FAILED]
    assert {result.failure_kind for result in failed} <= {FailureKind.CONFLICT}, failed
    assert len(results) - len(failed) >= 3, failed
    writer.write()
    writer.require_all_rows(spark)


def test_job_on_1_1_builds_what_its_writers_and_ours_can_use(
    spark: SparkSession,
    begin_writer: BeginWriter,
    submit: Submit,  # noqa: F811
) -> None:
    writer = begin_writer("1.1.1", 9, "MOR", NAMED)
    table = writer.table
    request = indexing(table, BOTH, *COLUMNS, **FULL_OPTION)
    with writer.going_on():
        run_to_end(submit, request, "1.1.1")
    (result,) = result_of(request).services
    assert result.outcome is Outcome.COMPLETED, result.message
    require_whole_after_a_write(spark, writer, set(COLUMNS.values()))


def test_job_on_1_0_is_refused_before_anything_is_touched(
    begin_writer: BeginWriter,
    submit: Submit,  # noqa: F811
) -> None:
    writer = begin_writer("1.0.2", 8, "COW", AT_COMMIT)
    before = writer.table.files()
    request = indexing(writer.table, BOTH, "record_index")
    run_to_end(submit, request, "1.0.2")
    (result,) = result_of(request).services
    assert result.outcome is Outcome.FAILED
    assert "cannot run with Hudi 1.0.2" in result.message
    assert (writer.table.files(), complete(writer.table)) == (before, {"files"})


def require_whole_after_a_write(spark: SparkSession, writer: OlderWriter, indexes: set[str]) -> None:
    writer.write()
    assert (complete(writer.table), plans(writer.table)) == ({"files", *indexes}, set())
    for index in indexes - {"partition_stats", "expr_index_by_day"}:
        assert missing(spark, writer.table, index) == [], index
    writer.require_all_rows(spark)


def run_to_end(submit: Submit, request: JobRequest, version: str) -> None:  # noqa: F811
    process = submit(request, hudi_bundle.fetch(version))
    output, _ = process.communicate(timeout=480)
    assert process.returncode in (0, 1), output[-3000:]
