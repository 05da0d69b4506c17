"""What commit metadata say of a table's log files, next to the files that Hudi wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from conftest import LOCK, MakeTable, Table, run, write

from airflow_lake_provider.job_contract import Mode, Outcome
from airflow_lake_provider.planner.facts import FigureCheck, TableFacts, check_figures
from airflow_lake_provider.planner.table_view import TableViewCache
from airflow_lake_provider.storage.table_storage import open_storage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession


def check(table: Table) -> FigureCheck | None:
    def first(names: Sequence[str], most: int) -> list[str]:
        return list(names[:most])

    path = str(table.path)
    return check_figures(open_storage(path), TableFacts(TableViewCache().refresh(path)), first)


@pytest.mark.parametrize("version", [pytest.param(6, marks=pytest.mark.soak), 9])
def test_log_bytes_of_commit_metadata_are_those_of_the_files(
    spark: SparkSession, make_table: MakeTable, version: int
) -> None:
    table = make_table(version=version)
    before = check(table)
    assert before is not None
    assert before.listed_files > 0
    assert (before.expected_bytes, before.error) == (before.listed_bytes, 0.0)
    result = run(spark, table.request(Mode.SCHEDULE_AND_EXECUTE, options=LOCK))
    assert result.outcome is Outcome.COMPLETED, result.message
    assert check(table) is None, "the log files lie there still, and no reader opens them"
    write(spark, table.written, 9)
    after = check(table)
    assert after is not None
    assert 0 < after.listed_files < before.listed_files
    assert (after.expected_bytes, after.error) == (after.listed_bytes, 0.0)
