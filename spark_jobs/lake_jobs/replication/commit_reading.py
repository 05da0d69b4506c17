"""One commit read in one of two ways, each with what it knows of its completeness."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from airflow_lake_provider.instant_clock import shift_instant_time
from airflow_lake_provider.shared.hudi_settings import TABLE_PARTIAL_UPDATES
from lake_jobs.replication.arrow_changes import COMMIT_BITS
from lake_jobs.replication.change_columns import cdc_changes
from lake_jobs.replication.file_slices import FIRST_VERSION_OF_OWN_LOGS, CompletedInstants
from lake_jobs.replication.reconciliation import (
    Difference,
    Figures,
    Records,
    find_difference_of_sums,
    find_differences,
    is_explained,
)
from lake_jobs.replication.slice_changes import ChangeQuery, TouchedGroup, find_touched_groups
from lake_jobs.replication.slice_reader import GROUP

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, DataFrameReader
    from pyspark.sql import types as T

    from airflow_lake_provider.replication.change import CommitRef
    from lake_jobs.hudi.table import LoadedTable
    from lake_jobs.replication.column_rules import ColumnRules
    from lake_jobs.replication.file_slices import DataFile, GroupStatistics
    from lake_jobs.replication.slice_reader import SliceReader

_WHOLE_COMMIT = 0
_PAYLOADS_OF_COMMIT_TIME = frozenset({"OverwriteWithLatestAvroPayload"})
_PAYLOADS_OF_EVENT_TIME = frozenset({"DefaultHoodieRecordPayload", "EventTimeAvroPayload"})
_MORE_RULES = ("hoodie.record.merge.property.", "hoodie.payload.")
"""Beginnings of a table's properties that change what a record means."""


@dataclass(frozen=True, slots=True)
class Merging:
    """How a table makes one row of several records of a key."""

    keeps_versions: bool
    """A row that a commit changed carries that commit's time: Hudi takes one of the versions as it is."""
    is_known: bool = True
    """Whether it is known which record wins."""
    ordering: tuple[str, ...] = ()
    """Fields by which a record may lose to an earlier one; empty where the later one always wins."""
    is_plain: bool = False
    """No property of the table adds a rule, as a column with a value that means a delete."""


def read_merging(config: Any) -> Merging:
    """Return how a table merges, from Hudi's own configuration of it.

    A payload class or a merger of the table's own may make a third version of two, and so do some partial updates.
    """
    mode = config.getRecordMergeMode()
    partial = config.getProps().getProperty(TABLE_PARTIAL_UPDATES)
    name = "" if mode is None else str(mode.name())
    payload = str(config.getPayloadClass()).rpartition(".")[2]
    is_plain = not any(rule in str(config.getProps().toString()) for rule in _MORE_RULES)
    if not partial and (name == "COMMIT_TIME_ORDERING" or (not name and payload in _PAYLOADS_OF_COMMIT_TIME)):
        return Merging(keeps_versions=True, is_plain=is_plain)
    if not partial and (name == "EVENT_TIME_ORDERING" or (not name and payload in _PAYLOADS_OF_EVENT_TIME)):
        return Merging(keeps_versions=True, ordering=tuple(config.getOrderingFields()), is_plain=is_plain)
    return Merging(keeps_versions=False, is_known=False)


@dataclass(frozen=True, slots=True)
class ChangeDataReading:
    """Hudi's own change data of one commit. Its rows name no file group, so only their sums can be compared."""

    reader: DataFrameReader
    base_path: str
    commit: CommitRef
    statistics: Sequence[GroupStatistics]
    schema: T.StructType
    key: Sequence[str]
    rules: ColumnRules

    def changes(self) -> DataFrame | None:
        """Return op, key, before and after of each change, and a number that stands for the whole commit."""
        found = cdc_changes(self.rows(), self.schema, self.key, lambda row: self.rules.image(self.schema, row))
        return found.withColumn(GROUP, F.lit(_WHOLE_COMMIT))

    def rows(self) -> DataFrame:
        """Return Hudi's rows as they are, of the commit alone: a range of completion times skips slow writers'."""
        begin = shift_instant_time(self.commit.requested_time, -1)
        end = self.commit.requested_time
        reader = self.reader.option("hoodie.datasource.query.type", "incremental")
        reader = reader.option("hoodie.datasource.query.incremental.format", "cdc")
        reader = reader.option("hoodie.datasource.read.begin.instanttime", begin)
        reader = reader.option("hoodie.datasource.read.end.instanttime", end)
        # Otherwise Hudi silently leaves out rows of files that a clean has removed.
        reader = reader.option("hoodie.datasource.read.incr.fallback.fulltablescan.enable", "false")
        return reader.load(self.base_path).where(F.col("ts_ms") == end)

    def find_differences(self, found: Mapping[int, Figures]) -> list[Difference]:
        """Return at most one difference, of the whole commit."""
        different = find_difference_of_sums(self.statistics, found.get(_WHOLE_COMMIT, Figures()))
        return [] if different is None else [different]


