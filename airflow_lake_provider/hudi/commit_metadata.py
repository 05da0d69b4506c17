"""Commit metadata and plans, reduced to what deciding needs.

Source: Avro schemas `HoodieCommitMetadata`, `HoodieReplaceCommitMetadata`, `HoodieCompactionPlan` of Hudi; layout 1
writes the same fields as JSON.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property, lru_cache
from sys import intern
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.errors import DamagedFileError, LakeError, UnsupportedTableError
from airflow_lake_provider.hudi.avro_schema import MAX_SCHEMA_BYTES
from airflow_lake_provider.hudi.decoding_process import CHANGED_ROWS
from airflow_lake_provider.hudi.file_content import decode, load_record, plain_text
from airflow_lake_provider.hudi.instant import TimelineProblem
from airflow_lake_provider.shared.actions import COMPLETED_WRITE_ACTIONS, State
from airflow_lake_provider.table_layout import find_newest_file_ids
from airflow_lake_provider.timeline_head import SCHEMA_KEY, name_checkpoints

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from airflow_lake_provider.hudi.instant import Instant
    from airflow_lake_provider.hudi.properties import TableProperties
    from airflow_lake_provider.hudi.timeline import Timeline
    from airflow_lake_provider.storage.table_storage import Storage


@dataclass(frozen=True, slots=True)
class WriteStat:
    """One file that a commit wrote."""

    partition: str
    file_id: str
    path: str
    """Relative to the base path."""
    file_size_bytes: int
    written_bytes: int
    is_new_group: bool = False
    """Whether it is certainly the first file of its file group, so that it replaces none."""

    @property
    def is_log(self) -> bool:
        """Whether it is a log file (of a merge-on-read file slice), not a base file."""
        if ".log." not in self.path:
            return False
        name_begins = self.path.rfind("/") + 1
        return self.path.startswith(".", name_begins) and self.path.find(".log.", name_begins) >= 0


_STAT_BYTES = 200
"""About what a file of a commit takes in memory, besides its texts."""


@dataclass(frozen=True)
class CommitMetadata:
    """The metadata of a completed write. `operation` is Hudi's WriteOperationType, for example `UPSERT`."""

    operation: str
    stats: tuple[WriteStat, ...]
    replaced_file_groups: tuple[tuple[str, str], ...] = ()
    """Partition and file id of the file groups that a replacecommit replaced."""
    checkpoints: tuple[str, ...] = ()
    """What its extra metadata may hold a stream's position of (`timeline_head.name_checkpoints`)."""
    changed_rows: int = 0
    """How many rows it inserted, updated or deleted, by its own statistics."""
    columns: str = ""
    """A digest of the table's columns and their types, as its writer saw them; empty where it names none."""

    @property
    def written_bytes(self) -> int:
        """Bytes in all files of the commit."""
        return sum(stat.written_bytes for stat in self.stats)

    @cached_property
    def memory_bytes(self) -> int:
        """About what it takes in memory."""
        stats = sum(_STAT_BYTES + len(s.path) + len(s.partition) + len(s.file_id) for s in self.stats)
        replaced = sum(_STAT_BYTES + len(partition) + len(file_id) for partition, file_id in self.replaced_file_groups)
        return stats + replaced + sum(map(len, self.checkpoints))

    @cached_property
    def are_logs(self) -> tuple[bool, ...]:
        """Whether each of its files is a log file."""
        return tuple([stat.is_log for stat in self.stats])

    @cached_property
    def may_replace(self) -> bool:
        """Whether it replaced a file group, or wrote a base file that may not be the first of its file group."""
        if self.replaced_file_groups:
            return True
        # Log files are added to a file slice.
        return not all(self.are_logs) and any(
            not stat.is_new_group and not is_log for stat, is_log in zip(self.stats, self.are_logs, strict=True)
        )

    def file_ids(self) -> frozenset[str]:
        """The file ids of all files of the commit."""
        return frozenset(stat.file_id for stat in self.stats)

    def file_group_keys(self) -> frozenset[bytes]:
        """The keys (see `file_group_key`) of all file groups that it wrote or replaced."""
        written = (file_group_key(stat.partition, stat.file_id) for stat in self.stats)
        return frozenset((*written, *(file_group_key(*group) for group in self.replaced_file_groups)))


def newest_file_ids_of(commits: Iterable[CommitMetadata]) -> frozenset[str]:
    """Return the file ids of the newest write that wrote files (`find_newest_file_ids`); newest commits first."""
    return find_newest_file_ids((commit.operation, commit.file_ids) for commit in commits)


# --- All commits of one table together: its writer chooses how many there are, and how large

MAX_COMMITS_BYTES = 1 << 30
"""Limit of the completed writes' files that are read for one table: three million files in Avro."""
MAX_COMMITS_MEMORY_BYTES = 3 << 29
"""Limit of what they may become in memory."""
UNMEASURED_COMMITS = 8
"""So many files, each within its own limit, are read without a listing of their sizes before."""


