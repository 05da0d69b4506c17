"""A table showed the rows of another below its base path, and its services rewrote and removed their files.

Report: https://github.com/apache/iceberg/issues/4265
Verdict: refused
Way out: move the inner table, with its writers, out of the outer one's folder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from conftest import run
from kept_rows import CITIES, COMPARE_ALL, KEEP_ONE_COMMIT, KeptTable, first_rows

from airflow_lake_provider.job_contract import FailureKind, Mode, Outcome, Service

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

BELOW = "archive/old/orders"
ARCHIVE = {"hoodie.keep.min.commits": "2", "hoodie.keep.max.commits": "3"} | KEEP_ONE_COMMIT
USE_METADATA = "hoodie.metadata.enable"


def write_both(spark: SparkSession, path: Path, type: str, uses_metadata: str) -> tuple[KeptTable, KeptTable]:
    """Return a table with its rows, and one that its owner put into the folder of the first, between two writes."""
    outer = KeptTable(spark, path, type, options={USE_METADATA: uses_metadata})
    outer.write(first_rows())
    inner = KeptTable(spark, path / BELOW, "COW", options={USE_METADATA: "false"})
    for turn in (1, 2):
        inner.write((i, CITIES[i % 2], 100.0 + turn, turn) for i in range(100, 110))
    for turn in range(1, 6):
        outer.write((i, CITIES[i % 2], float(turn), turn) for i in range(6))
    return outer, inner


def require_refused(outer: KeptTable, service: Service, **options: str) -> str:
    mode = Mode.SCHEDULE_AND_EXECUTE
    result = run(outer.spark, outer.table.request(mode, service=service, service_options=options))
    assert (result.outcome, result.failure_kind) == (Outcome.FAILED, FailureKind.REFUSED), result.message
    assert f"table t at {outer.path}: another Hudi table lies in {BELOW}" in result.message
    assert "move that table, with its writers, out of this table's folder" in result.message
    return result.message


def require_all(outer: KeptTable, inner: KeptTable, files: dict[str, bytes]) -> None:
    outer.require_rows()
    inner.require_rows()
    assert files_of(inner) == files


def files_of(kept: KeptTable) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(kept.path.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("type", ["COW", pytest.param("MOR", marks=pytest.mark.soak)])
def test_services_are_refused_until_it_is_moved(spark: SparkSession, tmp_path: Path, type: str) -> None:
    outer, inner = write_both(spark, tmp_path / "t", type, "false")
    files = files_of(inner)
    require_refused(outer, Service.ARCHIVE, **ARCHIVE)
    require_refused(outer, Service.CLEAN, **KEEP_ONE_COMMIT)
    require_refused(outer, Service.CLUSTERING, **COMPARE_ALL)
    if type == "MOR":
        require_refused(outer, Service.COMPACTION, **COMPARE_ALL)
    require_all(outer, inner, files)

    inner.path.rename(tmp_path / "moved")
    moved = KeptTable(spark, tmp_path / "moved", "COW", options=inner.options, rows=inner.rows)
    files = files_of(moved)
    if type == "MOR":
        assert outer.serve(Service.COMPACTION).outcome is Outcome.COMPLETED
    assert outer.serve(Service.CLEAN, **KEEP_ONE_COMMIT).outcome is not Outcome.FAILED
    archived = outer.serve(Service.ARCHIVE, **ARCHIVE)
    assert archived.outcome is Outcome.COMPLETED, archived.message
    assert outer.serve(Service.CLUSTERING).outcome is Outcome.COMPLETED
    require_all(outer, moved, files)


@pytest.mark.soak
def test_with_a_metadata_table_only_archiving_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    outer, inner = write_both(spark, tmp_path / "t", "MOR", "true")
    files = files_of(inner)
    require_refused(outer, Service.ARCHIVE, **ARCHIVE)
    for service in (Service.COMPACTION, Service.CLUSTERING):
        assert outer.serve(service).outcome is Outcome.COMPLETED
    assert outer.serve(Service.CLEAN, **KEEP_ONE_COMMIT).outcome is not Outcome.FAILED
    require_all(outer, inner, files)


@pytest.mark.soak
def test_a_metadata_table_that_lists_it_stops_all(spark: SparkSession, tmp_path: Path) -> None:
    outer, inner = write_both(spark, tmp_path / "t", "COW", "false")
    files = files_of(inner)
    # The first write with a metadata table lists the folders.
    outer.write([(0, CITIES[0], 9.0, 9)], **{USE_METADATA: "true"})
    assert outer.table.properties().get("hoodie.table.metadata.partitions")
    for service, options in ((Service.CLUSTERING, COMPARE_ALL), (Service.CLEAN, KEEP_ONE_COMMIT)):
        assert "run `call delete_metadata_table` of Hudi's SQL" in require_refused(outer, service, **options)
    require_all(outer, inner, files)

    inner.path.rename(tmp_path / "moved")
    spark.sql(f"create table outer_of_inner using hudi location '{outer.path}'")
    spark.sql("call delete_metadata_table(table => 'outer_of_inner')").collect()
    spark.sql("drop table outer_of_inner")
    assert not outer.table.properties().get("hoodie.table.metadata.partitions")
    outer.write([(0, CITIES[0], 10.0, 10)], **{USE_METADATA: "true"})
    assert outer.table.properties().get("hoodie.table.metadata.partitions")
    assert outer.serve(Service.CLUSTERING).outcome is Outcome.COMPLETED
    assert outer.serve(Service.METACOMPACTION, **{"hoodie.metadata.compact.max.delta.commits": "1"})
    archived = outer.serve(Service.ARCHIVE, **ARCHIVE)
    assert archived.outcome is Outcome.COMPLETED, archived.message
    outer.require_rows()
