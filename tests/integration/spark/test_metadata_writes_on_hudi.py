"""Services update the metadata table in the way of the table's writers, which shows in the table itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from conftest import MakeTable, Table, content, run, write
from paused_writers import STREAMING_OFF

from airflow_lake_provider.job_contract import Mode, Outcome, Service

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("is_streaming", [True, False], ids=["streaming", "at-commit"])
def test_services_stream_exactly_when_the_writers_do(
    spark: SparkSession, make_table: MakeTable, is_streaming: bool
) -> None:
    table = make_table(**({} if is_streaming else STREAMING_OFF))
    before = content(spark, table)
    for service in (Service.COMPACTION, Service.CLUSTERING):
        result = run(spark, table.request(Mode.SCHEDULE_AND_EXECUTE, service=service))
        assert result.outcome is Outcome.COMPLETED, result.message
        (instant,) = result.completed_instants
        assert streamed(table, instant) is is_streaming, service
    assert content(spark, table) == before
    # What the services have written says nothing of the writers.
    write(spark, table.written, table.written.commits)
    result = run(spark, table.request(Mode.SCHEDULE_AND_EXECUTE))
    assert result.outcome is Outcome.COMPLETED, result.message
    assert streamed(table, result.completed_instants[0]) is is_streaming


def streamed(table: Table, instant: str) -> bool:
    """Whether an instant began in the metadata table before its first data file was complete."""
    requested = table.path / ".hoodie" / "metadata" / ".hoodie" / "timeline" / f"{instant}.deltacommit.requested"
    files = [path for path in table.path.glob("*/*.parquet") if path.stem.endswith(f"_{instant}")]
    return requested.stat().st_mtime < min(path.stat().st_mtime for path in files)
