"""What is wrong with a table's metadata table, so that every writer of the table fails. Read from storage once.

Sources: Hudi issues 7533 and 4747 (the folder was removed by hand), 10285 (an empty plan), 4896 (a file of it is gone).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from airflow_lake_provider.errors import LakeError, TableNotFoundError
from airflow_lake_provider.hudi.active_writes import load_heartbeats
from airflow_lake_provider.hudi.properties import load_table_properties
from airflow_lake_provider.hudi.timeline import load_timeline, metadata_storage
from airflow_lake_provider.job_contract import METADATA_TABLE
from airflow_lake_provider.obstacles import explain_lost_metadata, find_empty_plans
from airflow_lake_provider.shared.actions import Action

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_lake_provider.hudi.properties import TableProperties
    from airflow_lake_provider.hudi.timeline import Timeline
    from airflow_lake_provider.storage.store import FileEntry
    from airflow_lake_provider.storage.table_storage import Storage

_BASE_NAME = re.compile(r"(.+)_[^_]+_(\d{14,17})\.hfile")


@dataclass(frozen=True, slots=True)
class MetadataTable:
    """A metadata table as the doctor sees it; without one, nothing is known."""

    compactions: int | None = None
    """Completed compactions on its timeline; None without a metadata table."""
    heartbeats: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    problem: str = ""
    """Why it has to be built again, in words; empty when nothing shows that."""
    empty_plans: tuple[FileEntry, ...] = ()
    """Its pending plans of zero bytes, with their folder below the base path in `plans_folder`."""
    plans_folder: str = ""


def read_metadata_table(storage: Storage, properties: TableProperties) -> MetadataTable:
    """Examine the metadata table of a table. Raises StorageError."""
    metadata = metadata_storage(storage)
    listed = properties.metadata_partitions
    try:
        own = load_table_properties(metadata)
        timeline = load_timeline(metadata, own)
    except TableNotFoundError:
        return MetadataTable(problem=explain_lost_metadata(listed) if listed else "")
    except LakeError:
        return MetadataTable()
    entries = [entry for entry in metadata.list_entries(own.timeline_path) if not entry.is_folder]
    empty = frozenset(find_empty_plans((entry.name, entry.size_bytes) for entry in entries))
    return MetadataTable(
        compactions=sum(instant.action is Action.COMMIT for instant in timeline.completed()),
        heartbeats=MappingProxyType(load_heartbeats(metadata)),
        problem=_find_empty_file(metadata, listed, timeline),
        empty_plans=tuple(entry for entry in entries if entry.name in empty),
        plans_folder=f"{METADATA_TABLE}/{own.timeline_path}",
    )


def _find_empty_file(metadata: Storage, partitions: tuple[str, ...], timeline: Timeline) -> str:
    """Return which base file that readers of the metadata table open is empty, in words; empty when none is."""
    pending = {instant.requested_time for instant in timeline.pending()}
    for partition in partitions:
        try:
            entries = metadata.list_entries(partition)
        except FileNotFoundError:
            continue
        newest: dict[str, tuple[str, FileEntry]] = {}
        for entry in entries:
            name = _BASE_NAME.fullmatch(entry.name)
            # A file of an instant that has not completed is being written, or is left of a try that failed.
            if name is not None and name[2] not in pending:
                newest[name[1]] = max(newest.get(name[1], ("", entry)), (name[2], entry), key=lambda pair: pair[0])
        for _, entry in newest.values():
            if not entry.size_bytes:
                return (
                    f"{METADATA_TABLE}/{partition}/{entry.name} is empty (0 bytes), so every writer and service fails"
                )
    return ""
