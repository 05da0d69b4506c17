"""What to do with an index plan, how its build may begin, and which writes an index must mention. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from airflow_lake_provider.job_contract import EXPRESSION_INDEX_PREFIX, SECONDARY_INDEX_PREFIX
from lake_jobs.hudi.settings import HEARTBEAT_EXPIRES_S, MetadataWriteMode

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

UNGUARDED_S = 600.0
"""`no_writer` counts as wrong when a write without heartbeat was touched more recently."""
STREAMING_OFF = "hoodie.metadata.streaming.write.enabled=false"
COMPACT = "COMPACT"
LOG_COMPACT = "LOG_COMPACT"
CLUSTER = "CLUSTER"
_BUILT_LAST = ("partition_stats", SECONDARY_INDEX_PREFIX)
MAX_TRIES = 1000
FOREIGN_BUILDER_S = 1200.0
"""For its catch-up, the last 900 s at most, a foreign builder touches nothing of its own; and some margin."""


class BuildState(StrEnum):
    """How far the delta commit of a build is on the metadata table's timeline."""

    ABSENT = "absent"
    PENDING = "pending"
    COMPLETED = "completed"


class Step(StrEnum):
    """What to do with a pending plan."""

    RUN = "run"
    BUSY = "busy"
    RUN_AGAIN = "run_again"
    """Its builder died: remove what it left and run it again."""
    FINISH = "finish"
    """It is built and in use, and only its check did not end: check it and complete the instant."""
    REDUNDANT = "redundant"
    """The index is there already: the plan can never run."""


def find_resting(partition: str, there: Collection[str]) -> frozenset[str]:
    """Return which of the indexes that are there readers cannot use, or writers not update, without this one."""
    others = frozenset(there) - {partition}
    if partition == "files":
        return others
    if partition == "record_index":
        return frozenset(name for name in others if name.startswith(SECONDARY_INDEX_PREFIX))
    return others & {"partition_stats"} if partition == "column_stats" else frozenset()


@dataclass(frozen=True, slots=True)
class IndexPlan:
    """A pending plan. `up_to` is the last completed write without holes before it.

    A plan of the provider has one partition. Other clients write plans of several; `others` are the further ones.
    """

    instant: str
    partition: str
    up_to: str
    is_inflight: bool
    others: tuple[str, ...] = ()

    @property
    def partitions(self) -> tuple[str, ...]:
        """All indexes that the plan names, in the order in which they can be built."""
        # Statistics of partitions are computed from those of files, and a secondary index needs the record index.
        return tuple(sorted((self.partition, *self.others), key=lambda name: name.startswith(_BUILT_LAST)))

    def parts(self) -> tuple[IndexPlan, ...]:
        """Return the plan as one for each index."""
        return tuple(replace(self, partition=partition, others=()) for partition in self.partitions)


class Begin(StrEnum):
    """How a build may begin."""

    CONCURRENTLY = "concurrently"
    """The lock is held until the index has its file groups in the metadata table; writers update it from then on."""
    CATCH_UP = "catch_up"
    """The lock is held until the index has its place in the metadata table. Writers do not update it; what they commit
    meanwhile is written into it afterwards, under the lock, before it is listed."""
    ALONE = "alone"
    """The lock is held until the index is built; writers wait at their start or commit."""
    WAIT = "wait"


class Upkeep(StrEnum):
    """What brings into an index what is committed while it is being built, apart from writers that stream."""

    BY_WRITERS = "by_writers"
    BY_BUILDER = "by_builder"
    """Writers update it only once it is complete; their commits can be written into it afterwards."""
    NONE = "none"


@dataclass(frozen=True, slots=True)
class WriterInFlight:
    """A pending write, read under the table's lock. `beat_age_s` is None without a heartbeat.

    `expires_s` is the oldest age of a heartbeat that still counts.
    """

    instant: str
    action: str
    age_s: float
    beat_age_s: float | None
    is_streaming: bool
    expires_s: float = HEARTBEAT_EXPIRES_S

    @property
    def is_live(self) -> bool:
        """Whether its writer's heartbeat is fresh."""
        return self.beat_age_s is not None and self.beat_age_s <= self.expires_s

    @property
    def is_unguarded(self) -> bool:
        """Whether it may be a writer that neither beats nor locks, as those of single-writer mode.

        Its age proves nothing: one that reads its source, or shuffles, touches no file for as long as that takes.
        """
        return self.beat_age_s is None

    @property
    def is_young(self) -> bool:
        """Whether it was begun, or made a marker, so recently that its writer must be running."""
        return self.age_s < UNGUARDED_S

    def __str__(self) -> str:
        beat = "no heartbeat" if self.beat_age_s is None else f"last heartbeat {self.beat_age_s:.0f} s ago"
        return f"{self.action} {self.instant} (begun {self.age_s:.0f} s ago, {beat})"


