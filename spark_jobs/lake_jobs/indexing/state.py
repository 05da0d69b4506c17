"""What timeline, table properties and metadata table hold about index builds, and the few changes made there.

Of each table version from 8 on, the metadata table's timeline lies in `.hoodie/metadata/.hoodie/timeline`. A build of
the plan `t` is its delta commit `t` there (`HoodieBackedTableMetadataWriter`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError

from airflow_lake_provider.job_contract import METADATA_TABLE
from lake_jobs.hudi.files import find_modified_ms, open_path
from lake_jobs.hudi.settings import ALWAYS
from lake_jobs.hudi.table import LoadedTable, hold_lock, open_client
from lake_jobs.indexing.rules import BuildState, IndexPlan, find_unused_instant

if TYPE_CHECKING:
    from collections.abc import Collection

    from pyspark.sql import SparkSession

    from lake_jobs.services.context import ServiceContext


@dataclass(frozen=True, slots=True)
class IndexState:
    """A table's indexes at one moment: complete ones, those listed as being built, and pending plans, oldest first."""

    table: LoadedTable
    complete: frozenset[str]
    inflight: frozenset[str]
    plans: tuple[IndexPlan, ...]

    def plan_of(self, instant: str) -> IndexPlan | None:
        """Return a pending plan by its requested time."""
        return next((plan for plan in self.plans if plan.instant == instant), None)


def load_index_state(context: ServiceContext) -> IndexState:
    """Read properties and timeline. Raises Py4JJavaError."""
    state = context.read_table_state()
    config = state.meta_client.getTableConfig()
    timeline = state.timeline
    generator = state.meta_client.getInstantGenerator()
    plans = []
    for instant in timeline.filterPendingIndexTimeline().getInstants():
        requested_time = str(instant.requestedTime())
        plan = timeline.readIndexPlan(generator.getIndexRequestedInstant(requested_time))
        infos = plan.getIndexPartitionInfos()
        partition, *others = (str(info.getMetadataPartitionPath()) for info in infos)
        up_to = str(infos[0].getIndexUptoInstant())
        plans.append(IndexPlan(requested_time, partition, up_to, instant.isInflight(), tuple(others)))
    return IndexState(
        table=state,
        complete=frozenset(config.getMetadataPartitions()),
        inflight=frozenset(config.getMetadataPartitionsInflight()),
        plans=tuple(sorted(plans, key=lambda plan: plan.instant)),
    )


def find_build_state(spark: SparkSession, base_path: str, instant: str) -> BuildState:
    """Return how far a build's delta commit is."""
    names = metadata_timeline_names(spark, base_path)
    own = [name for name in names if name.split(".")[0].split("_")[0] == instant]
    if any(name.endswith(".deltacommit") for name in own):
        return BuildState.COMPLETED
    return BuildState.PENDING if any(".deltacommit." in name for name in own) else BuildState.ABSENT


def find_begun_ms(spark: SparkSession, base_path: str, instant: str) -> int | None:
    """Return when a build's delta commit was requested, by the store's clock; None when it is not there."""
    return find_modified_ms(spark, f"{base_path}/{METADATA_TABLE}/.hoodie/timeline/{instant}.deltacommit.requested")


def metadata_timeline_names(spark: SparkSession, base_path: str) -> frozenset[str]:
    """Return the names on the metadata table's timeline; empty without a metadata table."""
    fs, folder = open_path(spark, f"{base_path}/{METADATA_TABLE}/.hoodie/timeline")
    try:
        statuses = fs.listStatus(folder)
    except Py4JJavaError:
        return frozenset()
    return frozenset(str(status.getPath().getName()) for status in statuses)


def find_pending_instants(context: ServiceContext) -> frozenset[str]:
    """Return the requested times on the table's timeline that have no completed file, by one listing.

    Raises Py4JJavaError.
    """
    folder = context.first_state.meta_client.getTimelinePath().toString()
    fs, path = open_path(context.spark, folder)
    names = [str(status.getPath().getName()) for status in fs.listStatus(path)]
    completed = {name.split("_")[0] for name in names if "_" in name}
    return frozenset(name.split(".")[0] for name in names if "_" not in name) - completed


def timeline_file(state: LoadedTable, name: str) -> str:
    """Return the path of a file on the active timeline."""
    return f"{state.meta_client.getTimelinePath().toString()}/{name}"


def remove_plan(context: ServiceContext, instant: str, *, keep_request: bool) -> None:
    """Remove a plan's inflight file, and its request unless it is to run again; under the table's lock."""
    with (
        open_client(context.spark, context.job.base_path, context.settings, ALWAYS) as client,
        hold_lock(context.spark, client),
    ):
        remove_plan_files(context.read_table_state(), instant, keep_request=keep_request)


