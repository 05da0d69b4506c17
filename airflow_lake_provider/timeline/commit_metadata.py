"""Commit metadata and plans, reduced to what deciding needs.

Source: Avro schemas `HoodieCommitMetadata`, `HoodieReplaceCommitMetadata`, `HoodieCompactionPlan` of Hudi; layout 1
writes the same fields as JSON.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.errors import DamagedFileError
from airflow_lake_provider.timeline.content import decode
from airflow_lake_provider.timeline.markers import file_group_key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_lake_provider.timeline.instant import Instant
    from airflow_lake_provider.timeline.storage import Storage


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
        name = self.path.rsplit("/", 1)[-1]
        return name.startswith(".") and ".log." in name


@dataclass(frozen=True, slots=True)
class CommitMetadata:
    """What a completed write says of itself. `operation` is Hudi's WriteOperationType, for example `UPSERT`."""

    operation: str
    stats: tuple[WriteStat, ...]
    replaced_file_groups: tuple[tuple[str, str], ...] = ()
    """Partition and file id of the file groups that a replacecommit took out."""

    @property
    def written_bytes(self) -> int:
        """Bytes in all files of the commit."""
        return sum(stat.written_bytes for stat in self.stats)

    def file_group_keys(self) -> frozenset[bytes]:
        """The keys (see `file_group_key`) of all file groups that it wrote or took out."""
        written = (file_group_key(stat.partition, stat.file_id) for stat in self.stats)
        return frozenset((*written, *(file_group_key(*group) for group in self.replaced_file_groups)))


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """The file groups (partition, file id) of a compaction plan, and how many log files it merges."""

    file_groups: tuple[tuple[str, str], ...]
    log_files: int


def load_commit_metadata(storage: Storage, timeline_path: str, instant: Instant) -> CommitMetadata:
    """Read the metadata of a completed write. Raises FileNotFoundError, StorageError, DamagedFileError."""
    content = storage.read_bytes(f"{timeline_path}/{instant.file_name}")
    return parse_commit_metadata(decode(content, instant.file_name), instant.file_name)


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
            (partition, file_id)
            for partition, file_ids in (record.get("partitionToReplaceFileIds") or {}).items()
            for file_id in file_ids or ()
        )
        return CommitMetadata(str(record.get("operationType") or "UNKNOWN"), stats, replaced)
    except (AttributeError, TypeError, ValueError) as error:
        raise DamagedFileError(f"{file_name}: not commit metadata: {error}") from error


def _parse_stat(partition: str, stat: Mapping[str, Any]) -> WriteStat:
    written_bytes = int(stat.get("totalWriteBytes") or 0)
    return WriteStat(
        partition=partition,
        file_id=str(stat.get("fileId") or ""),
        path=str(stat.get("path") or ""),
        file_size_bytes=int(stat.get("fileSizeInBytes") or written_bytes),
        written_bytes=written_bytes,
        # Hudi writes the word (`HoodieWriteStat.NULL_COMMIT`); where nothing is said, nothing is known.
        is_new_group=stat.get("prevCommit") == "null",
    )


def parse_compaction_plan(record: Mapping[str, Any] | None, file_name: str) -> CompactionPlan:
    """Build a compaction plan. Raises DamagedFileError."""
    if record is None:
        raise DamagedFileError(f"{file_name}: a compaction plan must not be empty")
    try:
        operations = record.get("operations") or ()
        return CompactionPlan(
            tuple((str(operation["partitionPath"] or ""), str(operation["fileId"])) for operation in operations),
            sum(len(operation.get("deltaFilePaths") or ()) for operation in operations),
        )
    except (AttributeError, TypeError, KeyError) as error:
        raise DamagedFileError(f"{file_name}: not a compaction plan: {error}") from error
