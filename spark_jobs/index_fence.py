"""Which writers stand in the way of an index build, and how it may begin: reading them, and a pure decision.

Two kinds of writers are told apart by storage alone. With streaming writes to the metadata table (the default of Spark
writers in Hudi 1.2) a writer begins its delta commit there before it writes data, and settles which indexes it will
update at that moment; without (`hoodie.metadata.streaming.write.enabled=false`) it does both under the table's lock, as
part of its commit, by the table's properties of that moment. So under the lock, a pending write that has an instant
on the metadata table's timeline is streaming; and of a completed write, the request there is older than its data files.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from hudi_table import find_heartbeat_age_s
from index_table import HEARTBEAT_EXPIRES_S, METADATA_FOLDER, find_modified_ms, metadata_timeline_names, timeline_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hudi_table import TableLook
    from pyspark.sql import SparkSession

RECENT_WRITES = 10
UNGUARDED_S = 600.0
"""A pending write without heartbeat, touched more recently, is taken for a writer that takes no part in locking."""
STREAMING_OFF = "hoodie.metadata.streaming.write.enabled=false"


class Habit(StrEnum):
    """How the recent writers of a table update the metadata table."""

    AT_COMMIT = "at_commit"
    STREAMING = "streaming"
    UNKNOWN = "unknown"


class Begin(StrEnum):
    """How a build may begin."""

    BESIDE = "beside"
    """The lock is held until the index has its place in the metadata table; writers update it from then on."""
    ALONE = "alone"
    """The lock is held until the index is built; writers wait at their start or commit."""
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class WriterInFlight:
    """A pending write, seen under the table's lock. `beat_age_s` is None without a heartbeat."""

    instant: str
    action: str
    age_s: float
    beat_age_s: float | None
    is_streaming: bool

    @property
    def is_live(self) -> bool:
        """Whether its writer beats."""
        return self.beat_age_s is not None and self.beat_age_s <= HEARTBEAT_EXPIRES_S

    @property
    def is_unguarded(self) -> bool:
        """Whether it may be a writer that neither beats nor locks."""
        return self.beat_age_s is None and self.age_s < UNGUARDED_S

    def __str__(self) -> str:
        beat = "no heartbeat" if self.beat_age_s is None else f"last heartbeat {self.beat_age_s:.0f} s ago"
        return f"{self.action} {self.instant} (begun {self.age_s:.0f} s ago, {beat})"


@dataclass(frozen=True, slots=True)
class FenceVerdict:
    """How to begin, and why."""

    begin: Begin
    reason: str


def decide_fence(
    writers: Sequence[WriterInFlight], habit: Habit, *, stays_current: bool, no_writer: bool
) -> FenceVerdict:
    """Say how a build may begin, given the writers in flight under the lock; pure.

    `stays_current`: whether writers keep the index up to date while it is being built. `no_writer`: the operator says
    that none runs, so none may be seen.
    """
    unguarded = [writer for writer in writers if writer.is_unguarded]
    live = [writer for writer in writers if writer.is_live]
    if no_writer and (live or unguarded):
        return FenceVerdict(Begin.WAIT, f"no writer was said to run, but {_named([*live, *unguarded])} is in flight")
    if unguarded:
        return FenceVerdict(
            Begin.WAIT,
            f"{_named(unguarded)} takes no part in the locking, or has just failed; its writer needs "
            "hoodie.write.concurrency.mode=optimistic_concurrency_control and the lock provider of this service",
        )
    blind = [writer for writer in live if writer.is_streaming or habit is not Habit.AT_COMMIT]
    if blind:
        return FenceVerdict(
            Begin.WAIT,
            f"{_named(blind)} does not know of this index and would be missing in it; with {STREAMING_OFF} in the "
            "table's writers the build need not wait for them",
        )
    if not stays_current:
        return FenceVerdict(Begin.ALONE, "Hudi updates this kind of index only once it is complete")
    if habit is Habit.AT_COMMIT:
        return FenceVerdict(Begin.BESIDE, f"the last writes were made with {STREAMING_OFF}")
    why = "stream to the metadata table" if habit is Habit.STREAMING else "left no trace of how they write"
    return FenceVerdict(Begin.ALONE, f"the table's writers {why}; with {STREAMING_OFF} they need not wait")


def look_at_writers(spark: SparkSession, look: TableLook) -> tuple[WriterInFlight, ...]:
    """Return the pending writes and the services that have begun. Call it under the table's lock, with a fresh look."""
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
        newest_ms = max((ms for ms in touched if ms is not None), default=now_ms)
        writers.append(
            WriterInFlight(
                instant=requested_time,
                action=action,
                age_s=max(0.0, (now_ms - newest_ms) / 1000),
                beat_age_s=find_heartbeat_age_s(spark, look.base_path, requested_time),
                is_streaming=requested_time in known,
            )
        )
    return tuple(sorted(writers, key=lambda writer: writer.instant))


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


def _named(writers: Sequence[WriterInFlight]) -> str:
    return ", ".join(map(str, writers))
