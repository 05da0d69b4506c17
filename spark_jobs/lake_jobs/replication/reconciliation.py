"""Compare what was read of a commit with what its own statistics say that it wrote; pure.

Hudi's statistics were tried out (1.2.0, table versions 6, 8 and 9). Of a rewritten base file they count rows: new ones,
changed ones, removed ones. Of a log file they count records, and a record need not change a row: it may lose to an
earlier one with a higher ordering value, be one of two of the same key, or delete what is not there. Of replaced file
groups they count nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from airflow_lake_provider.replication.change import CommitRef
    from lake_jobs.replication.file_slices import GroupStatistics


@dataclass(frozen=True, slots=True)
class Figures:
    """Changes of one file group, or of a whole commit."""

    inserts: int = 0
    updates: int = 0
    deletes: int = 0

    @property
    def written(self) -> int:
        """Rows that are there afterwards, as the commit wrote them."""
        return self.inserts + self.updates

    @property
    def all(self) -> int:
        """Changes of any kind."""
        return self.written + self.deletes

    def __str__(self) -> str:
        return f"{self.inserts} inserts, {self.updates} updates, {self.deletes} deletes"


@dataclass(frozen=True, slots=True)
class Records:
    """The records of a commit's own log files in one file group, one for each key, deletes left out."""

    kept: int = 0
    """They are the row now."""
    lost: int = 0
    """The row has an ordering value that is not smaller."""
    missing: int = 0
    """They should be the row, and are not."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A file group, or a whole commit, of which other figures were read than the statistics say."""

    position: int
    where: str
    expected: Figures
    found: Figures
    may_be_right: bool
    """Whether records that changed no row can explain it."""

    def __str__(self) -> str:
        return f"{self.where}: read {self.found}; the commit's statistics say {self.expected}"


def count(changes: Mapping[tuple[int, str], int]) -> dict[int, Figures]:
    """Return the figures by file group; `changes` counts by file group and Hudi's letter of the operation."""
    groups = {group for group, _ in changes}
    return {group: Figures(*(changes.get((group, op), 0) for op in "iud")) for group in groups}


def find_differences(statistics: Sequence[GroupStatistics], found: Mapping[int, Figures]) -> list[Difference]:
    """Return the file groups whose figures do not agree. `found` is by position in `statistics`."""
    differences = []
    for position, group in enumerate(statistics):
        figures = found.get(position, Figures())
        expected = _expected(group)
        if not _agree(expected, figures, is_replaced=group.is_replaced):
            where = f"file group {group.file_id} of partition {group.partition!r}"
            may_be_right = group.is_log and figures.all < expected.all
            differences.append(Difference(position, where, expected, figures, may_be_right))
    return differences


def find_difference_of_sums(statistics: Iterable[GroupStatistics], found: Figures) -> Difference | None:
    """Return how a commit's changes as a whole disagree, for a reader whose rows name no file group."""
    groups = list(statistics)
    expected = Figures(
        sum(group.inserts for group in groups),
        sum(group.updates for group in groups),
        sum(group.deletes for group in groups),
    )
    if any(group.is_replaced for group in groups):
        # What was in replaced groups is deleted, and not counted.
        found = Figures(found.inserts, found.updates, min(found.deletes, expected.deletes))
    if _agree(expected, found, is_replaced=False):
        return None
    if any(group.is_log for group in groups) and found.all < expected.all:
        return None
    return Difference(0, f"{len(groups)} file groups", expected, found, may_be_right=False)


def is_explained(difference: Difference, records: Records) -> bool:
    """Return whether the commit's own records explain that fewer changes were read than it counts."""
    return difference.may_be_right and records.missing == 0 and difference.found.written >= records.kept


def describe_differences(differences: Sequence[Difference], commit: CommitRef, base_path: str) -> str:
    """Return the error for a commit that was not read as it was written."""
    more = f" (and {len(differences) - 1} more file groups)" if len(differences) > 1 else ""
    return (
        f"commit {commit.requested_time} of table {base_path} was not read as it was written: {differences[0]}{more}. "
        "The sink keeps its checkpoint. Rows of one partition with one record key are a single row to it; if there "
        "are none, report this, and set reader: slices, or reader: cdc, to read the commit in the other way"
    )


def _expected(group: GroupStatistics) -> Figures:
    return Figures(group.inserts, group.updates, group.deletes)


def _agree(expected: Figures, found: Figures, *, is_replaced: bool) -> bool:
    if is_replaced:
        return found.written == 0
    return found.written == expected.written and found.deletes == expected.deletes
