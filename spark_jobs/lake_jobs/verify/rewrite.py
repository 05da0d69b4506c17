"""Hudi's rewriting services in two steps: the files are written, and later their instant is committed.

`compact(instant, true)` does both. In between, this process can read the files, and drop them by not committing:
they are then what a killed executor leaves, and Hudi rolls them back in the next try, with what was streamed to the
metadata table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.job_contract import Service
from lake_jobs.hudi.column_bounds import BoundsOfNewFiles
from lake_jobs.hudi.plans import read_plan
from lake_jobs.hudi.table import class_of, list_items
from lake_jobs.services.context import find_committer
from lake_jobs.verify.overtaken import require_current
from lake_jobs.verify.sample import (
    NewFile,
    Unit,
    files_of_plan,
    units_of_groups,
    units_of_partitions,
)
from lake_jobs.verify.written_again import find_written_again

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import SparkSession

    from lake_jobs.services.context import ServiceContext
    from lake_jobs.verify.sample import Group

_SERVICE_CLIENT = "org.apache.hudi.client.BaseHoodieTableServiceClient"
_WRITE_METADATA = "org.apache.hudi.table.action.HoodieWriteMetadata"
_TABLE = "org.apache.hudi.table.HoodieTable"


class RowsNotWrittenError(Exception):
    """Hudi failed to write rows, and went on to the next ones; nothing was committed."""


@dataclass(frozen=True, slots=True)
class UncommittedRewrite:
    """Files that an executor has written, and Hudi's own object with which they are committed."""

    service: Service
    instant: str
    metadata: Any
    written: tuple[NewFile, ...]


def write_files(spark: SparkSession, client: Any, service: Service, instant: str) -> UncommittedRewrite:
    """Write the files of a plan, and do not commit them. Raises Py4JJavaError, RowsNotWrittenError."""
    completes = False
    rewrite = {
        Service.COMPACTION: client.compact,
        Service.LOGCOMPACTION: client.logCompact,
        Service.CLUSTERING: client.cluster,
    }[service]
    metadata = rewrite(instant, completes)
    # Hudi writes lazily, where it commits. What it commits then must be the files that were compared, so its lazy
    # results, from which a lost executor would let Spark write other files, are replaced by what they were.
    statistics = _call(spark, client, "triggerWritesAndFetchWriteStats", [(_WRITE_METADATA, metadata)])
    files = list_items(statistics.getDataTableWriteStats())
    _require_written(files)
    slim = spark._jvm.java.util.ArrayList()
    bounds = BoundsOfNewFiles(spark, client)
    for stat in files:
        slim.add(_status(spark, bounds.correct(stat), is_of_metadata_table=False))
    for stat in list_items(statistics.getMetadataTableWriteStats()):
        slim.add(_status(spark, stat, is_of_metadata_table=True))
    metadata.setWriteStatuses(spark._jsc.parallelize(slim))
    return UncommittedRewrite(service, instant, metadata, tuple(map(_read_statistics, files)))


def _require_written(files: Sequence[Any]) -> None:
    failed = [(int(stat.getTotalWriteErrors()), stat) for stat in files if int(stat.getTotalWriteErrors())]
    if failed:
        _, stat = failed[0]
        raise RowsNotWrittenError(
            f"Hudi failed to write {sum(rows for rows, _ in failed):,} rows of {len(failed):,} files, the first in "
            f"partition {str(stat.getPartitionPath())!r}, file group {stat.getFileId()}, and nothing was committed: "
            "the log of Spark's executors has the cause ('Error writing record')"
        )


def commit_files(context: ServiceContext, client: Any, rewrite: UncommittedRewrite) -> None:
    """Commit the files of a plan, as Hudi does.

    Raises Py4JJavaError, or, without a commit, TableChangedError or PlanOvertakenError.
    """
    with find_committer(context, client) as committer:
        if rewrite.service is Service.CLUSTERING:
            require_current(context.spark, context.read_table_state(), rewrite.instant)
        elif rewrite.service is Service.COMPACTION:
            _leave_out_written_again(context, rewrite)
        if committer is not client:
            _hand_over_pending(context.spark, client, committer)
        _commit(context.spark, committer, rewrite)
    if committer is not client:
        drop_files(client, rewrite)


