"""A service changes the table that it was started for, whatever table its settings name."""

from __future__ import annotations

import pytest
from conftest import LOCK, MakeTable, run
from pyspark.sql import SparkSession

from airflow_lake_provider.job_contract import Mode, Outcome, Service


@pytest.mark.parametrize("key", ["hoodie.base.path", pytest.param("hoodie.table.name", marks=pytest.mark.soak)])
def test_settings_that_name_another_table_do_not_lead_there(
    spark: SparkSession, make_table: MakeTable, key: str
) -> None:
    mine, other = make_table("mine"), make_table("other")
    before = other.files()
    options = LOCK | {key: str(other.path)}
    result = run(spark, mine.request(Mode.SCHEDULE_AND_EXECUTE, service=Service.SAVEPOINT, options=options))
    assert result.outcome is Outcome.COMPLETED, result.message
    assert other.files() == before
    assert mine.completed("savepoint") == set(result.completed_instants)
