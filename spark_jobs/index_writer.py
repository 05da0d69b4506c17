"""Hudi's own building of one index, without what Hudi's `index()` does around it.

`HoodieWriteClient.index()` lists an index in the table's properties before it makes the index's file groups, and a
writer that commits in between fails; a builder that dies there leaves such a table behind. Hudi's metadata writer
makes file groups, entries and delta commit in one method that announces nothing (`initializeFromFilesystem`, private in
Hudi 1.2.0), so it is called here, and the announcement follows when the file groups are there.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hudi_table import NoTableError, PlanBusyError
from index_method import PARAMETERS, WRITER_CLASS
from index_outcome import IndexFailure, PlanOutdatedError
from index_rules import BuildState
from index_table import IndexLook, find_build_state, look_at_indexes
from job_contract import FailureKind
from py4j.protocol import Py4JJavaError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from index_rules import IndexPlan
    from planned_service import Visit

ANNOUNCEMENTS = 3
LOOKS = 20
LOOK_EVERY_S = 0.1


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
        yield IndexWriter(visit, java_writer, method, plan)
    finally:
        java_writer.close()


def writer_class(visit: Visit, client: Any) -> Any:
    """Return Hudi's class that builds; Spark loads the jars of a submission with a loader of its own."""
    initialize = False
    return visit.spark._jvm.java.lang.Class.forName(WRITER_CLASS, initialize, client.getClass().getClassLoader())


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


def announce(visit: Visit, plan: IndexPlan) -> bool:
    """List an index as being built, so that writers update it; the caller holds the table's lock.

    Its file groups are there. Returns whether writers know of it now: listed as being built, or complete already. Hudi
    writes the properties as well when a build was quick, so a failure is looked at again.
    """
    for _ in range(ANNOUNCEMENTS):
        indexes = _look_patiently(visit)
        if plan.partition in indexes.complete | indexes.inflight:
            return True
        names = visit.spark._jvm.java.util.ArrayList()
        names.add(plan.partition)
        try:
            meta_client = indexes.look.meta_client
            meta_client.getTableConfig().setMetadataPartitionsInflight(meta_client, names)
        except Py4JJavaError as error:
            visit.say(f"{plan.partition} could not be announced: {error.java_exception}")
    indexes = _look_patiently(visit)
    return plan.partition in indexes.complete | indexes.inflight


def settle(visit: Visit, plan: IndexPlan) -> None:
    """List an index that is built as complete, unless Hudi did; the caller holds the table's lock.

    Raises IndexFailure when Hudi ended without building it.
    """
    if find_build_state(visit.spark, visit.job.base_path, plan.instant) is not BuildState.COMPLETED:
        raise IndexFailure(FailureKind.OTHER, f"Hudi ended without building {plan.partition}")
    indexes = _look_patiently(visit)
    if plan.partition in indexes.complete and plan.partition not in indexes.inflight:
        return
    visit.say(f"index {plan.partition} is built, and the table's properties do not say so: setting them right")
    meta_client = indexes.look.meta_client
    enabled = True
    meta_client.getTableConfig().setMetadataPartitionState(meta_client, plan.partition, enabled)


def _kind_of(visit: Visit, plan: IndexPlan) -> Any:
    return visit.spark._jvm.org.apache.hudi.metadata.MetadataPartitionType.fromPartitionPath(plan.partition)


def _look_patiently(visit: Visit) -> IndexLook:
    """Read the table afresh; Hudi rewrites hoodie.properties in place, and a look may fall into that moment."""
    for _ in range(LOOKS):
        try:
            return look_at_indexes(visit)
        except (NoTableError, Py4JJavaError):
            time.sleep(LOOK_EVERY_S)
    return look_at_indexes(visit)
