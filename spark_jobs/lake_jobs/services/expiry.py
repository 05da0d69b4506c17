"""The service `ttl`: deletes what has expired of a table, whole partitions or rows by a column, or erases keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_lake_provider.job_contract import TTL_COLUMN, Mode
from lake_jobs.services.erasure import run_erasure
from lake_jobs.services.row_expiry import run_row_expiry
from lake_jobs.services.ttl import run_ttl

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_lake_provider.job_contract import JobRequest, ServiceRequest, ServiceResult


def run_expiry(spark: SparkSession, job: JobRequest, request: ServiceRequest) -> ServiceResult:
    """Run one request; with a column, rows expire by its values instead of partitions."""
    if request.mode is Mode.ERASE:
        return run_erasure(spark, job, request)
    run = run_row_expiry if request.options.get(TTL_COLUMN) else run_ttl
    return run(spark, job, request)
