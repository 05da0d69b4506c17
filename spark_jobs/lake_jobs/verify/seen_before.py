"""Rows of file groups as a reader saw them when a plan was made.

Hudi's own reader merges the files. Which files those are is not taken from the plan, nor from Hudi's view of completion
times, because both can leave out a log file: an instant that never leaves the timeline, such as an `indexing`, lets
Hudi take archived writes for uncommitted. All files of a file group are listed, and the timeline's writes decide.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from airflow_lake_provider.shared.actions import WRITE_ACTIONS
from airflow_lake_provider.timeline_head import COMPLETED
from lake_jobs.hudi.table import LoadedTable, list_times, parse_instants
from lake_jobs.replication.file_slices import FIRST_VERSION_OF_OWN_LOGS, CompletedInstants
from lake_jobs.replication.slice_reader import GROUP, LAST_INSTANT, RowFormat, SliceReader
from lake_jobs.verify.rows import UNIT
from lake_jobs.verify.slices import before, find_doubtful, find_seen_slice, with_new

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from lake_jobs.replication.file_slices import DataFile, FileSlice
    from lake_jobs.replication.slice_reader import NumberedSlice
    from lake_jobs.verify.sample import Unit

AS_WRITTEN = MappingProxyType({"datetimeRebaseMode": "CORRECTED", "int96RebaseMode": "CORRECTED"})
"""Spark refuses dates before 1582 without it. Hudi writes them as they are, and copies what it rewrites."""
PARTITION_PATH = "_hoodie_partition_path"


def find_completed(state: LoadedTable) -> CompletedInstants:
    """Return the completed writes of an active timeline. Raises ValueError when Hudi prints them in another form."""
    instants = state.timeline.getInstants()
    listed = parse_instants(str(instants.toString()), int(instants.size()))
    writes = [instant for instant in listed if instant.action in WRITE_ACTIONS]
    done = [instant for instant in writes if instant.state == COMPLETED]
    return CompletedInstants(
        times={each.requested_time: each.completed_time or each.requested_time for each in done},
        begins=min((each.requested_time for each in writes), default=""),
    )


def with_archived(state: LoadedTable, known: CompletedInstants, after: str) -> CompletedInstants:
    """Return the completed writes with those of the archive from `after` (inclusive) on. Reads the archive."""
    archived = dict(list_times(state.meta_client.getArchivedTimeline(after)))
    return replace(known, archived={at: completed for at, completed in archived.items() if completed})


class SeenBefore:
    """Reads the rows of units as of one plan."""

    def __init__(
        self, spark: SparkSession, state: LoadedTable, plan: str, merger: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self._state = state
        self._plan = plan
        # A service rewrites what a query refuses to read in batches.
        options = {**AS_WRITTEN, **merger}
        self._reader = SliceReader(spark, state.base_path, options, nested_in_batches=False)
        self.layout: RowFormat = self._reader.layout_at(spark.read.format("hudi").load(state.base_path))
        self._known = find_completed(state)

    def rows(self, units: Sequence[Unit], *, with_new_logs: bool = False) -> DataFrame:
        """Return the rows of units; the column `_lake_unit` has the unit's place.

        `with_new_logs`: as a reader will see them with the units' new log files, once these are committed.
        """
        slices = [
            (at, partition, with_new(found, unit.new_files, listed) if with_new_logs else found)
            for at, unit in enumerate(units)
            for partition, found, listed in self._slices(unit)
        ]
        numbered: list[NumberedSlice] = [(number, found[1], found[2]) for number, found in enumerate(slices)]
        until = LAST_INSTANT if self._state.table_version >= FIRST_VERSION_OF_OWN_LOGS else before(self._plan)
        has_meta_fields = PARTITION_PATH in self.layout.schema.names
        meta_fields = [PARTITION_PATH] if has_meta_fields else ()
        rows = self._reader.read([[each] for each in numbered], self.layout, until, meta_fields)
        unit_of = F.array(*(F.lit(at) for at, _, _ in slices)) if slices else F.array(F.lit(0))
        return rows.withColumn(UNIT, unit_of[F.col(GROUP)]).drop(GROUP)

    def lengths(self, units: Iterable[Unit]) -> dict[Unit, int]:
        """Return the bytes of the files that a reader merged for each unit."""
        return {unit: sum(found.length for _, found, _ in self._slices(unit)) for unit in units}

    def _slices(self, unit: Unit) -> list[tuple[str, FileSlice, list[DataFile]]]:
        """Return partition, slice and all files of each file group of a unit that had rows."""
        storage = self._state.meta_client.getStorage()
        listed = self._reader.list_files(storage, unit.partition, unit.file_ids)
        found = []
        for file_id in unit.file_ids:
            files = listed.get(file_id, [])
            known = self._known
            doubtful = find_doubtful(files, self._known)
            if doubtful and self._state.table_version >= FIRST_VERSION_OF_OWN_LOGS:
                known = with_archived(self._state, known, doubtful)
            seen = find_seen_slice(files, known, self._plan, self._state.table_version)
            if seen is not None:
                found.append((unit.partition, seen, files))
        return found
