"""Column statistics of new base files that no reader skips a row by.

Parquet leaves out the bounds of a column with NaN, or whose smallest and largest texts have 4 KiB together. Hudi 1.2
takes that for 0.0 to 0.0, or for nulls alone, and readers skip the file (https://github.com/apache/hudi/issues/18754,
https://github.com/apache/hudi/issues/18755). A rewrite would spread that to all rows that it puts into such a file. So
what it commits has wider bounds for these columns: readers open the file, as they would without statistics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lake_jobs.hudi.table import class_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import SparkSession

COLUMN_STATS = "column_stats"
_DELTA = "org.apache.hudi.common.model.HoodieDeltaWriteStat"
_RANGE = "org.apache.hudi.stats.HoodieColumnRangeMetadata"
_LAST_CHARACTER = "\U0010ffff"
_NUMBERS = (float("-inf"), float("inf"))
_TEXT = "STRING"
_WIDEST = {_TEXT: ("", _LAST_CHARACTER), "DOUBLE": _NUMBERS, "FLOAT": _NUMBERS}
"""Bounds between which each value of a type lies, by Parquet's name of the type. As a bound, NaN would be neither
below nor above any number for Hudi's readers."""
_BYTES = frozenset({"BINARY", "FIXED_LEN_BYTE_ARRAY"})
_SUFFIX = ".parquet"


class BoundsOfNewFiles:
    """Gives the statistics of a client's new files right bounds, where the table has column statistics."""

    def __init__(self, spark: SparkSession, client: Any) -> None:
        """Load the table. Raises Py4JJavaError."""
        org = spark._jvm.org.apache.hudi
        self._spark = spark
        self._client = client
        self._org = org
        meta_client = org.table.HoodieSparkTable.create(client.getConfig(), client.getEngineContext()).getMetaClient()
        self._storage = meta_client.getStorage()
        self._base_path = str(meta_client.getBasePath().toString())
        self._columns = _indexed_columns(meta_client)
        utils = org.metadata.HoodieTableMetadataUtil
        self._version = utils.existingIndexVersionOrDefault(COLUMN_STATS, meta_client) if self._columns else None
        self._footers = org.common.util.ParquetUtils

    def correct(self, stat: Any) -> Any:
        """Return the statistics of a new file, with wider bounds of columns that have none. Raises Py4JJavaError."""
        path = str(stat.getPath())
        if self._columns is None or not path.endswith(_SUFFIX):
            return stat
        place = self._org.storage.StoragePath(f"{self._base_path}/{path}")
        odd = dict(_find_unbounded(self._footers.readMetadata(self._storage, place)))
        if not odd:
            return stat
        ranges = self._spark._jvm.java.util.HashMap()
        for found in self._footers().readColumnStatsFromMetadata(self._storage, place, self._columns, self._version):
            name = str(found.getColumnName())
            if name not in odd:
                ranges.put(name, found)
            elif odd[name] in _WIDEST:
                ranges.put(name, self._widen(found, odd[name]))
        mapper = self._org.common.util.JsonUtils.getObjectMapper()
        corrected = mapper.convertValue(stat, class_of(self._spark, _DELTA, self._client))
        corrected.putRecordsStats(ranges)
        return corrected

    def _widen(self, found: Any, kind: str) -> Any:
        values = int(found.getValueCount())
        gateway: Any = self._spark.sparkContext._gateway
        java = self._spark._jvm.java.lang
        low, high = _WIDEST[kind]
        # Neither nulls alone nor no null: a condition on nulls opens the file as well.
        nulls = min(1, values - 1)
        sizes = (int(found.getTotalSize()), int(found.getTotalUncompressedSize()))
        arguments = gateway.new_array(java.Object, 9)
        for at, value in enumerate((found.getFilePath(), found.getColumnName(), low, high)):
            arguments[at] = value
        if kind == "FLOAT":
            # A Python float becomes a Java double; a float stays one only inside of Java.
            floats = gateway.new_array(gateway.jvm.float, 2)
            java.reflect.Array.setFloat(floats, 0, low)
            java.reflect.Array.setFloat(floats, 1, high)
            boxed = self._spark._jvm.org.apache.commons.lang3.ArrayUtils.toObject(floats)
            java.System.arraycopy(boxed, 0, arguments, 2, 2)
        longs = gateway.new_array(gateway.jvm.long, 4)
        for at, value in enumerate((nulls, values, *sizes)):
            java.reflect.Array.setLong(longs, at, value)
        java.System.arraycopy(self._spark._jvm.org.apache.commons.lang3.ArrayUtils.toObject(longs), 0, arguments, 4, 4)
        arguments[8] = found.getValueMetadata()
        create = next(
            method
            for method in class_of(self._spark, _RANGE, self._client).getMethods()
            if method.getName() == "create" and method.getParameterCount() == len(arguments)
        )
        return create.invoke(None, arguments)


def _indexed_columns(meta_client: Any) -> Any:
    """Return the columns of a table's column statistics; None without any."""
    if COLUMN_STATS not in {str(each) for each in meta_client.getTableConfig().getMetadataPartitions()}:
        return None
    index = meta_client.getIndexMetadata()
    definition = index.get().getIndexDefinitions().get(COLUMN_STATS) if index.isPresent() else None
    return None if definition is None else definition.getSourceFields()


def _find_unbounded(footer: Any) -> Iterator[tuple[str, str]]:
    """Return name and type of each column that has values in some part of a file, and no bounds there."""
    kinds: dict[int, str] = {}
    for block in footer.getBlocks():
        chunks = block.getColumns()
        kinds = kinds or dict(_find_kinds(chunks))
        for at, kind in kinds.items():
            chunk = chunks.get(at)
            if _lacks_bounds(chunk):
                yield str(chunk.getPath().toDotString()), kind


def _find_kinds(chunks: Iterable[Any]) -> Iterator[tuple[int, str]]:
    """Return place and type of the columns whose bounds Parquet may leave out."""
    for at, chunk in enumerate(chunks):
        stored = chunk.getPrimitiveType()
        kind = str(stored.getPrimitiveTypeName().name())
        if kind in _BYTES:
            yield at, str(stored.getLogicalTypeAnnotation())
        elif kind in _WIDEST:
            yield at, kind


def _lacks_bounds(chunk: Any) -> bool:
    found = chunk.getStatistics()
    if found is None or found.isEmpty():
        return True
    return not found.hasNonNullValue() and int(found.getNumNulls()) < int(chunk.getValueCount())
