"""The service `ttl`: deletes what has expired of a table, whole partitions or rows by a column."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_lake_provider.job_contract import TTL_COLUMN
from lake_jobs.services.row_expiry import run_row_expiry
from lake_jobs.services.ttl import run_ttl

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_lake_provider.job_contract import JobRequest, ServiceRequest, ServiceResult


def run_expiry(spark: SparkSession, job: JobRequest, request: ServiceRequest) -> ServiceResult:
    """Run one request; with a column, rows expire by its values instead of partitions."""
    run = run_row_expiry if request.options.get(TTL_COLUMN) else run_ttl
    return run(spark, job, request)
