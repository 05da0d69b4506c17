"""Archives old instants of one table, with Hudi's own client."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError

from airflow_lake_provider.job_contract import (
    METADATA_TABLE,
    JobRequest,
    Mode,
    Outcome,
    Service,
    ServiceRequest,
    ServiceResult,
)
from lake_jobs.driver.failure import causes_of, describe
from lake_jobs.hudi.table import MERGE_ON_READ, LoadedTable
from lake_jobs.services.context import open_context, open_waiting_client, refuse_scheduling, seconds_since

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Limit:
    """An instant that archiving does not pass, and why."""

    instant: str
    reason: str


def run_archive(spark: SparkSession, job: JobRequest, request: ServiceRequest) -> ServiceResult:
    """Run one archive request: move old instants out of the active timeline.

    Hudi plans no archiving, so both executing modes do the same. Raises ServiceRefusedError for a request that
    only schedules, NoTableError, or Py4JJavaError when Hudi fails.
    """
    if request.mode is Mode.SCHEDULE:
        raise refuse_scheduling(job, "Hudi plans no archiving")
    context = open_context(spark, job, request)
    before = _active_instants(context.first_state)
    context.log_progress(f"{context.first_state.base_path}, {len(before)} completed instants on the active timeline")
    started = time.monotonic()
    # Without the lock, Hudi's archiver logs that and returns as if there were nothing to do.
    with open_waiting_client(context) as client:
        client.archive()
        state = context.read_table_state()
        after = _active_instants(state)
        archived = before - after
        if not archived:
            message = f"nothing to archive: {_explain_nothing(spark._jvm.org.apache.hudi, client, state)}"
            return ServiceResult(Service.ARCHIVE, Outcome.NOTHING_TO_DO, message=message)
    message = f"archived {len(archived)} instants, {min(archived)[0]} to {max(archived)[0]}; {len(after)} stay active"
    context.log_progress(f"{message}, in {seconds_since(started)}")
    return ServiceResult(Service.ARCHIVE, Outcome.COMPLETED, message=message)


def _active_instants(state: LoadedTable) -> set[tuple[str, str]]:
    """Return requested time and action of each completed instant; others only leave by a rollback."""
    return {
        (instant.requestedTime(), instant.getAction())
        for instant in state.timeline.filterCompletedInstants().getInstants()
    }


def _explain_nothing(hudi: Any, client: Any, state: LoadedTable) -> str:
    try:
        return _find_reason(hudi, client, state)
    except Py4JJavaError as error:
        # Archiving went well; only its explanation did not.
        return f"Hudi gives no reason ({describe(causes_of(error.java_exception))})"


def _find_reason(hudi: Any, client: Any, state: LoadedTable) -> str:
    """Return which of Hudi's rules keeps every instant active, as far as Hudi's public classes show it."""
    config = client.getConfig()
    table = hudi.table.HoodieSparkTable.create(config, client.getEngineContext(), state.meta_client)
    commits = table.getCompletedCommitsTimeline()
    bounds = hudi.client.utils.ArchivalUtils.getMinAndMaxInstantsToKeep(table, state.meta_client)
    count, most = commits.countInstants(), bounds.getRight()
    if count <= most:
        configured = config.getMaxCommitsToKeep()
        why = (
            "hoodie.keep.max.commits"
            if most == configured
            else f"hoodie.keep.max.commits={configured} plus what clean retains"
        )
        return f"{count} completed commits are not more than {most} ({why})"
    limits = [_pending_limit(state), _savepoint_limit(table, config), *_read_limits(hudi, config, state)]
    if config.isMetadataTableEnabled() and state.metadata_partitions:
        compacted = _find_metadata_compaction(hudi, state)
        if compacted is None:
            return "the metadata table has no completed compaction yet"
        later = commits.findInstantsModifiedAfterByCompletionTime(compacted).firstInstant()
        limits.append(_limit(later, f"it is newer than the metadata table's last compaction, {compacted}"))
    known = [limit for limit in limits if limit is not None]
    if not known:
        return "Hudi gives no reason"
    first = min(known, key=lambda limit: limit.instant)
    return f"instant {first.instant} must stay active, {first.reason}"


def _pending_limit(state: LoadedTable) -> Limit | None:
    pending = state.timeline.getWriteTimeline().filterInflightsAndRequested().firstInstant()
    return _limit(pending, f"it is a pending {pending.get().getAction()}" if pending.isPresent() else "")


def _savepoint_limit(table: Any, config: Any) -> Limit | None:
    if config.shouldArchiveBeyondSavepoint():
        return None
    return _limit(table.getCompletedSavepointTimeline().firstInstant(), "it is a savepoint")


def _read_limits(hudi: Any, config: Any, state: LoadedTable) -> list[Limit | None]:
    """Return what keeps readers and the compaction trigger right."""
    utils = hudi.common.util
    replaced = utils.ClusteringUtils.getEarliestInstantToRetainForClustering(
        state.timeline, state.meta_client, config.getCleanerPolicy()
    )
    limits = [_limit(replaced, "no clean has removed the files that it replaced")]
    if state.table_type == MERGE_ON_READ and config.getInlineCompactTriggerStrategy().name() in (
        "NUM_COMMITS",
        "NUM_AND_TIME",
    ):
        deltas = config.getInlineCompactDeltaCommitMax()
        counted = utils.CompactionUtils.getEarliestInstantToRetainForCompaction(state.timeline, deltas)
        limits.append(_limit(counted, f"the compaction trigger counts {deltas} delta commits from it on"))
    return limits


def _find_metadata_compaction(hudi: Any, state: LoadedTable) -> str | None:
    builder = hudi.common.table.HoodieTableMetaClient.builder().setConf(state.meta_client.getStorageConf())
    meta_client = builder.setBasePath(f"{state.base_path}/{METADATA_TABLE}").build()
    last = meta_client.getActiveTimeline().getCommitAndReplaceTimeline().filterCompletedInstants().lastInstant()
    return str(last.get().requestedTime()) if last.isPresent() else None


def _limit(instant: Any, reason: str) -> Limit | None:
    return Limit(str(instant.get().requestedTime()), reason) if instant.isPresent() else None
