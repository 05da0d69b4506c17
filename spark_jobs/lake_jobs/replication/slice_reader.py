"""Read file slices of our own choice through Hudi's own reader, whole file groups in each task.

Spark's scan of files and Hudi's file format do the reading, so merge modes, payloads, log blocks and schema evolution
are Hudi's. What is ours is the list of files. Both sides of a join are laid out alike, partition by partition, and are
declared to Spark as hashed by record key and file group: it then joins inside each file group, without a shuffle.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from pyspark.sql import DataFrame
from pyspark.sql import types as T

from lake_jobs.replication.change_columns import META_PREFIX
from lake_jobs.replication.file_slices import DataFile, FileSlice, parse_entries, parse_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import SparkSession

RECORD_KEY = "_hoodie_record_key"
GROUP = "_lake_group"
"""The number of the row's file group, as the caller gave it."""
NumberedSlice: TypeAlias = tuple[int, str, FileSlice]
"""A slice with its file group's number and its partition's path."""
LAST_INSTANT = "99991231235959999"
"""No block of a log file is later; the files themselves are chosen by completion."""
_FORMAT = "org.apache.spark.sql.execution.datasources.parquet.HoodieFileGroupReaderBasedFileFormat"
_GLOB_CHARACTERS = re.compile(r"([\\{}\[\]*?,])")
_IDS_PER_LISTING = 100
_VECTORIZED = "spark.sql.parquet.enableVectorizedReader"


@dataclass(frozen=True, slots=True)
class ListingEntry:
    """A file of a listing of Hudi's, which stays in Java but for what most files are asked for."""

    entries: Any
    position: int
    path: str
    length: int

    @property
    def info(self) -> Any:
        """Hudi's own object."""
        return self.entries.get(self.position)


def list_entries(entries: Any) -> list[ListingEntry]:
    """Return the entries of a listing by one call of Java, where a call for each of them would take most of the time.

    Raises ValueError when Hudi prints them in another form.
    """
    found = parse_entries(str(entries.toString()), int(entries.size()))
    return [ListingEntry(entries, at, path, length) for at, (path, length) in enumerate(found)]


@dataclass(frozen=True, slots=True, eq=False)
class RowFormat:
    """How a table's rows are read: the columns as one commit wrote them, meta fields first, and Hudi's own form."""

    schema: T.StructType
    table_path: str
    table_name: str
    table_schema: Any
    base_format: Any
    valid_commits: str
    """The timeline's files, where a schema evolved by Spark SQL finds the schema of each base file."""
    uses_positions: bool
    """Whether log records find their rows by position in the base file, as in each query unless a setting says no.

    By key the same rows are found, except where several rows share one: only the first would be updated.
    """


@dataclass(frozen=True, slots=True)
class _Form:
    """The columns of some rows, and Hudi's own function that reads them from a file."""

    read: Any
    output: Any
    keys: tuple[int, int]
    """The places of the record key and of the file group's number."""


_MAX_FORMS = 8


def _is_nested(field: T.StructField) -> bool:
    return isinstance(field.dataType, (T.StructType, T.ArrayType, T.MapType))


