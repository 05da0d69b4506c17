"""Whether a service is done, by a fresh timeline and not by the job's own report (G3). Pure."""

from __future__ import annotations

import time
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from airflow_lake_provider.errors import HalfMovedError
from airflow_lake_provider.hudi.active_writes import heartbeat_rule, load_heartbeats
from airflow_lake_provider.hudi.pending import read_effect, resolve_clusterings
from airflow_lake_provider.hudi.properties import load_table_properties
from airflow_lake_provider.hudi.timeline import Timeline, load_metadata_timeline, load_timeline
from airflow_lake_provider.hudi.upgrade_mark import load_upgrade_mark
from airflow_lake_provider.indexing.table_indexes import load_holes
from airflow_lake_provider.job_contract import INDEX_DROP, FailureKind, Mode, Outcome, Service, ServiceResult
from airflow_lake_provider.planner.rules import require_guarded_writers
from airflow_lake_provider.planner.write_history import COMPACT_OPERATION, LOG_COMPACT_OPERATION
from airflow_lake_provider.shared.actions import Action
from airflow_lake_provider.table_layout import CLUSTER_OPERATION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from airflow_lake_provider.hudi.instant import Instant
    from airflow_lake_provider.hudi.pending import ServiceEffect
    from airflow_lake_provider.hudi.properties import TableProperties
    from airflow_lake_provider.job_contract import ServiceRequest
    from airflow_lake_provider.planner.table_view import TableView
    from airflow_lake_provider.storage.table_storage import Storage


@dataclass(frozen=True, slots=True)
class RunVerdict:
    """The verdict on one service, with the instants it rests on and the reason in words."""

    outcome: Outcome
    reason: str
    completed_instants: tuple[str, ...] = ()
    pending_instants: tuple[str, ...] = ()
    failure_kind: FailureKind | None = None

    @property
    def done(self) -> bool:
        """Whether the service did what the request names, or there was nothing to do."""
        return self.outcome is not Outcome.FAILED

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON's values, for people (XCom)."""
        return {
            "outcome": self.outcome.value,
            "reason": self.reason,
            "completed_instants": list(self.completed_instants),
            "pending_instants": list(self.pending_instants),
        }


Judge: TypeAlias = "Callable[[Timeline, Timeline, ServiceRequest, ServiceResult | None], RunVerdict]"

PLANNED_AS: Mapping[Service, Action] = MappingProxyType(
    {
        Service.COMPACTION: Action.COMPACTION,
        Service.CLUSTERING: Action.CLUSTERING,
        Service.CLEAN: Action.CLEAN,
        Service.LOGCOMPACTION: Action.LOGCOMPACTION,
        Service.INDEXING: Action.INDEXING,
    }
)
"""Under which action a service's plan is pending. The other services have no plan on the table's own timeline."""


def judge(before: Timeline, after: Timeline, request: ServiceRequest, result: ServiceResult | None) -> RunVerdict:
    """Judge a job by the timelines before and after it.

    `result` is the job's report, None when the job died without one; it only identifies the job's own plan. For
    METACOMPACTION the timelines are the metadata table's.
    """
    if _changes_properties_only(request):
        return _judge_by_report(before, after, request, result)
    action = Action.COMPACTION if request.service is Service.METACOMPACTION else PLANNED_AS.get(request.service)
    if action is None:
        return _UNPLANNED.get(request.service, _judge_by_report)(before, after, request, result)
    completed = frozenset(instant.requested_time for instant in after.completed())
    pending = tuple(instant.requested_time for instant in after.pending(action))
    known = tuple(instant.requested_time for instant in before.pending(action))
    if request.mode is Mode.WITHDRAW:
        return _judge_withdrawal(request, completed, pending, result)
    if request.mode is Mode.SCHEDULE:
        return _judge_schedule(known, completed, pending, request, result)
    wanted = _wanted_plans(known, request, result)
    if request.service is Service.INDEXING:
        # A plan that vanished could never have run: its index existed already.
        named = (*wanted, *(result.completed_instants if result is not None else ()))
        wanted = tuple(time for time in dict.fromkeys(named) if time in completed or time in pending)
    open_plans = tuple(time for time in wanted if time not in completed)
    done = tuple(time for time in wanted if time in completed)
    if open_plans:
        return _failed(f"plan {', '.join(open_plans)} is not completed on the timeline", result, done, pending)
    if done:
        reason = f"{request.service} {', '.join(done)} is completed on the timeline"
        if _is_more_precise(request, result):
            return _failed(reason, result, done, pending)
        return RunVerdict(Outcome.COMPLETED, reason, done, pending)
    if result is None or result.outcome is Outcome.FAILED:
        made = [time for time in pending if time not in known]
        what = (
            f"plan {', '.join(made)} was begun and not completed" if made else "no plan of this run is on the timeline"
        )
        return _failed(what, result, (), pending)
    message = f": {result.message}" if result.message else ""
    return RunVerdict(Outcome.NOTHING_TO_DO, f"Hudi found nothing to do for {request.service}{message}", (), pending)


