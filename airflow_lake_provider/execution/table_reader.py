"""The table before and after a service's job, read from the storage itself, never from a cache (G3)."""

from __future__ import annotations

import time
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.hudi.commit_metadata import decode
from airflow_lake_provider.hudi.heartbeat import heartbeat_rule, load_heartbeats
from airflow_lake_provider.hudi.instant import Action, Instant
from airflow_lake_provider.hudi.pending import file_below, load_completed_clustering, resolve_clusterings
from airflow_lake_provider.hudi.properties import load_table_properties
from airflow_lake_provider.hudi.timeline import Timeline, load_metadata_timeline, load_timeline
from airflow_lake_provider.indexing.table_indexes import load_holes
from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.planner.rules import require_guarded_writers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from airflow_lake_provider.hudi.properties import TableProperties
    from airflow_lake_provider.job_contract import ServiceRequest
    from airflow_lake_provider.storage.table_storage import Storage

# --- The effect of a service's completed instants, by their own metadata and the files that they name
#
# Source: `HoodieWriteStat`, `HoodieClusteringPlan` and `HoodieCleanMetadata` of Hudi.

MOST_STATS = 256
"""The most files whose sizes are read from the store; a service that read more reports no bytes."""


@dataclass(frozen=True, slots=True)
class ServiceEffect:
    """Totals over instants. Sizes in bytes; None is not known, or not of this service."""

    files_before: int | None = None
    """Files that the service read and replaced: base files and log files."""
    files_after: int | None = None
    read_bytes: int | None = None
    written_bytes: int | None = None
    records_written: int | None = None
    files_deleted: int | None = None

    def plus(self, other: ServiceEffect) -> ServiceEffect:
        """Return both together; a value that only one has counts."""
        totals = {entry.name: _plus(getattr(self, entry.name), getattr(other, entry.name)) for entry in fields(self)}
        return ServiceEffect(**totals)


def read_effect(storage: Storage, instants: Iterable[str]) -> ServiceEffect:
    """Return the effect of the completed instants with these requested times. Raises DamagedFileError, StorageError."""
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
    """Return the files of a clustering's plan, relative to the base path; none for other instants."""
    if instant.action is not Action.REPLACECOMMIT:
        return []
    plan = load_completed_clustering(storage, properties, instant)
    return [] if plan is None else [file for part in plan.slices for file in (*part.base_files, *part.log_files)]


def _base_files_merged(stats: list[dict[str, Any]]) -> list[str]:
    return [file_below(stat.get("partitionPath"), stat["prevBaseFile"]) for stat in stats if stat.get("prevBaseFile")]


def _bytes_of(storage: Storage, paths: list[str]) -> int | None:
    if len(paths) > MOST_STATS:
        return None
    total = 0
    for path in paths:
        entry = storage.stat(path)
        if entry is None:  # already cleaned
            return None
        total += entry.size_bytes
    return total


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _plus(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return one + other


class TableReader:
    """Reads one table. Each call reads the storage; nothing is kept."""

    def __init__(self, base_path: str, open_table: Callable[[str], Storage]) -> None:
        self.base_path = base_path
        self._storage = open_table(base_path)

    def properties(self) -> TableProperties:
        """Return the table's properties."""
        return load_table_properties(self._storage)

    def timeline(self) -> Timeline:
        """Return the active timeline, with clusterings distinguished from insert overwrites."""
        properties = self.properties()
        return resolve_clusterings(self._storage, properties, load_timeline(self._storage, properties))

    def timeline_of(self, service: Service) -> Timeline:
        """Return the active timeline that a service works on: the table's, or its metadata table's."""
        if service is Service.METACOMPACTION:
            return load_metadata_timeline(self._storage) or Timeline()
        return self.timeline()

    def explain_holes(self, service: Service, hudi_options: Mapping[str, str]) -> tuple[str, ...]:
        """Return in sentences what is in the way of the last completed write; only index builds need it."""
        if service is not Service.INDEXING:
            return ()
        return load_holes(self._storage, int(time.time() * 1000), heartbeat_rule(hudi_options)).explain()

    def effect_of(self, instants: Iterable[str]) -> ServiceEffect:
        """Return the effect of completed instants, by their metadata."""
        return read_effect(self._storage, instants)

    def require_guarded_writers(self, wanted: ServiceRequest) -> None:
        """Raise WriterUnguardedError when a writer without locking may be running.

        A rollback that names a write vouches for it: its caller knows that the write's writer is dead.
        """
        # Heartbeats before and after the timeline: a writer's heartbeat begins before its instant and ends after it.
        heartbeats = load_heartbeats(self._storage)
        vouched_for = frozenset(wanted.instants if wanted.service is Service.ROLLBACK else ())
        writes = {instant.requested_time for instant in self.timeline().pending_writes()} - vouched_for
        if writes:
            require_guarded_writers(writes, heartbeats | load_heartbeats(self._storage), self.base_path)
