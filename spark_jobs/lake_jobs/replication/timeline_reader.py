"""A table's timeline as replication reads it: again and again, of each unread commit once.

It also returns what the metadata of a commit say: its schema, and the statistics with which its rows are compared.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.errors import ReplicationGapError
from airflow_lake_provider.replication.change import CommitRef
from airflow_lake_provider.replication.feed import OPERATIONS_WITHOUT_CHANGES, SourceTimeline
from lake_jobs.hudi.files import open_path
from lake_jobs.hudi.table import (
    LoadedTable,
    list_items,
    list_times,
    read_clean_plan,
    read_table_state,
    requested_times,
)
from lake_jobs.replication.commit_reading import Times
from lake_jobs.replication.file_slices import FIRST_VERSION_OF_OWN_LOGS, find_instant_of_logs, read_statistics

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import SparkSession

    from airflow_lake_provider.replication.checkpoint import Checkpoint
    from lake_jobs.replication.file_slices import GroupStatistics


class TimelineReader:
    """Reads one table's timeline. What was read of a commit's metadata is kept."""

    def __init__(self, spark: SparkSession, base_path: str) -> None:
        self._spark = spark
        self._base_path = base_path
        self.table = read_table_state(spark, base_path)
        """The table as it was last read."""
        self.version = self.table.table_version
        self.newest = ""
        """The completed write that completed last, by its requested time."""
        self.newest_schema = ""
        """In Avro, of the writes whose metadata were read."""
        self._operations: dict[str, CommitFacts] = {}
        self._cleans: dict[str, tuple[str, int]] = {}
        self._times: dict[str, str] = {}
        self._instants: tuple[Any, Any, dict[str, int]] = (None, None, {})
        """A timeline, its completed writes, and the position of each among them."""
        self._begins = ""
        self._was_archived = False

    @property
    def times(self) -> Times:
        """The completed writes of the active timeline."""
        return Times(self._times, self._begins)

    def read(self, known: Checkpoint | None = None) -> SourceTimeline:
        """Read the present active timeline.

        The metadata of writes that `known` has are not read, so the answer does not show whether those changed rows.
        """
        table = read_table_state(self._spark, self._base_path)
        if table.table_version != self.version:
            # What a commit's files are called, and which are its rows, was decided for the other version.
            raise ReplicationGapError(
                f"table {self._base_path} was of version {self.version} when the run began and is of version "
                f"{table.table_version} now; the next try goes on"
            )
        timeline = table.timeline
        writes = timeline.getCommitsTimeline()
        done = writes.filterCompletedInstants()
        instants = done.getInstants()
        completed, silent, compacted, times = [], set(), set(), {}
        for position, (requested_time, found) in enumerate(list_times(done)):
            commit = CommitRef(requested_time, found or requested_time)
            times[requested_time] = commit.completed_time
            if known is not None and known.has(commit):
                completed.append(commit)
                continue
            operation = self._metadata(timeline, requested_time, instants, position).operation
            if operation == "COMPACT":
                compacted.add(requested_time)
            if operation in OPERATIONS_WITHOUT_CHANGES:
                silent.add(requested_time)
            else:
                completed.append(commit)
        newest = max(times, key=lambda requested: (times[requested], requested), default="")
        if newest and newest not in self._operations:
            self._metadata(timeline, newest, instants, list(times).index(newest))
        self.newest, self.newest_schema = max(
            ((times[at], facts.schema) for at, facts in self._operations.items() if at in times and facts.schema),
            default=("", ""),
        )
        # What was archived is not asked for again.
        self._operations = {at: facts for at, facts in self._operations.items() if at in times}
        self._begins = min(requested_times(writes), default="")
        # At once: another thread reads commits meanwhile.
        self.table, self._times = table, times
        self._instants = (timeline, instants, {requested_time: at for at, requested_time in enumerate(times)})
        retained_from, unbounded = self._read_cleans(timeline)
        return SourceTimeline(
            completed=tuple(completed),
            silent=frozenset(silent),
            pending=_pending_writes(timeline),
            compactions=frozenset((*compacted, *requested_times(timeline.filterPendingCompactionTimeline()))),
            earliest=self._begins,
            retained_from=retained_from,
            cleaned_without_bound=unbounded,
            has_history=self._has_history(table),
            has_savepoints=not timeline.getSavePointTimeline().empty(),
            restored=max(requested_times(timeline.getRestoreTimeline()), default=""),
            from_before_upgrade=self._find_older(times),
        )

    def schema_of(self, commit: CommitRef) -> str:
        """Return the Avro schema that the commit wrote with; empty when it names none."""
        known = self._operations.get(commit.requested_time)
        return "" if known is None else str(known.schema)

    def read_statistics(self, commit: CommitRef) -> tuple[GroupStatistics, ...]:
        """Return what a completed commit says that it wrote. Raises ReplicationGapError."""
        timeline, instants, positions = self._instants
        if commit.requested_time not in positions:
            raise ReplicationGapError(f"commit {commit.requested_time} is no longer on the active timeline")
        instant = instants[positions[commit.requested_time]]
        replaces = str(instant.getAction()) == "replacecommit"
        metadata = timeline.readReplaceCommitMetadata(instant) if replaces else timeline.readCommitMetadata(instant)
        return read_statistics(json.loads(metadata.toJsonString()))

    def _metadata(self, timeline: Any, requested_time: str, instants: Any, position: int) -> CommitFacts:
        if requested_time not in self._operations:
            self._operations[requested_time] = CommitFacts(timeline.readCommitMetadata(instants[position]))
        return self._operations[requested_time]

    def _find_older(self, times: Iterable[str]) -> frozenset[str]:
        if self.version < FIRST_VERSION_OF_OWN_LOGS:
            return frozenset()
        facts = ((at, self._operations[at]) for at in times if at in self._operations)
        return frozenset(at for at, found in facts if found.slice_of_logs and found.slice_of_logs < at)

    def _read_cleans(self, timeline: Any) -> tuple[str, str]:
        """Return what cleans keep, and the last clean that does not record it."""
        cleans = timeline.getCleanerTimeline()
        done = cleans.filterCompletedInstants()
        instants = done.getInstants()
        for position, requested_time in enumerate(requested for requested, _ in list_times(done)):
            if requested_time not in self._cleans:
                metadata = timeline.readCleanMetadata(instants[position])
                kept = str(metadata.getEarliestCommitToRetain() or "")
                self._cleans[requested_time] = (kept, int(metadata.getTotalFilesDeleted()))
        known = dict(self._cleans)
        # It may be deleting files just now. A plan that was not begun deletes nothing, and our service does not execute
        # it while a sink needs more than it keeps; when another's does, the next reading of the timeline shows it.
        for instant in list_items(cleans.filterInflights().getInstants()):
            known[str(instant.requestedTime())] = read_clean_plan(timeline.readCleanerPlan(instant))
        unbounded = [requested for requested, (kept, files) in known.items() if files and not kept]
        return max((kept for kept, _ in known.values()), default=""), max(unbounded, default="")

    def _has_history(self, table: LoadedTable) -> bool:
        # What was archived stays so, and the archive of an old table is long.
        self._was_archived = self._was_archived or self._find_archived(table)
        return self._was_archived

    def _find_archived(self, table: LoadedTable) -> bool:
        fs, folder = open_path(self._spark, str(table.meta_client.getArchivePath()))
        if not fs.exists(folder):
            return False
        names = [str(status.getPath().getName()) for status in fs.listStatus(folder)]
        return any(name.endswith(".parquet") or ".archive" in name for name in names)


class CommitFacts:
    """What replication needs of a completed commit's metadata, read once."""

    def __init__(self, metadata: Any) -> None:
        operation = metadata.getOperationType()
        self.operation = "UNKNOWN" if operation is None else str(operation.name())
        self.schema = str(metadata.getMetadata("schema") or "")
        self.slice_of_logs = find_instant_of_logs(str(metadata.getFileIdAndRelativePaths().toString()))
        """The instant in the name of a log file that it wrote; empty without one."""


def _pending_writes(timeline: Any) -> tuple[str, ...]:
    pending: Mapping[str, None] = dict.fromkeys(
        requested_times(timeline.getCommitsTimeline().filterPendingExcludingCompaction())
    )
    services = {
        *requested_times(timeline.filterPendingClusteringTimeline()),
        *requested_times(timeline.filterPendingLogCompactionTimeline()),
    }
    return tuple(instant for instant in pending if instant not in services)
