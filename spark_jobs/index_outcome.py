"""How an index job ended: failures with their reason, the tally of a run, and its result."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from failure_kind import causes_of, classify, describe
from job_contract import FailureKind, Outcome, Service, ServiceResult

if TYPE_CHECKING:
    from index_rules import IndexPlan
    from index_table import IndexLook
    from planned_service import Visit
    from py4j.protocol import Py4JJavaError


class IndexFailure(Exception):
    """Why one plan did not become an index."""

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


class IndexHiddenError(Exception):
    """The metadata table was compacted while an index was built, and hides what the build wrote."""


class PlanOutdatedError(Exception):
    """A plan cannot run any more: it is gone, or the build would leave out writes that completed since."""


@dataclass(slots=True)
class Tally:
    """What a run did so far. `built` are the indexes of the completed plans, each checked as was asked."""

    scheduled: list[str] = field(default_factory=list)
    completed: list[str] = field(default_factory=list)
    failures: list[IndexFailure] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    built: set[str] = field(default_factory=set)

    def complete(self, plan: IndexPlan) -> None:
        """Note a plan whose index is built and passed its check."""
        self.completed.append(plan.instant)
        self.built.add(plan.partition)


def failure_of(visit: Visit, plan: IndexPlan, error: Py4JJavaError) -> IndexFailure:
    """Say why Hudi did not build, from its exception."""
    causes = causes_of(error.java_exception)
    kind = classify(causes)
    if kind is FailureKind.OTHER:
        visit.say(f"indexing {plan.instant}: stack trace follows\n{error}")
    return IndexFailure(kind, f"{plan.partition}, plan {plan.instant}: {describe(causes)}")


def caught_up_to(indexes: IndexLook) -> str:
    """Return the last completed write before the first pending one."""
    found = indexes.look.timeline.getContiguousCompletedWriteTimeline().lastInstant()
    return str(found.get().requestedTime()) if found.isPresent() else ""


def why_nothing_was_planned(indexes: IndexLook, partition: str) -> str:
    """Say why Hudi wrote no plan: it plans up to the last completed write before the first pending one."""
    if caught_up_to(indexes):
        return f"Hudi plans nothing for {partition}, and does not say why: look for its own words in the driver's log"
    pending = indexes.look.timeline.getWriteTimeline().filterInflightsAndRequested().firstInstant()
    if not pending.isPresent():
        return f"Hudi plans nothing for {partition}: the table has no completed write on its active timeline yet"
    first = pending.get()
    return (
        f"Hudi plans nothing for {partition}: no completed write precedes the pending {first.getAction()} "
        f"{first.requestedTime()}; it has to end or be rolled back first (`airflow lake explain` tells which)"
    )


def refused(message: str) -> ServiceResult:
    """Return the result of a job that must not run as asked; nothing was touched."""
    return ServiceResult(Service.INDEXING, Outcome.FAILED, failure_kind=FailureKind.OTHER, message=message)


def result_of(tally: Tally) -> ServiceResult:
    """Return what the run did as the result of its service."""
    scheduled, completed = tuple(tally.scheduled), tuple(tally.completed)
    if tally.failures:
        return ServiceResult(
            Service.INDEXING,
            Outcome.FAILED,
            scheduled,
            completed,
            failure_kind=tally.failures[0].kind,
            message="; ".join(failure.message for failure in tally.failures),
        )
    outcome = Outcome.COMPLETED if completed else Outcome.SCHEDULED if scheduled else Outcome.NOTHING_TO_DO
    return ServiceResult(Service.INDEXING, outcome, scheduled, completed, message="; ".join(tally.said))
