"""A table's timeline as replication reads it: again and again, of each unread commit once.

It also returns what the metadata of a commit say: its schema, and the statistics with which its rows are compared. Most
readings find the timeline as it was, or one commit longer, and each call of Java takes as long as all that Python does
with its answer. So a reading begins with all instants as one text, and asks for more only where that text is new.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError

from airflow_lake_provider.errors import ReplicationGapError
from airflow_lake_provider.replication.change import CommitRef
from airflow_lake_provider.replication.feed import OPERATIONS_WITHOUT_CHANGES, CleansAfter, SourceTimeline
from airflow_lake_provider.shared.actions import Action
from airflow_lake_provider.timeline_head import COMPLETED
from lake_jobs.hudi.files import TableFiles, open_path
from lake_jobs.hudi.table import (
    ListedInstant,
    list_items,
    list_times,
    parse_instants,
    read_clean_plan,
    read_table_state,
    requested_times,
)
from lake_jobs.replication.commit_reading import Times
from lake_jobs.replication.file_slices import FIRST_VERSION_OF_OWN_LOGS, find_instant_of_logs, read_statistics

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from airflow_lake_provider.replication.checkpoint import Checkpoint
    from lake_jobs.replication.file_slices import GroupStatistics

_WRITES = frozenset({Action.COMMIT, Action.DELTACOMMIT, Action.REPLACECOMMIT, Action.CLUSTERING})
"""The actions of Hudi's `getCommitsTimeline`."""
_FEW_COMMITS = 8
"""Of so many unread commits the metadata are read as a whole; of more only what all of them are asked for."""


@dataclass(frozen=True, slots=True)
class FoundSavepoint:
    """A completed savepoint, by its metadata; `made_ms` is when it was made, ms since the epoch."""

    instant: str
    made_by: str
    comment: str
    made_ms: int


@dataclass(frozen=True, slots=True)
class _Clean:
    """What one clean leaves."""

    kept: str
    files: int
    """That it deletes."""
    spared: frozenset[str]
    """The savepoints that its plan knew of."""

    @staticmethod
    def of(kept: str, files: int, extra: Any) -> _Clean:
        # Hudi's CleanerUtils.SAVEPOINTED_TIMESTAMPS; writers before 0.15 leave it out.
        named = str((extra.get("savepointed_timestamps") if extra is not None else None) or "")
        return _Clean(kept, files, frozenset(filter(None, named.split(","))))


@dataclass(frozen=True, slots=True)
class _Seen:
    """One reading of the timeline, and what is the same for all that ask."""

    text: str
    listed: tuple[ListedInstant, ...]
    timeline: Any
    instants: Any
    """Hudi's own, in the order of `listed`."""
    times: Mapping[str, str]
    """The completed writes: completion time by requested time."""
    positions: Mapping[str, int]
    """Of the completed writes in `instants`."""
    begins: str
    pending: tuple[str, ...]
    cleans: CleansAfter
    saved: Mapping[str, CleansAfter]
    restored: str

    def has(self, *actions: str) -> bool:
        """Whether an instant is of one of these actions, in any state."""
        return any(instant.action in actions for instant in self.listed)