class SliceReader:
    """Reads chosen slices of one table. Not to be kept longer than the table's properties stay as they are."""

    def __init__(
        self,
        spark: SparkSession,
        base_path: str,
        options: Mapping[str, str] = MappingProxyType({}),
        *,
        nested_in_batches: bool = True,
    ) -> None:
        self._spark = spark
        self._nested_in_batches = nested_in_batches
        """Whether rows with nested columns are read in batches, as Spark's queries do: fast, and an error where the
        type within one has become wider since a file was written."""
        self._options = options
        """Options of Spark's Parquet reader, over the session's."""
        self._base_path = base_path
        self._jvm: Any = spark._jvm
        self._gateway: Any = spark.sparkContext._gateway
        remember_names(self._jvm, "functions", "PythonUtils", "SparkSession")
        java = self._jvm.java
        org = self._jvm.org
        utils = self._jvm.PythonUtils
        sql = org.apache.spark.sql
        model = org.apache.hudi.common.model
        self._object = java.lang.Object
        self._list = java.util.ArrayList
        self._map = java.util.HashMap
        self._to_seq = utils.toSeq
        self._to_map = utils.toScalaMap
        self._path_of = org.apache.hudi.storage.StoragePath
        self._spark_path = org.apache.spark.paths.SparkPath
        self._row = sql.catalyst.expressions.GenericInternalRow
        self._hashed = sql.catalyst.plans.physical.HashPartitioning
        sources = sql.execution.datasources
        self._rows_of = sql.execution.LogicalRDD
        self._partitioned = sources.PartitionedFile
        self._partition = sources.FilePartition
        self._scan = sources.FileScanRDD
        self._attributes_of = sql.catalyst.types.DataTypeUtils.toAttributes
        self._data_set = sql.Dataset
        self._slice = model.FileSlice
        self._base = model.HoodieBaseFile
        self._log = model.HoodieLogFile
        self._mapping = org.apache.hudi.Spark3HoodiePartitionFileSliceMapping
        self._format_of = getattr(self._jvm, _FORMAT)
        self._no_hosts = self._gateway.new_array(java.lang.String, 0)
        self._nothing = self._scala_map({})
        self._none = self._scala_seq(())
        self._no_option = self._jvm.scala.Option.empty()
        self._no_options = sql.catalyst.FileSourceOptions(self._nothing)
        self._is_vectorized = spark.sparkContext.getConf().get(_VECTORIZED, "true")
        self.parallelism = int(spark.sparkContext.defaultParallelism)
        """How many tasks run at once."""
        self._forms: dict[tuple[RowFormat, str, frozenset[str]], _Form] = {}

    def layout_at(self, rows: DataFrame) -> RowFormat:
        """Return the layout of a query at an instant, as Hudi resolved it. Nothing is read."""
        relation = rows._jdf.queryExecution().analyzed().collectLeaves().head().relation()
        file_format = relation.fileFormat()
        table_schema = _private(file_format, "tableSchema")
        struct = table_schema.structTypeSchema()
        return RowFormat(
            T.StructType.fromJson(json.loads(struct.json())),
            str(_private(file_format, "tablePath")),
            str(_private(file_format, "tableName")),
            table_schema,
            _private(file_format, "hoodieFileFormat"),
            str(_private(file_format, "validCommits")),
            bool(_private(file_format, "shouldUseRecordPosition")),
        )

    def list_files(self, storage: Any, partition: str, file_ids: Iterable[str]) -> dict[str, list[DataFile]]:
        """Return the files of some file groups of one partition, by file id; one listing for each hundred of them."""
        found: dict[str, list[DataFile]] = {}
        ids = sorted(set(file_ids))
        folder = f"{self._base_path}/{partition}".rstrip("/")
        for start in range(0, len(ids), _IDS_PER_LISTING):
            some = [_escape(file_id) for file_id in ids[start : start + _IDS_PER_LISTING]]
            names = ",".join(f"{file_id},.{file_id}" for file_id in some)
            for entry in list_entries(storage.globEntries(self._path_of(f"{_escape(folder)}/{{{names}}}_*"))):
                file = parse_name(entry.path.rpartition("/")[2], entry, entry.length)
                if file is not None:
                    found.setdefault(file.file_id, []).append(file)
        return found

    def read(
        self,
        tasks: Sequence[Sequence[NumberedSlice]],
        layout: RowFormat,
        until: str = LAST_INSTANT,
        meta_fields: Sequence[str] = (),
    ) -> DataFrame:
        """Return the rows of slices, by the task that reads them. To be joined, two sides need the same tasks.

        They have the record key, these meta fields, the data, and in `_lake_group` the slice's number. Blocks of log
        files later than `until` are left out.
        """
        session = self._spark._jsparkSession
        form = self._find_form(layout, until, frozenset(meta_fields))
        partitions = [self._file_partition(at, found) for at, found in enumerate(tasks)]
        scan = self._scan(
            session,
            form.read,
            self._scala_seq(partitions),
            form.output,
            self._none,
            self._nothing,
            self._no_options,
        )
        columns = self._attributes_of(form.output)
        hashed = self._hashed(self._scala_seq(columns.apply(at) for at in form.keys), len(partitions))
        is_streaming = False
        plan = self._rows_of(columns, scan, hashed, self._none, is_streaming, session, self._no_option, self._no_option)
        return DataFrame(self._data_set.ofRows(session, plan), self._spark)

    def _find_form(self, layout: RowFormat, until: str, meta_fields: frozenset[str]) -> _Form:
        """Return how rows of one form are read: made once, for it takes as many calls of Java as all else."""
        key = (layout, until, meta_fields)
        if key not in self._forms:
            if len(self._forms) >= _MAX_FORMS:
                self._forms.clear()
            self._forms[key] = self._make_form(*key)
        return self._forms[key]

    def _make_form(self, layout: RowFormat, until: str, meta_fields: frozenset[str]) -> _Form:
        session = self._spark._jsparkSession
        group = T.StructType([T.StructField(GROUP, T.IntegerType(), nullable=False)])
        data = layout.table_schema.structTypeSchema()
        wanted = {RECORD_KEY, *meta_fields}
        fields = [each for each in layout.schema.fields if not each.name.startswith(META_PREFIX) or each.name in wanted]
        rows, output, of_group = (
            session.parseDataType(T.StructType(some).json())
            for some in (fields, [*fields, *group.fields], group.fields)
        )
        file_format = self._format(layout, until)
        # Hudi's format decides here whether it reads base files in batches of columns, which takes half as long. Each
        # of its queries that does not, as those of change data, switches it off for all later ones of the session.
        in_batches = self._nested_in_batches or not any(map(_is_nested, fields))
        self._spark.conf.set(_VECTORIZED, self._is_vectorized if in_batches else "false")
        file_format.supportBatch(session, data)
        options = self._scala_map({"path": self._base_path, "returning_batch": "false", **self._options})
        # A copy: the format writes its schemas into it.
        settings = session.sessionState().newHadoopConfWithOptions(options)
        read = file_format.buildReaderWithPartitionValues(session, data, of_group, rows, self._none, options, settings)
        names = [field.name for field in fields]
        # A table with virtual keys has no record key in its files; any column says in which task a row is.
        key = names.index(RECORD_KEY) if RECORD_KEY in names else 0
        return _Form(read, output, (key, len(names)))

    def _format(self, layout: RowFormat, until: str) -> Any:
        is_merge_on_read = True
        is_bootstrap = is_incremental = has_several_formats = False
        return self._format_of(
            layout.table_path,
            layout.table_schema,
            layout.table_name,
            until,
            self._none,
            # So it returns rows where the slice is a base file alone, too, and not batches of them.
            is_merge_on_read,
            is_bootstrap,
            is_incremental,
            layout.valid_commits,
            layout.uses_positions,
            self._none,
            has_several_formats,
            layout.base_format,
        )

    def _file_partition(self, at: int, slices: Sequence[NumberedSlice]) -> Any:
        files = self._gateway.new_array(self._partitioned, len(slices))
        for position, found in enumerate(slices):
            files[position] = self._partitioned_file(*found)
        return self._partition(at, files)

    def _partitioned_file(self, number: int, partition: str, found: FileSlice) -> Any:
        first = found.files[0]
        values = self._gateway.new_array(self._object, 1)
        values[0] = number
        row = self._row(values)
        if not found.logs:
            # Nothing to merge: Hudi reads the file in batches of columns, and opens no table in each task.
            return self._file_of(row, first)
        group = self._slice(partition, found.instant, first.file_id)
        if found.base is not None:
            group.setBaseFile(self._base(found.base.handle.info))
        for log in found.logs:
            group.addLogFile(self._log(log.handle.info))
        return self._file_of(self._mapping(row, self._scala_map({first.file_id: group})), first)

    def _file_of(self, values: Any, first: DataFile) -> Any:
        path = self._spark_path.fromPathString(first.handle.path)
        length = first.handle.length
        return self._partitioned(values, path, 0, length, self._no_hosts, 0, length, self._nothing)

    def _scala_seq(self, items: Iterable[Any]) -> Any:
        found = self._list()
        for item in items:
            found.add(item)
        return self._to_seq(found)

    def _scala_map(self, items: dict[str, Any]) -> Any:
        found = self._map()
        for key, value in items.items():
            found.put(key, value)
        return self._to_map(found)


def remember_names(jvm: Any, *names: str) -> None:
    """Let Java be asked once for what a name stands for: it searches all jars for it, each time that it is used."""
    for name in names:
        vars(jvm).setdefault(name, getattr(jvm, name))


def _escape(name: str) -> str:
    return _GLOB_CHARACTERS.sub(r"\\\1", name)


def _private(owner: Any, name: str) -> Any:
    """Return a field of Hudi's that has no accessor."""
    declared = owner.getClass().getDeclaredField(name)
    is_open = True
    declared.setAccessible(is_open)
    return declared.get(owner)
