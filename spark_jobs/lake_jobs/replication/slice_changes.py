"""A commit's changes from the rows of its file groups before and after it: for any table, with or without change data.

A row has changed when the commit wrote its version: a version is named by commit time and sequence number, which every
rewrite of the file keeps. So a write that lost by its ordering value is no change, and neither is a rewritten row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, TypeAlias

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from airflow_lake_provider.errors import ReplicationGapError
from airflow_lake_provider.instant_clock import shift_instant_time
from airflow_lake_provider.replication.change import PARTITION_PATH
from lake_jobs.replication.arrow_changes import COMMIT_BITS
from lake_jobs.replication.change_columns import data_schema, json_of, key_json, struct_text
from lake_jobs.replication.file_slices import (
    FIRST_VERSION_OF_OWN_LOGS,
    CompletedInstants,
    DataFile,
    FileSlice,
    GroupStatistics,
    find_slice,
)
from lake_jobs.replication.reconciliation import Records
from lake_jobs.replication.slice_reader import GROUP, LAST_INSTANT, RECORD_KEY

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import Column

    from airflow_lake_provider.replication.change import CommitRef
    from lake_jobs.replication.column_rules import ColumnRules
    from lake_jobs.replication.slice_reader import RowFormat, SliceReader

_COMMIT_TIME = "_hoodie_commit_time"
_SEQUENCE = "_hoodie_commit_seqno"
_HASHED_ROWS = 500_000
"""A task's changed rows up to which they are held in memory, instead of sorting all rows of its file groups."""
_TASK_BYTES = 256 * 2**10, 16 * 2**20
"""The files of a task, both sides of a join: the least that is worth one, and the most of several file groups."""
# Texts that Spark parses: Python's objects for them would be some calls of Java for each name and operator, and these
# are much of a small commit's time.
_SAME_ROW = "a_key = b_key and a_group = b_group"
_CHANGED = "a_key is null or b_key is null or not (a_time <=> b_time and a_number <=> b_number)"
_NONE = "cast(null as string)"


@dataclass(frozen=True, slots=True)
class TouchedGroup:
    """A file group that a commit wrote to or replaced, with its slices."""

    statistics: GroupStatistics
    before: FileSlice | None
    after: FileSlice | None

    @property
    def own_logs(self) -> FileSlice | None:
        """The log files that the commit itself wrote, as a slice; None without any."""
        names = {path.rpartition("/")[2] for path in self.statistics.paths}
        logs = tuple(log for log in self.after.logs if log.name in names) if self.after is not None else ()
        return FileSlice(None, logs) if logs else None

    @property
    def may_delete(self) -> bool:
        """Whether rows of the slice before may be gone after it. What a log file deletes is not always counted."""
        return self.before is not None and (self.statistics.is_log or self.statistics.deletes > 0)


def _changed(group: TouchedGroup) -> int:
    return group.statistics.inserts + group.statistics.updates


Numbered: TypeAlias = Sequence[tuple[int, TouchedGroup]]


def find_touched_groups(
    statistics: Sequence[GroupStatistics],
    files: Mapping[tuple[str, str], Sequence[DataFile]],
    instants: CompletedInstants,
    commit: CommitRef,
    version: int,
) -> tuple[TouchedGroup, ...]:
    """Return a commit's file groups with their slices. Raises ReplicationGapError when a file of them is not there.

    `files` are all files of each group, by partition and file id.
    """
    groups = []
    is_of_own_logs = version >= FIRST_VERSION_OF_OWN_LOGS
    for group in statistics:
        found = files.get((group.partition, group.file_id), ())
        names = {file.name for file in found}
        missing = next((path for path in group.paths if path.rpartition("/")[2] not in names), None)
        if missing is not None:
            raise ReplicationGapError(f"file {missing} of commit {commit.requested_time} is not there: deleted")
        before = find_slice(found, instants, _just_before(commit), version)
        after = None if group.is_replaced else find_slice(found, instants, _at(commit), version)
        if group.previous and not group.is_log and (before is None or before.base is None):
            raise ReplicationGapError(
                f"commit {commit.requested_time} rewrote file group {group.file_id} of partition {group.partition!r}, "
                f"whose base file of {group.previous} is not there: deleted"
            )
        written = {path.rpartition("/")[2] for path in group.paths}
        left_out = written - {file.name for file in after.files} if after is not None else written
        if left_out and not group.is_replaced:
            raise ReplicationGapError(
                f"file {min(left_out)} of commit {commit.requested_time} is in none of its file group's slices"
            )
        own = written & {file.name for file in before.files} if before is not None and is_of_own_logs else set()
        if own and not group.is_replaced:
            # Both slices would be one, and a delete that is in it alone would be no change.
            raise ReplicationGapError(
                f"file {min(own)} of commit {commit.requested_time} is in its file group's slice before that commit too"
            )
        groups.append(TouchedGroup(group, before, after))
    return tuple(groups)


