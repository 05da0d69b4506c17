"""What Java throws arrives as one class in both applications, whatever sessions PySpark makes meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError

from airflow_lake_provider.job_contract import FailureKind
from airflow_lake_provider.replication.job import ReplicationRequest
from airflow_lake_provider.replication.transactions import Order
from replicate import replicate

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def test_a_stream_meets_what_hudi_throws_as_the_handlers_of_hudis_failures_name_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    met: list[str] = []

    def open_table(spark: SparkSession, _request: ReplicationRequest) -> Any:
        spark.newSession()
        try:
            spark._jvm.org.apache.hudi.common.util.ValidationUtils.checkArgument(False, "planted")
        except Py4JJavaError as error:
            met.append(error.java_exception.getMessage())
            raise

    order = Order("orders.file")
    options = {"path": str(tmp_path / "target")}
    request = ReplicationRequest("/lake/orders", "orders", "file", order, str(tmp_path / "result"), options=options)
    result = replicate(spark, request, open_table)
    assert met == ["planted"]
    assert (result.failure_kind, result.message) == (FailureKind.OTHER, "IllegalArgumentException: planted")
