"""Entries of a secondary index for a write that has completed: what its writer would have added and removed.

Hudi compares each file slice that a write made with the one before it, and finds both by the table's timeline
(`convertWriteStatsToSecondaryIndexRecords`). It does so while the write is in flight: once the write is completed, the
slice "before" is the written one, and nothing differs. So here each write gets a client of its own, whose timeline ends
where that write's commit began.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_lake_provider.shared.hudi_settings import MERGE_ON_READ
from lake_jobs.hudi.table import parse_instants
from lake_jobs.indexing.late_writes import find_shown
from lake_jobs.indexing.outcome import BuildLostError
from lake_jobs.indexing.write_stats import find_gone

if TYPE_CHECKING:
    from lake_jobs.hudi.table import LoadedTable
    from lake_jobs.indexing.late_writes import LateWrite
    from lake_jobs.services.context import ServiceContext


def convert_to_secondary(
    context: ServiceContext, state: LoadedTable, builder: Any, definition: Any, write: LateWrite, metadata: Any
) -> Any:
    """Return Hudi's entries of a completed write for a secondary index.

    `metadata` is the write's, with the names of log files. Raises BuildLostError when files of the write, or those
    before it, were cleaned since, and Py4JJavaError.
    """
    # A view without these files would show an older slice, or none: keys that moved since would lose their entry.
    gone = find_gone(context.spark, state, metadata)
    if gone:
        raise BuildLostError(
            f"{write.action} {write.instant} completed during the build, and {gone}, which shows what it changed, was "
            "cleaned since: let the cleaner retain more commits"
        )
    jvm = context.spark._jvm
    config = _without_timeline_server(context, builder)
    stats = jvm.java.util.ArrayList()
    for of_partition in metadata.getPartitionToWriteStats().values():
        stats.addAll(of_partition)
    return jvm.org.apache.hudi.metadata.SecondaryIndexRecordGenerationUtils.convertWriteStatsToSecondaryIndexRecords(
        stats, write.instant, definition, config.getMetadataConfig(), _client_of_then(context, state, write),
        builder.getEngineContext(), config,
    )  # fmt: skip


def _client_of_then(context: ServiceContext, state: LoadedTable, write: LateWrite) -> Any:
    """Return a client of the table whose timeline ends before a write completed; tasks get it with this timeline."""
    jvm = context.spark._jvm
    instants = state.timeline.getInstants()
    parsed = parse_instants(str(instants.toString()), int(instants.size()))
    listed = [(instant.completed_time, instant.action) for instant in parsed]
    shown = jvm.java.util.ArrayList()
    for begin, end in find_shown(listed, write, merges_on_read=state.table_type == MERGE_ON_READ):
        shown.addAll(instants.subList(begin, end))
    client = jvm.org.apache.hudi.common.table.HoodieTableMetaClient.reload(state.meta_client)
    client.getActiveTimeline().setInstants(shown)
    return client


def _without_timeline_server(context: ServiceContext, builder: Any) -> Any:
    """Return the builder's settings with views of the table in memory.

    A timeline server has a timeline of its own, in which the write is completed.
    """
    jvm = context.spark._jvm
    views = jvm.org.apache.hudi.common.table.view
    config = (
        jvm.org.apache.hudi.config.HoodieWriteConfig.newBuilder().withProperties(builder.getConfig().getProps()).build()
    )
    in_memory = views.FileSystemViewStorageConfig.newBuilder().fromProperties(config.getProps())
    config.setViewStorageConfig(in_memory.withStorageType(views.FileSystemViewStorageType.MEMORY).build())
    return config