class TimelineReader:
    """Reads one table's timeline. What was read of a commit's metadata is kept."""

    def __init__(self, spark: SparkSession, base_path: str) -> None:
        self._spark = spark
        self._base_path = base_path
        self._files = TableFiles(spark, base_path)
        self._properties = self._read_properties()
        self.table = read_table_state(spark, base_path)
        """The table as it was last read."""
        self.version = self.table.table_version
        self.newest = ""
        """The completed write that completed last, by its requested time."""
        self.newest_schema = ""
        """In Avro, of the writes whose metadata were read."""
        self._operations: dict[str, CommitFacts] = {}
        self._cleans: dict[str, _Clean] = {}
        self._savepoints: dict[tuple[str, str], FoundSavepoint] = {}
        self._seen: _Seen | None = None
        self._was_archived = False

    @property
    def times(self) -> Times:
        """The completed writes of the active timeline."""
        return Times({}, "") if self._seen is None else Times(self._seen.times, self._seen.begins)

    def read_newest(self) -> None:
        """Read the metadata of the write that completed last, for its schema."""
        self._take_newest(self._refresh())

    def read(self, known: Checkpoint | None = None) -> SourceTimeline:
        """Read the present active timeline.

        The metadata of writes that `known` has are not read, so the answer does not show whether those changed rows.
        """
        seen = self._refresh()
        completed = []
        silent = set()
        compacted = set()
        commits = [CommitRef(requested_time, found) for requested_time, found in seen.times.items()]
        unknown = [commit.requested_time for commit in commits if known is None or not known.has(commit)]
        self._read_facts(seen, unknown)
        for commit in commits:
            if known is not None and known.has(commit):
                completed.append(commit)
                continue
            operation = self._operations[commit.requested_time].operation
            if operation == "COMPACT":
                compacted.add(commit.requested_time)
            if operation in OPERATIONS_WITHOUT_CHANGES:
                silent.add(commit.requested_time)
            else:
                completed.append(commit)
        self._take_newest(seen)
        # What was archived is not asked for again.
        self._operations = {at: facts for at, facts in self._operations.items() if at in seen.times}
        planned = (each for each in seen.listed if each.action == Action.COMPACTION and each.state != COMPLETED)
        return SourceTimeline(
            completed=tuple(completed),
            silent=frozenset(silent),
            pending=seen.pending,
            compactions=frozenset((*compacted, *(instant.requested_time for instant in planned))),
            earliest=seen.begins,
            retained_from=seen.cleans.retained_from,
            cleaned_without_bound=seen.cleans.cleaned_without_bound,
            saved=seen.saved,
            has_history=self._has_history(),
            has_savepoints=seen.has(Action.SAVEPOINT),
            restored=seen.restored,
            from_before_upgrade=self._find_older(seen),
        )

    def schema_of(self, commit: CommitRef) -> str:
        """Return the Avro schema that the commit wrote with; empty when it names none."""
        if self._seen is not None and commit.requested_time in self._seen.positions:
            self._read_facts(self._seen, [commit.requested_time])
        known = self._operations.get(commit.requested_time)
        return "" if known is None else str(known.schema)

    def read_statistics(self, commit: CommitRef) -> CommitStatistics:
        """Return what a completed commit says that it wrote. Raises ReplicationGapError."""
        seen = self._seen
        known = self._operations.get(commit.requested_time)
        if seen is None or commit.requested_time not in seen.positions:
            raise ReplicationGapError(f"commit {commit.requested_time} is no longer on the active timeline")
        if known is not None and known.statistics is not None:
            return known.statistics
        return CommitStatistics.of(_read_body(seen, commit.requested_time))

    def _refresh(self) -> _Seen:
        """List the instants, and read what of them is new."""
        properties = self._read_properties()
        if properties and properties == self._properties:
            timeline = self.table.meta_client.reloadActiveTimeline()
            table = replace(self.table, timeline=timeline)
        else:
            table = read_table_state(self._spark, self._base_path)
            self._properties = properties
            timeline = table.timeline
        if table.table_version != self.version:
            # What a commit's files are called, and which are its rows, was decided for the other version.
            raise ReplicationGapError(
                f"table {self._base_path} was of version {self.version} when the run began and is of version "
                f"{table.table_version} now; the next try goes on"
            )
        instants = timeline.getInstants()
        text = str(instants.toString())
        seen = self._seen
        if seen is None or text != seen.text:
            seen = self._take(text, timeline, instants)
        # At once: another thread reads commits meanwhile.
        self.table = table
        self._seen = seen
        return seen

    def _take(self, text: str, timeline: Any, instants: Any) -> _Seen:
        listed = parse_instants(text, int(instants.size()))
        writes = [(at, instant) for at, instant in enumerate(listed) if instant.action in _WRITES]
        done = [(at, instant) for at, instant in writes if instant.state == COMPLETED]
        cleans = self._read_cleans(timeline, listed)
        saved = [each.requested_time for each in listed if each.action == Action.SAVEPOINT and each.state == COMPLETED]
        return _Seen(
            text=text,
            listed=tuple(listed),
            timeline=timeline,
            instants=instants,
            times={each.requested_time: each.completed_time or each.requested_time for _, each in done},
            positions={instant.requested_time: at for at, instant in done},
            begins=min((instant.requested_time for _, instant in writes), default=""),
            pending=_pending_writes(timeline, listed),
            cleans=_sum_up(cleans),
            saved={
                at: _sum_up({time: clean for time, clean in cleans.items() if at not in clean.spared}) for at in saved
            },
            restored=max((each.requested_time for each in listed if each.action == Action.RESTORE), default=""),
        )

    def _read_facts(self, seen: _Seen, wanted: list[str]) -> None:
        lacking = [requested_time for requested_time in wanted if requested_time not in self._operations]
        for requested_time in lacking:
            if len(lacking) <= _FEW_COMMITS:
                facts = CommitFacts.of_body(_read_body(seen, requested_time))
            else:
                instant = seen.instants.get(seen.positions[requested_time])
                facts = CommitFacts.of(seen.timeline.readCommitMetadata(instant))
            self._operations[requested_time] = facts

    def _take_newest(self, seen: _Seen) -> None:
        newest = max(seen.times, key=lambda requested: (seen.times[requested], requested), default="")
        if newest:
            self._read_facts(seen, [newest])
        self.newest, self.newest_schema = max(
            (
                (seen.times[at], facts.schema)
                for at, facts in self._operations.items()
                if at in seen.times and facts.schema
            ),
            default=("", ""),
        )

    def _find_older(self, seen: _Seen) -> frozenset[str]:
        if self.version < FIRST_VERSION_OF_OWN_LOGS:
            return frozenset()
        facts = ((at, self._operations[at]) for at in seen.times if at in self._operations)
        return frozenset(at for at, found in facts if found.slice_of_logs and found.slice_of_logs < at)

    def find_savepoints(self, made_by: str) -> tuple[FoundSavepoint, ...]:
        """Return the completed savepoints of one maker on the timeline that was read last."""
        seen = self._seen
        if seen is None or not seen.saved:
            return ()
        known, self._savepoints = self._savepoints, {}
        for instant in list_items(seen.timeline.getSavePointTimeline().filterCompletedInstants().getInstants()):
            # One that was removed and made again, of the same write, may be another stream's.
            at = str(instant.requestedTime())
            completed = str(instant.getCompletionTime())
            found = known.get((at, completed))
            if found is None:
                body = seen.timeline.readSavepointMetadata(instant)
                made = (str(body.getSavepointedBy()), str(body.getComments()), int(body.getSavepointedAt()))
                found = FoundSavepoint(at, *made)
            self._savepoints[at, completed] = found
        return tuple(found for found in self._savepoints.values() if found.made_by == made_by)

    def _read_cleans(self, timeline: Any, listed: list[ListedInstant]) -> dict[str, _Clean]:
        if not any(instant.action == Action.CLEAN for instant in listed):
            return {}
        cleans = timeline.getCleanerTimeline()
        done = cleans.filterCompletedInstants()
        instants = done.getInstants()
        for position, requested_time in enumerate(requested for requested, _ in list_times(done)):
            if requested_time not in self._cleans:
                metadata = timeline.readCleanMetadata(instants[position])
                kept = str(metadata.getEarliestCommitToRetain() or "")
                files = int(metadata.getTotalFilesDeleted())
                self._cleans[requested_time] = _Clean.of(kept, files, metadata.getExtraMetadata())
        known = dict(self._cleans)
        # It may be deleting files just now. A plan that was not begun deletes nothing, and our service does not execute
        # it while a sink needs more than it keeps; when another's does, the next reading of the timeline shows it.
        for instant in list_items(cleans.filterInflights().getInstants()):
            plan = timeline.readCleanerPlan(instant)
            known[str(instant.requestedTime())] = _Clean.of(*read_clean_plan(plan), plan.getExtraMetadata())
        return known

    def _has_history(self) -> bool:
        # What was archived stays so, and the archive of an old table is long.
        self._was_archived = self._was_archived or self._find_archived()
        return self._was_archived

    def _find_archived(self) -> bool:
        fs, folder = self._archive
        if not fs.exists(folder):
            return False
        names = [str(status.getPath().getName()) for status in fs.listStatus(folder)]
        return any(name.endswith(".parquet") or ".archive" in name for name in names)

    @cached_property
    def _archive(self) -> tuple[Any, Any]:
        return open_path(self._spark, str(self.table.meta_client.getArchivePath()))

    def _read_properties(self) -> str:
        """Return the text of the table's properties; empty where that cannot be read just now."""
        try:
            return self._files.read_directly(".hoodie/hoodie.properties").decode("utf-8", "replace")
        except (OSError, Py4JJavaError):
            return ""


