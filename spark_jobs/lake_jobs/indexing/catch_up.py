"""Write into a built index what was committed while it was being built, before the table lists it.

A writer that streams its metadata writes updates an index only when the table lists it as complete
(`getStreamingMetadataPartitionsToUpdate` of Hudi's metadata writer), and readers use it from that moment on. So an
index that is built next to such writers lacks what they commit meanwhile. Hudi's conversion of a commit into entries of
the metadata table needs only the commit's metadata and its files. So this module repeats it for each of these commits,
and writes the entries by delta commits of their own. Readers of Hudi 1.0 to 1.2 accept each completed delta commit that
is not pending on the table's timeline (`getValidInstantTimestamps`).
"""

from __future__ import annotations

import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError, Py4JJavaError

from airflow_lake_provider.job_contract import EXPRESSION_INDEX_PREFIX, SECONDARY_INDEX_PREFIX
from airflow_lake_provider.shared.actions import Action
from lake_jobs.driver.failure import causes_of, describe
from lake_jobs.hudi.metadata_writes import read_commit_metadata
from lake_jobs.hudi.table import class_of, find_instant, hold_lock, list_items, requested_times
from lake_jobs.indexing.barrier import WritersInTheWayError, find_unaware, wait_for_end_of_one
from lake_jobs.indexing.check import change_of, load_metadata_timeline, mentions_index
from lake_jobs.indexing.expression import convert_to_expression, writer_that_knows
from lake_jobs.indexing.hudi_internals import COMMIT, COMMIT_PARAMETERS, WRITER_CLASS, find_method
from lake_jobs.indexing.hudi_writer import invoke, make_metadata_writer
from lake_jobs.indexing.late_writes import (
    LateWrite,
    find_newest_time,
    find_unrepeatable,
    gather_late_writes,
    has_entries,
    wait_for_younger,
)
from lake_jobs.indexing.outcome import BuildLostError, IndexDamagedError
from lake_jobs.indexing.rules import BuildState, find_in_the_way, must_mention
from lake_jobs.indexing.secondary import convert_to_secondary
from lake_jobs.indexing.state import find_build_state, metadata_timeline_names
from lake_jobs.indexing.write_stats import is_log, is_there, keep_what_is_there, restore_log_files, sibling
from lake_jobs.indexing.writers import find_writers_in_flight
from lake_jobs.services.context import seconds_since

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lake_jobs.hudi.table import LoadedTable
    from lake_jobs.indexing.rules import IndexPlan
    from lake_jobs.indexing.settings import IndexOptions
    from lake_jobs.services.context import ServiceContext

HOLD_S = 1.0
"""A hold of the lock that leaves some writes for the next one writes no further delta commit after this time."""
MAX_SHORT_HOLDS = 20
"""From then on a hold writes all that is left: writers commit faster than short holds write."""
CLOCKS_DIFFER_S = 30.0


@dataclass(frozen=True, slots=True)
class Base:
    """The requested times of what had completed when a build began, and that of the newest write among it."""

    known: frozenset[str]
    newest_write: str


@dataclass(frozen=True, slots=True)
class BuiltNextTo:
    """A build whose index writers did not update: clients that take the lock and that build, and what it began with."""

    lock_client: Any
    builder: Any
    plan: IndexPlan
    base: Base
    definition: Any
    """Hudi's definition of the index, which the table does not list yet; None for a kind without one."""


def read_base(state: LoadedTable) -> Base:
    """Return what has completed; no writer is in flight, and the caller holds the lock. Raises Py4JJavaError."""
    completed = state.timeline.filterCompletedInstants()
    writes = requested_times(completed.getCommitsTimeline())
    return Base(frozenset(requested_times(completed)), writes[-1] if writes else "")


@contextmanager
def caught_up(context: ServiceContext, built: BuiltNextTo, options: IndexOptions, passed: set[str]) -> Iterator[None]:
    """Hold the table's lock at a moment when a built index has everything, and no writer is in flight that it may miss.

    What is written is added to `passed` (`find_missing_writes`). Raises WritersInTheWayError when no such moment comes
    within `check_timeout_s`, BuildLostError when a write cannot be repeated or the build is gone, IndexDamagedError,
    IndexFailure, or Py4JJavaError.
    """
    deadline = time.monotonic() + options.check_timeout_s
    known = built.base.known
    plan = built.plan
    for number in count(1):
        with hold_lock(context.spark, built.lock_client):
            state = context.read_table_state()
            writers = find_writers_in_flight(context, state)
            unaware = find_unaware(context, state, writers)
            awaited = find_in_the_way(writers, unaware, no_writer=options.no_writer)
            if not awaited:
                budget_s = HOLD_S if number <= MAX_SHORT_HOLDS else None
                late = find_late_writes(state, built.base, known)
                done = write_late(context, built, state, late, budget_s)
                known |= done
                passed |= done
                if len(done) == len(late):
                    yield
                    return
                continue
        if time.monotonic() >= deadline:
            raise WritersInTheWayError(
                f"{plan.partition} is built; no quiet moment within {options.check_timeout_s:.0f} s to write into it "
                f"what was committed meanwhile: {', '.join(map(str, awaited))} in flight; the next run builds it again"
            )
        wait_for_end_of_one(context, frozenset(writer.instant for writer in awaited))


