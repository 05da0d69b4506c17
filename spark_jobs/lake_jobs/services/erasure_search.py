"""Searches every file below a table's base path for record keys, apart from any list of Hudi's.

Base files are read by columns, on the executors, and once more as plain bytes; all other files are read and unpacked
in the driver. No key is part of a plan, a name or a log: Spark gets keys as rows of a table with their lines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from py4j.protocol import Py4JJavaError
from pyspark.sql import functions as F

from airflow_lake_provider.job_contract import METADATA_TABLE
from lake_jobs.hudi.files import TableFiles, path_below
from lake_jobs.hudi.regular_files import MAX_FILE_BYTES
from lake_jobs.replication.file_slices import parse_name
from lake_jobs.replication.slice_reader import RECORD_KEY, list_entries
from lake_jobs.services.erasure_rules import (
    ErasedKey,
    Place,
    Trace,
    UnreadableError,
    describe_search,
    find_in_bytes,
    find_in_log,
    unpack,
)
from lake_jobs.services.row_deletion import COMMIT_TIME
from lake_jobs.verify.seen_before import AS_WRITTEN, PARTITION_PATH

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from lake_jobs.hudi.table import LoadedTable

_LINE = "_lake_line"
_KEY = "_lake_key"
_PARTITION = "_lake_partition"
_PATH = "_lake_path"
_META = ".hoodie/"
_OVERLAP_BYTES = 8 * 2**20


@dataclass(frozen=True, slots=True)
class Searched:
    """What a search of all files found."""

    places: tuple[Place, ...]
    unread: tuple[tuple[str, str], ...]
    """Path and reason of each file that cannot be searched."""
    files: int
    bytes: int

    @property
    def paths(self) -> frozenset[str]:
        """Files that have a key, or may have one."""
        return frozenset(place.path for place in self.places) | frozenset(path for path, _ in self.unread)


def search_files(spark: SparkSession, state: LoadedTable, keys: Sequence[ErasedKey]) -> Searched:
    """Search every file below the base path. Raises Py4JJavaError.

    A file that vanishes meanwhile is searched for no more: a second listing says so.
    """
    sizes = _list_sizes(state)
    parquet = sorted(path for path in sizes if path.endswith(".parquet"))
    rows = [path for path in parquet if not path.startswith(_META) or "/files/" in path]
    archived = [path for path in parquet if path not in set(rows)]
    table = keys_table(spark, keys)
    places: dict[tuple[int, str], Place] = {}
    if rows:
        _keep(places, _find_rows(spark, state, rows, table))
    if parquet:
        _keep(places, _find_plain(spark, state, parquet, keys))
    if archived:
        _keep(places, _find_archived(spark, state, archived, keys))
    unread = []
    files = TableFiles(spark, state.base_path)
    for path in sorted(sizes.keys() - set(parquet)):
        try:
            parts = _read_in_parts(files, path, sizes[path])
            lines = set[tuple[int, Trace]]().union(*(_find_in_file(path, part, keys) for part in parts))
        except FileNotFoundError:
            continue
        except Py4JJavaError:
            if files.size_of(path) is None:
                continue
            raise
        except (UnreadableError, OSError) as error:
            unread.append((path, f"{error}"))
            continue
        _keep(places, (Place(line, path, trace) for line, trace in lines))
    return Searched(tuple(places.values()), tuple(unread), len(sizes), sum(sizes.values()))


def find_live(spark: SparkSession, base_path: str, keys: Sequence[ErasedKey]) -> list[tuple[int, str, str, str]]:
    """Return line, partition, file name and commit of each row with a key that readers see."""
    rows = spark.read.options(**AS_WRITTEN).format("hudi").load(base_path)
    found = _join(rows, keys_table(spark, keys))
    return [tuple(row) for row in found.select(_LINE, PARTITION_PATH, "_hoodie_file_name", COMMIT_TIME).collect()]


def keys_table(spark: SparkSession, keys: Iterable[ErasedKey]) -> DataFrame:
    """Return the keys as rows."""
    schema = f"{_LINE} INT, {_KEY} STRING, {_PARTITION} STRING"
    return F.broadcast(spark.createDataFrame([(key.line, key.key, key.partition) for key in keys], schema))


def mark_chosen(spark: SparkSession, keys: Sequence[ErasedKey], name: str, rows: DataFrame) -> DataFrame:
    """Return rows with a column that says whether they have one of the keys."""
    wanted = keys_table(spark, keys)
    is_wanted = _matches(rows, wanted)
    return rows.join(wanted.withColumn(name, F.lit(True)), is_wanted, "left").drop(_LINE, _KEY, _PARTITION)  # noqa: FBT003


def _matches(rows: DataFrame, keys: DataFrame) -> Any:
    is_there = keys[_PARTITION].isNull() | (keys[_PARTITION] == rows[PARTITION_PATH])
    return (rows[RECORD_KEY] == keys[_KEY]) & is_there


def _join(rows: DataFrame, keys: DataFrame) -> DataFrame:
    return rows.join(keys, _matches(rows, keys))


def _keep(places: dict[tuple[int, str], Place], found: Iterable[Place]) -> None:
    for place in found:
        places.setdefault((place.line, place.path), place)


def _list_sizes(state: LoadedTable) -> dict[str, int]:
    storage = state.meta_client.getStorage()
    entries = list_entries(storage.listFiles(state.meta_client.getBasePath()))
    return {path_below(state.base_path, entry.path): entry.length for entry in entries}


def _full(state: LoadedTable, paths: Iterable[str]) -> list[str]:
    return [f"{state.base_path}/{path}" for path in paths]


def _below(state: LoadedTable, uri: str) -> str:
    return path_below(state.base_path, unquote(uri))


def _find_rows(spark: SparkSession, state: LoadedTable, paths: Sequence[str], keys: DataFrame) -> list[Place]:
    schema = f"{COMMIT_TIME} STRING, {RECORD_KEY} STRING, {PARTITION_PATH} STRING"
    reader = spark.read.schema(schema).option("recursiveFileLookup", "true")
    rows = reader.parquet(*_full(state, paths)).withColumn(_PATH, F.col("_metadata.file_path"))
    found = _join(rows, keys).select(_LINE, _PATH, COMMIT_TIME).distinct().collect()
    return [Place(row[0], _below(state, row[1]), Trace.ROW, row[2]) for row in found]


def _find_plain(
    spark: SparkSession, state: LoadedTable, paths: Sequence[str], keys: Sequence[ErasedKey]
) -> list[Place]:
    """Search the bytes as they are stored, line by line, so that no file has to be in memory as a whole."""
    wanted = keys_table(spark, [key for key in keys if describe_search(key.key) == "plain"])
    reader = spark.read.option("recursiveFileLookup", "true")
    rows = reader.text(_full(state, paths)).withColumn(_PATH, F.col("_metadata.file_path"))
    found = rows.join(wanted, F.col("value").contains(F.col(_KEY))).select(_LINE, _PATH).distinct().collect()
    places = [Place(row[0], _below(state, row[1]), Trace.BYTES) for row in found]
    partitions = {key.line: key.partition for key in keys}
    return [place for place in places if _is_in(place.path, partitions[place.line])]


def _is_in(path: str, partition: str | None) -> bool:
    return partition is None or path.startswith((_META, f"{partition}/" if partition else ""))


def _find_archived(
    spark: SparkSession, state: LoadedTable, paths: Sequence[str], keys: Sequence[ErasedKey]
) -> list[Place]:
    """Search the archived instants, whose metadata and plans are columns."""
    wanted = keys_table(spark, [key for key in keys if describe_search(key.key) == "plain"])
    rows = spark.read.schema("metadata BINARY, plan BINARY").option("recursiveFileLookup", "true")
    archived = rows.parquet(*_full(state, paths)).withColumn(_PATH, F.col("_metadata.file_path"))
    has = [f"contains({column}, CAST({_KEY} AS BINARY))" for column in ("metadata", "plan")]
    found = archived.join(wanted, F.expr(" OR ".join(has))).select(_LINE, _PATH).distinct().collect()
    return [Place(row[0], _below(state, row[1]), Trace.BYTES) for row in found]


def _read_in_parts(files: TableFiles, path: str, size: int) -> Iterable[bytes]:
    """Yield a file whole, or a large one in parts that overlap by more than a block of an index."""
    if size <= MAX_FILE_BYTES:
        yield files.read_directly(path)
        return
    for offset in range(0, size, MAX_FILE_BYTES - _OVERLAP_BYTES):
        yield files.read_part(path, offset, MAX_FILE_BYTES)


def _find_in_file(path: str, content: bytes, keys: Sequence[ErasedKey]) -> set[tuple[int, Trace]]:
    folder, _, name = path.rpartition("/")
    file = parse_name(name)
    if file is not None and file.is_log and not path.startswith(METADATA_TABLE):
        partition = folder.rpartition("/files/")[2] if path.startswith(_META) else folder
        return {(line, Trace.LOG) for line in find_in_log(content, keys, partition)}
    if not path.startswith(METADATA_TABLE):
        # Short keys would be found by chance in texts that have no form of their own.
        keys = [key for key in keys if describe_search(key.key) == "plain" and _is_in(path, key.partition)]
    return {(line, Trace.BYTES) for line in find_in_bytes(unpack(content), keys)}
