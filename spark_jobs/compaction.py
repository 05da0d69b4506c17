"""Schedules and executes compactions of one table, with Hudi's own client."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from failure_kind import causes_of, classify, describe
from hudi_table import MERGE_ON_READ, TableLook, find_heartbeat_age_s, look_at_table, open_client, take_lock_once
from job_contract import (
    FailureKind,
    JobRequest,
    Mode,
    Outcome,
    Service,
    ServiceRequest,
    ServiceResult,
    find_lock_problem,
)
from progress import readable_bytes, say
from py4j.protocol import Py4JJavaError
from service_settings import ALWAYS, service_settings, wait_for_lock_without_end

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession


class CompactionRefusedError(Exception):
    """This table cannot be compacted with these settings; the table was not touched."""


@dataclass(frozen=True, slots=True)
class PlanFailure:
    """Why one plan was not executed."""

    instant: str
    kind: FailureKind
    message: str


def run_compaction(spark: SparkSession, job: JobRequest, request: ServiceRequest) -> ServiceResult:
    """Run one compaction request.

    Running it twice is harmless: a plan that is completed counts as done, one that another try left inflight is rolled
    back and executed again by Hudi, and nothing is scheduled while something is pending (unless only scheduling was
    asked for). Raises CompactionRefusedError, NoTableError, or Py4JJavaError when scheduling fails.
    """
    options = {**job.hudi_options, **request.options}
    problem = find_lock_problem(options)
    if problem is not None:
        raise CompactionRefusedError(f"table {job.table_name} at {job.base_path}: {problem}")
    look = look_at_table(spark, job.base_path)
    if look.table_type != MERGE_ON_READ:
        raise CompactionRefusedError(
            f"table {job.table_name} at {job.base_path} is {look.table_type}; only {MERGE_ON_READ} is compacted"
        )
    say(job.table_name, f"{look.base_path}, table version {look.table_version}, pending {_listed(look)}")
    settings = service_settings(options, look.table_version, look.metadata_partitions)
    if request.mode is Mode.SCHEDULE:
        return _result(_schedule(spark, job, settings))
    instants = request.instants or look.pending_compactions
    if instants or request.mode is Mode.EXECUTE:
        return _execute(spark, job, settings, instants)
    scheduled = _schedule(spark, job, settings)
    executed = _execute(spark, job, settings, scheduled)
    return replace(executed, scheduled_instants=scheduled)


def _schedule(spark: SparkSession, job: JobRequest, settings: dict[str, str]) -> tuple[str, ...]:
    started = time.monotonic()
    say(job.table_name, "scheduling, as soon as the table's lock is free")
    with open_client(spark, job.base_path, settings, ALWAYS) as client:
        found = client.scheduleCompaction(spark._jvm.org.apache.hudi.common.util.Option.empty())
        instants = (str(found.get()),) if found.isPresent() else ()
    say(job.table_name, f"scheduled {instants[0] if instants else 'nothing: no new log files'} in {_since(started)}")
    return instants


def _execute(spark: SparkSession, job: JobRequest, settings: dict[str, str], instants: Sequence[str]) -> ServiceResult:
    completed: list[str] = []
    failures: list[PlanFailure] = []
    for instant in instants:
        failure = _execute_plan(spark, job, settings, instant)
        if failure is None:
            completed.append(instant)
        else:
            say(job.table_name, f"compaction {instant} FAILED ({failure.kind}): {failure.message}")
            failures.append(failure)
    if failures:
        return ServiceResult(
            Service.COMPACTION,
            Outcome.FAILED,
            completed_instants=tuple(completed),
            failure_kind=failures[0].kind,
            message="; ".join(f"compaction {failure.instant}: {failure.message}" for failure in failures),
        )
    outcome = Outcome.COMPLETED if completed else Outcome.NOTHING_TO_DO
    return ServiceResult(Service.COMPACTION, outcome, completed_instants=tuple(completed))


def _execute_plan(spark: SparkSession, job: JobRequest, settings: dict[str, str], instant: str) -> PlanFailure | None:
    before = look_at_table(spark, job.base_path)
    if before.find_compaction(instant) is not None:
        say(job.table_name, f"compaction {instant} is completed already")
        return None
    if instant not in before.pending_compactions:
        return _plan_gone(instant)
    started = time.monotonic()
    say(job.table_name, f"compaction {instant}: executing")
    failure = None
    try:
        with open_client(spark, job.base_path, settings, ALWAYS) as client:
            # A lock that cannot be had is found out here, by the caller's patience and without harm.
            take_lock_once(spark, client)
        with open_client(spark, job.base_path, wait_for_lock_without_end(settings), ALWAYS) as client:
            # The second argument makes Hudi commit; without it the files are written and thrown away.
            client.compact(instant, True)  # noqa: FBT003 - py4j has no keywords
    except Py4JJavaError as error:
        failure = _failure(spark, job, instant, error)
    # The timeline judges (G3): neither a returned call nor an exception says whether the instant is completed.
    after = look_at_table(spark, job.base_path)
    sizes = after.find_compaction(instant)
    if sizes is not None:
        say(
            job.table_name,
            f"compaction {instant} completed in {_since(started)}: {sizes.log_files_compacted} log files "
            f"({readable_bytes(sizes.log_bytes)}) into {sizes.files_written} base files "
            f"({readable_bytes(sizes.written_bytes)})",
        )
        return None
    if instant not in after.pending_compactions:
        return _plan_gone(instant)
    return failure or PlanFailure(
        instant, FailureKind.OTHER, "Hudi returned without an error, but the timeline does not show it completed"
    )


def _failure(spark: SparkSession, job: JobRequest, instant: str, error: Py4JJavaError) -> PlanFailure:
    causes = causes_of(error.java_exception)
    kind, message = classify(causes), describe(causes)
    if kind is FailureKind.BUSY:
        age_s = find_heartbeat_age_s(spark, job.base_path, instant)
        seen = "its heartbeat has just ended" if age_s is None else f"its last heartbeat was {age_s:.0f} s ago"
        message = f"another executor has this plan, {seen}"
    elif kind is FailureKind.OTHER:
        say(job.table_name, f"compaction {instant}: stack trace follows\n{error}")
    return PlanFailure(instant, kind, message)


def _plan_gone(instant: str) -> PlanFailure:
    return PlanFailure(
        instant,
        FailureKind.PLAN_GONE,
        f"the plan {instant} is neither pending nor completed on the active timeline: it was removed, or archived",
    )


def _result(scheduled: tuple[str, ...]) -> ServiceResult:
    outcome = Outcome.SCHEDULED if scheduled else Outcome.NOTHING_TO_DO
    return ServiceResult(Service.COMPACTION, outcome, scheduled_instants=scheduled)


def _listed(look: TableLook) -> str:
    return ", ".join(look.pending_compactions) or "none"


def _since(started: float) -> str:
    return f"{time.monotonic() - started:.1f} s"