@dataclass(frozen=True, slots=True)
class BarrierVerdict:
    """How to begin, why, and the instants for which the build waits."""

    begin: Begin
    reason: str
    awaited: frozenset[str] = frozenset()


def decide_writer_barrier(
    writers: Sequence[WriterInFlight],
    write_mode: MetadataWriteMode,
    *,
    upkeep: Upkeep,
    no_writer: bool,
    is_repeated: bool = False,
    older_than: str = "",
) -> BarrierVerdict:
    """Return how a build may begin, given the writers in flight under the lock.

    `no_writer`: the operator says that no writer runs, so none may be in flight. `is_repeated`: an earlier build failed
    because of writers. `older_than`: the plan's instant when the build waits for older writes, empty when it does not.
    """
    unguarded = [writer for writer in writers if writer.is_unguarded and (writer.is_young or not no_writer)]
    live = [writer for writer in writers if writer.is_live]
    if no_writer and (live or unguarded):
        return _wait([*live, *unguarded], "in flight, though the request says that no writer runs")
    if unguarded:
        return _wait(
            unguarded,
            "without a part in the locking, or was left by a dead writer, which nothing proves; its writer needs "
            "hoodie.write.concurrency.mode=optimistic_concurrency_control and the lock provider of this service; "
            "a run of the service rollback removes what it names of a dead writer, and no_writer says that none runs",
        )
    unaware = find_unaware_writers(live, write_mode)
    if unaware:
        return _wait(
            unaware,
            f"unaware of this index and would be missing in it; with {STREAMING_OFF} in the table's writers the build "
            "need not wait for them",
        )
    if is_repeated:
        return BarrierVerdict(Begin.ALONE, "the build before failed its check")
    if upkeep is not Upkeep.BY_WRITERS:
        why = "Hudi updates this kind of index only once it is complete"
        if upkeep is Upkeep.NONE:
            return BarrierVerdict(Begin.ALONE, why)
        if live:
            # Older than what the build reads, their commits may be archived before it ends: see `find_late_writes`.
            return BarrierVerdict(Begin.ALONE, f"{why}, and {', '.join(map(str, live))} is in flight")
        return BarrierVerdict(Begin.CATCH_UP, f"{why}, so what is committed meanwhile is written into it afterwards")
    if write_mode is MetadataWriteMode.AT_COMMIT:
        older = [writer for writer in live if writer.instant < older_than]
        if older:
            # A compaction of the metadata table merges their entries at once, see find_shadowing.
            return _wait(older, "older than the plan, and its commit could hide the build")
        return BarrierVerdict(Begin.CONCURRENTLY, f"the last writes were made with {STREAMING_OFF}")
    why = (
        "stream to the metadata table"
        if write_mode is MetadataWriteMode.STREAMING
        else "left no trace of how they write"
    )
    return BarrierVerdict(
        Begin.CATCH_UP, f"the table's writers {why}, so what they commit during the build is written into it afterwards"
    )


def find_unaware_writers(writers: Sequence[WriterInFlight], write_mode: MetadataWriteMode) -> list[WriterInFlight]:
    """Return the writers in flight that may not know of an index that was announced meanwhile.

    Those that stream, or might, settle what they update before they write any data. One that takes no part in locking
    does so at any moment, however it writes.
    """
    return [
        writer
        for writer in writers
        if writer.is_unguarded
        or (writer.is_live and (writer.is_streaming or write_mode is not MetadataWriteMode.AT_COMMIT))
    ]


def find_in_the_way(
    writers: Sequence[WriterInFlight], unaware: Collection[str], *, no_writer: bool
) -> list[WriterInFlight]:
    """Return the writers in flight that keep a built index from being called complete.

    `unaware` were in flight when the index was built, and may not know of it. A writer without locking counts even if
    it has just begun: no lock keeps it from committing during the check. With `no_writer` the lock is this job's own,
    and guards against no other process.
    """
    return [
        writer
        for writer in writers
        if (writer.is_unguarded and (writer.is_young or not no_writer))
        or (writer.is_live and (no_writer or writer.instant in unaware))
    ]


@dataclass(frozen=True, slots=True)
class WriteChange:
    """What a completed write changed, as far as it decides whether an index must mention it."""

    operation: str
    inserts: int
    updates: int
    deletes: int
    base_files: int


def must_mention(partition: str, change: WriteChange) -> bool:
    """Whether a write has to appear in an index.

    An update in place does not change where a record is, so the record index need not mention it. The statistics of a
    compaction include the deletes of the log files that it merges; the index has had those since they were written. A
    clustering moves records and changes no value, so only indexes of places mention it. A log compaction leaves its
    file without statistics where metadata is written in streams, and no reader skips such a file.
    """
    if partition == "record_index":
        return change.operation not in {COMPACT, LOG_COMPACT} and change.inserts + change.deletes > 0
    if partition.startswith(SECONDARY_INDEX_PREFIX):
        return change.operation not in {COMPACT, LOG_COMPACT, CLUSTER} and change.inserts + change.deletes > 0
    if partition == "bloom_filters":
        return change.base_files > 0
    if partition == "column_stats":
        return change.operation != LOG_COMPACT and change.inserts + change.updates > 0
    if partition == "partition_stats" or partition.startswith(EXPRESSION_INDEX_PREFIX):
        return change.operation not in {COMPACT, LOG_COMPACT} and change.inserts + change.updates > 0
    return True


