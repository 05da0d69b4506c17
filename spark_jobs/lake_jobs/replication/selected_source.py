"""A table with the columns and rows that an entry lets out: to the pump, to sinks and to `verify` it is the table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import types as T

from airflow_lake_provider.replication.change import ChangeMode
from airflow_lake_provider.replication.row_filter import RowFilter, filter_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from airflow_lake_provider.replication.change import Change, CommitRef
    from airflow_lake_provider.replication.checkpoint import Checkpoint, SnapshotProgress
    from airflow_lake_provider.replication.feed import SourceTimeline
    from airflow_lake_provider.sink_options.where import ColumnComparison
    from lake_jobs.replication.column_rules import ColumnRules
    from lake_jobs.replication.source import HudiSource


class SelectedSource:
    """Wraps a table. Raises ConfigError for rules that do not fit it."""

    def __init__(
        self,
        source: HudiSource,
        rules: ColumnRules,
        where: Sequence[ColumnComparison] = (),
        mode: str = ChangeMode.CHANGES,
    ) -> None:
        self._source = source
        self._rules = rules.for_key(source.key, source.columns)
        self._mode = ChangeMode(mode)
        source.let_out(self._rules)
        self._rows = self._filter(where)

    def read_timeline(self, known: Checkpoint | None = None) -> SourceTimeline:
        """Read the present active timeline."""
        return self._source.read_timeline(known)

    def expect(self, commits: Sequence[CommitRef]) -> None:
        """Read these ahead."""
        self._source.expect(commits)

    def read_blocks(self, commit: CommitRef, after: str = "") -> Iterator[Sequence[Change]]:
        """Return the changes of one completed commit alone, in order per key, in blocks of some thousand."""
        blocks = self._source.read_blocks(commit, after)
        return (kept for block in blocks if (kept := self._rows.changes(block, self._mode)))

    def is_by_key(self, commit: CommitRef) -> bool:
        """Whether a commit is read in the order of its keys."""
        return self._source.is_by_key(commit)

    def read_end_s(self, commit: CommitRef) -> float:
        """Return when all of a commit had been read, in seconds of `time.monotonic`."""
        return self._source.read_end_s(commit)

    def read_snapshot(self, progress: SnapshotProgress) -> Iterator[Change]:
        """Return the rows of a snapshot behind `progress.after`."""
        return (row for row in self._source.read_snapshot(progress) if self._rows.fits(row.after or ""))

    def count_snapshot(self, progress: SnapshotProgress) -> int | None:
        """Return how many rows a snapshot has; None where a filter lets some out."""
        return None if self._rows.comparisons else self._source.count_snapshot(progress)

    def plan_rows(self, where: Sequence[ColumnComparison] = ()) -> Callable[[], Iterator[tuple[str, str]]]:
        """Decide now which files are read; the function that is returned reads each row's key and JSON.

        With `where` those of the rows that fit it as well. Raises ConfigError for one that does not fit the table.
        """
        chosen = self._filter(where)
        read = self._source.plan_rows([each for each in chosen.comparisons if each.column in self.partition])
        return lambda: ((key, row) for key, row in read() if self._rows.fits(row) and chosen.fits(row))

    def _filter(self, where: Sequence[ColumnComparison]) -> RowFilter:
        if not where:
            return RowFilter()
        as_they_are = [found for found in self.schema.fields if not self._rules.is_text(found.name)]
        return filter_for(
            self._rules.table, where, {found.name: found.dataType.simpleString() for found in as_they_are}
        )

    def schema_of(self, commit: CommitRef) -> str:
        """Return the Avro schema of a commit's rows as they leave the table."""
        return self._rules.schema(self._source.schema_of(commit))

    @property
    def key(self) -> tuple[str, ...]:
        """The names of the key's fields."""
        return self._source.key

    @property
    def partition(self) -> tuple[str, ...]:
        """The fields by whose values the table is partitioned, those that leave it as they are."""
        return tuple(name for name in self._source.partition if self._rules.has(name) and not self._rules.is_text(name))

    @property
    def schema(self) -> T.StructType:
        """The columns of the newest schema."""
        kept = [column for column in self._source.schema.fields if self._rules.has(column.name)]
        text = T.StringType()
        return T.StructType(
            [T.StructField(found.name, text) if self._rules.is_text(found.name) else found for found in kept]
        )

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(name for name in self._source.columns if self._rules.has(name))

    @property
    def time_zone(self) -> str:
        """The zone in which the table's instants are named."""
        return self._source.time_zone
