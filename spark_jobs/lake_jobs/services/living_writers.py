"""Which living writers a new plan would fail: asked under the table's lock, at the moment when the plan is made.

The task asks before spark-submit (`airflow_lake_provider.conflict.admission`); a writer that began since would lose
its work. Under the lock Hudi 1.2 begins no write, so no writer comes between question and plan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError

from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.shared.actions import Action
from lake_jobs.hudi.files import open_path
from lake_jobs.hudi.settings import heartbeat_expires_s
from lake_jobs.hudi.table import find_heartbeat_age_s, requested_times
from lake_jobs.services.writer_rules import LivingWriter, find_in_the_way

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Any

    from pyspark.sql import SparkSession

    from lake_jobs.hudi.table import LoadedTable
    from lake_jobs.services.context import ServiceContext

_WRITES = frozenset({Action.COMMIT, Action.DELTACOMMIT})


class WriterInTheWayError(Exception):
    """A living writer would fail if the plan were made, or stayed; the message names it."""


def require_no_writer(
    context: ServiceContext, state: LoadedTable, partitions: Collection[str] | None, own: str = ""
) -> None:
    """Raise WriterInTheWayError when a plan may fail a living writer. Call it under the table's lock.

    `own` is an instant of the service itself.
    """
    service = context.request.service
    writers = (writer for writer in load_living_writers(context, state) if writer.instant != own)
    writer = find_in_the_way(service, writers, partitions)
    if writer is None:
        return
    what = "what has expired were deleted" if service is Service.TTL else f"a {service} were planned"
    where = "has not announced yet what it touches"
    if writer.partitions is not None:
        where = f"is at work in {', '.join(sorted(writer.partitions)) or 'the table'}"
    raise WriterInTheWayError(f"writer {writer.instant} {where}, and would fail at its commit if {what} now")


def load_living_writers(context: ServiceContext, state: LoadedTable) -> tuple[LivingWriter, ...]:
    """Read the writers whose heartbeats are fresh, oldest first, also those that are not on the timeline yet."""
    expires_s = heartbeat_expires_s(context.settings)
    known = {str(instant.requestedTime()): instant for instant in state.timeline.getInstants()}
    clusterings = frozenset(requested_times(state.timeline.filterPendingClusteringTimeline()))
    writers = []
    for name in list_heartbeats(context.spark, state.base_path):
        instant = known.get(name)
        if instant is not None and not _is_write(instant, clusterings):
            continue
        age_s = find_heartbeat_age_s(context.spark, state.base_path, name)
        if age_s is not None and age_s <= expires_s:
            writers.append(LivingWriter(name, None if instant is None else _announced(context, state, instant)))
    return tuple(writers)


def find_beating(spark: SparkSession, base_path: str, settings: Mapping[str, str]) -> list[str]:
    """Return the instants whose heartbeats are fresh by the settings of a client, oldest first."""
    expires_s = heartbeat_expires_s(settings)
    ages = {name: find_heartbeat_age_s(spark, base_path, name) for name in list_heartbeats(spark, base_path)}
    return [name for name, age_s in ages.items() if age_s is not None and age_s <= expires_s]


def _is_write(instant: Any, clusterings: frozenset[str]) -> bool:
    if instant.isCompleted() or str(instant.requestedTime()) in clusterings:
        return False
    return str(instant.getAction()) in {*_WRITES, Action.REPLACECOMMIT}


def list_heartbeats(spark: SparkSession, base_path: str) -> list[str]:
    """Return the instants that have a heartbeat, fresh or not, oldest first."""
    fs, folder = open_path(spark, f"{base_path}/.hoodie/.heartbeat")
    try:
        names = [str(status.getPath().getName()) for status in fs.listStatus(folder)]
    except Py4JJavaError:
        return []  # no process ever sent one
    return sorted(name for name in names if name.isascii() and name.isdigit())


def _announced(context: ServiceContext, state: LoadedTable, instant: Any) -> frozenset[str] | None:
    """Return the partitions that a write's inflight file names; None while it has none, and for what replaces."""
    if instant.isRequested() or str(instant.getAction()) not in _WRITES:
        return None
    name = state.meta_client.getInstantFileNameGenerator().getFileName(instant)
    fs, path = open_path(context.spark, f"{state.meta_client.getTimelinePath()}/{name}")
    try:
        if fs.getFileStatus(path).getLen() == 0:
            return None
        stats = state.timeline.readCommitMetadata(instant).getPartitionToWriteStats()
    except Py4JJavaError:
        return None  # it has just completed, or is being written
    return frozenset(str(partition) for partition in stats) or None