def _at(commit: CommitRef) -> tuple[str, str]:
    return commit.completed_time, commit.requested_time


def _just_before(commit: CommitRef) -> tuple[str, str]:
    return commit.completed_time, shift_instant_time(commit.requested_time, -1)


@dataclass(frozen=True, slots=True)
class ChangeQuery:
    """How a commit's changes are read: the table's reader and layout, the key, and whether images are wanted.

    Several commits are read at once where each log file names the commit that wrote it; a file group's number then has
    the commit's position in the bits above `COMMIT_BITS`.
    """

    reader: SliceReader
    layout: RowFormat
    commits: tuple[CommitRef, ...]
    key: Sequence[str]
    version: int
    with_before: bool
    keeps_versions: bool
    """Whether a changed row always carries the time of the commit that changed it: not where a class of the table's own
    merges rows."""
    rules: ColumnRules
    """What of a row leaves the table."""

    @property
    def commit(self) -> CommitRef:
        """The only commit, or the first."""
        return self.commits[0]

    def changes(self, numbered: Numbered) -> DataFrame | None:
        """Return op, key, before, after and the number of the file group of each changed row, in no order.

        None when there is nothing to read.
        """
        added = [entry for entry in numbered if entry[1].before is None and entry[1].after is not None]
        removed = [entry for entry in numbered if entry[1].before is not None and entry[1].after is None]
        both = [entry for entry in numbered if entry[1].before is not None and entry[1].after is not None]
        written = [entry for entry in both if self.keeps_versions and not entry[1].may_delete]
        parts = [
            (self._one_side, added),
            (self._one_side, removed),
            (self._written, written),
            (self._compared, [entry for entry in both if entry not in written]),
        ]
        found = [read(part) for read, part in parts if part]
        return reduce(DataFrame.unionByName, found) if found else None

    def _one_side(self, groups: Numbered) -> DataFrame:
        """Return the rows of file groups that the commit began, or that it removed with all of their rows."""
        is_added = groups[0][1].after is not None
        rows = self._after(groups, *self._path) if is_added else self._before(groups, *self._path)
        image = self._image()
        none = F.expr(_NONE)
        return rows.select(
            F.expr(f"'{'i' if is_added else 'd'}' as op"),
            key_json(self.key).alias("key"),
            (none if is_added or not self.with_before else image).alias("before"),
            (image if is_added else none).alias("after"),
            GROUP,
        )

    def _written(self, groups: Numbered) -> DataFrame:
        """Return the changes of file groups of which no row was removed: what the commit wrote leads."""
        rows = self._after(groups, _COMMIT_TIME, *self._path).where(f"{_COMMIT_TIME} = {self._time_of_group()}")
        if not self.with_before:
            return rows.select(
                F.expr("'u' as op"),
                key_json(self.key).alias("key"),
                F.expr(f"{_NONE} as before"),
                self._image().alias("after"),
                GROUP,
            )
        after = rows.selectExpr(*self._side("a"))
        before = self._before(groups, *self._path).selectExpr(*self._side("b"))
        if max(sum(_changed(group) for _, group in task) for task in self._tasks(groups)) <= _HASHED_ROWS:
            after = after.hint("shuffle_hash")
        joined = after.join(before, F.expr(_SAME_ROW), "left")
        return joined.select(
            F.expr("if(b_key is null, 'i', 'u') as op"),
            key_json(self.key, "a_row", "a_path").alias("key"),
            self._image("b_row").alias("before"),
            self._image("a_row").alias("after"),
            F.expr(f"a_group as {GROUP}"),
        )

    def _compared(self, groups: Numbered) -> DataFrame:
        """Return the changes of file groups of which rows may be gone: both sides are compared as a whole."""
        version = (_COMMIT_TIME, _SEQUENCE, *self._path)
        after, before = (
            rows.selectExpr(*self._side(side), f"{_COMMIT_TIME} as {side}_time", f"{_SEQUENCE} as {side}_number")
            for side, rows in (("a", self._after(groups, *version)), ("b", self._before(groups, *version)))
        )
        joined = after.join(before, F.expr(_SAME_ROW), "full")
        is_changed = F.expr(_CHANGED)
        if not self.keeps_versions:
            is_changed = is_changed | (json_of("a_row") != json_of("b_row"))
        return joined.where(is_changed).select(
            F.expr("case when a_key is null then 'd' when b_key is null then 'i' else 'u' end as op"),
            key_json(self.key, "coalesce(a_row, b_row)", "coalesce(a_path, b_path)").alias("key"),
            (self._image("b_row") if self.with_before else F.expr(_NONE)).alias("before"),
            self._image("a_row").alias("after"),
            F.expr(f"coalesce(a_group, b_group) as {GROUP}"),
        )

    def count_records(
        self, groups: Sequence[TouchedGroup], positions: Sequence[int], ordering: Sequence[str]
    ) -> dict[int, Records]:
        """Return by position what became of the records that the commit itself appended to file groups."""
        chosen = [(at, groups[at]) for at in positions]
        if not any(group.own_logs for _, group in chosen):
            return {}
        until = LAST_INSTANT if self.version >= FIRST_VERSION_OF_OWN_LOGS else self.commit.requested_time
        # Without such fields the later record wins, and all are alike here.
        order = F.struct(*[f"`{name}`" for name in ordering], F.lit(0))
        own_key = F.col(RECORD_KEY).alias("o_key")
        row_key = F.col(RECORD_KEY).alias("a_key")
        records = self._read(chosen, until, lambda group: group.own_logs, [_COMMIT_TIME])
        records = records.where(F.col(_COMMIT_TIME) == self.commit.requested_time)
        records = records.select(GROUP, own_key, order.alias("o_order"))
        rows = self._after(chosen, _COMMIT_TIME).select(
            row_key, F.col(_COMMIT_TIME).alias("a_time"), order.alias("a_order"), F.col(GROUP).alias("a_group")
        )
        joined = records.join(rows, F.expr(f"o_key = a_key and {GROUP} = a_group"), "left")
        yes = F.expr("true")
        no = F.expr("false")
        is_kept = F.coalesce(F.col("a_time") == self.commit.requested_time, no)
        # Where no row is left an earlier delete had the higher value.
        loses = F.coalesce(F.col("a_order") >= F.col("o_order"), yes) if ordering else no
        is_lost = ~is_kept & loses
        counted = joined.groupBy(GROUP).agg(F.count_if(is_kept), F.count_if(is_lost), F.count_if(~is_kept & ~is_lost))
        return {at: Records(kept, lost, missing) for at, kept, lost, missing in counted.collect()}

    def _after(self, groups: Numbered, *meta_fields: str) -> DataFrame:
        until = LAST_INSTANT if self.version >= FIRST_VERSION_OF_OWN_LOGS else self.commit.requested_time
        return self._read(groups, until, lambda group: group.after, meta_fields)

    def _before(self, groups: Numbered, *meta_fields: str) -> DataFrame:
        is_new = self.version >= FIRST_VERSION_OF_OWN_LOGS
        until = LAST_INSTANT if is_new else shift_instant_time(self.commit.requested_time, -1)
        return self._read(groups, until, lambda group: group.before, meta_fields)

    def _read(
        self,
        groups: Numbered,
        until: str,
        slice_of: Callable[[TouchedGroup], FileSlice | None],
        meta_fields: Sequence[str],
    ) -> DataFrame:
        """Return the rows of one side of file groups, in the same tasks for each side."""
        found = [
            [(at, group.statistics.partition, side) for at, group in task if (side := slice_of(group)) is not None]
            for task in self._tasks(groups)
        ]
        return self.reader.read(found, self.layout, until, meta_fields)

    def _tasks(self, groups: Numbered) -> list[Numbered]:
        """Return the file groups by the task that reads them: small ones share one, since a task costs as much."""
        lengths = [sum(side.length for side in (group.before, group.after) if side is not None) for _, group in groups]
        enough = sum(lengths) // (2 * self.reader.parallelism)
        enough = min(max(enough, _TASK_BYTES[0]), _TASK_BYTES[1])
        tasks = list[list[tuple[int, TouchedGroup]]]()
        held = enough
        for entry, length in zip(groups, lengths, strict=True):
            if held >= enough:
                tasks.append([])
                held = 0
            tasks[-1].append(entry)
            held += length
        return list(tasks)

    def _time_of_group(self) -> str:
        """Return the expression of the requested time of the commit whose file group a row is of."""
        times = [f"'{commit.requested_time}'" for commit in self.commits]
        if len(times) == 1:
            return times[0]
        return f"element_at(array({', '.join(times)}), shiftright({GROUP}, {COMMIT_BITS}) + 1)"

    def _side(self, side: str) -> tuple[str, ...]:
        """Return the expressions of key, row and file group for one side of a join."""
        row = struct_text(data_schema(self.layout.schema).names)
        path = tuple(f"{name} as {side}_path" for name in self._path)
        return f"{RECORD_KEY} as {side}_key", f"{row} as {side}_row", f"{GROUP} as {side}_group", *path

    @property
    def _path(self) -> tuple[str, ...]:
        """The meta field of the key, if it has one."""
        return (PARTITION_PATH,) if PARTITION_PATH in self.key else ()

    def _image(self, row: str = "") -> Column:
        return self.rules.image(data_schema(self.layout.schema), row)