def require_readable_commits(storage: Storage, timeline_path: str, names: Collection[str]) -> None:
    """Raise UnsupportedTableError before files are read that are too large together; one listing where they are many.

    Raises StorageError.
    """
    if len(names) <= UNMEASURED_COMMITS:
        return
    try:
        entries = storage.list_entries(timeline_path)
    except FileNotFoundError:  # each file is missed by itself
        return
    size_bytes = sum(entry.size_bytes for entry in entries if entry.name in names)
    if size_bytes > MAX_COMMITS_BYTES:
        raise UnsupportedTableError(
            f"{storage.base_path}: its {len(names):,} completed writes have {size_bytes:,} bytes, more than the "
            f"{MAX_COMMITS_BYTES:,} that one table may take: have Hudi archive older ones"
        )


class MeasuredCommits:
    """Counts what the completed writes of one table take in memory."""

    def __init__(self, base_path: str) -> None:
        self._base_path = base_path
        self._used_bytes = 0

    def add(self, commit: CommitMetadata) -> CommitMetadata:
        """Return the commit. Raises UnsupportedTableError when all together take more than one table may."""
        self._used_bytes += commit.memory_bytes
        if self._used_bytes > MAX_COMMITS_MEMORY_BYTES:
            raise UnsupportedTableError(
                f"{self._base_path}: its completed writes take more than {MAX_COMMITS_MEMORY_BYTES >> 20:,} MiB of "
                "memory: have Hudi archive older ones"
            )
        return commit


def load_commit_metadata(storage: Storage, timeline_path: str, instant: Instant) -> CommitMetadata:
    """Read the metadata of a completed write. Raises FileNotFoundError, StorageError, DamagedFileError."""
    return parse_commit_metadata(load_record(storage, f"{timeline_path}/{instant.file_name}"), instant.file_name)


def parse_commit_metadata(record: Mapping[str, Any] | None, file_name: str) -> CommitMetadata:
    """Build the metadata of a completed commit, deltacommit or replacecommit. Raises DamagedFileError."""
    if record is None:
        raise DamagedFileError(f"{file_name}: a completed write must not be empty")
    try:
        stats = tuple(
            _parse_stat(partition, stat)
            for partition, entries in (record.get("partitionToWriteStats") or {}).items()
            for stat in entries or ()
        )
        replaced = tuple(
            (plain_text(partition), plain_text(file_id))
            for partition, file_ids in (record.get("partitionToReplaceFileIds") or {}).items()
            for file_id in file_ids or ()
        )
        extra = record.get("extraMetadata") or {}
        checkpoints = name_checkpoints(extra)
        rows = sum(
            _count(stat.get(name))
            for entries in (record.get("partitionToWriteStats") or {}).values()
            for stat in entries or ()
            for name in CHANGED_ROWS
        )
        operation = str(record.get("operationType") or "UNKNOWN")
        return CommitMetadata(operation, stats, replaced, checkpoints, rows, digest_columns(extra.get(SCHEMA_KEY)))
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise DamagedFileError(f"{file_name}: not commit metadata: {error}") from error


def digest_columns(schema: object) -> str:
    """Return a digest of an Avro schema's columns and their types; empty for what is no schema.

    A type that may be null counts as the type: writers differ in that, and no catalog shows it. A schema that is too
    long to be read here counts as it is written.
    """
    if not isinstance(schema, str) or not schema:
        return ""
    if len(schema) > MAX_SCHEMA_BYTES:
        return hashlib.sha256(schema.encode("utf-8", "replace")).hexdigest()[:12]
    return _digest_schema(schema)


@lru_cache(maxsize=32)  # most commits of a table have the same text
def _digest_schema(schema: str) -> str:
    try:
        columns = _plain_type(json.loads(schema))
        return hashlib.sha256(json.dumps(columns).encode()).hexdigest()[:12] if columns is not None else ""
    except (ValueError, RecursionError):
        return ""


def _plain_type(kind: Any) -> Any:
    if isinstance(kind, list):
        kinds = [_plain_type(one) for one in kind if one != "null"]
        return kinds[0] if len(kinds) == 1 else kinds
    if not isinstance(kind, dict):
        return kind
    if isinstance(kind.get("fields"), list):
        fields = (field for field in kind["fields"] if isinstance(field, dict))
        # Hudi's own columns are in the schema of some commits only.
        return [
            [field.get("name"), _plain_type(field.get("type"))]
            for field in fields
            if not str(field.get("name")).startswith(_HUDIS_COLUMNS)
        ]
    inner = {key: _plain_type(kind[key]) for key in ("type", "items", "values") if key in kind}
    words = {key: kind[key] for key in ("logicalType", "precision", "scale", "size", "symbols") if key in kind}
    # {"type": "long"} is "long".
    return inner["type"] if list(inner) == ["type"] and not words else {**inner, **words}


