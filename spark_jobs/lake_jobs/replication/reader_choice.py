"""Which of two readers reads a commit, and why: Hudi's change data, or file slices before and after; pure.

And which commits are read together.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_lake_provider.replication.transactions import UNBOUNDED
from airflow_lake_provider.sink_options.run import Reader

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_lake_provider.replication.change import CommitRef
    from lake_jobs.replication.file_slices import GroupStatistics

_ROWS_PER_CHANGE = 8
"""Change data is read faster where a commit rewrote so many rows for each that it changed."""
_FIRST_VERSION_WITH_CHANGE_DATA = 8
_MILLISECONDS = ("timestamp-millis", "local-timestamp-millis")


SMALL_ROWS = 2_000
"""The changes that the driver's own process reads in less time than a Spark job takes to begin."""
FEW_ROWS = 100_000
"""The rows that one job may bring at once."""
FIRST_COMMITS = 2
MAX_COMMITS = 8
MAX_GROUPS = 400
"""How many commits the first job of a run reads, and how many later ones do, with the file groups they touched."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The reader of one commit, with the reason in words."""

    reader: Reader
    reason: str


@dataclass(frozen=True, slots=True)
class TableTraits:
    """What of a table decides. `unfit_column` is a column whose values change data loses; empty without one."""

    version: int
    has_change_data: bool
    is_merge_on_read: bool
    unfit_column: str = ""
    is_keyed_by_path: bool = False


def find_obstacle(table: TableTraits) -> str:
    """Return why no commit of a table can be read from Hudi's change data; empty when it can."""
    if not table.has_change_data:
        return "the table has no change data (hoodie.table.cdc.enabled)"
    if table.version < _FIRST_VERSION_WITH_CHANGE_DATA:
        return f"Hudi 1.2 fails to read change data of table version {table.version}"
    if table.is_keyed_by_path:
        return "change data lacks the partition's path, which is part of the key"
    if table.unfit_column:
        return f"Hudi 1.2 loses values of column {table.unfit_column} in change data"
    return ""


def choose_reader(
    wanted: Reader, table: TableTraits, statistics: Sequence[GroupStatistics], schema: str, newest_schema: str
) -> Choice:
    """Choose the reader of one commit. The schemas are Avro, as this commit and as the newest one names it.

    Hudi prints change data with the newest schema: a column that was dropped since is in no image, without an error. So
    such a commit is read from slices whatever is wanted, and so is one that logged no change data.
    """
    if wanted is Reader.SLICES:
        return Choice(wanted, f"reader: {wanted}")
    obstacle = find_obstacle(table)
    if obstacle:
        return Choice(Reader.SLICES, obstacle)
    if table.is_merge_on_read and wanted is Reader.AUTO:
        return Choice(Reader.SLICES, "the table is merge-on-read, where change data is derived from slices as well")
    if not schema or not _is_same(schema, newest_schema):
        return Choice(Reader.SLICES, "the commit was written with another schema than the newest one")
    if any(name in schema for name in _MILLISECONDS):
        return Choice(Reader.SLICES, "change data does not say whether a timestamp counts milliseconds")
    if any(group.lacks_change_data for group in statistics):
        return Choice(
            Reader.SLICES, "the operation insert added rows to small files, and Hudi logs no change data of it"
        )
    if wanted is Reader.CDC:
        return Choice(wanted, f"reader: {wanted}")
    changed = sum(group.inserts + group.updates + group.deletes for group in statistics)
    rewritten = sum(group.rows for group in statistics)
    if any(group.is_replaced for group in statistics) or rewritten < _ROWS_PER_CHANGE * changed:
        return Choice(Reader.SLICES, f"it changed {changed} of {rewritten} rewritten rows")
    return Choice(Reader.CDC, f"it changed only {changed} of {rewritten} rewritten rows")


@dataclass(frozen=True, slots=True)
class Description:
    """What a commit's own metadata say, and how it is read."""

    commit: CommitRef
    statistics: Sequence[GroupStatistics]
    choice: Choice
    schema: str
    may_repeat_keys: bool
    max_transaction_rows: int = UNBOUNDED
    follows_names: bool = True
    """Whether columns of one name are one column in all files: not where Hudi keeps a history of renamed ones."""

    @property
    def is_small(self) -> bool:
        """Whether a Spark job costs more than reading it without one, as far as its own figures say."""
        return (
            self.choice.reader is Reader.SLICES
            and self.follows_names
            and not self.is_by_key
            and self.rows <= SMALL_ROWS
        )

    @property
    def is_by_key(self) -> bool:
        """Whether it may be too large for one transaction: it is then read in an order that is always the same."""
        if self.max_transaction_rows == UNBOUNDED:
            return False
        return any(group.is_replaced for group in self.statistics) or self.rows > self.max_transaction_rows

    @property
    def rows(self) -> int:
        """About how many changes it has; of replaced file groups that is not said."""
        if any(group.is_replaced for group in self.statistics):
            return FEW_ROWS + 1
        return self.counted_rows

    @property
    def counted_rows(self) -> int:
        """The changes that its statistics count: at least so many."""
        return sum(group.inserts + group.updates + group.deletes for group in self.statistics)

    def fits(self, others: Sequence[Description]) -> bool:
        """Whether it can be read with these by one job, in which its rows are in no order."""
        first = others[0]
        every = [*others, self]
        return (
            self.choice.reader is first.choice.reader is Reader.SLICES
            and self.schema == first.schema != ""
            and not any(each.may_repeat_keys or each.is_by_key for each in every)
            and len(every) <= MAX_COMMITS
            and sum(len(each.statistics) for each in every) <= MAX_GROUPS
            and sum(each.rows for each in every) <= FEW_ROWS
        )


def _is_same(one: str, other: str) -> bool:
    if one == other:
        return True
    try:
        return bool(json.loads(one) == json.loads(other))
    except ValueError:
        return False
