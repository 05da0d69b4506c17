"""Compacts the metadata table of one table, where its writers left that undone."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from hudi_table import TableLook, hold_lock, look_at_table, requested_times
from job_contract import JobRequest, Mode, Outcome, Service, ServiceRequest, ServiceResult
from planned_service import Visit, open_patient_client, open_visit, refuse_scheduling, seconds_since

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

METADATA_TABLE = ".hoodie/metadata"


def run_metadata_compaction(spark: SparkSession, job: JobRequest, request: ServiceRequest) -> ServiceResult:
    """Run one request: pending compactions of the metadata table are executed, and one of what was not compacted.

    It is what a writer does at the end of a commit: the metadata table's services, its own cleaning and archiving among
    them, with the table's lock held. Instants of the result are of the metadata table's timeline. Raises
    ServiceRefusedError when only scheduling is asked for, NoTableError, or Py4JJavaError when Hudi fails.
    """
    if request.mode is Mode.SCHEDULE:
        raise refuse_scheduling(job, "Hudi plans and executes the metadata table's compaction in one")
    visit = open_visit(spark, job, request)
    if not visit.first_look.metadata_partitions:
        message = "the table has no metadata table"
        return ServiceResult(Service.METACOMPACTION, Outcome.NOTHING_TO_DO, message=message)
    before = _compactions(_look_at_metadata(visit))
    started = time.monotonic()
    visit.say(f"compacting the metadata table, last compacted {max(before, default='never')}")
    with open_patient_client(visit) as client, hold_lock(spark, client):
        _run_metadata_services(visit, client)
    look = _look_at_metadata(visit)
    done = tuple(instant for instant in _compactions(look) if instant not in before)
    pending = requested_times(look.timeline.filterPendingCompactionTimeline())
    if pending:
        message = f"compaction {', '.join(pending)} of the metadata table is still pending"
        return ServiceResult(Service.METACOMPACTION, Outcome.FAILED, completed_instants=done, message=message)
    if not done:
        message = "nothing was written to the metadata table since its last compaction"
        return ServiceResult(Service.METACOMPACTION, Outcome.NOTHING_TO_DO, message=message)
    visit.say(f"compacted the metadata table, {', '.join(done)}, in {seconds_since(started)}")
    return ServiceResult(Service.METACOMPACTION, Outcome.COMPLETED, completed_instants=done)


def _run_metadata_services(visit: Visit, client: Any) -> None:
    hudi = visit.spark._jvm.org.apache.hudi
    table = hudi.table.HoodieSparkTable.create(client.getConfig(), client.getEngineContext())
    # No streaming writes, and no dropping of partitions that the settings do not name; py4j has no keywords.
    instant = client.createNewInstantTime(False)  # noqa: FBT003
    writer = table.getMetadataWriter(instant, False, False).get()  # noqa: FBT003
    try:
        writer.performTableServices(hudi.common.util.Option.empty(), True)  # noqa: FBT003
    finally:
        writer.close()


def _look_at_metadata(visit: Visit) -> TableLook:
    return look_at_table(visit.spark, f"{visit.first_look.base_path}/{METADATA_TABLE}")


def _compactions(look: TableLook) -> tuple[str, ...]:
    return requested_times(look.timeline.getCommitAndReplaceTimeline().filterCompletedInstants())