def _changes_properties_only(request: ServiceRequest) -> bool:
    """Whether no instant shows what the request does: the table's properties do, which the job has read again."""
    if request.service is Service.METACOMPACTION:
        return request.mode is Mode.WITHDRAW
    return request.service is Service.INDEXING and request.options.get(INDEX_DROP) == "true"


def _judge_withdrawal(
    request: ServiceRequest, completed: frozenset[str], pending: tuple[str, ...], result: ServiceResult | None
) -> RunVerdict:
    still = tuple(time for time in request.instants if time in pending)
    if still:
        return _failed(f"plan {', '.join(still)} is still on the timeline", result, (), pending)
    done = tuple(time for time in request.instants if time in completed)
    if done:
        reason = f"{request.service} {', '.join(done)} had completed before"
        return RunVerdict(Outcome.NOTHING_TO_DO, reason, done, pending)
    return RunVerdict(
        Outcome.COMPLETED, f"plan {', '.join(request.instants)} is removed from the timeline", pending_instants=pending
    )


def _judge_archive(
    before: Timeline, after: Timeline, _request: ServiceRequest, result: ServiceResult | None
) -> RunVerdict:
    left = {(i.requested_time, i.action) for i in after.completed()}
    removed = [i.requested_time for i in before.completed() if (i.requested_time, i.action) not in left]
    if result is None or result.outcome is Outcome.FAILED:
        # What left is safely archived: Hudi writes the archive first. But the job did not end.
        return _failed(f"{len(removed)} instants left the active timeline", result, (), ())
    if removed:
        return RunVerdict(Outcome.COMPLETED, f"{len(removed)} instants left the active timeline, up to {max(removed)}")
    return RunVerdict(Outcome.NOTHING_TO_DO, result.message or "Hudi found nothing to archive")


def _judge_rollback(
    before: Timeline, after: Timeline, request: ServiceRequest, result: ServiceResult | None
) -> RunVerdict:
    left = {instant.requested_time for instant in after.instants}
    finished = {instant.requested_time for instant in after.completed() if instant.action is Action.ROLLBACK}
    # A rollback that died after it had deleted the write's instants is itself the requested one.
    pending = tuple(i.requested_time for i in (*after.pending_writes(), *after.pending(Action.ROLLBACK)))
    removed = tuple(i.requested_time for i in before.pending_writes() if i.requested_time not in left)
    removed += tuple(i.requested_time for i in before.pending(Action.ROLLBACK) if i.requested_time in finished)
    # One that went on to complete was not dead, and is no longer in the way.
    still = tuple(time for time in request.instants if time in pending)
    if still or ((result is None or result.outcome is Outcome.FAILED) and not (request.instants or removed)):
        what = f"{', '.join(still)} is still pending" if still else "nothing was rolled back"
        return _failed(what, result, removed, pending)
    if removed or request.instants:
        reason = f"{', '.join(removed) or 'nothing'} was rolled back, and no requested instant is pending"
        return RunVerdict(Outcome.COMPLETED if removed else Outcome.NOTHING_TO_DO, reason, removed, pending)
    return RunVerdict(Outcome.NOTHING_TO_DO, "no pending write has a dead writer", (), pending)


def _judge_ttl(_before: Timeline, after: Timeline, request: ServiceRequest, result: ServiceResult | None) -> RunVerdict:
    if result is None or result.outcome is Outcome.FAILED:
        what = "erasure" if request.mode is Mode.ERASE else "deletion"
        return _failed(f"this run reported no {what}", result, (), ())
    completed = frozenset(instant.requested_time for instant in after.completed())
    missing = tuple(time for time in result.completed_instants if time not in completed)
    if missing:
        return _failed(f"deletion {', '.join(missing)} is not completed on the timeline", result, (), missing)
    if result.outcome is Outcome.COMPLETED:
        message = result.message or "partitions or rows were deleted"
        return RunVerdict(Outcome.COMPLETED, message, result.completed_instants)
    return RunVerdict(Outcome.NOTHING_TO_DO, result.message or "nothing is expired")