def find_late_writes(state: LoadedTable, base: Base, known: frozenset[str]) -> list[LateWrite]:
    """Return the completed writes and cleans whose requested times are not known; `base` is that of the build.

    Raises BuildLostError after a restore, or when some may be archived by now, and Py4JJavaError.
    """
    timeline = state.timeline.filterCompletedInstants()
    # The oldest go into the archive first, and what is late began after the newest write that the build knew of.
    if base.newest_write and base.newest_write not in requested_times(timeline.getCommitsTimeline()):
        raise BuildLostError(
            f"write {base.newest_write}, the newest one when the build began, is archived, so later ones may be: let "
            "the archive leave more commits"
        )
    late = []
    for instant in list_items(timeline.getInstants()):
        requested = str(instant.requestedTime())
        action = str(instant.getAction())
        if requested in known:
            continue
        if action == Action.RESTORE:
            raise BuildLostError(f"restore {requested} completed during the build")
        if action == Action.CLEAN:
            late.append(LateWrite(requested, str(instant.getCompletionTime()), action, None))
    for instant in list_items(timeline.getCommitsTimeline().getInstants()):
        requested = str(instant.requestedTime())
        if requested not in known:
            completed = str(instant.getCompletionTime())
            action = str(instant.getAction())
            late.append(LateWrite(requested, completed, action, change_of(state, instant)))
    return late


def write_late(
    context: ServiceContext, built: BuiltNextTo, state: LoadedTable, late: Sequence[LateWrite], budget_s: float | None
) -> frozenset[str]:
    """Write entries of late writes into an index, oldest first; return the requested times of those that it has now.

    The caller holds the table's lock. Raises BuildLostError, IndexDamagedError, IndexFailure, or Py4JJavaError.
    """
    plan = built.plan
    if find_build_state(context.spark, state.base_path, plan.instant) is not BuildState.COMPLETED:
        raise BuildLostError(f"Hudi ended the build of {plan.partition} (plan {plan.instant}) without its delta commit")
    if not late:
        return frozenset()
    unrepeatable = find_unrepeatable(late)
    if unrepeatable:
        names = ", ".join(f"{write.change.operation if write.change else ''} {write.instant}" for write in unrepeatable)
        raise BuildLostError(f"{names} completed during the build of {plan.partition}, and only a build can index that")
    started = time.monotonic()
    done: list[LateWrite] = []
    writer = _LateWriter(context, built, state)
    try:
        for batch in gather_late_writes(plan.partition, late):
            if done and budget_s is not None and time.monotonic() - started >= budget_s:
                break
            try:
                writer.write(batch)
            except Py4JError as error:
                # Files may be cleaned by now, and another Hudi may lack a method: a build needs neither.
                names = ", ".join(write.instant for write in batch)
                is_java = isinstance(error, Py4JJavaError)
                problem = describe(causes_of(error.java_exception)) if is_java else str(error)
                raise BuildLostError(f"{names} could not be written into {plan.partition}: {problem}") from error
            done.extend(batch)
    finally:
        writer.close()
    context.log_progress(
        f"index {plan.partition}: wrote into it {len(done)} of the {len(late)} writes that completed since, in "
        f"{seconds_since(started)}"
    )
    return frozenset(write.instant for write in done)


