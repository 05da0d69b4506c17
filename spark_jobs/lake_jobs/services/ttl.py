"""Deletes the partitions of one table that no writer has written to for too long, with Hudi's own client.

This module finds these partitions itself. Hudi 1.2's own strategy counts milliseconds in 32 bits, so that 50 days
become 7 hours (`KeepByTimeStrategy`); takes a merge-on-read partition's last write for that of its base files; and
leaves a `replacecommit.requested` behind when nothing is expired, which holds archiving and index builds up.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError

from airflow_lake_provider.errors import ServiceRefusedError
from airflow_lake_provider.job_contract import (
    FailureKind,
    JobRequest,
    Mode,
    Outcome,
    Service,
    ServiceRequest,
    ServiceResult,
)
from airflow_lake_provider.shared.actions import Action
from airflow_lake_provider.shared.hudi_settings import MERGE_ON_READ, TTL_DAYS
from lake_jobs.driver.failure import causes_of, describe
from lake_jobs.hudi.table import LoadedTable, find_instant, requested_times
from lake_jobs.services.context import (
    ServiceContext,
    act_under_lock,
    open_context,
    open_waiting_client,
    refuse_scheduling,
    seconds_since,
)
from lake_jobs.services.living_writers import WriterInTheWayError, require_no_writer
from lake_jobs.services.ttl_rules import TtlRules, find_expired, read_rules

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from pyspark.sql import SparkSession

MAX_WAIT_S = 120.0
"""For a moment without a living writer that would fail; then the run ends as a conflict, and is retried."""
WAIT_INTERVAL_S = 1.0


class PartitionInUseError(Exception):
    """A plan needs a partition's files, or a writer wrote to it during its deletion; nothing was deleted."""


def run_ttl(spark: SparkSession, job: JobRequest, request: ServiceRequest) -> ServiceResult:
    """Run one TTL request: find the expired partitions, and delete them in one commit.

    A second run finds nothing. Raises ServiceRefusedError when the request only schedules, or when the table does not
    say when a partition was written, TtlSettingError, NoTableError, or Py4JJavaError when Hudi fails.
    """
    if request.mode is Mode.SCHEDULE:
        raise refuse_scheduling(job, "Hudi finds and deletes expired partitions in one")
    context = open_context(spark, job, request)
    rules = read_rules(context.settings, f"table {job.table_name} at {job.base_path}")
    _require_named_writes(context)
    started = time.monotonic()
    try:
        _require_no_plan(context.first_state)
        with open_waiting_client(context) as holder:
            last_writes = _last_writes(context, holder)
            expired = find_expired(last_writes, _now(holder), rules)
            context.log_progress(
                f"{len(expired)} of {len(last_writes)} partitions were last written over {rules.days} days ago"
            )
            instant = ""
            if expired:
                wait_for_writers(context, expired)
                with act_under_lock(context, holder) as (held, client):
                    instant, expired = _delete_expired(held, client, expired, rules)
    except (PartitionInUseError, WriterInTheWayError) as error:
        return ServiceResult(Service.TTL, Outcome.FAILED, failure_kind=FailureKind.CONFLICT, message=f"{error}")
    if not expired:
        message = f"none of {len(last_writes)} partitions is expired ({TTL_DAYS}={rules.days})"
        return ServiceResult(Service.TTL, Outcome.NOTHING_TO_DO, message=message)
    message = f"deleted {len(expired)} partitions: {', '.join(expired[:10])}{', ...' if len(expired) > 10 else ''}"
    context.log_progress(f"{message}, in {seconds_since(started)}")
    return ServiceResult(Service.TTL, Outcome.COMPLETED, completed_instants=(instant,), message=message)


def _require_named_writes(context: ServiceContext) -> None:
    state = context.first_state
    table = f"table {context.job.table_name} at {context.job.base_path}"
    if not state.meta_client.getTableConfig().isTablePartitioned():
        raise ServiceRefusedError(f"{table} is not partitioned: it has nothing that could expire")
    if state.table_type == MERGE_ON_READ and state.table_version < 8:
        raise ServiceRefusedError(
            f"{table} is merge-on-read of version {state.table_version}, whose log files do not say when they were "
            "written: upgrade it to version 8 or later"
        )


def _pending_services(state: LoadedTable) -> tuple[str, ...]:
    timeline = state.timeline
    pending = (
        timeline.filterPendingCompactionTimeline(),
        timeline.filterPendingLogCompactionTimeline(),
        timeline.filterPendingClusteringTimeline(),
    )
    return tuple(str(instant.requestedTime()) for plans in pending for instant in plans.getInstants())


def _require_no_plan(state: LoadedTable) -> None:
    """Raise PartitionInUseError while a plan is pending, whose files must stay."""
    busy = _pending_services(state)
    if busy:
        raise PartitionInUseError(f"waits for pending plans {', '.join(busy)}, whose files must stay")


