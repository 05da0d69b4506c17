"""Archives old instants of one table, with Hudi's own client."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError

from airflow_lake_provider.errors import ServiceRefusedError
from airflow_lake_provider.job_contract import (
    CHECKPOINT_DAYS,
    CHECKPOINT_KEYS,
    METADATA_TABLE,
    JobRequest,
    Mode,
    Outcome,
    Service,
    ServiceRequest,
    ServiceResult,
)
from airflow_lake_provider.shared.actions import Action
from airflow_lake_provider.shared.hudi_settings import KEEP_MAX_COMMITS, KEEP_MIN_COMMITS, MERGE_ON_READ
from airflow_lake_provider.timeline_head import find_checkpoint_limit, name_checkpoints, plan_heads
from lake_jobs.driver.failure import causes_of, describe
from lake_jobs.hudi.table import (
    LoadedTable,
    find_behind,
    hold_lock,
    instant_time_hours_ago,
    list_active,
    list_items,
    list_times,
    requested_times,
    slices_by_completion,
)
from lake_jobs.services.archive_leftovers import take_away_left
from lake_jobs.services.context import open_context, open_waiting_client, refuse_scheduling, seconds_since
from lake_jobs.services.stray_files import find_stray_limit
from lake_jobs.services.timeline_heads import KEPT_IN, find_left_out, take_away

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from airflow_lake_provider.timeline_head import HeadPlan
    from lake_jobs.services.context import ServiceContext


_BEHIND_ALL = "9" * 17
"""An instant time behind all others."""


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
    with open_waiting_client(context) as client:
        # Nearly all commits are read before the lock is taken.
        checkpoints: dict[str, tuple[str, ...]] = {}
        _find_checkpoint(context, context.first_state, checkpoints)
        stray = _find_stray(context)
        with hold_lock(spark, client):
            held = _archive(context, client, checkpoints, stray)
        state = context.read_table_state()
        after = _active_instants(state)
        archived = before - after
        if not archived:
            why = _explain_nothing(spark._jvm.org.apache.hudi, client, state, held)
            return ServiceResult(Service.ARCHIVE, Outcome.NOTHING_TO_DO, message=f"nothing to archive: {why}")
    message = f"archived {len(archived)} instants, {min(archived)[0]} to {max(archived)[0]}; {len(after)} stay active"
    message = f"{message}; {held}" if held else message
    context.log_progress(f"{message}, in {seconds_since(started)}")
    return ServiceResult(Service.ARCHIVE, Outcome.COMPLETED, message=message)


def _archive(context: ServiceContext, client: Any, checkpoints: dict[str, tuple[str, ...]], stray: Limit | None) -> str:
    """Archive, the lock is held; return why writes stay active that the policy lets go, empty for none of ours.

    What Hudi never archives leaves first: a driver that dies in between leaves no archived write behind it. Raises
    ServiceRefusedError where log files were left out already, OSError, Py4JJavaError.
    """
    hudi = context.spark._jvm.org.apache.hudi
    state = context.read_table_state()
    config = client.getConfig()
    checkpoint = _find_checkpoint(context, state, checkpoints)
    table = hudi.table.HoodieSparkTable.create(config, client.getEngineContext(), state.meta_client)
    limits = [limit for limit in (checkpoint, stray) if limit is not None]
    for name in take_away_left(context.spark, state):
        context.log_progress(f"{name}, a manifest that a crash left unfinished, is kept in {KEPT_IN}")
    if slices_by_completion(state):
        plan = _plan_heads(context, hudi, table, config, state)
        if plan.taken:
            take_away(context.spark, state, plan.taken)
            names = ", ".join(f"{instant.action} {instant.requested_time}" for instant in plan.taken)
            context.log_progress(f"{names} left the active timeline, kept in {KEPT_IN}")
            state = context.read_table_state()
            table = hudi.table.HoodieSparkTable.create(config, client.getEngineContext(), state.meta_client)
        if plan.stays is not None:
            limits.append(Limit(plan.stays.requested_time, f"{plan.stays.action} {plan.stays.requested_time} stays"))
    held = _keep_behind(config, limits, requested_times(table.getCompletedCommitsTimeline()))
    layout = state.meta_client.getTimelineLayoutVersion()
    acquires_lock = False
    archiver = hudi.client.timeline.TimelineArchivers.getInstance(layout, config, table)
    archiver.archiveIfRequired(client.getEngineContext(), acquires_lock)
    return held


def _plan_heads(context: ServiceContext, hudi: Any, table: Any, config: Any, state: LoadedTable) -> HeadPlan:
    """Return what to do about instants that Hudi never archives."""
    behind = find_behind(state)
    if behind is not None and not behind.is_savepoint:
        left_out = find_left_out(context.spark, table, state, behind)
        if left_out:
            raise ServiceRefusedError(
                f"table {context.job.table_name} at {context.job.base_path}: {behind.describe()}; {len(left_out)} log "
                f"files ({', '.join(left_out[:3])}, ...) were left out already, and taking {behind.head.action} "
                f"{behind.head.requested_time} away would hide them: write the rows of these writes again, then move "
                "the instant's files out of the timeline's folder by hand"
            )
    commits = requested_times(table.getCompletedCommitsTimeline())
    bounds = hudi.client.utils.ArchivalUtils.getMinAndMaxInstantsToKeep(table, state.meta_client)
    # Hudi archives older writes than this one at most, and passes neither a pending write nor a savepoint.
    stay = (*commits, _BEHIND_ALL)[len(commits) - bounds.getLeft() :]
    before = stay[0] if len(commits) > bounds.getRight() else ""
    limits = [_pending_limit(state), _savepoint_limit(table, config)]
    before = min([before, *(limit.instant for limit in limits if limit is not None)])
    if behind is not None and not behind.is_savepoint:
        before = max(before, behind.writes[-1])
    covered = None
    if config.isMetadataTableEnabled() and state.metadata_partitions:
        covered = _find_metadata_compaction(hudi, state) or ""
    return plan_heads(list_active(state), dict(list_times(state.timeline)), before, covered)


def _find_checkpoint(context: ServiceContext, state: LoadedTable, known: dict[str, tuple[str, ...]]) -> Limit | None:
    """Return the oldest of the commits that hold a stream's position; None where none does.

    `known` holds what was read of each commit; what is read now is added.
    """
    days = int(context.request.options.get(CHECKPOINT_DAYS, "0"))
    if not days:
        return None
    keys = frozenset(context.request.options.get(CHECKPOINT_KEYS, "").split(",")) - {""}
    since = instant_time_hours_ago(context.spark, days * 24)
    timeline = state.timeline.getCommitsTimeline().filterCompletedInstants()
    for instant in list_items(timeline.getInstants()):
        requested = str(instant.requestedTime())
        if requested >= since and requested not in known:
            known[requested] = name_checkpoints(_read_extra(timeline, instant))
    found = find_checkpoint_limit(known, keys, since)
    return None if found is None else Limit(found[0], f"commit {found[0]} has the newest checkpoint {found[1]}")


def _find_stray(context: ServiceContext) -> Limit | None:
    """Return the write that keeps a file of a write that was rolled back unseen; None where there is no such file."""
    found = find_stray_limit(context.spark, context.first_state)
    return None if found is None else Limit(found[0], found[1].explain())


def _read_extra(timeline: Any, instant: Any) -> dict[str, str]:
    is_replacing = str(instant.getAction()) == Action.REPLACECOMMIT
    read = timeline.readReplaceCommitMetadata if is_replacing else timeline.readCommitMetadata
    return dict(read(instant).getExtraMetadata() or {})


def _keep_behind(config: Any, limits: Sequence[Limit], commits: Sequence[str]) -> str:
    """Let Hudi keep every write from the first limit on; return why it keeps more than the policy, empty if it is not.

    Hudi knows a number alone, counted from the newest write; the lock is held, so that none completes meanwhile.
    """
    if not limits:
        return ""
    first = min(limits, key=lambda limit: limit.instant)
    kept = sum(1 for requested in commits if requested >= first.instant)
    least = max(int(config.getMinCommitsToKeep()), kept)
    if least == config.getMinCommitsToKeep():
        return ""
    config.setValue(KEEP_MIN_COMMITS, str(least))
    config.setValue(KEEP_MAX_COMMITS, str(max(int(config.getMaxCommitsToKeep()), least + 1)))
    return f"the {kept} newest writes stay active: {first.reason}"


def _active_instants(state: LoadedTable) -> set[tuple[str, str]]:
    """Return requested time and action of each completed instant; others only leave by a rollback."""
    return {
        (instant.requestedTime(), instant.getAction())
        for instant in state.timeline.filterCompletedInstants().getInstants()
    }


def _explain_nothing(hudi: Any, client: Any, state: LoadedTable, held: str) -> str:
    try:
        return _find_reason(hudi, client, state, held)
    except Py4JJavaError as error:
        # Archiving went well; only its explanation did not.
        return f"Hudi gives no reason ({describe(causes_of(error.java_exception))})"


def _find_reason(hudi: Any, client: Any, state: LoadedTable, held: str) -> str:
    """Return what keeps every instant active: a limit of ours, `held`, or which of Hudi's rules.

    Of those, as far as Hudi's public classes show it.
    """
    config = client.getConfig()
    table = hudi.table.HoodieSparkTable.create(config, client.getEngineContext(), state.meta_client)
    commits = table.getCompletedCommitsTimeline()
    bounds = hudi.client.utils.ArchivalUtils.getMinAndMaxInstantsToKeep(table, state.meta_client)
    count = commits.countInstants()
    most = bounds.getRight()
    if held and count <= most:
        return held
    if count <= most:
        configured = config.getMaxCommitsToKeep()
        why = (
            KEEP_MAX_COMMITS if most == configured else f"hoodie.keep.max.commits={configured} plus what clean retains"
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