class _LateWriter:
    """Hudi's metadata writer, for delta commits that hold one index's entries of writes that have completed."""

    def __init__(self, context: ServiceContext, built: BuiltNextTo, state: LoadedTable) -> None:
        self._visit = context
        self._builder = built.builder
        self._plan = built.plan
        self._definition = built.definition
        self._state = state
        self._commit = find_method(class_of(context.spark, WRITER_CLASS, built.builder), COMMIT, COMMIT_PARAMETERS)
        self._opened = ExitStack()
        if built.plan.partition.startswith(EXPRESSION_INDEX_PREFIX):
            knowing = writer_that_knows(context, built.builder, built.plan, built.definition)
            self._writer = self._opened.enter_context(knowing)
        else:
            self._writer = make_metadata_writer(context, built.builder, built.plan)
            self._opened.callback(self._writer.close)
        self._held_by_later: set[str] = set()
        """Writes whose files are gone: what they held is in files of later ones."""

    def write(self, batch: Sequence[LateWrite]) -> None:
        """Write a delta commit with the entries of these writes."""
        entries = [found for write in batch if (found := self._entries_of(write)) is not None]
        if not entries:
            return
        together = entries[0]
        for more in entries[1:]:
            together = together.union(more)
        entries_of = self._visit.spark._jvm.java.util.HashMap()
        entries_of.put(self._plan.partition, together)
        instant = self._new_instant()
        invoke(self._visit, self._commit, self._writer, instant, entries_of)
        self._require(batch, instant)

    def close(self) -> None:
        self._opened.close()

    def _entries_of(self, write: LateWrite) -> Any:
        """Return Hudi's entries of a write for the index; None when there are none."""
        if not has_entries(self._plan.partition, write):
            return None
        jvm = self._visit.spark._jvm
        config = self._builder.getConfig()
        timeline = self._state.timeline
        engine = self._builder.getEngineContext()
        option = jvm.org.apache.hudi.common.util.Option.of(config.getRecordMerger().getRecordType())
        if write.action == Action.CLEAN:
            instant = find_instant(timeline.getCleanerTimeline().filterCompletedInstants(), write.instant)
            found = jvm.org.apache.hudi.metadata.HoodieTableMetadataUtil.convertMetadataToRecords(
                engine, timeline.readCleanMetadata(instant), write.instant, self._state.meta_client,
                config.getMetadataConfig(), self._writer.getEnabledPartitionTypes(),
                config.getBloomIndexParallelism(), option,
            )  # fmt: skip
            return found.get(self._plan.partition)
        partitions = jvm.java.util.HashSet()
        partitions.add(self._plan.partition)
        instant = find_instant(timeline.getCommitsTimeline().filterCompletedInstants(), write.instant)
        metadata = read_commit_metadata(self._state, instant)
        if self._plan.partition.startswith(SECONDARY_INDEX_PREFIX):
            restore_log_files(self._visit.spark, self._state, metadata, instant)
            return convert_to_secondary(self._visit, self._state, self._builder, self._definition, write, metadata)
        if self._plan.partition.startswith(EXPRESSION_INDEX_PREFIX):
            # What the files held that were cleaned since is in files of later writes.
            if not keep_what_is_there(self._visit.spark, self._state, metadata):
                self._held_by_later.add(write.instant)
            return convert_to_expression(self._visit, self._plan, self._writer, write.instant, metadata)
        if self._plan.partition == "record_index":
            restore_log_files(self._visit.spark, self._state, metadata, instant)
            self._pass_over_cleaned_files(metadata, write)
        found = jvm.org.apache.hudi.metadata.HoodieMetadataWriteUtils.convertMetadataToRecords(
            engine, config, metadata, write.instant, self._state.meta_client, self._writer.getTableMetadata(),
            config.getMetadataConfig(), partitions, config.getBloomFilterType(), config.getBloomIndexParallelism(),
            config.getWritesFileIdEncoding(), jvm.org.apache.hudi.common.engine.EngineType.SPARK, option,
        )  # fmt: skip
        return found.get(self._plan.partition)

    def _pass_over_cleaned_files(self, metadata: Any, write: LateWrite) -> None:
        """Let Hudi read from a commit's statistics only base files that are there still.

        The keys that a commit adds are those of its file less those of the file before. A file without the one before
        is read whole: an entry that is written again changes nothing. What a file that is gone held is in a later one.
        Only which keys were deleted cannot be found so. Raises BuildLostError then.
        """
        spark = self._visit.spark
        for stats in metadata.getPartitionToWriteStats().values():
            for stat in list_items(stats):
                path = str(stat.getPath())
                before = stat.getPrevBaseFile()
                if is_log(path):
                    continue
                is_whole = is_there(spark, self._state, path)
                if is_whole and (before is None or is_there(spark, self._state, sibling(path, str(before)))):
                    continue
                if stat.getNumDeletes() > 0:
                    raise BuildLostError(
                        f"{write.action} {write.instant} deleted rows during the build of {self._plan.partition}, and "
                        "a file that shows which ones was cleaned since: let the cleaner retain more commits"
                    )
                if is_whole:
                    stat.setPrevBaseFile(None)
                else:
                    stats.remove(stat)
                    self._held_by_later.add(write.instant)

    def _new_instant(self) -> str:
        """Return an instant that is younger than all of the metadata table, also when another machine's clock is ahead.

        An older one would lie behind a compaction, where no reader finds its entries.
        """
        names = metadata_timeline_names(self._visit.spark, self._state.base_path)
        newest = find_newest_time(names)
        should_lock = False
        instant = wait_for_younger(
            newest, lambda: str(self._state.meta_client.createNewInstantTime(should_lock)), CLOCKS_DIFFER_S
        )
        if not instant:
            raise BuildLostError(f"this machine's clock is more than {CLOCKS_DIFFER_S:.0f} s behind {newest}")
        return instant

    def _require(self, batch: Sequence[LateWrite], instant: str) -> None:
        """Raise IndexDamagedError unless the delta commit is completed, and wrote to the index where it must have."""
        metadata = load_metadata_timeline(self._visit.spark, self._state)
        commits = metadata.getCommitsTimeline().filterCompletedInstants()
        found = find_instant(commits, instant)
        must = [
            write
            for write in batch
            if write.change is not None
            and write.instant not in self._held_by_later
            and must_mention(self._plan.partition, write.change)
        ]
        if found is None or (must and not mentions_index(metadata, found, self._plan.partition)):
            names = ", ".join(f"{write.action} {write.instant}" for write in must or batch)
            raise IndexDamagedError(f"not in the index, though written into it afterwards: {names}")
