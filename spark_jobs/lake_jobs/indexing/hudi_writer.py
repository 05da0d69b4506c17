"""Hudi's own building of one index, without what Hudi's `index()` does around it.

`HoodieWriteClient.index()` lists an index in the table's properties before it makes the index's file groups, and a
writer that commits in between fails; a builder that dies there leaves such a table behind. Hudi's metadata writer
makes file groups, entries and delta commit in one method that announces nothing (`initializeFromFilesystem`, private in
Hudi 1.2.0), so it is called here, and the announcement follows when the file groups are there. That method ends with
listing the index as complete, without the lock: it does so in a folder of its own, and this module lists it under the
lock.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.job_contract import FailureKind
from lake_jobs.hudi.table import PlanBusyError, class_of
from lake_jobs.indexing.bounds import COLUMN_STATS_PARTITION, describe_unbounded, find_unbounded
from lake_jobs.indexing.check import find_damage, find_hiding
from lake_jobs.indexing.hudi_internals import (
    DATA_META_CLIENT,
    META_CLIENT_CLASS,
    META_PATH,
    WRITER_CLASS,
    find_field,
    find_method,
)
from lake_jobs.indexing.listing import Listing, list_index, own_folder, write_aside
from lake_jobs.indexing.outcome import (
    BuildLostError,
    IndexDamagedError,
    IndexFailure,
    IndexHiddenError,
    IndexUnfitError,
    PlanOutdatedError,
)
from lake_jobs.indexing.rules import BuildState
from lake_jobs.indexing.state import find_build_state, load_index_state, metadata_timeline_names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lake_jobs.indexing.rules import IndexPlan
    from lake_jobs.services.context import ServiceContext

MAX_NAMES = 8


class IndexWriter:
    """Hudi's metadata writer for the build of one plan."""

    def __init__(self, context: ServiceContext, java_writer: Any, method: Any, plan: IndexPlan) -> None:
        self._visit = context
        self._writer = java_writer
        self._method = method
        self._plan = plan

    def build(self) -> None:
        """Make file groups, entries and the delta commit, and list the index as complete. Raises Py4JJavaError."""
        jvm = self._visit.spark._jvm
        kinds = jvm.java.util.ArrayList()
        kinds.add(_kind_of(self._visit, self._plan))
        none = jvm.org.apache.hudi.common.util.Option.empty()
        invoke(self._visit, self._method, self._writer, self._plan.instant, kinds, none)

    def definition(self) -> Any:
        """Return Hudi's definition of the index; None while the build has none, or when this kind has none."""
        found = data_meta_client_of(self._visit, self._writer).getIndexForMetadataPartition(self._plan.partition)
        return found.get() if found.isPresent() else None


@contextmanager
def open_index_writer(context: ServiceContext, client: Any, method: Any, plan: IndexPlan) -> Iterator[IndexWriter]:
    """Open Hudi's writer for a plan that is inflight, and close it.

    Raises IndexFailure when the settings do not enable the index, or Py4JJavaError.
    """
    java_writer = make_metadata_writer(context, client, plan)
    try:
        if not java_writer.getEnabledPartitionTypes().contains(_kind_of(context, plan)):
            raise IndexFailure(
                FailureKind.OTHER, f"the settings do not enable {plan.partition}: Hudi would build nothing"
            )
        with own_folder(context, f"build-{plan.partition}") as folder:
            write_aside(context, data_meta_client_of(context, java_writer), folder)
            yield IndexWriter(context, java_writer, method, plan)
    finally:
        java_writer.close()


def read_file_listing(context: ServiceContext, client: Any, plan: IndexPlan) -> None:
    """Read the names of the table's partitions by Hudi's writer for a plan, as a build begins. Raises Py4JJavaError."""
    java_writer = make_metadata_writer(context, client, plan)
    try:
        java_writer.getTableMetadata().getAllPartitionPaths()
    finally:
        java_writer.close()


def make_metadata_writer(context: ServiceContext, client: Any, plan: IndexPlan) -> Any:
    """Make Hudi's metadata writer for a plan; the caller closes it. Raises IndexFailure, or Py4JJavaError."""
    table = context.spark._jvm.org.apache.hudi.table.HoodieSparkTable.create(
        client.getConfig(), client.getEngineContext()
    )
    found = table.getIndexingMetadataWriter(plan.instant)
    if not found.isPresent():
        raise IndexFailure(FailureKind.OTHER, f"Hudi has no metadata writer for plan {plan.instant}")
    return found.get()