_HUDIS_COLUMNS = "_hoodie_"


def _parse_stat(partition: str, stat: Mapping[str, Any]) -> WriteStat:
    written_bytes = _size(stat.get("totalWriteBytes") or 0)
    return WriteStat(
        # A file group comes again in many writes.
        partition=intern(plain_text(partition)),
        file_id=intern(plain_text(stat.get("fileId") or "")),
        path=plain_text(stat.get("path") or ""),
        file_size_bytes=_size(stat.get("fileSizeInBytes") or written_bytes),
        written_bytes=written_bytes,
        # Hudi writes the word (`HoodieWriteStat.NULL_COMMIT`); without a value nothing is known.
        is_new_group=stat.get("prevCommit") == "null",
    )


MAX_ROWS = 1 << 40
"""Limit of one file's rows, which are for people and users' DAGs alone: a larger number, or none, counts as 0."""


def _count(value: Any) -> int:
    return value if isinstance(value, int) and 0 <= value <= MAX_ROWS else 0


MAX_SIZE_BYTES = 1 << 43
"""Limit of one file's size: the sum over all files of a table must fit into a database's number."""


def _size(value: Any) -> int:
    size = int(value)
    if abs(size) > MAX_SIZE_BYTES:
        raise ValueError(f"a file of {str(size)[:50]} bytes")
    return size


# --- What a write in flight declares before its first file: the profile of its rows, by partition and file
# group
#
# Source: Hudi `BaseCommitActionExecutor.saveWorkloadProfileMetadataToInflight`. Upserts, inserts and deletes leave it
# in their inflight file (Avro, JSON in layout 1), with a file id for each file group that is updated, and without one
# for rows that are new: those may go into any small file group of their partition. A bulk insert leaves an empty
# file.
#
# Insert overwrites (action `replacecommit`) leave it too, for the rows that they bring: what they take out is all
# that lies in those partitions, and with a static overwrite in others as well, and is named at the commit only.


@dataclass(frozen=True, slots=True)
class AnnouncedWrite:
    """All partitions that a write will put rows into, and the file groups (partition, file id) that it will update.

    `operation` is Hudi's WriteOperationType, for example `INSERT_OVERWRITE`.
    """

    partitions: frozenset[str]
    updated_file_groups: frozenset[tuple[str, str]]
    operation: str


def load_announced_write(storage: Storage, properties: TableProperties, instant: Instant) -> AnnouncedWrite | None:
    """Return what an inflight commit, deltacommit or replacecommit announces; None when it announces nothing (yet).

    Raises FileNotFoundError, StorageError, DamagedFileError.
    """
    if instant.state is not State.INFLIGHT or instant.action not in COMPLETED_WRITE_ACTIONS:
        return None
    record = load_record(storage, f"{properties.timeline_path}/{instant.file_name}")
    if record is None:
        return None
    metadata = parse_commit_metadata(record, instant.file_name)
    if not metadata.stats:
        return None
    return AnnouncedWrite(
        frozenset(stat.partition for stat in metadata.stats),
        frozenset((stat.partition, stat.file_id) for stat in metadata.stats if stat.file_id),
        metadata.operation,
    )


# --- Find the files of a timeline that cannot be read


def find_damaged_files(
    storage: Storage, properties: TableProperties, timeline: Timeline, *, is_gone_damage: bool = True
) -> list[TimelineProblem]:
    """Read the file of every instant in its highest state; return those that cannot be decoded.

    `is_gone_damage`: whether a file that has vanished counts as well.
    """
    problems = []
    left_bytes = MAX_COMMITS_BYTES
    for instant in timeline.instants:
        try:
            if left_bytes < 0:
                raise DamagedFileError(f"not read: those before it have more than {MAX_COMMITS_BYTES:,} bytes")
            content = storage.read_bytes(f"{properties.timeline_path}/{instant.file_name}")
            left_bytes -= len(content)
            if decode(content, instant.file_name) is None and not instant.may_be_empty:
                problems.append(TimelineProblem(instant.file_name, "empty, which this action and state must not be"))
        except FileNotFoundError:
            if is_gone_damage:
                problems.append(TimelineProblem(instant.file_name, "vanished while the timeline was read"))
        except LakeError as error:
            problems.append(TimelineProblem.of(instant.file_name, error))
    return problems


# --- File groups by one key of bytes: an instant may touch 100,000, and nothing else keeps a comparison of them quick


def file_group_key(partition: str, file_id: str) -> bytes:
    """Return the key of a file group; a table without partitions has the partition ''."""
    return f"{partition}/{file_id}".encode() if partition else file_id.encode()


def split_file_group_key(key: bytes) -> tuple[str, str]:
    """Return partition and file id of a key; the inverse of `file_group_key`."""
    partition, _, file_id = key.rpartition(b"/")
    return partition.decode("utf-8", "replace"), file_id.decode("utf-8", "replace")
