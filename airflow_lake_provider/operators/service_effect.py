"""What the completed instants of a service did, by their own metadata and the files that they name.

Source: `HoodieWriteStat`, `HoodieClusteringPlan` and `HoodieCleanMetadata` of Hudi.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.timeline.content import decode
from airflow_lake_provider.timeline.instant import Action, Instant, State
from airflow_lake_provider.timeline.loader import load_timeline
from airflow_lake_provider.timeline.properties import load_table_properties

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow_lake_provider.timeline.properties import TableProperties
    from airflow_lake_provider.timeline.storage import Storage

MOST_STATS = 256
"""Files whose sizes are asked of the store; of a service that read more, the bytes read are not told."""


@dataclass(frozen=True, slots=True)
class ServiceEffect:
    """Totals over instants. Sizes in bytes; None is not known, or not of this service."""

    files_before: int | None = None
    """Files that were read and are replaced: base files and log files."""
    files_after: int | None = None
    read_bytes: int | None = None
    written_bytes: int | None = None
    records_written: int | None = None
    files_deleted: int | None = None

    def plus(self, other: ServiceEffect) -> ServiceEffect:
        """Return both together; what is known of one only counts."""
        totals = {entry.name: _plus(getattr(self, entry.name), getattr(other, entry.name)) for entry in fields(self)}
        return ServiceEffect(**totals)


def read_effect(storage: Storage, instants: Iterable[str]) -> ServiceEffect:
    """Return what the completed instants of these requested times did. Raises DamagedFileError, StorageError."""
    properties, wanted = load_table_properties(storage), frozenset(instants)
    effect = ServiceEffect()
    for instant in load_timeline(storage, properties).completed():
        if instant.requested_time in wanted:
            content = storage.read_bytes(f"{properties.timeline_path}/{instant.file_name}")
            record = decode(content, instant.file_name) or {}
            effect = effect.plus(_effect_of(storage, properties, instant, record))
    return effect


def _effect_of(
    storage: Storage, properties: TableProperties, instant: Instant, record: Mapping[str, Any]
) -> ServiceEffect:
    if instant.action in {Action.CLEAN, Action.ROLLBACK}:
        return ServiceEffect(files_deleted=_number(record.get("totalFilesDeleted")))
    by_partition = record.get("partitionToWriteStats") or {}
    stats = [stat for entries in by_partition.values() for stat in entries or ()]
    read = _files_clustered(storage, properties, instant) or _base_files_merged(stats)
    logs = sum(_number(stat.get("totalLogFilesCompacted")) for stat in stats)
    log_bytes = sum(_number(stat.get("totalLogSizeCompacted")) for stat in stats)
    read_bytes = _bytes_of(storage, read)
    return ServiceEffect(
        files_before=len(read) + logs,
        files_after=len(stats),
        read_bytes=None if read_bytes is None else read_bytes + log_bytes,
        written_bytes=sum(_number(stat.get("totalWriteBytes")) for stat in stats),
        records_written=sum(_number(stat.get("numWrites")) for stat in stats),
    )


def _files_clustered(storage: Storage, properties: TableProperties, instant: Instant) -> list[str]:
    """Return the files of a clustering's plan, relative to the base path; none when it is no clustering."""
    if instant.action is not Action.REPLACECOMMIT:
        return []
    for action in (Action.CLUSTERING, Action.REPLACECOMMIT):  # layout 1 knows only the latter
        name = properties.layout.file_name(Instant(instant.requested_time, action, State.REQUESTED, None, ""))
        try:
            record = decode(storage.read_bytes(f"{properties.timeline_path}/{name}"), name) or {}
        except FileNotFoundError:
            continue
        groups = (record.get("clusteringPlan") or {}).get("inputGroups") or ()
        slices = [part for group in groups for part in group.get("slices") or ()]
        return [
            _below(part.get("partitionPath"), path)
            for part in slices
            for path in (part.get("dataFilePath"), *(part.get("deltaFilePaths") or ()))
            if path
        ]
    return []


def _base_files_merged(stats: list[dict[str, Any]]) -> list[str]:
    return [_below(stat.get("partitionPath"), stat["prevBaseFile"]) for stat in stats if stat.get("prevBaseFile")]


def _below(partition: Any, path: Any) -> str:
    # Plans name some files by their whole path, and others by their last part only.
    name = str(path).rpartition("/")[2]
    return f"{partition}/{name}" if partition else name


def _bytes_of(storage: Storage, paths: list[str]) -> int | None:
    if len(paths) > MOST_STATS:
        return None
    total = 0
    for path in paths:
        entry = storage.stat(path)
        if entry is None:  # cleaned already
            return None
        total += entry.size_bytes
    return total


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _plus(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return one + other
