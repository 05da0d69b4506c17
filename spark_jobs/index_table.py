"""What the timeline, the table's properties and the metadata table say of index builds, and the few changes made there.

Of each table version from 8 on, the metadata table's timeline lies in `.hoodie/metadata/.hoodie/timeline`. A build of
the plan `t` is its delta commit `t` there (`HoodieBackedTableMetadataWriter`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hudi_table import TableLook, hold_lock, open_client
from index_rules import BuildState, IndexPlan
from py4j.protocol import Py4JJavaError
from service_settings import ALWAYS
from whole_file import open_path

if TYPE_CHECKING:
    from planned_service import Visit
    from pyspark.sql import SparkSession

METADATA_FOLDER = ".hoodie/metadata"


@dataclass(frozen=True, slots=True)
class IndexLook:
    """One look at a table's indexes: complete ones, those listed as being built, and pending plans, oldest first."""

    look: TableLook
    complete: frozenset[str]
    inflight: frozenset[str]
    plans: tuple[IndexPlan, ...]

    def plan_of(self, instant: str) -> IndexPlan | None:
        """Return a pending plan by its requested time."""
        return next((plan for plan in self.plans if plan.instant == instant), None)


def look_at_indexes(visit: Visit) -> IndexLook:
    """Read properties and timeline afresh. Raises Py4JJavaError."""
    look = visit.look()
    config = look.meta_client.getTableConfig()
    timeline = look.timeline
    generator = look.meta_client.getInstantGenerator()
    plans = []
    for instant in timeline.filterPendingIndexTimeline().getInstants():
        requested_time = str(instant.requestedTime())
        plan = timeline.readIndexPlan(generator.getIndexRequestedInstant(requested_time))
        info = plan.getIndexPartitionInfos()[0]
        partition, up_to = str(info.getMetadataPartitionPath()), str(info.getIndexUptoInstant())
        plans.append(IndexPlan(requested_time, partition, up_to, is_inflight=instant.isInflight()))
    return IndexLook(
        look=look,
        complete=frozenset(config.getMetadataPartitions()),
        inflight=frozenset(config.getMetadataPartitionsInflight()),
        plans=tuple(sorted(plans, key=lambda plan: plan.instant)),
    )


def find_build_state(spark: SparkSession, base_path: str, instant: str) -> BuildState:
    """Return how far a build's delta commit is."""
    names = metadata_timeline_names(spark, base_path)
    mine = [name for name in names if name.split(".")[0].split("_")[0] == instant]
    if any(name.endswith(".deltacommit") for name in mine):
        return BuildState.COMPLETED
    return BuildState.PENDING if any(".deltacommit." in name for name in mine) else BuildState.ABSENT


def find_begun_ms(spark: SparkSession, base_path: str, instant: str) -> int | None:
    """Return when a build's delta commit was requested, by the store's clock; None when it is not there."""
    return find_modified_ms(spark, f"{base_path}/{METADATA_FOLDER}/.hoodie/timeline/{instant}.deltacommit.requested")


def metadata_timeline_names(spark: SparkSession, base_path: str) -> frozenset[str]:
    """Return the names on the metadata table's timeline; empty without a metadata table."""
    fs, folder = open_path(spark, f"{base_path}/{METADATA_FOLDER}/.hoodie/timeline")
    try:
        statuses = fs.listStatus(folder)
    except Py4JJavaError:
        return frozenset()
    return frozenset(str(status.getPath().getName()) for status in statuses)


def find_modified_ms(spark: SparkSession, path: str) -> int | None:
    """Return when a file was modified last, by the store's clock; None when it is not there."""
    fs, hadoop_path = open_path(spark, path)
    try:
        return int(fs.getFileStatus(hadoop_path).getModificationTime())
    except Py4JJavaError:
        return None


def timeline_file(look: TableLook, name: str) -> str:
    """Return the path of a file on the active timeline."""
    return f"{look.meta_client.getTimelinePath().toString()}/{name}"


def remove_plan(visit: Visit, instant: str, *, keep_request: bool) -> None:
    """Remove a plan's inflight file, and its request unless it shall run again; under the table's lock."""
    with (
        open_client(visit.spark, visit.job.base_path, visit.settings, ALWAYS) as client,
        hold_lock(visit.spark, client),
    ):
        remove_plan_files(visit.look(), instant, keep_request=keep_request)


def remove_plan_files(look: TableLook, instant: str, *, keep_request: bool = False) -> None:
    """Remove a plan's inflight file, and its request; the caller holds the table's lock."""
    generator = look.meta_client.getInstantGenerator()
    look.timeline.deleteInstantFileIfExists(generator.getIndexInflightInstant(instant))
    if not keep_request:
        look.timeline.deleteInstantFileIfExists(generator.getIndexRequestedInstant(instant))


def complete_plan(visit: Visit, plan: IndexPlan, up_to: str) -> None:
    """Complete an inflight plan whose index is whole; the caller holds the table's lock. Raises Py4JJavaError."""
    look = visit.look()
    model = visit.spark._jvm.org.apache.hudi.avro.model
    generator = look.meta_client.getInstantGenerator()
    requested = look.timeline.readIndexPlan(generator.getIndexRequestedInstant(plan.instant))
    infos = requested.getIndexPartitionInfos()
    for info in infos:
        info.setIndexUptoInstant(up_to)
    metadata = model.HoodieIndexCommitMetadata.newBuilder().setVersion(1).setIndexPartitionInfos(infos).build()
    option: Any = visit.spark._jvm.org.apache.hudi.common.util.Option.of(metadata)
    # The lock is held by the caller: Hudi must not take it once more for the completion time.
    should_lock = False
    look.timeline.saveAsComplete(should_lock, generator.getIndexInflightInstant(plan.instant), option)
