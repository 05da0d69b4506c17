"""Commits read one after another, small ones by one Spark job together, and each compared with its own statistics.

A small commit's time is planning and starting its job. Some that are next to each other are therefore one job whose
rows carry the number of their file group; the sink still gets them one by one. Only file slices are read
like this, of a table version whose log files name the commit that wrote them.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Any, Protocol

from pyspark import StorageLevel
from pyspark.sql import functions as F

from airflow_lake_provider.errors import LakeError, ReadIncompleteError
from airflow_lake_provider.replication.change import Change, Op
from airflow_lake_provider.sink_options.run import Reader
from lake_jobs.replication.arrow_changes import COLUMNS, KEY, OP, ArrowChanges, count_changes, split_by_commit
from lake_jobs.replication.change_columns import in_order_per_key
from lake_jobs.replication.commit_reading import SliceReading, read_together
from lake_jobs.replication.reader_choice import FEW_ROWS, FIRST_COMMITS, MAX_COMMITS
from lake_jobs.replication.reconciliation import count, describe_differences
from lake_jobs.replication.row_transfer import collect_batches, cut_batches, iterate_blocks
from lake_jobs.replication.slice_reader import GROUP

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame

    from airflow_lake_provider.replication.change import CommitRef
    from lake_jobs.replication.commit_reading import ChangeDataReading
    from lake_jobs.replication.file_slices import DataFile, GroupStatistics
    from lake_jobs.replication.reader_choice import Description

log = logging.getLogger(__name__)

_OPS = {op.value: op for op in Op}
_PORTION_ROWS = 50_000
"""Of a large commit: the driver holds about two portions."""


class Table(Protocol):
    """The table whose commits are read."""

    @property
    def base_path(self) -> str:
        """Where it is."""

    @property
    def has_own_logs(self) -> bool:
        """Whether each log file names the commit that wrote it."""

    def describe(self, commit: CommitRef) -> Description:
        """Read a commit's metadata. Raises ReplicationGapError."""

    def read_small(self, found: Description) -> Any:
        """Return all changes of a small commit as a record batch, counted; None to have Spark read them."""

    def list_files(self, groups: Sequence[GroupStatistics]) -> dict[tuple[str, str], list[DataFile]]:
        """Return all files of some file groups, by partition and file id."""

    def open(
        self, found: Description, files: Mapping[tuple[str, str], Sequence[DataFile]]
    ) -> ChangeDataReading | SliceReading:
        """Prepare the reading of a commit. Raises ReplicationGapError."""


