"""The text of a pending plan that rewrites rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_lake_provider.job_contract import Service

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake_jobs.hudi.table import LoadedTable


def read_plan(spark: SparkSession, state: LoadedTable, service: Service, instant: str) -> str:
    """Return a pending plan, in Avro's JSON. Raises Py4JJavaError when it cannot be read."""
    utils = spark._jvm.org.apache.hudi.common.util
    read = {
        Service.COMPACTION: utils.CompactionUtils.getCompactionPlan,
        Service.LOGCOMPACTION: utils.CompactionUtils.getLogCompactionPlan,
        Service.CLUSTERING: utils.ClusteringUtils.getPendingClusteringPlan,
    }[service]
    return str(read(state.meta_client, instant).toString())
