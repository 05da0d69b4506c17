"""Ends a clustering that runs for a writer that comes: Hudi would fail the writer as soon as it knows what it updates.

A writer's first sign is its heartbeat. Until its source is read it has announced nothing, and when the plan is gone by
then, it commits (tried on Hudi 1.2, with and without its timeline server). So the job itself watches, and ends its own
Spark jobs; the task's watch (`airflow_lake_provider.conflict.activity`) would have to start Spark once more.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError

from airflow_lake_provider.shared.actions import Action
from airflow_lake_provider.shared.recent_writes import RECENT_WRITES, TOUCH_NOTHING_OLD
from lake_jobs.services.living_writers import WriterInTheWayError, list_heartbeats, load_living_writers
from lake_jobs.services.writer_rules import find_in_the_way_of_plan

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from lake_jobs.hudi.table import LoadedTable
    from lake_jobs.services.context import ServiceContext
    from lake_jobs.services.writer_rules import LivingWriter

PERIOD_S = 0.5


@contextmanager
def give_way_to_writers(context: ServiceContext, plan: str) -> Iterator[None]:
    """Run a block that executes a clustering plan. Raises WriterInTheWayError when it was ended for a writer.

    Only Spark jobs that this thread, and threads of its making, have started are ended.
    """
    watch = _Watch(context, plan)
    if watch.refresh():
        raise watch.error()
    tag = f"lake-clustering-{plan}"
    is_over = threading.Event()
    spark = context.spark.sparkContext

    def keep_watch() -> None:
        while not is_over.wait(PERIOD_S):
            try:
                if watch.refresh():
                    spark.cancelJobsWithTag(tag)
            except Py4JJavaError:
                continue  # what cannot be read ends nothing; the next check reads it again

    spark.addJobTag(tag)
    thread = threading.Thread(target=keep_watch, name=tag, daemon=True)
    thread.start()
    try:
        yield
    except Py4JJavaError as error:
        if watch.writer is None:
            raise
        raise watch.error() from error
    finally:
        is_over.set()
        thread.join()
        spark.removeJobTag(tag)


class _Watch:
    """Searches the first writer in the way of a plan; reads the timeline when a heartbeat is new."""

    def __init__(self, context: ServiceContext, plan: str) -> None:
        self.writer: LivingWriter | None = None
        self._context = context
        self._plan = plan
        state = context.read_table_state()
        self._partitions = _partitions_of(context, state, plan)
        self._recent = _recent_partitions(state)
        self._seen: frozenset[str] = frozenset()

    def refresh(self) -> bool:
        if self.writer is not None:
            return True
        names = frozenset(list_heartbeats(self._context.spark, self._context.job.base_path)) - {self._plan}
        if names == self._seen:
            return False
        # Read again only when the set of names changes: a writer that is no obstacle now becomes none by announcing.
        writers = load_living_writers(self._context, self._context.read_table_state())
        self._seen = names
        self.writer = find_in_the_way_of_plan(self._plan, self._partitions, self._recent, writers)
        return self.writer is not None

    def error(self) -> WriterInTheWayError:
        assert self.writer is not None
        return WriterInTheWayError(
            f"the clustering {self._plan} gives way to writer {self.writer.instant}, whose updates Hudi would refuse"
        )


def _partitions_of(context: ServiceContext, state: LoadedTable, plan: str) -> frozenset[str]:
    plans = context.spark._jvm.org.apache.hudi.common.util.ClusteringUtils.getAllPendingClusteringPlans(
        state.meta_client
    ).iterator()
    found: set[str] = set()
    while plans.hasNext():
        pending = plans.next()
        if str(pending.getLeft().requestedTime()) == plan:
            for group in pending.getRight().getInputGroups():
                found.update(str(part.getPartitionPath()) for part in group.getSlices())
    return frozenset(found)


def _recent_partitions(state: LoadedTable) -> frozenset[str] | None:
    """Return the partitions that the last ten writes touched; None when that is not known."""
    timeline = state.timeline
    completed: list[Any] = list(timeline.getCommitsTimeline().filterCompletedInstants().getInstants())
    found: set[str] = set()
    for instant in completed[-RECENT_WRITES:]:
        is_replacing = instant.getAction() == Action.REPLACECOMMIT
        read = timeline.readReplaceCommitMetadata if is_replacing else timeline.readCommitMetadata
        try:
            metadata = read(instant)
        except Py4JJavaError:
            return None
        if metadata.getOperationType().name() not in TOUCH_NOTHING_OLD:
            found.update(str(partition) for partition in metadata.getPartitionToWriteStats())
    return frozenset(found) or None
