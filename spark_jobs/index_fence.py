"""Which writers stand in the way of an index build: read from storage.

Two kinds of writers are told apart by storage alone. With streaming writes to the metadata table (the default of Spark
writers in Hudi 1.2) a writer begins its delta commit there before it writes data, and settles which indexes it will
update at that moment; without (`hoodie.metadata.streaming.write.enabled=false`) it does both under the table's lock, as
part of its commit, by the table's properties of that moment. So under the lock, a pending write that has an instant
on the metadata table's timeline is streaming; and of a completed write, the request there is older than its data files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hudi_table import find_heartbeat_age_s
from index_rules import Habit, WriterInFlight, heartbeat_expires_s
from index_table import METADATA_FOLDER, find_modified_ms, metadata_timeline_names, timeline_file
from py4j.protocol import Py4JJavaError
from whole_file import open_path

RECENT_WRITES = 10

if TYPE_CHECKING:
    from hudi_table import TableLook
    from planned_service import Visit
    from pyspark.sql import SparkSession


def look_at_writers(visit: Visit, look: TableLook) -> tuple[WriterInFlight, ...]:
    """Return the pending writes and the services that have begun. Call it under the table's lock, with a fresh look."""
    spark, expires_s = visit.spark, heartbeat_expires_s(visit.settings)
    now_ms = int(spark._jvm.java.lang.System.currentTimeMillis())
    known = {name.split(".")[0].split("_")[0] for name in metadata_timeline_names(spark, look.base_path)}
    writers = []
    for instant in look.timeline.getWriteTimeline().filterInflightsAndRequested().getInstants():
        requested_time, action = str(instant.requestedTime()), str(instant.getAction())
        if instant.isRequested() and action in {"compaction", "logcompaction", "clustering"}:
            continue  # a plan that nobody executes
        names = (
            f"{requested_time}.{action}.inflight",
            f"{requested_time}.inflight",
            f"{requested_time}.{action}.requested",
        )
        touched = [find_modified_ms(spark, timeline_file(look, name)) for name in names]
        beat_age_s = find_heartbeat_age_s(spark, look.base_path, requested_time)
        if beat_age_s is None:
            # A long write that does not beat touches nothing on the timeline, but goes on making markers.
            touched.append(find_newest_marker_ms(spark, look.base_path, requested_time))
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


def find_habit(spark: SparkSession, look: TableLook) -> Habit:
    """Tell from the last completed writes how the table's writers update the metadata table.

    One streaming write is enough: there may be several writers.
    """
    seen = []
    for instant in list(look.timeline.getCommitsTimeline().filterCompletedInstants().getInstants())[-RECENT_WRITES:]:
        streams = _was_streaming(spark, look, instant)
        if streams is not None:
            seen.append(streams)
    if any(seen):
        return Habit.STREAMING
    return Habit.AT_COMMIT if seen else Habit.UNKNOWN


def write_stats(look: TableLook, instant: Any) -> list[Any]:
    """Return Hudi's write statistics of a completed write."""
    timeline = look.timeline
    read = timeline.readReplaceCommitMetadata if instant.getAction() == "replacecommit" else timeline.readCommitMetadata
    return [stat for stats in read(instant).getPartitionToWriteStats().values() for stat in stats]


def _was_streaming(spark: SparkSession, look: TableLook, instant: Any) -> bool | None:
    folder = f"{look.base_path}/{METADATA_FOLDER}/.hoodie/timeline"
    asked_ms = find_modified_ms(spark, f"{folder}/{instant.requestedTime()}.deltacommit.requested")
    if asked_ms is None:
        return None
    for stat in write_stats(look, instant):
        written_ms = find_modified_ms(spark, f"{look.base_path}/{stat.getPath()}")
        # Equal times tell nothing: some stores count in seconds.
        if written_ms is not None and written_ms != asked_ms:
            return asked_ms < written_ms
    return None