def _judge_savepoint(
    before: Timeline, after: Timeline, request: ServiceRequest, result: ServiceResult | None
) -> RunVerdict:
    if request.mode is Mode.RESTORE:
        return _judge_restore(after, request, result)
    if request.mode is Mode.UPGRADE:
        return _judge_by_report(before, after, request, result)
    saved, left = (
        frozenset(i.requested_time for i in timeline.completed() if i.action is Action.SAVEPOINT)
        for timeline in (before, after)
    )
    made = tuple(sorted(left - saved))
    removed = tuple(sorted(saved - left))
    if result is None or result.outcome is Outcome.FAILED:
        return _failed(f"{len(made)} savepoints were made and {len(removed)} removed", result, made, ())
    missing = tuple(time for time in result.completed_instants if time not in left)
    if missing:
        return _failed(f"savepoint {', '.join(missing)} is not completed on the timeline", result, (), missing)
    if made or removed:
        return RunVerdict(Outcome.COMPLETED, result.message or "savepoints were made or removed", made)
    return RunVerdict(Outcome.NOTHING_TO_DO, result.message or "no savepoint was to be made or removed")


def _judge_restore(after: Timeline, request: ServiceRequest, result: ServiceResult | None) -> RunVerdict:
    pending = tuple(instant.requested_time for instant in after.pending(Action.RESTORE))
    if pending or result is None or result.outcome is Outcome.FAILED:
        what = f"restore {', '.join(pending)} is pending" if pending else "no restore is pending"
        return _failed(what, result, (), pending)
    completed = {instant.requested_time for instant in after.completed() if instant.action is Action.RESTORE}
    missing = tuple(time for time in result.completed_instants if time not in completed)
    if missing or not result.completed_instants:
        return _failed(f"restore {', '.join(missing)} is not completed on the timeline", result, (), missing)
    reason = result.message or f"restored to {', '.join(request.instants)}"
    return RunVerdict(Outcome.COMPLETED, reason, result.completed_instants)


def _judge_by_report(
    _before: Timeline, _after: Timeline, request: ServiceRequest, result: ServiceResult | None
) -> RunVerdict:
    """Believe the job: what a service without a judge of its own does shows on no timeline.

    The manifest in the table's quarantine is the record of the removal of orphan files.
    """
    if result is None or result.outcome is Outcome.FAILED:
        return _failed(f"this run of {request.service} reported no end", result, (), ())
    return RunVerdict(result.outcome, result.message or f"{request.service} found nothing")


_UNPLANNED: Mapping[Service, Judge] = MappingProxyType(
    {
        Service.ARCHIVE: _judge_archive,
        Service.ROLLBACK: _judge_rollback,
        Service.TTL: _judge_ttl,
        Service.SAVEPOINT: _judge_savepoint,
    }
)


def _judge_schedule(
    known: tuple[str, ...],
    completed: frozenset[str],
    pending: tuple[str, ...],
    request: ServiceRequest,
    result: ServiceResult | None,
) -> RunVerdict:
    named = result.scheduled_instants if result is not None else ()
    planned = tuple(time for time in (*named, *pending) if time not in known)
    planned = tuple(dict.fromkeys(planned))
    missing = tuple(time for time in planned if time not in pending and time not in completed)
    if missing:
        return _failed(f"plan {', '.join(missing)} is not on the timeline", result, (), pending)
    if planned and _is_more_precise(request, result):
        return _failed(f"plan {', '.join(planned)} is on the timeline", result, (), pending)
    if planned:
        return RunVerdict(Outcome.SCHEDULED, f"plan {', '.join(planned)} is on the timeline", (), pending)
    if result is None or result.outcome is Outcome.FAILED:
        return _failed("no new plan is on the timeline", result, (), pending)
    return RunVerdict(Outcome.NOTHING_TO_DO, "Hudi found nothing to plan", (), pending)


def _is_more_precise(request: ServiceRequest, result: ServiceResult | None) -> bool:
    """Whether a failure is about more than plans: an index that is damaged changes nothing on the timeline."""
    return request.service is Service.INDEXING and result is not None and result.outcome is Outcome.FAILED


def _wanted_plans(known: tuple[str, ...], request: ServiceRequest, result: ServiceResult | None) -> tuple[str, ...]:
    if request.instants:
        return request.instants
    named = (*result.scheduled_instants, *result.completed_instants) if result is not None else ()
    return tuple(dict.fromkeys((*known, *named)))


# --- Whether a run's work is done although its executor never reported it