@dataclass(frozen=True, slots=True)
class SliceReading:
    """The file groups of one commit, before and after it; or of several, by `read_together`."""

    query: ChangeQuery
    groups: Sequence[TouchedGroup]
    merging: Merging
    numbers: Sequence[int] = ()
    """Of the file groups in the rows; empty for their positions."""

    def changes(self) -> DataFrame | None:
        """Return op, key, before, after and file group of each change; None when the commit touched nothing."""
        return self.query.changes(list(zip(self.numbers or range(len(self.groups)), self.groups, strict=True)))

    def find_differences(self, found: Mapping[int, Figures]) -> list[Difference]:
        """Return the file groups whose figures do not agree, unless the commit's own records explain it."""
        different = find_differences([group.statistics for group in self.groups], found)
        unclear = [each.position for each in different if each.may_be_right]
        if not unclear:
            return different
        if not self.merging.is_known:
            return [each for each in different if not each.may_be_right]
        records = self.query.count_records(self.groups, unclear, self.merging.ordering)
        return [each for each in different if not is_explained(each, records.get(each.position, Records()))]


def read_together(readings: Sequence[SliceReading]) -> SliceReading:
    """Return the reading of several commits as one, for tables whose log files name the commit that wrote them.

    A row's file group has the position of its commit in the bits above `COMMIT_BITS`.
    """
    found = [
        (at << COMMIT_BITS | position, group)
        for at, reading in enumerate(readings)
        for position, group in enumerate(reading.groups)
    ]
    query = replace(readings[0].query, commits=tuple(reading.query.commit for reading in readings))
    return SliceReading(query, [group for _, group in found], readings[0].merging, [number for number, _ in found])


def list_files(
    slices: SliceReader, table: LoadedTable, groups: Sequence[GroupStatistics]
) -> dict[tuple[str, str], list[DataFile]]:
    """Return all files of some file groups, by partition and file id."""
    storage = table.meta_client.getStorage()
    files = {}
    for partition in {group.partition for group in groups}:
        ids = [group.file_id for group in groups if group.partition == partition]
        for file_id, found in slices.list_files(storage, partition, ids).items():
            files[partition, file_id] = found
    return files


def find_groups(
    files: Mapping[tuple[str, str], Sequence[DataFile]],
    table: LoadedTable,
    commit: CommitRef,
    statistics: Sequence[GroupStatistics],
    times: Times,
) -> tuple[TouchedGroup, ...]:
    """Return the file groups that a commit touched, with their slices. Raises ReplicationGapError."""
    touched = [files.get((group.partition, group.file_id), ()) for group in statistics]
    old = {file.instant for group in touched for file in group if file.is_log and file.instant < times.begins}
    instants = CompletedInstants(times.completed, times.begins, _read_archived_times(table, old))
    return find_touched_groups(statistics, files, instants, commit, table.table_version)


@dataclass(frozen=True, slots=True)
class Times:
    """The completed writes of the active timeline: completion time by requested time, and where it begins."""

    completed: Mapping[str, str]
    begins: str


def _read_archived_times(table: LoadedTable, instants: set[str]) -> dict[str, str]:
    """Return when archived writes completed: log files of slow ones belong to a later slice."""
    if not instants or table.table_version < FIRST_VERSION_OF_OWN_LOGS:
        return {}
    factory = table.meta_client.getTimelineLayout().getTimelineFactory()
    view = factory.createCompletionTimeQueryView(table.meta_client)
    found = {instant: view.getCompletionTime(instant) for instant in instants}
    return {instant: str(time.get()) for instant, time in found.items() if time.isPresent()}
