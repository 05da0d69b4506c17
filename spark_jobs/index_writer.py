"""Hudi's own building of one index, without what Hudi's `index()` does around it.

`HoodieWriteClient.index()` lists an index in the table's properties before it makes the index's file groups, and a
writer that commits in between fails; a builder that dies there leaves such a table behind. Hudi's metadata writer
makes file groups, entries and delta commit in one method that announces nothing (`initializeFromFilesystem`, private in
Hudi 1.2.0), so it is called here, and the announcement follows when the file groups are there. That method ends with
listing the index as complete, without the lock: it does so in a folder of its own, and we list it under the lock.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hudi_table import PlanBusyError, class_of
from index_check import find_hiding
from index_listing import Listing, list_index, own_folder, write_aside
from index_method import (
    DATA_META_CLIENT,
    META_CLIENT_CLASS,
    META_PATH,
    PARAMETERS,
    WRITER_CLASS,
    find_field,
    find_method,
)
from index_outcome import IndexFailure, IndexHiddenError, PlanOutdatedError
from index_rules import BuildState
from index_table import find_build_state, look_at_indexes
from job_contract import FailureKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from index_rules import IndexPlan
    from planned_service import Visit


class IndexWriter:
    """Hudi's metadata writer for the build of one plan."""

    def __init__(self, visit: Visit, java_writer: Any, method: Any, plan: IndexPlan) -> None:
        self._visit = visit
        self._writer = java_writer
        self._method = method
        self._plan = plan

    def build(self) -> None:
        """Make file groups, entries and the delta commit, and list the index as complete. Raises Py4JJavaError."""
        jvm, gateway = self._visit.spark._jvm, self._visit.spark.sparkContext._gateway
        kinds = jvm.java.util.ArrayList()
        kinds.add(_kind_of(self._visit, self._plan))
        arguments = gateway.new_array(jvm.java.lang.Object, len(PARAMETERS))
        arguments[0] = self._plan.instant
        arguments[1] = kinds
        arguments[2] = jvm.org.apache.hudi.common.util.Option.empty()
        self._method.invoke(self._writer, arguments)

    def definition(self) -> Any:
        """Return Hudi's definition of the index; None while the build has none, or when this kind has none."""
        found = data_meta_client_of(self._visit, self._writer).getIndexForMetadataPartition(self._plan.partition)
        return found.get() if found.isPresent() else None


@contextmanager
def open_index_writer(visit: Visit, client: Any, method: Any, plan: IndexPlan) -> Iterator[IndexWriter]:
    """Open Hudi's writer for a plan that is inflight, and close it.

    Raises IndexFailure when the settings do not enable the index, or Py4JJavaError.
    """
    table = visit.spark._jvm.org.apache.hudi.table.HoodieSparkTable.create(
        client.getConfig(), client.getEngineContext()
    )
    found = table.getIndexingMetadataWriter(plan.instant)
    if not found.isPresent():
        raise IndexFailure(FailureKind.OTHER, f"Hudi has no metadata writer for plan {plan.instant}")
    java_writer = found.get()
    try:
        if not java_writer.getEnabledPartitionTypes().contains(_kind_of(visit, plan)):
            raise IndexFailure(
                FailureKind.OTHER, f"the settings do not enable {plan.partition}: Hudi would build nothing"
            )
        with own_folder(visit, f"build-{plan.partition}") as folder:
            write_aside(visit, data_meta_client_of(visit, java_writer), folder)
            yield IndexWriter(visit, java_writer, method, plan)
    finally:
        java_writer.close()


def find_build_method(visit: Visit, client: Any) -> Any:
    """Return Hudi's method that builds. Raises IndexFailure when this Hudi lacks a part that a build needs."""
    writer_class = class_of(visit.spark, WRITER_CLASS, client)
    find_field(writer_class, DATA_META_CLIENT)
    find_field(class_of(visit.spark, META_CLIENT_CLASS, client), META_PATH)
    return find_method(writer_class)


def data_meta_client_of(visit: Visit, java_writer: Any) -> Any:
    """Return the meta client by which Hudi's metadata writer sees the table."""
    return find_field(class_of(visit.spark, WRITER_CLASS, java_writer), DATA_META_CLIENT).get(java_writer)


def take_plan(visit: Visit, plan: IndexPlan) -> None:
    """Make a requested plan inflight; the caller holds the table's lock.

    Raises PlanOutdatedError when it is gone, PlanBusyError when it is inflight, or its index is there or being built.
    """
    indexes = look_at_indexes(visit)
    found = indexes.plan_of(plan.instant)
    if found is None:
        raise PlanOutdatedError(f"the plan {plan.instant} is gone")
    if found.is_inflight or plan.partition in indexes.complete | indexes.inflight:
        raise PlanBusyError(plan.instant)
    look = indexes.look
    requested = look.meta_client.getInstantGenerator().getIndexRequestedInstant(plan.instant)
    look.timeline.transitionIndexRequestedToInflight(requested)


def announce(visit: Visit, plan: IndexPlan, definition: Any) -> None:
    """List an index whose file groups are there as being built, so that writers update it.

    The caller holds the table's lock. Raises Py4JJavaError.
    """
    list_index(visit, plan.partition, Listing.INFLIGHT, definition)


def settle(visit: Visit, plan: IndexPlan, definition: Any) -> None:
    """List an index that is built as complete; the caller holds the table's lock.

    Raises IndexFailure when Hudi ended without building it or somebody took this builder for dead, IndexHiddenError,
    or Py4JJavaError.
    """
    if find_build_state(visit.spark, visit.job.base_path, plan.instant) is not BuildState.COMPLETED:
        raise IndexFailure(
            FailureKind.OTHER,
            f"Hudi ended without building {plan.partition} (plan {plan.instant}), though without an error: see the "
            "driver's log, set spark.log.level=INFO to have more of it, and check that the table has data to index",
        )
    found = look_at_indexes(visit).plan_of(plan.instant)
    if found is None or not found.is_inflight:
        raise IndexFailure(FailureKind.PLAN_GONE, f"plan {plan.instant} was taken from this builder meanwhile")
    hidden = find_hiding(visit, plan)
    if hidden:
        raise IndexHiddenError(hidden)
    list_index(visit, plan.partition, Listing.COMPLETE, definition)


def _kind_of(visit: Visit, plan: IndexPlan) -> Any:
    return visit.spark._jvm.org.apache.hudi.metadata.MetadataPartitionType.fromPartitionPath(plan.partition)
