"""Deletes the rows of one table whose time, in a column, is too long ago, with Hudi's own Spark writer.

A search without the lock counts the expired rows of each file group. Under the table's lock the chosen file groups are
read again, and what is still expired there is deleted.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from airflow_lake_provider.errors import ServiceRefusedError
from airflow_lake_provider.job_contract import FailureKind, JobRequest, Mode, Outcome, Service, ServiceResult
from lake_jobs.hudi.store_clock import store_now_ms
from lake_jobs.hudi.table import LoadedTable, list_times
from lake_jobs.services.context import (
    open_context,
    refuse_scheduling,
    seconds_since,
)
from lake_jobs.services.living_writers import WriterInTheWayError
from lake_jobs.services.row_deletion import (
    FILE_NAME,
    IS_CHOSEN,
    DeletionGroup,
    RowChoice,
    delete_under_lock,
    find_deletion_problem,
)
from lake_jobs.services.row_expiry_rules import (
    ExpiredGroup,
    Expiry,
    RowRules,
    choose_groups,
    find_expiry,
    read_row_rules,
)
from lake_jobs.services.ttl import (
    PartitionInUseError,
    completed_writes,
)
from lake_jobs.verify.seen_before import AS_WRITTEN, PARTITION_PATH

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_lake_provider.job_contract import ServiceRequest


def run_row_expiry(spark: SparkSession, job: JobRequest, request: ServiceRequest) -> ServiceResult:
    """Run one request: find the expired rows, and delete those of the chosen file groups in one commit.

    Raises ServiceRefusedError when the request only schedules, or the table's rows cannot be deleted so,
    TtlSettingError, NoTableError, or Py4JJavaError when Hudi fails.
    """
    if request.mode is Mode.SCHEDULE:
        raise refuse_scheduling(job, "expired rows are found and deleted in one")
    context = open_context(spark, job, request)
    table = f"table {job.table_name} at {job.base_path}"
    rules = read_row_rules(request.options, table)
    if not list_times(completed_writes(context.first_state)):
        return ServiceResult(Service.TTL, Outcome.NOTHING_TO_DO, message="the table has no completed write")
    _require_deletable(context.first_state, rules, table)
    # The earlier of two clocks: one that is ahead would delete too much.
    now_ms = min(store_now_ms(spark, job.base_path), int(time.time() * 1000))
    rows = spark.read.options(**AS_WRITTEN).format("hudi").load(job.base_path)
    expiry = find_expiry(_type_of(rows, rules.column, table), rules, now_ms, table)
    started = time.monotonic()
    groups = _count_expired(rows, expiry, rules, table)
    found = (
        f"{sum(group.rows for group in groups):,} rows of {len(groups):,} file groups have a {rules.column} before "
        f"{expiry.limit}"
    )
    context.log_progress(found)
    if not groups or not rules.deletes:
        message = f"{found}; ttl.column_mode: report deletes none" if groups else f"no row is expired: {found}"
        return ServiceResult(Service.TTL, Outcome.NOTHING_TO_DO, message=message)
    try:
        chosen = choose_groups(groups, rules)
        instant, deleted = delete_under_lock(
            context,
            [DeletionGroup(group.partition, group.file_id) for group in chosen],
            RowChoice(
                "expired",
                frozenset({rules.column}),
                lambda rows: rows.withColumn(IS_CHOSEN, F.expr(expiry.is_expired)),
            ),
        )
    except (PartitionInUseError, WriterInTheWayError) as error:
        return ServiceResult(Service.TTL, Outcome.FAILED, failure_kind=FailureKind.CONFLICT, message=f"{error}")
    rest = f"; {len(groups) - len(chosen):,} file groups stay for later runs" if len(groups) > len(chosen) else ""
    if not instant:
        return ServiceResult(Service.TTL, Outcome.NOTHING_TO_DO, message=f"no row is expired any more{rest}")
    message = f"deleted {deleted:,} rows of {len(chosen):,} file groups, {rules.column} before {expiry.limit}{rest}"
    context.log_progress(f"{message}, in {seconds_since(started)}")
    return ServiceResult(Service.TTL, Outcome.COMPLETED, completed_instants=(instant,), message=message)


def _require_deletable(state: LoadedTable, rules: RowRules, table: str) -> None:
    """Raise ServiceRefusedError where a deletion could be wrong, or was not tried."""
    config = state.meta_client.getTableConfig()
    fields = config.getPartitionFields()
    if fields.isPresent() and rules.column in list(fields.get()):
        raise ServiceRefusedError(
            f"{table}: {rules.column} is a partition field, whose values Hudi may take from names of folders: name "
            "another ttl.column, or let partitions expire (ttl.retained_days)"
        )
    problem = find_deletion_problem(state)
    if problem:
        raise ServiceRefusedError(
            f"{table}: {problem}: let partitions expire (ttl.retained_days), or delete rows by a writer of the table"
        )


def _type_of(rows: DataFrame, column: str, table: str) -> str:
    types = {field.name: field.dataType.simpleString() for field in rows.schema.fields}
    if column not in types:
        raise ServiceRefusedError(f"{table} has no column {column}: correct ttl.column")
    return types[column]


def _count_expired(rows: DataFrame, expiry: Expiry, rules: RowRules, table: str) -> list[ExpiredGroup]:
    """Count the expired rows of each file group, as a reader sees them. Raises ServiceRefusedError."""
    counted = (
        rows.where(expiry.is_expired)
        .groupBy(F.col(PARTITION_PATH), F.substring_index(F.col(FILE_NAME), "_", 1))
        .agg(F.count(F.lit(1)), F.min(F.expr(expiry.order)), F.max(F.expr(expiry.is_implausible)))
        .collect()
    )
    for row in counted:
        if row[4]:
            raise ServiceRefusedError(
                f"{table}: {rules.column} has {row[3]}, which counted in {rules.unit} is before 1980: correct "
                "ttl.column_unit, or write 0 or null where no time is known"
            )
    return [ExpiredGroup(row[0], row[1], row[2], row[3]) for row in counted]