def _sum_up(cleans: Mapping[str, _Clean]) -> CleansAfter:
    """Return what cleans keep, and the last clean that does not record it."""
    unbounded = [requested for requested, clean in cleans.items() if clean.files and not clean.kept]
    return CleansAfter(max((clean.kept for clean in cleans.values()), default=""), max(unbounded, default=""))


@dataclass(frozen=True, slots=True)
class CommitStatistics:
    """What a commit says that it wrote."""

    groups: tuple[GroupStatistics, ...]
    has_schema_history: bool
    """Hudi follows columns by their numbers, so that one may have had another name in older files."""

    @staticmethod
    def of(body: Mapping[str, Any]) -> CommitStatistics:
        """Return what is in a commit's metadata."""
        return CommitStatistics(read_statistics(body), bool((body.get("extraMetadata") or {}).get("latest_schema")))


@dataclass(frozen=True, slots=True)
class CommitFacts:
    """What replication needs of a completed commit's metadata, read once."""

    operation: str
    schema: str
    slice_of_logs: str
    """The instant in the name of a log file that it wrote; empty without one."""
    statistics: CommitStatistics | None = None
    """None where there are many commits: they are read again when their turn comes."""

    @staticmethod
    def of(metadata: Any) -> CommitFacts:
        """Return what Hudi's object says."""
        operation = metadata.getOperationType()
        return CommitFacts(
            "UNKNOWN" if operation is None else str(operation.name()),
            str(metadata.getMetadata("schema") or ""),
            find_instant_of_logs(str(metadata.getFileIdAndRelativePaths().toString())),
        )

    @staticmethod
    def of_body(body: Mapping[str, Any]) -> CommitFacts:
        """Return what is in a commit's metadata."""
        statistics = CommitStatistics.of(body)
        paths = (path for group in statistics.groups for path in group.paths)
        return CommitFacts(
            str(body.get("operationType") or "UNKNOWN"),
            str((body.get("extraMetadata") or {}).get("schema") or ""),
            min(filter(None, map(find_instant_of_logs, paths)), default=""),
            statistics,
        )


def _read_body(seen: _Seen, requested_time: str) -> dict[str, Any]:
    """Return the metadata of a completed write."""
    position = seen.positions[requested_time]
    instant = seen.instants.get(position)
    replaces = seen.listed[position].action == Action.REPLACECOMMIT
    timeline = seen.timeline
    metadata = timeline.readReplaceCommitMetadata(instant) if replaces else timeline.readCommitMetadata(instant)
    body: dict[str, Any] = json.loads(metadata.toJsonString())
    return body


def _pending_writes(timeline: Any, listed: list[ListedInstant]) -> tuple[str, ...]:
    """Return the writes that are not complete, without table services."""
    pending = [instant for instant in listed if instant.action in _WRITES and instant.state != COMPLETED]
    services = {instant.requested_time for instant in listed if instant.action == Action.LOGCOMPACTION}
    if any(instant.action in (Action.REPLACECOMMIT, Action.CLUSTERING) for instant in pending):
        # Before table version 8 only its plan says whether it is a clustering.
        services.update(requested_times(timeline.filterPendingClusteringTimeline()))
    return tuple(sorted({instant.requested_time for instant in pending} - services))
