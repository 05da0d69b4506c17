"""Read file slices of our own choice through Hudi's own reader, one task for each file group.

Spark's scan of files and Hudi's file format do the reading, so merge modes, payloads, log blocks and schema evolution
are Hudi's. What is ours is the list of files. Both sides of a join are laid out alike, partition by partition, and are
declared to Spark as hashed by the record key: it then joins inside each file group, without a shuffle.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql import types as T

from lake_jobs.replication.file_slices import DataFile, FileSlice, parse_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import SparkSession

RECORD_KEY = "_hoodie_record_key"
GROUP = "_lake_group"
"""The number of the row's file group, as the caller gave it."""
LAST_INSTANT = "99991231235959999"
"""No block of a log file is later; the files themselves are chosen by completion."""
_FORMAT = "org.apache.spark.sql.execution.datasources.parquet.HoodieFileGroupReaderBasedFileFormat"
_GLOB_CHARACTERS = re.compile(r"([\\{}\[\]*?,])")
_IDS_PER_LISTING = 100


@dataclass(frozen=True, slots=True)
class Layout:
    """How a table's rows are read: the columns as one commit wrote them, meta fields first, and Hudi's own form."""

    schema: T.StructType
    table_path: str
    table_name: str
    table_schema: Any
    base_format: Any


