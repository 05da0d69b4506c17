"""What to do with an index plan, how its build may begin, and which writes an index must mention. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

HEARTBEAT_EXPIRES_S = 120.0
"""Hudi's defaults; a table with others has them in its settings, see `heartbeat_expires_s`."""
UNGUARDED_S = 600.0
"""Whoever says that no writer runs is not believed beside a write without heartbeat that was touched more recently."""
STREAMING_OFF = "hoodie.metadata.streaming.write.enabled=false"
COMPACT = "COMPACT"
MOST_TRIES = 1000
FOREIGN_BUILDER_S = 1200.0
"""For its catch-up, the last 900 s at most, a builder of somebody else touches nothing of its own; and a while."""


def heartbeat_expires_s(settings: Mapping[str, str]) -> float:
    """Return the age from which a heartbeat counts as a dead one's, by the settings that all clients of a table share.

    Raises ValueError when one of them is no whole number.
    """
    interval_ms = int(settings.get("hoodie.client.heartbeat.interval_in_ms", "60000"))
    return interval_ms * int(settings.get("hoodie.client.heartbeat.tolerable.misses", "2")) / 1000


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


@dataclass(frozen=True, slots=True)
class IndexPlan:
    """A pending plan; each has one partition. `up_to` is the last completed write without holes before it."""

    instant: str
    partition: str
    up_to: str
    is_inflight: bool


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
    """A pending write, seen under the table's lock. `beat_age_s` is None without a heartbeat.

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
        """Whether its writer beats."""
        return self.beat_age_s is not None and self.beat_age_s <= self.expires_s

    @property
    def is_unguarded(self) -> bool:
        """Whether it may be a writer that neither beats nor locks, as those of single-writer mode.

        Its age tells nothing: one that reads its source, or shuffles, touches no file for as long as that takes.
        """
        return self.beat_age_s is None

    @property
    def is_young(self) -> bool:
        """Whether it was begun, or made a marker, so recently that its writer is seen to run."""
        return self.age_s < UNGUARDED_S

    def __str__(self) -> str:
        beat = "no heartbeat" if self.beat_age_s is None else f"last heartbeat {self.beat_age_s:.0f} s ago"
        return f"{self.action} {self.instant} (begun {self.age_s:.0f} s ago, {beat})"


@dataclass(frozen=True, slots=True)
class FenceVerdict:
    """How to begin, why, and the instants that are waited for."""

    begin: Begin
    reason: str
    awaited: frozenset[str] = frozenset()


def decide_fence(
    writers: Sequence[WriterInFlight],
    habit: Habit,
    *,
    stays_current: bool,
    no_writer: bool,
    is_repeated: bool = False,
    older_than: str = "",
) -> FenceVerdict:
    """Say how a build may begin, given the writers in flight under the lock.

    `stays_current`: whether writers keep the index up to date while it is being built. `no_writer`: the operator says
    that none runs, so none may be seen. `is_repeated`: writers brought the build before to nothing. `older_than`: the
    plan's instant, when the build shall wait for older writes, empty when it shall not.
    """
    unguarded = [writer for writer in writers if writer.is_unguarded and (writer.is_young or not no_writer)]
    live = [writer for writer in writers if writer.is_live]
    if no_writer and (live or unguarded):
        return _wait([*live, *unguarded], "in flight, though no writer was said to run")
    if unguarded:
        return _wait(
            unguarded,
            "without a part in the locking, or was left by a dead writer, which nothing proves; its writer needs "
            "hoodie.write.concurrency.mode=optimistic_concurrency_control and the lock provider of this service; what "
            "a dead writer left goes by a run of the service rollback that names it, and no_writer says that none runs",
        )
    blind = find_blind(live, habit)
    if blind:
        return _wait(
            blind,
            f"unaware of this index and would be missing in it; with {STREAMING_OFF} in the table's writers the build "
            "need not wait for them",
        )
    if is_repeated:
        return FenceVerdict(Begin.ALONE, "the build before failed its check")
    if not stays_current:
        return FenceVerdict(Begin.ALONE, "Hudi updates this kind of index only once it is complete")
    if habit is Habit.AT_COMMIT:
        older = [writer for writer in live if writer.instant < older_than]
        if older:
            # Their entries a compaction of the metadata table takes up at once, see find_shadowing.
            return _wait(older, "older than the plan, and its commit could hide the build")
        return FenceVerdict(Begin.BESIDE, f"the last writes were made with {STREAMING_OFF}")
    why = "stream to the metadata table" if habit is Habit.STREAMING else "left no trace of how they write"
    return FenceVerdict(Begin.ALONE, f"the table's writers {why}; with {STREAMING_OFF} they need not wait")


def find_blind(writers: Sequence[WriterInFlight], habit: Habit) -> list[WriterInFlight]:
    """Return the writers in flight that may not know of an index that came to be meanwhile.

    Those that stream, or might, settle what they update before they write any data. One that takes no part in locking
    does so at any moment, however it writes.
    """
    return [
        writer
        for writer in writers
        if writer.is_unguarded or (writer.is_live and (writer.is_streaming or habit is not Habit.AT_COMMIT))
    ]


def find_in_the_way(
    writers: Sequence[WriterInFlight], unaware: Collection[str], *, no_writer: bool
) -> list[WriterInFlight]:
    """Return the writers in flight that keep a built index from being called complete.

    `unaware` were in flight when it was built, and may not know of it. One that takes no part in locking may have begun
    at the very moment; nobody else's lock keeps it from committing while the index is checked. With `no_writer` the
    lock is our own, and reaches nobody.
    """
    return [
        writer
        for writer in writers
        if (writer.is_unguarded and (writer.is_young or not no_writer))
        or (writer.is_live and (no_writer or writer.instant in unaware))
    ]


@dataclass(frozen=True, slots=True)
class WriteChange:
    """What a completed write changed, as far as it tells whether an index must mention it."""

    operation: str
    inserts: int
    updates: int
    deletes: int
    base_files: int


def must_mention(partition: str, change: WriteChange) -> bool:
    """Whether a write has to appear in an index. An update in place changes no record's place, for example."""
    if partition in {"record_index"} or partition.startswith("secondary_index_"):
        return change.operation != COMPACT and change.inserts + change.deletes > 0
    if partition == "bloom_filters":
        return change.base_files > 0
    if partition == "column_stats":
        return change.inserts + change.updates > 0
    if partition == "partition_stats" or partition.startswith("expr_index_"):
        return change.operation != COMPACT and change.inserts + change.updates > 0
    return True


