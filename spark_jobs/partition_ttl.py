"""Deletes the partitions of one table that nobody has written to for too long, with Hudi's own client.

Which partitions these are is found out here. Hudi 1.2's own strategy counts milliseconds in 32 bits, so that 50 days
become 7 hours (`KeepByTimeStrategy`); takes a merge-on-read partition's last write for that of its base files; and
leaves a `replacecommit.requested` behind when nothing is expired, which holds archiving and index builds up.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from failure_kind import causes_of, describe
from hudi_table import MERGE_ON_READ, TableLook, find_instant, requested_times
from job_contract import FailureKind, JobRequest, Mode, Outcome, Service, ServiceRequest, ServiceResult
from planned_service import (
    ServiceRefusedError,
    Visit,
    open_patient_client,
    open_visit,
    refuse_scheduling,
    seconds_since,
)
from py4j.protocol import Py4JJavaError
from ttl_rules import DAYS, find_expired, read_rules

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

REPLACECOMMIT = "replacecommit"


class PartitionInUseError(Exception):
    """Somebody wrote to a partition while it was being deleted; the deletion was taken back."""


def run_ttl(spark: SparkSession, job: JobRequest, request: ServiceRequest) -> ServiceResult:
    """Run one TTL request: find the expired partitions, and delete them in one commit.

    A second run finds nothing. Raises ServiceRefusedError when only scheduling is asked for, or when the table does not
    say when a partition was written, TtlSettingError, NoTableError, or Py4JJavaError when Hudi fails.
    """
    if request.mode is Mode.SCHEDULE:
        raise refuse_scheduling(job, "Hudi finds and deletes expired partitions in one")
    visit = open_visit(spark, job, request)
    rules = read_rules(visit.settings, f"table {job.table_name} at {job.base_path}")
    _require_told_writes(visit)
    busy = _pending_services(visit.first_look)
    if busy:
        message = f"waits for pending plans {', '.join(busy)}, whose files must stay"
        return ServiceResult(Service.TTL, Outcome.FAILED, failure_kind=FailureKind.CONFLICT, message=message)
    started = time.monotonic()
    with open_patient_client(visit) as client:
        last_writes = _last_writes(visit, client)
        expired = find_expired(last_writes, client.createNewInstantTime(False), rules)  # noqa: FBT003 - py4j
        visit.say(f"{len(expired)} of {len(last_writes)} partitions were last written over {rules.days} days ago")
        if not expired:
            message = f"none of {len(last_writes)} partitions is expired ({DAYS}={rules.days})"
            return ServiceResult(Service.TTL, Outcome.NOTHING_TO_DO, message=message)
        try:
            instant = _delete_partitions(visit, client, expired)
        except PartitionInUseError as error:
            return ServiceResult(Service.TTL, Outcome.FAILED, failure_kind=FailureKind.CONFLICT, message=f"{error}")
    message = f"deleted {len(expired)} partitions: {', '.join(expired[:10])}{', ...' if len(expired) > 10 else ''}"
    visit.say(f"{message}, in {seconds_since(started)}")
    return ServiceResult(Service.TTL, Outcome.COMPLETED, completed_instants=(instant,), message=message)


def _require_told_writes(visit: Visit) -> None:
    look = visit.first_look
    table = f"table {visit.job.table_name} at {visit.job.base_path}"
    if not look.meta_client.getTableConfig().isTablePartitioned():
        raise ServiceRefusedError(f"{table} is not partitioned: it has nothing that could expire")
    if look.table_type == MERGE_ON_READ and look.table_version < 8:
        raise ServiceRefusedError(
            f"{table} is merge-on-read of version {look.table_version}, whose log files do not say when they were "
            "written: upgrade it to version 8 or later"
        )


def _pending_services(look: TableLook) -> tuple[str, ...]:
    timeline = look.timeline
    pending = (
        timeline.filterPendingCompactionTimeline(),
        timeline.filterPendingLogCompactionTimeline(),
        timeline.filterPendingClusteringTimeline(),
    )
    return tuple(str(instant.requestedTime()) for plans in pending for instant in plans.getInstants())


def _last_writes(visit: Visit, client: Any) -> dict[str, str]:
    """Return for each partition that has data the requested time of the newest write that is in its latest slices."""
    hudi = visit.spark._jvm.org.apache.hudi
    table = hudi.table.HoodieSparkTable.create(client.getConfig(), client.getEngineContext())
    view = table.getHoodieView()
    found = {}
    for partition in table.getTableMetadata().getAllPartitionPaths():
        times = [str(part.getLatestInstantTime()) for part in _each(view.getLatestFileSlices(partition))]
        if times:
            found[str(partition)] = max(times)
    return found


def _each(stream: Any) -> Iterator[Any]:
    iterator = stream.iterator()
    while iterator.hasNext():
        yield iterator.next()


def _delete_partitions(visit: Visit, client: Any, partitions: tuple[str, ...]) -> str:
    """Delete the partitions in one commit, or leave nothing behind. Raises Py4JJavaError, PartitionInUseError."""
    jvm = visit.spark._jvm
    doomed = jvm.java.util.ArrayList()
    for partition in partitions:
        doomed.add(partition)
    before = frozenset(requested_times(_completed_writes(visit.look())))
    instant = str(client.startDeletePartitionCommit())
    none = jvm.org.apache.hudi.common.util.Option.empty()
    try:
        result = client.deletePartitions(doomed, instant)
        _require_untouched(visit, before, frozenset(partitions))
        replaced = result.getPartitionToReplaceFileIds()
        client.commit(instant, result.getWriteStatuses(), none, REPLACECOMMIT, replaced, none)
    except (Py4JJavaError, PartitionInUseError):
        _take_back(visit, client, instant)
        raise
    return instant


def _require_untouched(visit: Visit, before: frozenset[str], partitions: frozenset[str]) -> None:
    # Hudi's conflict resolution does not look at what a deletion of partitions replaces
    # (`WriteOperationType.isOverwrite`): an update that was completed meanwhile would be lost.
    look = visit.look()
    for instant in _completed_writes(look).getInstants():
        if str(instant.requestedTime()) in before:
            continue
        written = set(look.timeline.readCommitMetadata(instant).getPartitionToWriteStats()) & partitions
        if written:
            raise PartitionInUseError(
                f"{instant.getAction()} {instant.requestedTime()} wrote to {', '.join(sorted(written))} meanwhile"
            )


def _completed_writes(look: TableLook) -> Any:
    return look.timeline.getCommitsTimeline().filterCompletedInstants()


def _take_back(visit: Visit, client: Any, instant: str) -> None:
    if find_instant(visit.look().timeline.filterInflightsAndRequested(), instant) is None:
        return
    try:
        client.rollback(instant)
    except Py4JJavaError as error:
        # A later rollback of failed writes does it, as soon as the heartbeat has ended.
        visit.say(f"{REPLACECOMMIT} {instant} is left behind: {describe(causes_of(error.java_exception))}")
