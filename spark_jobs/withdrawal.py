"""Takes pending clustering plans from the timeline, so that writers may update their file groups again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from failure_kind import causes_of, classify, describe
from hudi_table import PlanBusyError, be_sole_executor, find_instant, hold_lock, open_client
from job_contract import FailureKind, Outcome, ServiceResult
from py4j.protocol import Py4JJavaError
from service_settings import ALWAYS

if TYPE_CHECKING:
    from planned_service import PlannedService, Visit

EXECUTOR_ENDED = "lake.executor.ended"
"""Option of the request: whoever asks has ended the plan's executor and holds the table's lease."""


def withdraw_plans(visit: Visit, kind: PlannedService) -> ServiceResult:
    """Remove the named plans, and what an executor that died left of them. Plans that are gone or completed stay so.

    Nothing happens to a plan whose executor's heartbeat lives.
    """
    gone: list[str] = []
    for instant in visit.request.instants:
        if instant not in kind.find_pending(visit.look()):
            continue
        try:
            with open_client(visit.spark, visit.job.base_path, visit.settings, ALWAYS) as client:
                _withdraw(visit, client, instant)
        except PlanBusyError:
            message = f"{kind.service} {instant}: another executor has this plan"
            return ServiceResult(kind.service, Outcome.FAILED, failure_kind=FailureKind.BUSY, message=message)
        except Py4JJavaError as error:
            causes = causes_of(error.java_exception)
            return ServiceResult(
                kind.service, Outcome.FAILED, failure_kind=classify(causes), message=f"{instant}: {describe(causes)}"
            )
        visit.say(f"{kind.service} {instant} is withdrawn")
        gone.append(instant)
    outcome = Outcome.COMPLETED if gone else Outcome.NOTHING_TO_DO
    return ServiceResult(kind.service, outcome, message=f"withdrawn: {', '.join(gone) or 'nothing'}")


def _withdraw(visit: Visit, client: Any, instant: str) -> None:
    if visit.request.options.get(EXECUTOR_ENDED) == "true":
        # What is left of its heartbeat would look alive for two minutes, and the writer cannot wait.
        hudi = visit.spark._jvm.org.apache.hudi
        meta_client = visit.look().meta_client
        hudi.client.heartbeat.HeartbeatUtils.deleteHeartbeatFile(meta_client.getStorage(), visit.job.base_path, instant)
    with be_sole_executor(visit.spark, client, instant):
        # Hudi rolls back the files of a plan that is being executed, and then deletes the plan; a plan that nobody
        # began has no files, and Hudi no call for it.
        if client.purgePendingClustering(instant):
            return
        with hold_lock(visit.spark, client):
            timeline = visit.look().timeline
            found = find_instant(timeline.filterPendingClusteringTimeline(), instant)
            if found is not None and found.isRequested():
                timeline.deletePending(found)
