"""How a clustering orders rows: what parquet's own statistics of the files say, and that the rows stay."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from conftest import LOCK, MakeTable, Table, content, file_groups, run, write

from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.config.service_policies import ClusteringPolicy
from airflow_lake_provider.job_contract import FailureKind, Mode, Outcome, Service
from airflow_lake_provider.planner.small_files import clustering_options
from local_stack import lake_writer
from tests.support.hudi_tables import require_rows

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

SIDE = 64
"""Rows are the points of a square."""
FILES = 16


@pytest.fixture
def square(spark: SparkSession, tmp_path: Path) -> Table:
    """A table of one partition with files that hold points of everywhere."""
    table = lake_writer.WrittenTable("square", str(tmp_path / "square"), "COW", 9, commits=2, keys=1, rows=1)
    options = {
        **LOCK,
        "hoodie.table.name": "square",
        "hoodie.datasource.write.recordkey.field": "id",
        "hoodie.datasource.write.precombine.field": "id",
        "hoodie.datasource.write.partitionpath.field": "",
        "hoodie.datasource.write.keygenerator.class": "org.apache.hudi.keygen.NonpartitionedKeyGenerator",
        "hoodie.datasource.write.operation": "bulk_insert",
        "hoodie.bulkinsert.shuffle.parallelism": "4",
        "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
        "hoodie.clean.failed.writes.policy": "LAZY",
    }
    points = spark.range(SIDE * SIDE).selectExpr(
        "(id * 2654435761) % 4096 as id", "id % 64 as x", "cast(id / 64 as bigint) as y", "array(id) as tags"
    )
    for half in (0, 1):
        some = points.where(f"(x + y) % 2 = {half}")
        some.write.format("hudi").options(**options).mode("append").save(table.base_path)
    return Table(table)


def ranges(table: Table, instant: str, column: str) -> list[tuple[int, int]]:
    """Return the least and the greatest value of each file that an instant wrote, by parquet's row groups."""
    found = []
    for path in sorted(table.path.glob(f"*_{instant}.parquet")):
        metadata = pq.read_metadata(path)
        index = metadata.schema.names.index(column)
        statistics = [metadata.row_group(group).column(index).statistics for group in range(metadata.num_row_groups)]
        found.append((min(one.min for one in statistics), max(one.max for one in statistics)))
    return found


def read_by(found: list[tuple[int, int]]) -> float:
    """Return the share of the files that a query for one value opens, on average."""
    return sum(low <= value <= high for low, high in found for value in range(SIDE)) / SIDE / len(found)


@pytest.mark.parametrize(
    "layout", ["linear", *(pytest.param(curve, marks=pytest.mark.soak) for curve in ("z-order", "hilbert"))]
)
def test_layout_of_the_policy_is_that_of_the_files_and_rows_stay(
    spark: SparkSession, square: Table, layout: str
) -> None:
    policy = TablePolicy(clustering=ClusteringPolicy(enabled=True, sort_columns=("x", "y"), layout=layout))  # type: ignore[arg-type]
    before = content(spark, square)
    size = sum(path.stat().st_size for path in square.path.glob("*.parquet"))
    more = {"hoodie.clustering.plan.strategy.target.file.max.bytes": str(size // FILES)}
    options = dict(clustering_options(policy)) | more
    ran = run(spark, square.request(Mode.SCHEDULE_AND_EXECUTE, service=Service.CLUSTERING, service_options=options))
    assert ran.outcome is Outcome.COMPLETED, ran.message
    assert content(spark, square) == before
    x, y = (ranges(square, ran.completed_instants[0], column) for column in ("x", "y"))
    assert len(x) >= FILES
    if layout == "linear":
        assert all(high <= low for (_, high), (low, _) in zip(sorted(x), sorted(x)[1:], strict=False))
        assert read_by(y) > 0.9
    else:
        # A filter by either column leaves files out.
        assert read_by(x) < 0.6
        assert read_by(y) < 0.6


@pytest.mark.parametrize(
    ("column", "says"),
    [
        ("amuont", "the table has no column amuont: did you mean amount?"),
        ("Amount", "the table has no column Amount: did you mean amount?"),
    ],
)
def test_column_that_the_table_lacks_leaves_no_plan(
    spark: SparkSession, make_table: MakeTable, column: str, says: str
) -> None:
    """Hudi finds out while it executes the plan, which then stands in the way of every update of its files."""
    table = make_table(type="COW")
    policy = TablePolicy(clustering=ClusteringPolicy(enabled=True, sort_columns=(column,)))
    options = dict(clustering_options(policy))
    files = table.files()
    for mode in (Mode.SCHEDULE, Mode.SCHEDULE_AND_EXECUTE):
        ran = run(spark, table.request(mode, service=Service.CLUSTERING, service_options=options))
        assert (ran.outcome, ran.failure_kind) == (Outcome.FAILED, FailureKind.REFUSED)
        assert says in ran.message
    assert table.files() == files


@pytest.mark.soak
@pytest.mark.parametrize("version", [9, 6])
def test_stream_copy_of_hudi_keeps_every_row_and_later_updates_find_them(
    spark: SparkSession, make_table: MakeTable, version: int
) -> None:
    """The documented settings, which copy columns' pages and decode no row."""
    table = make_table(type="COW", version=version)
    before, groups = content(spark, table), file_groups(spark, table)
    classes = {
        "hoodie.clustering.plan.strategy.class": "plan.strategy.SparkStreamCopyClusteringPlanStrategy",
        "hoodie.clustering.execution.strategy.class": "run.strategy.SparkStreamCopyClusteringExecutionStrategy",
    }
    options = {key: f"org.apache.hudi.client.clustering.{name}" for key, name in classes.items()}
    ran = run(spark, table.request(Mode.SCHEDULE_AND_EXECUTE, service=Service.CLUSTERING, service_options=options))
    assert ran.outcome is Outcome.COMPLETED, ran.message
    assert content(spark, table) == before
    assert len(file_groups(spark, table)) < len(groups)
    write(spark, table.written, 3)
    require_rows(spark, table, 4)