def decide_step(
    plan: IndexPlan, complete: Collection[str], inflight: Collection[str], built: BuildState, *, builder_lives: bool
) -> Step:
    """Say what a pending plan needs. `complete` and `inflight` are what the table's properties list.

    `builder_lives`: whether one of `find_rivals` has a living builder. Beside it, cleaning up would remove its files.
    """
    is_complete = plan.partition in complete
    if builder_lives:
        return Step.BUSY
    if is_complete:
        # An index of which this plan built nothing belongs to somebody else, and is in use.
        return Step.FINISH if plan.is_inflight and built is BuildState.COMPLETED else Step.REDUNDANT
    if plan.is_inflight or plan.partition in inflight or built is not BuildState.ABSENT:
        return Step.RUN_AGAIN
    return Step.RUN


def find_rivals(plan: IndexPlan, plans: Iterable[IndexPlan]) -> tuple[IndexPlan, ...]:
    """Return the inflight plans of the same index, this one among them: whoever builds one of them owns its folder."""
    return tuple(other for other in plans if other.partition == plan.partition and other.is_inflight)


@dataclass(frozen=True, slots=True)
class BuilderTraces:
    """What tells whether a builder lives; ages in seconds, None for what is not there.

    `beat_age_s` is of the heartbeat that builders of ours keep, `metadata_beat_age_s` of the one that Hudi's writer of
    the metadata table keeps, `touched_age_s` of the youngest among inflight file, files of the build, and its markers.
    """

    beat_age_s: float | None
    metadata_beat_age_s: float | None
    touched_age_s: float | None


def is_builder_alive(traces: BuilderTraces, expires_s: float) -> bool:
    """Tell a living builder from a dead one.

    Ours beat from before they begin until they end, and leave an old heartbeat behind when they fail: nothing else
    counts then. For others each fresh trace does, since a big index takes hours, and only the inflight file is old.
    """
    if traces.beat_age_s is not None:
        return traces.beat_age_s <= expires_s
    if traces.metadata_beat_age_s is not None and traces.metadata_beat_age_s <= max(expires_s, HEARTBEAT_EXPIRES_S):
        return True
    return traces.touched_age_s is not None and traces.touched_age_s <= FOREIGN_BUILDER_S


def find_shadowing(instant: str, files: Collection[str], timeline: Collection[str]) -> tuple[str, ...]:
    """Return the metadata table's compactions that hide what the completed build of a plan wrote.

    One that was planned while the build's delta commit was pending takes up the writers' entries alone, and its base
    files are younger than those of the build, which nobody reads then. `files` are the names in the index's folder,
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


def unknown_instant(instant: str, known: Collection[str]) -> str:
    """Return an instant a little younger than this one that is not known."""
    # Milliseconds are the last three of 17 digits, and roll over like any number: nobody reads this one as a time.
    return next(str(int(instant) + more) for more in range(1, MOST_TRIES) if str(int(instant) + more) not in known)


def _wait(writers: Sequence[WriterInFlight], what: str) -> FenceVerdict:
    """Wait for writers that are `what`."""
    instants = frozenset(writer.instant for writer in writers)
    return FenceVerdict(Begin.WAIT, f"{', '.join(map(str, writers))} is {what}", instants)
