"""Finds record keys with several rows: among the file groups that are read, as a reader of the table sees them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql import types as T

from airflow_lake_provider.job_contract import KeyScope
from lake_jobs.hudi.table import read_table_state
from lake_jobs.replication.file_slices import parse_name
from lake_jobs.replication.slice_reader import GROUP, RECORD_KEY, SliceReader
from lake_jobs.services.integrity_rules import MAX_NAMED, TwiceKey
from lake_jobs.services.latest_slices import find_latest_slices
from lake_jobs.verify.seen_before import AS_WRITTEN

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import SparkSession

    from lake_jobs.hudi.table import LoadedTable
    from lake_jobs.replication.file_slices import FileSlice
    from lake_jobs.replication.slice_reader import NumberedSlice, RowFormat

_GROUPS_OF_A_PARTITION = 100_000
"""The number of a file group is that of its partition times this, and its own: with all partitions a 32-bit number."""
_ROWS = "_lake_rows"
_GROUPS = "_lake_groups"


@dataclass(frozen=True)
class KeySearch:
    """A table at one moment, whose keys are searched for doubles."""

    spark: SparkSession
    state: LoadedTable
    scope: KeyScope

    def slices(self, partitions: Iterable[str]) -> dict[str, dict[str, FileSlice]]:
        """Return what a reader merges of each file group, by partition and file id."""
        return find_latest_slices(self.spark, self.state, partitions)

    @property
    def has_keys(self) -> bool:
        """Whether the files have record keys."""
        return RECORD_KEY in self._layout.schema.names

    @cached_property
    def _reader(self) -> SliceReader:
        return SliceReader(self.spark, self.state.base_path, AS_WRITTEN)

    @cached_property
    def _layout(self) -> RowFormat:
        return self._reader.layout_at(self.spark.read.format("hudi").load(self.state.base_path))

    def find(self, slices: Mapping[str, Mapping[str, FileSlice]]) -> tuple[list[TwiceKey], int]:
        """Return some keys that have several rows in these slices, and how many there are. Raises Py4JJavaError."""
        places: dict[int, tuple[str, FileSlice]] = {
            at * _GROUPS_OF_A_PARTITION + number: (partition, found)
            for at, (partition, groups) in enumerate(slices.items())
            for number, found in enumerate(groups.values())
        }
        if not places:
            return [], 0
        tasks: list[list[NumberedSlice]] = [[(at, *place)] for at, place in places.items()]
        keys_alone = T.StructType([field for field in self._layout.schema.fields if field.name == RECORD_KEY])
        rows = self._reader.read(tasks, replace(self._layout, schema=keys_alone))
        by = [RECORD_KEY] if self.scope is KeyScope.TABLE else [RECORD_KEY, "_lake_partition"]
        counted = (
            rows.withColumn("_lake_partition", F.floor(F.col(GROUP) / F.lit(_GROUPS_OF_A_PARTITION)))
            .groupBy(*by)
            .agg(F.count(F.lit(1)).alias(_ROWS), F.collect_set(GROUP).alias(_GROUPS))
            .where(F.col(_ROWS) > 1)
            .persist()
        )
        try:
            first = counted.orderBy(RECORD_KEY).limit(MAX_NAMED).collect()
            number = counted.count() if first else 0
        finally:
            counted.unpersist()
        found = []
        for row in first:
            held = [places[at] for at in sorted(row[_GROUPS])]
            files = tuple(f"{partition}/{each.files[0].name}".lstrip("/") for partition, each in held)
            partitions = tuple(sorted({partition for partition, _ in held}))
            found.append(TwiceKey(str(row[RECORD_KEY]), int(row[_ROWS]), partitions, files))
        return found, number

    def confirm(self, found: Iterable[TwiceKey]) -> list[TwiceKey]:
        """Return which of the keys still have several rows in a later state of the same file groups.

        A listing is not of one moment: a service may have replaced a file group between two of its steps.
        """
        keys = {each.key for each in found}
        ids = {
            (partition, file.file_id)
            for each in found
            for path in each.files
            for partition, _, name in [path.rpartition("/")]
            if (file := parse_name(name)) is not None
        }
        later = replace(self, state=read_table_state(self.spark, self.state.base_path))
        slices = later.slices(sorted({partition for partition, _ in ids}))
        again = {
            partition: {file_id: each for file_id, each in groups.items() if (partition, file_id) in ids}
            for partition, groups in slices.items()
        }
        return [each for each in later.find(again)[0] if each.key in keys]