def remove_plan_files(state: LoadedTable, instant: str, *, keep_request: bool = False) -> None:
    """Remove a plan's inflight file, and its request; the caller holds the table's lock."""
    generator = state.meta_client.getInstantGenerator()
    state.timeline.deleteInstantFileIfExists(generator.getIndexInflightInstant(instant))
    if not keep_request:
        state.timeline.deleteInstantFileIfExists(generator.getIndexRequestedInstant(instant))


def split_plan(context: ServiceContext, plan: IndexPlan, partitions: Collection[str]) -> tuple[str, ...]:
    """Write a plan for each of these partitions of a plan of several, and remove it; return their requested times.

    The caller holds the table's lock. A driver that dies in the middle leaves a partition in two plans, and none in no
    plan. Raises Py4JJavaError.
    """
    state = context.read_table_state()
    jvm = context.spark._jvm
    generator = state.meta_client.getInstantGenerator()
    whole = state.timeline.readIndexPlan(generator.getIndexRequestedInstant(plan.instant))
    infos = {str(info.getMetadataPartitionPath()): info for info in whole.getIndexPartitionInfos()}
    written = []
    for partition in plan.partitions:
        if partition not in partitions:
            continue
        own = jvm.java.util.ArrayList()
        own.add(infos[partition])
        part = jvm.org.apache.hudi.avro.model.HoodieIndexPlan.newBuilder()
        part = part.setVersion(whole.getVersion()).setIndexPartitionInfos(own).build()
        should_lock = False
        instant = str(state.meta_client.createNewInstantTime(should_lock))
        state.timeline.saveToPendingIndexAction(generator.getIndexRequestedInstant(instant), part)
        written.append(instant)
    remove_plan_files(state, plan.instant)
    return tuple(written)


def complete_plan(context: ServiceContext, plan: IndexPlan, up_to: str) -> None:
    """Complete an inflight plan whose index is whole; the caller holds the table's lock. Raises Py4JJavaError."""
    state = context.read_table_state()
    model = context.spark._jvm.org.apache.hudi.avro.model
    generator = state.meta_client.getInstantGenerator()
    requested = state.timeline.readIndexPlan(generator.getIndexRequestedInstant(plan.instant))
    infos = requested.getIndexPartitionInfos()
    for info in infos:
        info.setIndexUptoInstant(up_to)
    metadata = model.HoodieIndexCommitMetadata.newBuilder().setVersion(1).setIndexPartitionInfos(infos).build()
    option: Any = context.spark._jvm.org.apache.hudi.common.util.Option.of(metadata)
    # The lock is held by the caller: Hudi must not take it once more for the completion time.
    should_lock = False
    state.timeline.saveAsComplete(should_lock, generator.getIndexInflightInstant(plan.instant), option)


# --- Files that keep the file groups of an announced index in being when what its builder began is rolled back.
#
# A writer rolls back a dead builder's delta commit on the metadata table as soon as its heartbeat there has expired,
# and deletes every file with that instant in its name (`ListingBasedRollbackStrategy`): were these all, the next commit
# would find an announced index without file groups, and fail. So each file group gets an empty log file of an instant
# that no timeline knows: it belongs to no write, no reader reads it, and no writer rolls it back.
#
# The instant is the plan's own plus some milliseconds. A younger one never becomes the beginning of a file slice, as
# long as files of the plan's instant are there (`HoodieFileGroup.getBaseInstantTime`).

WRITE_TOKEN = "0-0-7"
"""Write token of these files; Hudi's own first log files have 0-0-0, and those of tasks count up from other stages."""


def protect_file_groups(context: ServiceContext, plan: IndexPlan) -> None:
    """Add a file to each file group, next to its first log file; the caller holds the table's lock."""
    names = {name.split(".")[0].split("_")[0] for name in metadata_timeline_names(context.spark, context.job.base_path)}
    names |= {str(instant.requestedTime()) for instant in context.read_table_state().timeline.getInstants()}
    unknown = find_unused_instant(plan.instant, names)
    fs, files = list_partition(context, plan)
    for status in files:
        file_id, found, rest = str(status.getPath().getName()).partition(f"_{plan.instant}.log.")
        if found and not rest.endswith(".crc"):
            name = f"{file_id}_{unknown}.log.1_{WRITE_TOKEN}"
            fs.create(context.spark._jvm.org.apache.hadoop.fs.Path(status.getPath().getParent(), name)).close()


def unprotect_file_groups(context: ServiceContext, plan: IndexPlan) -> None:
    """Remove these files, once the delta commit of the build is completed and cannot be rolled back any more."""
    fs, files = list_partition(context, plan)
    for status in files:
        path = status.getPath()
        if str(path.getName()).endswith(f".log.1_{WRITE_TOKEN}"):
            fs.delete(path)


def list_partition(context: ServiceContext, plan: IndexPlan) -> tuple[Any, list[Any]]:
    """Return Hadoop's file system, and its statuses of the files of a plan's index. Raises Py4JJavaError."""
    fs, folder = open_path(context.spark, f"{context.job.base_path}/{METADATA_TABLE}/{plan.partition}")
    return fs, list(fs.listStatus(folder))
