"""How an index job ended: failures with their reason, what a run has done so far, and its result."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_lake_provider.job_contract import FailureKind, Outcome, Service, ServiceResult
from lake_jobs.driver.failure import classify, describe

if TYPE_CHECKING:
    from py4j.protocol import Py4JJavaError

    from lake_jobs.indexing.rules import IndexPlan
    from lake_jobs.indexing.state import IndexState
    from lake_jobs.services.context import ServiceContext


class IndexFailure(Exception):
    """Why one plan did not become an index."""

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


class IndexHiddenError(Exception):
    """The metadata table was compacted while an index was built, and hides what the build wrote."""


class IndexDamagedError(Exception):
    """A built index fails its check, before any reader may use it."""


class IndexUnfitError(Exception):
    """Readers would miss rows by an index that is built as Hudi builds it; to build it again changes nothing."""


class BuildLostError(Exception):
    """Hudi ended a build while writers went on, without an error and without its delta commit on the metadata table."""


class PlanOutdatedError(Exception):
    """A plan cannot run any more: it was removed, or the build would leave out writes that completed since."""


@dataclass(slots=True)
class IndexRunResult:
    """What a run did so far. `built` are the indexes of the completed plans, each checked as the request says."""

    scheduled: list[str] = field(default_factory=list)
    completed: list[str] = field(default_factory=list)
    failures: list[IndexFailure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    built: set[str] = field(default_factory=set)

    def complete(self, plan: IndexPlan) -> None:
        """Note a plan whose index is built and passed its check."""
        self.completed.append(plan.instant)
        self.built.add(plan.partition)


def failure_of(context: ServiceContext, plan: IndexPlan, error: Py4JJavaError) -> IndexFailure:
    """Return why Hudi did not build, from its exception."""
    causes = context.find_causes(error)
    kind = classify(causes)
    if kind is FailureKind.OTHER:
        context.log_progress(f"indexing {plan.instant}: stack trace follows\n{error}")
    return IndexFailure(kind, f"{plan.partition}, plan {plan.instant}: {describe(causes)}")


def caught_up_to(indexes: IndexState) -> str:
    """Return the last completed write before the first pending one."""
    found = indexes.table.timeline.getContiguousCompletedWriteTimeline().lastInstant()
    return str(found.get().requestedTime()) if found.isPresent() else ""


def explain_no_plan(indexes: IndexState, partition: str) -> str:
    """Return why Hudi wrote no plan: it plans up to the last completed write before the first pending one."""
    if caught_up_to(indexes):
        return (
            f"Hudi plans nothing for {partition}, and gives no reason: search the driver's log for Hudi's own messages"
        )
    pending = indexes.table.timeline.getWriteTimeline().filterInflightsAndRequested().firstInstant()
    if not pending.isPresent():
        return f"Hudi plans nothing for {partition}: the table has no completed write on its active timeline yet"
    first = pending.get()
    return (
        f"Hudi plans nothing for {partition}: no completed write precedes the pending {first.getAction()} "
        f"{first.requestedTime()}; it has to end or be rolled back first (`airflow lake explain` names it)"
    )


def refused(message: str) -> ServiceResult:
    """Return the result of a job that must not run as asked; nothing was touched."""
    return ServiceResult(Service.INDEXING, Outcome.FAILED, failure_kind=FailureKind.OTHER, message=message)


def result_of(run: IndexRunResult) -> ServiceResult:
    """Return what the run did as the result of its service."""
    scheduled = tuple(run.scheduled)
    completed = tuple(run.completed)
    if run.failures:
        return ServiceResult(
            Service.INDEXING,
            Outcome.FAILED,
            scheduled,
            completed,
            failure_kind=run.failures[0].kind,
            message="; ".join(failure.message for failure in run.failures),
        )
    outcome = Outcome.COMPLETED if completed else Outcome.SCHEDULED if scheduled else Outcome.NOTHING_TO_DO
    return ServiceResult(Service.INDEXING, outcome, scheduled, completed, message="; ".join(run.notes))
