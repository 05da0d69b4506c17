"""How an index job ended: failures with their reason, the tally of a run, and its result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from failure_kind import causes_of, classify, describe
from index_rules import BuildState
from index_table import find_build_state, look_at_indexes
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


@dataclass(slots=True)
class Tally:
    """What a run did so far."""

    scheduled: list[str]
    completed: list[str]
    failures: list[IndexFailure]
    said: list[str]


def failure_of(visit: Visit, plan: IndexPlan, error: Py4JJavaError) -> IndexFailure:
    """Say why Hudi did not build, from its exception and from what it left on the timeline."""
    causes = causes_of(error.java_exception)
    kind = classify(causes)
    indexes = look_at_indexes(visit)
    if (
        plan.partition in indexes.complete
        and find_build_state(visit.spark, visit.job.base_path, plan.instant) is BuildState.COMPLETED
    ):
        holes = ", ".join(holes_of(indexes)) or "nothing"
        return IndexFailure(
            FailureKind.CONFLICT,
            f"the index is built and holds every write up to {caught_up_to(indexes)}; the catch-up ended before "
            f"{holes} did, and the next run goes on from there",
        )
    if kind is FailureKind.OTHER:
        visit.say(f"indexing {plan.instant}: stack trace follows\n{error}")
    return IndexFailure(kind, describe(causes))


def caught_up_to(indexes: IndexLook) -> str:
    """Return the last completed write before the first pending one."""
    found = indexes.look.timeline.getContiguousCompletedWriteTimeline().lastInstant()
    return str(found.get().requestedTime()) if found.isPresent() else ""


def holes_of(indexes: IndexLook) -> list[str]:
    """Name the pending writes and plans."""
    pending = indexes.look.timeline.getWriteTimeline().filterInflightsAndRequested().getInstants()
    return sorted(f"{instant.getAction()} {instant.requestedTime()}" for instant in pending)


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