def wait_for_writers(context: ServiceContext, expired: tuple[str, ...]) -> None:
    """Wait for a moment in which no living writer would fail, without the lock. Raises WriterInTheWayError in the end.

    One that writes to other partitions is none as soon as it says so.
    """
    deadline = time.monotonic() + MAX_WAIT_S
    while True:
        try:
            return require_no_writer(context, context.read_table_state(), expired)
        except WriterInTheWayError:
            if time.monotonic() > deadline:
                raise
            time.sleep(WAIT_INTERVAL_S)


def _delete_expired(
    context: ServiceContext, client: Any, expired: tuple[str, ...], rules: TtlRules
) -> tuple[str, tuple[str, ...]]:
    """Delete what is still expired; return the instant, and what was deleted. Call it under the table's lock.

    Raises PartitionInUseError, WriterInTheWayError or Py4JJavaError, and then nothing is deleted.
    """
    state = context.read_table_state()
    _require_no_plan(state)
    require_no_writer(context, state, expired)
    still = find_expired(_last_writes(context, client, expired), _now(client), rules)
    return (_delete_partitions(context, client, still), still) if still else ("", ())


def _now(client: Any) -> str:
    return str(client.createNewInstantTime(False))  # noqa: FBT003 - py4j has no keywords


def _last_writes(context: ServiceContext, client: Any, partitions: Collection[str] | None = None) -> dict[str, str]:
    """Return for each partition that has data the requested time of the newest write that is in its latest slices.

    `partitions` are those that are read; None are all.
    """
    hudi = context.spark._jvm.org.apache.hudi
    table = hudi.table.HoodieSparkTable.create(client.getConfig(), client.getEngineContext())
    view = table.getHoodieView()
    found = {}
    for partition in table.getTableMetadata().getAllPartitionPaths() if partitions is None else partitions:
        times = [str(part.getLatestInstantTime()) for part in _each(view.getLatestFileSlices(partition))]
        if times:
            found[str(partition)] = max(times)
    return found


def _each(stream: Any) -> Iterator[Any]:
    iterator = stream.iterator()
    while iterator.hasNext():
        yield iterator.next()


def _delete_partitions(context: ServiceContext, client: Any, partitions: tuple[str, ...]) -> str:
    """Delete the partitions in one commit, or leave nothing behind.

    Raises Py4JJavaError, PartitionInUseError, WriterInTheWayError.
    """
    jvm = context.spark._jvm
    java_partitions = jvm.java.util.ArrayList()
    for partition in partitions:
        java_partitions.add(partition)
    before = frozenset(requested_times(completed_writes(context.read_table_state())))
    instant = str(client.startDeletePartitionCommit())
    none = jvm.org.apache.hudi.common.util.Option.empty()
    try:
        result = client.deletePartitions(java_partitions, instant)
        # Hudi before 1.2 puts a write on the timeline after it has released the lock, and some writers take none.
        require_no_writer(context, context.read_table_state(), partitions, own=instant)
        require_untouched(context, before, frozenset(partitions))
        replaced = result.getPartitionToReplaceFileIds()
        client.commit(instant, result.getWriteStatuses(), none, Action.REPLACECOMMIT.value, replaced, none)
    except (Py4JJavaError, PartitionInUseError, WriterInTheWayError):
        undo(context, client, instant)
        raise
    return instant


def require_untouched(context: ServiceContext, before: frozenset[str], partitions: frozenset[str]) -> None:
    """Raise PartitionInUseError when a write wrote to the partitions that is not among those of before."""
    # Hudi's conflict resolution ignores what a deletion of partitions replaces
    # (`WriteOperationType.isOverwrite`): an update that completed meanwhile would be lost.
    state = context.read_table_state()
    for instant in completed_writes(state).getInstants():
        if str(instant.requestedTime()) in before:
            continue
        written = set(state.timeline.readCommitMetadata(instant).getPartitionToWriteStats()) & partitions
        if written:
            raise PartitionInUseError(
                f"{instant.getAction()} {instant.requestedTime()} wrote to {', '.join(sorted(written))} meanwhile"
            )


def completed_writes(state: LoadedTable) -> Any:
    """Return the completed writes of the active timeline."""
    return state.timeline.getCommitsTimeline().filterCompletedInstants()


def undo(context: ServiceContext, client: Any, instant: str) -> None:
    """Roll back a deletion that did not complete."""
    if find_instant(context.read_table_state().timeline.filterInflightsAndRequested(), instant) is None:
        return
    try:
        client.rollback(instant)
    except Py4JJavaError as error:
        # A later rollback of failed writes does it, as soon as the heartbeat has ended.
        context.log_progress(f"deletion {instant} is left behind: {describe(causes_of(error.java_exception))}")
