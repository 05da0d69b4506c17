"""A restore failed halfway, and all writes after it: the metadata table did not reach back to its savepoint.

Report: https://github.com/apache/hudi/pull/13691
Report: https://github.com/apache/hudi/pull/7605
Verdict: fault of Hudi
Way out: run `lake_restore` with the same savepoint; services are refused until it has completed.
"""

from __future__ import annotations

import pytest
from conftest import MakeTable, Table, run, write
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from airflow_lake_provider.job_contract import Mode, Outcome, Service
from lake_jobs.hudi.table import open_client
from local_stack import lake_writer


def test_no_service_runs_between_the_halves_of_a_restore(spark: SparkSession, make_table: MakeTable) -> None:
    table = make_table(type="MOR")
    before = read(spark, table)
    settings = lake_writer.write_options(table.written, 3, None, {}) | {"hoodie.table.services.enabled": "true"}
    saved = max(table.completed("deltacommit"))
    with open_client(spark, str(table.path), settings, {}) as client:
        client.savepoint(saved, "people", "before the change")
    for commit in (3, 4):
        write(spark, table.written, commit)
    # As where the metadata table begins behind the savepoint: it was compacted, or built again, since.
    for file in (table.path / ".hoodie" / "metadata" / ".hoodie" / "timeline").glob(f"*{saved}*"):
        file.unlink()
    with open_client(spark, str(table.path), settings, {}) as client, pytest.raises(Py4JError, match="restore"):
        client.restoreToSavepoint(saved)

    for service in (Service.COMPACTION, Service.CLUSTERING, Service.CLEAN, Service.SAVEPOINT, Service.ROLLBACK):
        refused = run(spark, table.request(Mode.SCHEDULE_AND_EXECUTE, service=service))
        assert refused.outcome is Outcome.FAILED
        assert "restore" in refused.message, refused.message
        assert "is pending" in refused.message, refused.message

    with open_client(spark, str(table.path), settings | {"hoodie.metadata.enable": "false"}, {}) as client:
        client.restoreToSavepoint(saved)
    assert read(spark, table) == before
    done = run(spark, table.request(Mode.SCHEDULE_AND_EXECUTE, service=Service.CLEAN))
    assert done.outcome is not Outcome.FAILED, done.message


def read(spark: SparkSession, table: Table) -> list[tuple[object, ...]]:
    reader = spark.read.format("hudi").option("hoodie.metadata.enable", "false")
    return sorted(tuple(row) for row in reader.load(str(table.path)).select("id", "city", "amount").collect())
