"""Services whose executor is a JVM of its own, as on every cluster; with `local[n]` it is the driver's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from conftest import MakeTable, rows
from test_log_compaction_on_hudi import TWO_LOG_FILES
from test_real_processes import result_of, submit  # noqa: F401 - a fixture

from airflow_lake_provider.execution.engines.packaging import SPARK_CONF
from airflow_lake_provider.job_contract import Mode, Outcome, Service
from local_stack import hudi_bundle

if TYPE_CHECKING:
    import subprocess

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.soak(covered_by="tests/integration/engines/test_fencing.py")

WITH_RECORD_INDEX = {
    "hoodie.metadata.global.record.level.index.enable": "true",
    "hoodie.metadata.global.record.level.index.min.filegroup.count": "2",
}


def test_executor_whose_first_task_writes_metadata_compacts_the_logs_of_a_table_with_a_record_index(
    spark: SparkSession,
    make_table: MakeTable,
    submit: Callable[..., subprocess.Popen[str]],  # noqa: F811
) -> None:
    table = make_table(**WITH_RECORD_INDEX)
    before = rows(spark, table)
    request = table.request(
        Mode.SCHEDULE_AND_EXECUTE, service=Service.LOGCOMPACTION, service_options=dict(TWO_LOG_FILES)
    )
    conf = [f"{key}={value}" for key, value in SPARK_CONF.items()]
    process = submit(request, hudi_bundle.JAR, "local-cluster[1,1,1024]", *conf)
    output, _ = process.communicate(timeout=480)
    (result,) = result_of(request).services
    assert result.outcome is Outcome.COMPLETED, f"{result.message}\n{output[-3000:]}"
    assert rows(spark, table) == before