class CommitsInTurn:
    """Reads some commits in their order, and keeps what it has read of the next ones."""

    def __init__(self, table: Table, commits: Sequence[CommitRef]) -> None:
        self._table = table
        self._commits = commits
        self._described: dict[str, Description] = {}
        self._opened: dict[str, SliceReading] = {}
        self._collected: dict[str, list[Any]] = {}
        self._most_commits = FIRST_COMMITS

    def read(self, after: str = "") -> Iterator[Iterator[Sequence[Change]]]:
        """Return the blocks of each commit in turn; each is to be read to its end before the next.

        Of the first one the keys behind `after`, with which a run has left off.
        """
        for at in range(len(self._commits)):
            yield self._read(at, after if at == 0 else "")

    def _read(self, at: int, after: str) -> Iterator[Sequence[Change]]:
        commit = self._commits[at]
        found = self._describe(commit)
        if found.is_by_key or after:
            yield from self._read_by_key(found, after)
            return
        small = self._table.read_small(found) if commit.requested_time not in self._collected else None
        if small is not None:
            self._described.pop(commit.requested_time, None)
            yield from map(ArrowChanges, cut_batches([small]))
            return
        batches = self._collected.pop(commit.requested_time, None)
        if batches is None and self._table.has_own_logs:
            batches = self._collect_with_others(found, at)
        reading = self._opened.pop(commit.requested_time, None) or self._open(found)
        self._described.pop(commit.requested_time, None)
        counts: Counter[tuple[int, str]] = Counter()
        if batches is None:
            rows = reading.changes()
            batches = None if rows is None else self._collect(found, rows)
            if rows is not None and batches is None:
                for block in iterate_blocks(_in_order(found, rows)):
                    counts.update((group, op) for op, _, _, _, group in block)
                    yield [Change(_OPS[op], key, before, after) for op, key, before, after, _ in block]
        for batch in cut_batches(batches or ()):
            counts.update(count_changes(batch, GROUP))
            yield ArrowChanges(batch)
        require_whole(self._table, found, reading, counts)

    def _read_by_key(self, found: Description, after: str) -> Iterator[Sequence[Change]]:
        """Return a commit's changes in the order of key and operation, once all of it was counted.

        Spark keeps them on its disks meanwhile: they are read from the table once, counted, sorted, and brought here in
        portions of some ten thousand rows.
        """
        self._described.pop(found.commit.requested_time, None)
        reading = self._open(found)
        changes = reading.changes()
        if changes is None:
            return
        kept = changes.select(*COLUMNS, GROUP).persist(StorageLevel.DISK_ONLY)
        try:
            counts = {(group, op): number for group, op, number in kept.groupBy(GROUP, OP).count().collect()}
            require_whole(self._table, found, reading, counts)
            left = kept.where(F.col(KEY) > after) if after else kept
            # As many portions as the commit needs, whatever the settings of the session are. A delete comes first.
            portions = max(1, -(-sum(counts.values()) // _PORTION_ROWS))
            ordered = left.repartitionByRange(portions, KEY).sortWithinPartitions(KEY, OP, GROUP)
            for block in iterate_blocks(ordered.select(*COLUMNS)):
                yield [Change(_OPS[op], key, before, after) for op, key, before, after in block]
        finally:
            kept.unpersist()

    def _describe(self, commit: CommitRef) -> Description:
        if commit.requested_time not in self._described:
            self._described[commit.requested_time] = self._table.describe(commit)
        return self._described[commit.requested_time]

    def _open(self, found: Description) -> ChangeDataReading | SliceReading:
        return open_alone(self._table, found)

    def _collect(self, found: Description, rows: DataFrame) -> list[Any] | None:
        return collect_batches(_in_order(found, rows)) if found.rows <= FEW_ROWS else None

    def _collect_with_others(self, found: Description, at: int) -> list[Any] | None:
        """Collect the commits that can be read with this one, and return its own batches; None when there are none.

        What is wrong with one of them is not found out here, but when that one is read alone.
        """
        try:
            group = self._open_together(self._find_group(found, at))
            collected = collect_together(group) if len(group) > 1 else None
        except LakeError:
            return None
        except Exception:
            log.warning(
                "commit %s and those after it are read one by one: a job for several commits failed",
                found.commit.requested_time,
                exc_info=True,
            )
            self._opened.clear()
            # Whatever it was, the commits that follow would most likely fail together once more.
            self._most_commits = 0
            return None
        self._collected = dict(collected or {})
        return self._collected.pop(found.commit.requested_time, None)

    def _find_group(self, found: Description, at: int) -> list[Description]:
        group = [found]
        if found.rows > FEW_ROWS or found.is_by_key or found.choice.reader is not Reader.SLICES:
            return group
        # Few at first, so that the sink has something to write meanwhile.
        most, self._most_commits = self._most_commits, min(MAX_COMMITS, 2 * self._most_commits)
        for commit in self._commits[at + 1 : at + most]:
            try:
                other = self._describe(commit)
            except LakeError:
                break
            if not other.fits(group):
                break
            group.append(other)
        return group

    def _open_together(self, group: Sequence[Description]) -> list[tuple[Description, SliceReading]]:
        opened: list[tuple[Description, SliceReading]] = []
        if len(group) < 2:
            return opened
        files = self._table.list_files([each for found in group for each in found.statistics])
        for found in group:
            try:
                reading = self._table.open(found, files)
            except LakeError:
                break
            if not isinstance(reading, SliceReading):
                break
            opened.append((found, reading))
        self._opened = {found.commit.requested_time: reading for found, reading in opened}
        return opened


def open_alone(table: Table, found: Description) -> ChangeDataReading | SliceReading:
    """Prepare the reading of one commit by itself. Raises ReplicationGapError."""
    return table.open(found, table.list_files(found.statistics) if found.choice.reader is Reader.SLICES else {})


def require_whole(
    table: Table,
    found: Description,
    reading: ChangeDataReading | SliceReading,
    counts: Mapping[tuple[int, str], int],
) -> None:
    """Raise ReadIncompleteError unless as many changes were read of each file group as the commit says that it made."""
    differences = reading.find_differences(count(counts))
    if differences:
        raise ReadIncompleteError(describe_differences(differences, found.commit, table.base_path))


def collect_together(group: Sequence[tuple[Description, SliceReading]]) -> dict[str, list[Any]] | None:
    """Return the record batches of several commits by requested time, by one job; None without Arrow."""
    rows = read_together([reading for _, reading in group]).changes()
    batches = [] if rows is None else collect_batches(rows.select(*COLUMNS, GROUP))
    if batches is None:
        return None
    found: dict[str, list[Any]] = {description.commit.requested_time: [] for description, _ in group}
    for batch in batches:
        for at, part in split_by_commit(batch, GROUP):
            found[group[at][0].commit.requested_time].append(part)
    return found


def _in_order(found: Description, rows: DataFrame) -> DataFrame:
    rows = in_order_per_key(rows) if found.may_repeat_keys else rows
    return rows.select(*COLUMNS, GROUP)
