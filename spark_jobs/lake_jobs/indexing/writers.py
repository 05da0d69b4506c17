"""Which processes stand in the way of an index build, read from storage: writers, other builders, older Hudi.

Storage alone distinguishes two kinds of writers. With streaming writes to the metadata table (the default of Spark
writers in Hudi 1.2) a writer begins its delta commit there before it writes data, and settles which indexes it will
update at that moment; without (`hoodie.metadata.streaming.write.enabled=false`) it does both under the table's lock, as
part of its commit, by the table's properties of that moment. So under the lock, a pending write that has an instant
on the metadata table's timeline is streaming; and of a completed write, the request there is older than its data files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError

from airflow_lake_provider.job_contract import LAST_VERSION_OF_1_0, METADATA_TABLE
from airflow_lake_provider.shared.actions import COMPARABLE_ACTION
from lake_jobs.hudi.files import find_modified_ms, open_path
from lake_jobs.hudi.metadata_writes import recent_headers
from lake_jobs.hudi.settings import heartbeat_expires_s
from lake_jobs.hudi.store_clock import store_now_ms
from lake_jobs.hudi.table import find_heartbeat_age_s
from lake_jobs.indexing.hudi_internals import (
    find_writers_problem,
)
from lake_jobs.indexing.rules import BuilderTraces, WriterInFlight, is_builder_alive
from lake_jobs.indexing.state import list_partition, metadata_timeline_names, timeline_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake_jobs.hudi.table import LoadedTable
    from lake_jobs.indexing.rules import IndexPlan
    from lake_jobs.services.context import ServiceContext


def find_writers_in_flight(context: ServiceContext, state: LoadedTable) -> tuple[WriterInFlight, ...]:
    """Return pending writes and services that have begun. Call it under the table's lock, with a fresh state."""
    spark = context.spark
    expires_s = heartbeat_expires_s(context.settings)
    now_ms = store_now_ms(spark, state.base_path)
    known = {name.split(".")[0].split("_")[0] for name in metadata_timeline_names(spark, state.base_path)}
    writers = []
    for instant in state.timeline.getWriteTimeline().filterInflightsAndRequested().getInstants():
        requested_time = str(instant.requestedTime())
        action = str(instant.getAction())
        if instant.isRequested() and action in COMPARABLE_ACTION:
            continue  # a plan that no executor has begun
        names = (
            f"{requested_time}.{action}.inflight",
            f"{requested_time}.inflight",
            f"{requested_time}.{action}.requested",
        )
        touched = [find_modified_ms(spark, timeline_file(state, name)) for name in names]
        beat_age_s = find_heartbeat_age_s(spark, state.base_path, requested_time)
        if beat_age_s is None:
            # A long write that does not beat touches nothing on the timeline, but goes on making markers.
            touched.append(find_newest_marker_ms(spark, state.base_path, requested_time))
        newest_ms = max((ms for ms in touched if ms is not None), default=now_ms)
        writers.append(
            WriterInFlight(
                instant=requested_time,
                action=action,
                age_s=max(0.0, (now_ms - newest_ms) / 1000),
                beat_age_s=beat_age_s,
                is_streaming=requested_time in known,
                expires_s=expires_s,
            )
        )
    return tuple(sorted(writers, key=lambda writer: writer.instant))


def find_newest_marker_ms(spark: SparkSession, base_path: str, instant: str) -> int | None:
    """Return when a pending write made its last marker, by the store's clock; None when it has none."""
    fs, folder = open_path(spark, f"{base_path}/.hoodie/.temp/{instant}")
    recursive = True
    try:
        files = fs.listFiles(folder, recursive)
    except Py4JJavaError:
        return None
    newest_ms = None
    while files.hasNext():
        newest_ms = max(newest_ms or 0, int(files.next().getModificationTime()))
    return newest_ms


# --- Whether a builder of an index runs: the traces that builders leave.


def is_build_running(context: ServiceContext, state: LoadedTable, plan: IndexPlan) -> bool:
    """Return whether the builder of an inflight plan runs."""
    return is_builder_alive(load_builder_traces(context, state, plan), heartbeat_expires_s(context.settings))


def load_builder_traces(context: ServiceContext, state: LoadedTable, plan: IndexPlan) -> BuilderTraces:
    """Read what the builder of a plan left."""
    spark = context.spark
    metadata = f"{state.base_path}/{METADATA_TABLE}"
    touched = (
        find_modified_ms(spark, timeline_file(state, f"{plan.instant}.indexing.inflight")),
        _find_newest_file_ms(context, plan),
        find_newest_marker_ms(spark, metadata, plan.instant),
    )
    now_ms = store_now_ms(spark, state.base_path)
    newest_ms = max((ms for ms in touched if ms is not None), default=None)
    return BuilderTraces(
        beat_age_s=find_heartbeat_age_s(spark, state.base_path, plan.instant),
        metadata_beat_age_s=find_heartbeat_age_s(spark, metadata, plan.instant),
        touched_age_s=None if newest_ms is None else (now_ms - newest_ms) / 1000,
    )


def _find_newest_file_ms(context: ServiceContext, plan: IndexPlan) -> int | None:
    """Return when a build wrote a file last; writers update an announced index in files of their own instants."""
    try:
        _, files = list_partition(context, plan)
    except Py4JJavaError:
        return None
    own = [status for status in files if f"_{plan.instant}." in str(status.getPath().getName())]
    return max((int(status.getModificationTime()) for status in own), default=None)


# --- The Hudi of the table's writers


def find_hudi_problem(spark: SparkSession, state: LoadedTable) -> str:
    """Return why the Hudi of the table's writers rules out index builds; empty when it does not."""
    if state.table_version > LAST_VERSION_OF_1_0:
        return ""
    return find_writers_problem(recent_headers(spark, state))