class SliceReader:
    """Reads chosen slices of one table. Not to be kept longer than the table's properties stay as they are."""

    def __init__(self, spark: SparkSession, base_path: str) -> None:
        self._spark = spark
        self._base_path = base_path
        self._jvm: Any = spark._jvm
        self._gateway: Any = spark.sparkContext._gateway

    def layout_at(self, rows: DataFrame) -> Layout:
        """Return the layout of a query at an instant, as Hudi resolved it. Nothing is read."""
        relation = rows._jdf.queryExecution().analyzed().collectLeaves().head().relation()
        file_format = relation.fileFormat()
        table_schema = _private(file_format, "tableSchema")
        struct = table_schema.structTypeSchema()
        return Layout(
            T.StructType.fromJson(json.loads(struct.json())),
            str(_private(file_format, "tablePath")),
            str(_private(file_format, "tableName")),
            table_schema,
            _private(file_format, "hoodieFileFormat"),
        )

    def list_files(self, storage: Any, partition: str, file_ids: Iterable[str]) -> dict[str, list[DataFile]]:
        """Return the files of some file groups of one partition, by file id; one listing for each hundred of them."""
        found: dict[str, list[DataFile]] = {}
        ids, folder = sorted(set(file_ids)), f"{self._base_path}/{partition}".rstrip("/")
        storage_path = self._jvm.org.apache.hudi.storage.StoragePath
        for start in range(0, len(ids), _IDS_PER_LISTING):
            some = [_escape(file_id) for file_id in ids[start : start + _IDS_PER_LISTING]]
            names = ",".join(f"{file_id},.{file_id}" for file_id in some)
            for handle in storage.globEntries(storage_path(f"{_escape(folder)}/{{{names}}}_*")):
                file = parse_name(str(handle.getPath().getName()), handle)
                if file is not None:
                    found.setdefault(file.file_id, []).append(file)
        return found

    def read(
        self, slices: Sequence[tuple[int, str, FileSlice]], layout: Layout, until: str = LAST_INSTANT
    ) -> DataFrame:
        """Return the rows of slices, each with a number and its partition's path; one task reads one slice.

        Column `_lake_group` is that number. Blocks of log files later than `until` are left out.
        """
        jvm, session = self._jvm, self._spark._jsparkSession
        sql, execution = jvm.org.apache.spark.sql, jvm.org.apache.spark.sql.execution
        group = T.StructType([T.StructField(GROUP, T.IntegerType(), nullable=False)])
        data, rows = layout.table_schema.structTypeSchema(), T.StructType([*layout.schema.fields, *group.fields])
        output, of_group = session.parseDataType(rows.json()), session.parseDataType(group.json())
        file_format = self._format(layout, until)
        # Hudi's format decides here whether it reads base files in batches.
        file_format.supportBatch(session, data)
        options = self._scala_map({"path": self._base_path, "returning_batch": "false"})
        # A copy: the format writes its schemas into it.
        settings = session.sessionState().newHadoopConfWithOptions(options)
        read = file_format.buildReaderWithPartitionValues(
            session, data, of_group, data, self._scala_seq(()), options, settings
        )
        partitions = [self._file_partition(at, *found) for at, found in enumerate(slices)]
        scan = execution.datasources.FileScanRDD(
            session,
            read,
            self._scala_seq(partitions),
            output,
            self._scala_seq(()),
            self._scala_map({}),
            sql.catalyst.FileSourceOptions(self._scala_map({})),
        )
        columns = sql.catalyst.types.DataTypeUtils.toAttributes(output)
        key = columns.apply(output.fieldIndex(RECORD_KEY))
        hashed = sql.catalyst.plans.physical.HashPartitioning(self._scala_seq([key]), len(partitions))
        none, is_streaming = jvm.scala.Option.empty(), False
        plan = execution.LogicalRDD(columns, scan, hashed, self._scala_seq(()), is_streaming, session, none, none)
        return DataFrame(sql.Dataset.ofRows(session, plan), self._spark)

    def _format(self, layout: Layout, until: str) -> Any:
        create = getattr(self._jvm, _FORMAT)
        is_merge_on_read = True
        is_bootstrap = is_incremental = uses_positions = has_several_formats = False
        return create(
            layout.table_path,
            layout.table_schema,
            layout.table_name,
            until,
            self._scala_seq(()),
            # So it returns rows where the slice is a base file alone, too, and not batches of them.
            is_merge_on_read,
            is_bootstrap,
            is_incremental,
            "",
            uses_positions,
            self._scala_seq(()),
            has_several_formats,
            layout.base_format,
        )

    def _file_partition(self, at: int, number: int, partition: str, found: FileSlice) -> Any:
        datasources = self._jvm.org.apache.spark.sql.execution.datasources
        files = self._gateway.new_array(datasources.PartitionedFile, 1)
        files[0] = self._partitioned_file(number, partition, found)
        return datasources.FilePartition(at, files)

    def _partitioned_file(self, number: int, partition: str, found: FileSlice) -> Any:
        jvm = self._jvm
        first, model = found.files[0], jvm.org.apache.hudi.common.model
        values = self._gateway.new_array(jvm.java.lang.Object, 1)
        values[0] = number
        row = jvm.org.apache.spark.sql.catalyst.expressions.GenericInternalRow(values)
        if not found.logs:
            # Nothing to merge: Hudi reads the file in batches of columns, and opens no table in each task.
            return self._file_of(row, first)
        group = model.FileSlice(partition, found.instant, first.file_id)
        if found.base is not None:
            group.setBaseFile(model.HoodieBaseFile(found.base.handle))
        for log in found.logs:
            group.addLogFile(model.HoodieLogFile(log.handle))
        mapping = jvm.org.apache.hudi.Spark3HoodiePartitionFileSliceMapping(
            row, self._scala_map({first.file_id: group})
        )
        return self._file_of(mapping, first)

    def _file_of(self, values: Any, first: DataFile) -> Any:
        jvm = self._jvm
        path = jvm.org.apache.spark.paths.SparkPath.fromPathString(str(first.handle.getPath().toString()))
        length, no_hosts = int(first.handle.getLength()), self._gateway.new_array(jvm.java.lang.String, 0)
        return jvm.org.apache.spark.sql.execution.datasources.PartitionedFile(
            values, path, 0, length, no_hosts, 0, length, self._scala_map({})
        )

    def _scala_seq(self, items: Iterable[Any]) -> Any:
        found = self._jvm.java.util.ArrayList()
        for item in items:
            found.add(item)
        return self._jvm.PythonUtils.toSeq(found)

    def _scala_map(self, items: dict[str, Any]) -> Any:
        found = self._jvm.java.util.HashMap()
        for key, value in items.items():
            found.put(key, value)
        return self._jvm.PythonUtils.toScalaMap(found)


def _escape(name: str) -> str:
    return _GLOB_CHARACTERS.sub(r"\\\1", name)


def _private(owner: Any, name: str) -> Any:
    """Return a field of Hudi's that has no accessor."""
    declared, is_open = owner.getClass().getDeclaredField(name), True
    declared.setAccessible(is_open)
    return declared.get(owner)