def find_missed(there: Mapping[str, int], found: Mapping[str, int]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the record keys that searches missed, and those that stand in the table several times.

    `there` and `found` count the rows of each key in the table, and in what the searches found. A key that is there
    several times has one place in an index, so finding some of its rows is all that an index can do.
    """
    missed = sorted(key for key, rows in there.items() if found.get(key, 0) < min(rows, 1))
    return tuple(missed), tuple(sorted(key for key, rows in there.items() if rows > 1))


def decide_step(
    plan: IndexPlan, complete: Collection[str], inflight: Collection[str], built: BuildState, *, is_build_running: bool
) -> Step:
    """Return what a pending plan needs. `complete` and `inflight` are what the table's properties list.

    `is_build_running`: whether a builder of one of `find_rivals` runs. Cleaning up would remove its files.
    """
    is_complete = plan.partition in complete
    if is_build_running:
        return Step.BUSY
    if is_complete:
        # An index of which this plan built nothing belongs to another plan, and is in use.
        return Step.FINISH if plan.is_inflight and built is BuildState.COMPLETED else Step.REDUNDANT
    if plan.is_inflight or plan.partition in inflight or built is not BuildState.ABSENT:
        return Step.RUN_AGAIN
    return Step.RUN


def find_rivals(plan: IndexPlan, plans: Iterable[IndexPlan]) -> tuple[IndexPlan, ...]:
    """Return the inflight plans of the same index, this one among them: a builder of any of them owns its folder."""
    return tuple(other for other in plans if plan.partition in other.partitions and other.is_inflight)


@dataclass(frozen=True, slots=True)
class BuilderTraces:
    """What shows whether a builder runs; ages in seconds, None for what is not there.

    `beat_age_s` is of the heartbeat that the provider's builders keep, `metadata_beat_age_s` of the one that Hudi's
    writer of the metadata table keeps, `touched_age_s` of the youngest among inflight file, files of the build, and its
    markers.
    """

    beat_age_s: float | None
    metadata_beat_age_s: float | None
    touched_age_s: float | None


def is_builder_alive(traces: BuilderTraces, expires_s: float) -> bool:
    """Return whether a builder with these traces runs.

    The provider's builders beat from before they begin until they end, and leave an old heartbeat when they fail:
    nothing else counts then. For others each fresh trace does, since a big index takes hours, and only the inflight
    file is old.
    """
    if traces.beat_age_s is not None:
        return traces.beat_age_s <= expires_s
    if traces.metadata_beat_age_s is not None and traces.metadata_beat_age_s <= max(expires_s, HEARTBEAT_EXPIRES_S):
        return True
    return traces.touched_age_s is not None and traces.touched_age_s <= FOREIGN_BUILDER_S


def find_shadowing(instant: str, files: Collection[str], timeline: Collection[str]) -> tuple[str, ...]:
    """Return the metadata table's compactions that hide what the completed build of a plan wrote.

    One that was planned while the build's delta commit was pending takes up the writers' entries alone, and its base
    files are younger than those of the build, which no reader opens then. `files` are the names in the index's folder,
    `timeline` those of the metadata table's timeline. A pending compaction counts, as it may do the same.
    """
    ends = {name.partition("_")[2].partition(".")[0] for name in timeline if _is_end_of(instant, name)}
    bases = {name.rpartition("_")[2].partition(".")[0] for name in files if name.endswith(".hfile")}
    completed = {name.partition("_")[0] for name in timeline if name.endswith(".commit")}
    planned = {name.partition(".")[0] for name in timeline if name.endswith(".compaction.requested")}
    candidates = bases | (planned - completed)
    return tuple(sorted(time for time in candidates if time > instant and any(time <= end for end in ends)))


def _is_end_of(instant: str, name: str) -> bool:
    return name.startswith(f"{instant}_") and name.endswith(".deltacommit")


def find_unused_instant(instant: str, known: Collection[str]) -> str:
    """Return an instant a little younger than this one that is not known."""
    # Milliseconds are the last three of 17 digits, and roll over like any number: no reader takes this one for a time.
    return next(str(int(instant) + more) for more in range(1, MAX_TRIES) if str(int(instant) + more) not in known)


def _wait(writers: Sequence[WriterInFlight], what: str) -> BarrierVerdict:
    """Wait for writers that are `what`."""
    instants = frozenset(writer.instant for writer in writers)
    return BarrierVerdict(Begin.WAIT, f"{', '.join(map(str, writers))} is {what}", instants)