_COMPLETED_AS: Mapping[Service, str] = MappingProxyType(
    {
        Service.COMPACTION: COMPACT_OPERATION,
        Service.LOGCOMPACTION: LOG_COMPACT_OPERATION,
        Service.CLUSTERING: CLUSTER_OPERATION,
    }
)


def find_done(view: TableView, service: str, mode: str, plans: Sequence[str], newest_write: str) -> tuple[str, ...]:
    """Return the completed instants that prove a run's work done without its report; empty when nothing proves it.

    `plans` are those that the run was created for. A run without plans made its own after the decision, so it has a
    requested time after `newest_write`, the completion of the newest write at the decision; no other plan of the
    service may be pending. Only services whose plan and completion are on the table's own timeline can be judged so.
    """
    if service not in {*_COMPLETED_AS, Service.CLEAN} or mode not in {Mode.EXECUTE, Mode.SCHEDULE_AND_EXECUTE}:
        return ()
    completed = view.timeline.completed()
    if plans:
        return tuple(plans) if {i.requested_time for i in completed}.issuperset(plans) else ()
    if not newest_write or view.timeline.pending(PLANNED_AS[Service(service)]):
        return ()
    return tuple(
        instant.requested_time
        for instant in completed
        if instant.requested_time > newest_write and _is_of(view, service, instant)
    )


def _is_of(view: TableView, service: str, instant: Instant) -> bool:
    if service == Service.CLEAN:
        return instant.action is Action.CLEAN
    metadata = view.commits.get(instant.requested_time)
    return metadata is not None and metadata.operation == _COMPLETED_AS[Service(service)]


def _failed(
    what: str, result: ServiceResult | None, completed: tuple[str, ...], pending: tuple[str, ...]
) -> RunVerdict:
    message = (
        "the job died without a result" if result is None else result.message or f"the job reported {result.outcome}"
    )
    kind = result.failure_kind if result is not None else None
    return RunVerdict(Outcome.FAILED, f"{what}; {message}", completed, pending, kind or FailureKind.OTHER)


# --- The table before and after a job, read from the storage itself, never from a cache (G3)


class TableReader:
    """Reads one table. Each call reads the storage; nothing is kept."""

    def __init__(self, base_path: str, open_table: Callable[[str], Storage]) -> None:
        self.base_path = base_path
        self._storage = open_table(base_path)

    def properties(self) -> TableProperties:
        """Return the table's properties."""
        return load_table_properties(self._storage)

    def timeline(self) -> Timeline:
        """Return the active timeline, with clusterings distinguished from insert overwrites."""
        properties = self.properties()
        return resolve_clusterings(self._storage, properties, load_timeline(self._storage, properties))

    def timeline_of(self, service: Service) -> Timeline:
        """Return the active timeline that a service works on: the table's, or its metadata table's."""
        if service is Service.METACOMPACTION:
            return load_metadata_timeline(self._storage) or Timeline()
        return self.timeline()

    def explain_holes(self, service: Service, hudi_options: Mapping[str, str]) -> tuple[str, ...]:
        """Return in sentences what is in the way of the last completed write; only index builds need it."""
        if service is not Service.INDEXING:
            return ()
        return load_holes(self._storage, int(time.time() * 1000), heartbeat_rule(hudi_options)).explain()

    def effect_of(self, instants: Iterable[str]) -> ServiceEffect:
        """Return the effect of completed instants, by their metadata."""
        return read_effect(self._storage, instants)

    def require_guarded_writers(self, wanted: ServiceRequest) -> None:
        """Raise WriterUnguardedError when a writer without locking may be running.

        A rollback that names a write vouches for it: its caller knows that the write's writer is dead. Next to a
        pending restore Hudi lets no writer begin, and what is pending is what the restore has begun to take back.
        """
        # Heartbeats before and after the timeline: a writer's heartbeat begins before its instant and ends after it.
        heartbeats = load_heartbeats(self._storage)
        vouched_for = frozenset(wanted.instants if wanted.service is Service.ROLLBACK else ())
        timeline = self.timeline()
        writes = {instant.requested_time for instant in timeline.pending_writes()} - vouched_for
        if writes and not (wanted.mode is Mode.RESTORE and timeline.pending(Action.RESTORE)):
            require_guarded_writers(writes, heartbeats | load_heartbeats(self._storage), self.base_path)


class UpgradedTableReader(TableReader):
    """Reads a table whose version changes: while half of its timeline has moved, no other reader can."""

    def timeline(self) -> Timeline:
        """Return the timeline; an empty one while the change is on its way, whose job reads the files itself."""
        try:
            return super().timeline() if load_upgrade_mark(self._storage) is None else Timeline()
        except HalfMovedError:
            return Timeline()
