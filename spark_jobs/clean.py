"""Schedules and executes cleans of one table, with Hudi's own client."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hudi_table import TableLook, find_instant, requested_times
from job_contract import FailureKind, JobRequest, Mode, Outcome, Service, ServiceRequest, ServiceResult
from planned_service import PlannedService, open_visit, run_plans
from rollback import roll_back_dead_writers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run_clean(spark: SparkSession, job: JobRequest, request: ServiceRequest) -> ServiceResult:
    """Run one clean request; see `run_plans` for what a second run does.

    Under the policy LAZY, which writers that share a lock have, nothing but a clean rolls back what dead writers left;
    left alone it would keep old files and instants for ever. So executing rolls back as well, as Hudi's own clean does.
    A clean that overtakes a pending clustering may remove files that it reads (Hudi issues 8232, 11440), so it fails.
    Raises ServiceRefusedError, NoTableError, or Py4JJavaError when scheduling or the rollback fails.
    """
    visit = open_visit(spark, job, request)
    clusterings = requested_times(visit.first_look.timeline.filterPendingClusteringTimeline())
    if clusterings:
        message = (
            f"waits for the pending clustering {', '.join(clusterings)}, which may still read what would be removed"
        )
        return ServiceResult(Service.CLEAN, Outcome.FAILED, failure_kind=FailureKind.CONFLICT, message=message)
    pending = _find_pending(visit.first_look)
    if request.mode is Mode.SCHEDULE and pending:
        # A second plan would name the same files.
        message = f"clean {', '.join(pending)} is pending already"
        visit.say(message)
        return ServiceResult(Service.CLEAN, Outcome.NOTHING_TO_DO, message=message)
    rolled_back: tuple[str, ...] = ()
    if request.mode is Mode.SCHEDULE_AND_EXECUTE and not pending and not request.instants:
        # Before planning: files that a dead writer holds back may then go.
        rolled_back = roll_back_dead_writers(visit)
    result = run_plans(visit, CLEAN)
    if not rolled_back:
        return result
    said = f"rolled back {', '.join(rolled_back)}, whose writers are dead"
    return replace(result, message="; ".join(filter(None, (result.message, said))))


def _find_pending(look: TableLook) -> tuple[str, ...]:
    return requested_times(look.timeline.getCleanerTimeline().filterInflightsAndRequested())


def _find_completed(look: TableLook, instant: str) -> str | None:
    cleaned = find_instant(look.timeline.getCleanerTimeline().filterCompletedInstants(), instant)
    if cleaned is None:
        return None
    metadata = look.timeline.readCleanMetadata(cleaned)
    kept = metadata.getEarliestCommitToRetain()
    since = f", kept what readers since {kept} need" if kept else ""
    return f"{metadata.getTotalFilesDeleted()} files deleted{since}"


CLEAN = PlannedService(
    Service.CLEAN,
    find_pending=_find_pending,
    find_completed=_find_completed,
    schedule=lambda hudi, client: client.scheduleTableService(
        hudi.common.util.Option.empty(), hudi.common.model.TableServiceType.CLEAN
    ),
    # Hudi has no call for one plan: this executes all that are pending, and schedules none.
    execute=lambda client, _instant: client.clean(False),  # noqa: FBT003 - py4j has no keywords
    nothing_new="no files older than what is retained",
)
