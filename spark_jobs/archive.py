"""Archives old instants of one table, with Hudi's own client."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from failure_kind import causes_of, describe
from hudi_table import MERGE_ON_READ, TableLook
from job_contract import JobRequest, Mode, Outcome, Service, ServiceRequest, ServiceResult
from planned_service import open_patient_client, open_visit, refuse_scheduling, seconds_since
from py4j.protocol import Py4JJavaError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Limit:
    """An instant that archiving does not pass, and why."""

    instant: str
    reason: str


def run_archive(spark: SparkSession, job: JobRequest, request: ServiceRequest) -> ServiceResult:
    """Run one archive request: move old instants out of the active timeline.

    Hudi plans no archiving, so both executing modes do the same. Raises ServiceRefusedError when only scheduling is
    asked for, NoTableError, or Py4JJavaError when Hudi fails.
    """
    if request.mode is Mode.SCHEDULE:
        raise refuse_scheduling(job, "Hudi plans no archiving")
    visit = open_visit(spark, job, request)
    before = _active_instants(visit.first_look)
    visit.say(f"{visit.first_look.base_path}, {len(before)} completed instants on the active timeline")
    started = time.monotonic()
    # A lock that it does not get Hudi's archiver writes into the log, and returns as if there were nothing to do.
    with open_patient_client(visit) as client:
        client.archive()
        look = visit.look()
        after = _active_instants(look)
        gone = before - after
        if not gone:
            message = f"nothing to archive: {_explain_nothing(spark._jvm.org.apache.hudi, client, look)}"
            return ServiceResult(Service.ARCHIVE, Outcome.NOTHING_TO_DO, message=message)
    message = f"archived {len(gone)} instants, {min(gone)[0]} to {max(gone)[0]}; {len(after)} stay active"
    visit.say(f"{message}, in {seconds_since(started)}")
    return ServiceResult(Service.ARCHIVE, Outcome.COMPLETED, message=message)


def _active_instants(look: TableLook) -> set[tuple[str, str]]:
    """Return requested time and action of each completed instant; others only leave by a rollback."""
    return {
        (instant.requestedTime(), instant.getAction())
        for instant in look.timeline.filterCompletedInstants().getInstants()
    }


def _explain_nothing(hudi: Any, client: Any, look: TableLook) -> str:
    try:
        return _why_nothing(hudi, client, look)
    except Py4JJavaError as error:
        # Archiving went well; only its explanation did not.
        return f"Hudi did not say why ({describe(causes_of(error.java_exception))})"


def _why_nothing(hudi: Any, client: Any, look: TableLook) -> str:
    """Say which of Hudi's rules keeps every instant active, as far as it can be told from outside."""
    config = client.getConfig()
    table = hudi.table.HoodieSparkTable.create(config, client.getEngineContext(), look.meta_client)
    commits = table.getCompletedCommitsTimeline()
    bounds = hudi.client.utils.ArchivalUtils.getMinAndMaxInstantsToKeep(table, look.meta_client)
    count, most = commits.countInstants(), bounds.getRight()
    if count <= most:
        asked = config.getMaxCommitsToKeep()
        why = "hoodie.keep.max.commits" if most == asked else f"hoodie.keep.max.commits={asked} plus what clean retains"
        return f"{count} completed commits are not more than {most} ({why})"
    limits = [_pending_limit(look), _savepoint_limit(table, config), *_read_limits(hudi, config, look)]
    if config.isMetadataTableEnabled() and look.metadata_partitions:
        compacted = _find_metadata_compaction(hudi, look)
        if compacted is None:
            return "the metadata table has no completed compaction yet"
        later = commits.findInstantsModifiedAfterByCompletionTime(compacted).firstInstant()
        limits.append(_limit(later, f"it is newer than the metadata table's last compaction, {compacted}"))
    known = [limit for limit in limits if limit is not None]
    if not known:
        return "Hudi did not say why"
    first = min(known, key=lambda limit: limit.instant)
    return f"instant {first.instant} must stay active, {first.reason}"


def _pending_limit(look: TableLook) -> Limit | None:
    pending = look.timeline.getWriteTimeline().filterInflightsAndRequested().firstInstant()
    return _limit(pending, f"it is a pending {pending.get().getAction()}" if pending.isPresent() else "")


def _savepoint_limit(table: Any, config: Any) -> Limit | None:
    if config.shouldArchiveBeyondSavepoint():
        return None
    return _limit(table.getCompletedSavepointTimeline().firstInstant(), "it is a savepoint")


def _read_limits(hudi: Any, config: Any, look: TableLook) -> list[Limit | None]:
    """Return what keeps readers and the compaction trigger right."""
    utils = hudi.common.util
    replaced = utils.ClusteringUtils.getEarliestInstantToRetainForClustering(
        look.timeline, look.meta_client, config.getCleanerPolicy()
    )
    limits = [_limit(replaced, "no clean has removed the files that it replaced")]
    if look.table_type == MERGE_ON_READ and config.getInlineCompactTriggerStrategy().name() in (
        "NUM_COMMITS",
        "NUM_AND_TIME",
    ):
        deltas = config.getInlineCompactDeltaCommitMax()
        counted = utils.CompactionUtils.getEarliestInstantToRetainForCompaction(look.timeline, deltas)
        limits.append(_limit(counted, f"the compaction trigger counts {deltas} delta commits from it on"))
    return limits


def _find_metadata_compaction(hudi: Any, look: TableLook) -> str | None:
    builder = hudi.common.table.HoodieTableMetaClient.builder().setConf(look.meta_client.getStorageConf())
    meta_client = builder.setBasePath(f"{look.base_path}/.hoodie/metadata").build()
    last = meta_client.getActiveTimeline().getCommitAndReplaceTimeline().filterCompletedInstants().lastInstant()
    return str(last.get().requestedTime()) if last.isPresent() else None


def _limit(instant: Any, reason: str) -> Limit | None:
    return Limit(str(instant.get().requestedTime()), reason) if instant.isPresent() else None