def find_build_method(context: ServiceContext, client: Any) -> Any:
    """Return Hudi's method that builds. Raises IndexFailure when this Hudi lacks a part that a build needs."""
    writer_class = class_of(context.spark, WRITER_CLASS, client)
    find_field(writer_class, DATA_META_CLIENT)
    find_field(class_of(context.spark, META_CLIENT_CLASS, client), META_PATH)
    return find_method(writer_class)


def data_meta_client_of(context: ServiceContext, java_writer: Any) -> Any:
    """Return the meta client by which Hudi's metadata writer reads the table."""
    return find_field(class_of(context.spark, WRITER_CLASS, java_writer), DATA_META_CLIENT).get(java_writer)


def invoke(context: ServiceContext, method: Any, owner: Any, *arguments: Any) -> Any:
    """Call a method of Hudi that was found by its parameters; return what it returns. Raises Py4JJavaError."""
    spark = context.spark
    given = spark.sparkContext._gateway.new_array(spark._jvm.java.lang.Object, len(arguments))
    for at, argument in enumerate(arguments):
        given[at] = argument
    return method.invoke(owner, given)


def take_plan(context: ServiceContext, plan: IndexPlan) -> None:
    """Make a requested plan inflight; the caller holds the table's lock.

    Raises PlanOutdatedError when it was removed, PlanBusyError when it is inflight, or its index is there or being
    built.
    """
    indexes = load_index_state(context)
    found = indexes.plan_of(plan.instant)
    if found is None:
        raise PlanOutdatedError(f"the plan {plan.instant} was removed")
    if found.is_inflight or plan.partition in indexes.complete | indexes.inflight:
        raise PlanBusyError(plan.instant)
    state = indexes.table
    requested = state.meta_client.getInstantGenerator().getIndexRequestedInstant(plan.instant)
    state.timeline.transitionIndexRequestedToInflight(requested)


def announce(context: ServiceContext, plan: IndexPlan, definition: Any) -> None:
    """List an index whose file groups are there as being built, so that writers update it.

    The caller holds the table's lock. Raises Py4JJavaError.
    """
    list_index(context, plan.partition, Listing.INFLIGHT, definition)


def list_as_complete(
    context: ServiceContext, plan: IndexPlan, definition: Any, passed: set[str], *, was_alone: bool
) -> None:
    """List an index that is built as complete; the caller holds the table's lock, if `was_alone` during the build too.

    `passed` are the writes that a check before found in the index (`find_missing_writes`).
    Raises IndexFailure when Hudi ended without building it or another job took this builder for dead, BuildLostError
    when writers went on meanwhile, IndexHiddenError, IndexDamagedError when it lacks writes, IndexUnfitError when
    readers would miss rows by it, or Py4JJavaError.
    """
    built = find_build_state(context.spark, context.job.base_path, plan.instant)
    if built is not BuildState.COMPLETED:
        if not was_alone:
            raise BuildLostError(_describe_lost(context, plan, built))
        raise IndexFailure(
            FailureKind.OTHER,
            f"Hudi ended without building {plan.partition} (plan {plan.instant}), though without an error: see the "
            "driver's log, set spark.log.level=INFO to have more of it, and check that the table has data to index",
        )
    found = load_index_state(context).plan_of(plan.instant)
    if found is None or not found.is_inflight:
        raise IndexFailure(FailureKind.PLAN_GONE, f"plan {plan.instant} was taken from this builder meanwhile")
    hidden = find_hiding(context, plan)
    if hidden:
        raise IndexHiddenError(hidden)
    # Readers use it from the moment that it is listed.
    damage = find_damage(context, plan, passed)
    if damage:
        raise IndexDamagedError(damage)
    if plan.partition == COLUMN_STATS_PARTITION:
        unbounded = find_unbounded(context.spark, context.job.base_path)
        if unbounded:
            raise IndexUnfitError(describe_unbounded(unbounded))
    list_index(context, plan.partition, Listing.COMPLETE, definition)


def _describe_lost(context: ServiceContext, plan: IndexPlan, built: BuildState) -> str:
    names = metadata_timeline_names(context.spark, context.job.base_path)
    newest = ", ".join(sorted(names)[-MAX_NAMES:])
    return (
        f"Hudi ended the build of {plan.partition} without an error, but its delta commit {plan.instant} is {built} on "
        f"the metadata table: a writer rolled it back (newest there: {newest})"
    )


def _kind_of(context: ServiceContext, plan: IndexPlan) -> Any:
    return context.spark._jvm.org.apache.hudi.metadata.MetadataPartitionType.fromPartitionPath(plan.partition)