def _leave_out_written_again(context: ServiceContext, rewrite: UncommittedRewrite) -> None:
    """Take the file groups from a compaction that have to wait for the next one; Hudi removes their new files."""
    if not any(file.deletes for file in rewrite.written):
        return
    spark = context.spark
    state = context.read_table_state()
    planned = files_of_plan(read_plan(spark, state, rewrite.service, rewrite.instant))
    groups = find_written_again(spark, state, planned, rewrite.written)
    if not groups:
        return
    context.log_progress(
        f"{rewrite.service} {rewrite.instant}: {len(groups)} file groups wait for the next compaction, because a key "
        f"whose deletion this one merges was written again meanwhile: {', '.join(sorted(name for _, name in groups))}"
    )
    kept = spark._jvm.java.util.ArrayList()
    for status in list_items(rewrite.metadata.getWriteStatuses().collect()):
        stat = status.getStat()
        is_data = not bool(status.isMetadataTable())
        if not (is_data and (str(stat.getPartitionPath() or ""), str(stat.getFileId())) in groups):
            kept.add(status)
    rewrite.metadata.setWriteStatuses(spark._jsc.parallelize(kept))


def _commit(spark: SparkSession, client: Any, rewrite: UncommittedRewrite) -> None:
    if rewrite.service is not Service.CLUSTERING:
        none = spark._jvm.org.apache.hudi.common.util.Option.empty()
        commit = client.commitCompaction if rewrite.service is Service.COMPACTION else client.commitLogCompaction
        commit(rewrite.instant, rewrite.metadata, none)
        return
    table = spark._jvm.org.apache.hudi.table.HoodieSparkTable.create(client.getConfig(), client.getEngineContext())
    arguments = [(_WRITE_METADATA, rewrite.metadata), (_TABLE, table), ("java.lang.String", rewrite.instant)]
    _call(spark, client, "commitClustering", arguments)


def _hand_over_pending(spark: SparkSession, client: Any, committer: Any) -> None:
    """Have the committer know what was pending when the files' writer began.

    Hudi compares a log compaction with what completed since (`preCommit`); a client that has begun nothing knows none.
    """
    field = class_of(spark, _SERVICE_CLIENT, client).getDeclaredField("pendingInflightAndRequestedInstants")
    is_open = True
    field.setAccessible(is_open)
    pending = field.get(client.getTableServiceClient())
    if pending is not None:
        _call(spark, committer, "setPendingInflightAndRequestedInstants", [("java.util.Set", pending)])


def drop_files(client: Any, rewrite: UncommittedRewrite) -> None:
    """Stop the heartbeat of a compaction that this client does not commit; a commit would have done it."""
    if rewrite.service is Service.COMPACTION:
        client.getTableServiceClient().getHeartbeatClient().stop(rewrite.instant)


def list_units(rewrite: UncommittedRewrite, planned: Mapping[Group, frozenset[str]]) -> tuple[Unit, ...]:
    """Return what can be compared of a rewrite; `planned` are the files that its plan reads."""
    units_of = units_of_partitions if rewrite.service is Service.CLUSTERING else units_of_groups
    return units_of(planned, rewrite.written)


def _status(spark: SparkSession, stat: Any, *, is_of_metadata_table: bool) -> Any:
    tracks_successes = False
    sampled_failures = 0.0
    status = spark._jvm.org.apache.hudi.client.WriteStatus(tracks_successes, sampled_failures, is_of_metadata_table)
    status.setStat(stat)
    status.setFileId(stat.getFileId())
    status.setPartitionPath(stat.getPartitionPath())
    return status


def _read_statistics(stat: Any) -> NewFile:
    return NewFile(
        str(stat.getPartitionPath() or ""),
        str(stat.getFileId()),
        str(stat.getPath()),
        int(stat.getFileSizeInBytes()),
        int(stat.getNumWrites()),
        int(stat.getNumDeletes()),
    )


def _call(spark: SparkSession, client: Any, name: str, arguments: Sequence[tuple[str, Any]]) -> Any:
    """Call a method of Hudi's that is not public, with arguments of these classes."""
    gateway: Any = spark.sparkContext._gateway
    java = spark._jvm.java.lang
    classes = gateway.new_array(java.Class, len(arguments))
    values = gateway.new_array(java.Object, len(arguments))
    for at, (class_name, value) in enumerate(arguments):
        classes[at] = class_of(spark, class_name, client)
        values[at] = value
    owner = client.getTableServiceClient()
    declared = class_of(spark, _SERVICE_CLIENT, client).getDeclaredMethod(name, classes)
    is_open = True
    declared.setAccessible(is_open)
    return declared.invoke(owner, values)
