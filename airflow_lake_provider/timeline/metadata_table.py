"""The metadata table (`.hoodie/metadata`): a table with a timeline of its own, below the table that it describes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_lake_provider.errors import DamagedFileError, TableNotFoundError
from airflow_lake_provider.timeline.loader import load_timeline
from airflow_lake_provider.timeline.properties import load_table_properties

if TYPE_CHECKING:
    from airflow_lake_provider.timeline.storage import Storage
    from airflow_lake_provider.timeline.timeline import Timeline

METADATA_TABLE = ".hoodie/metadata"


def metadata_storage(storage: Storage) -> Storage:
    """Return the storage of a table's metadata table, whether there is one or not."""
    return replace(storage, base_path=f"{storage.base_path}/{METADATA_TABLE}", root=f"{storage.root}/{METADATA_TABLE}")


def load_metadata_timeline(storage: Storage) -> Timeline | None:
    """Return the metadata table's active timeline, None when there is no such table. Raises StorageError."""
    metadata = metadata_storage(storage)
    try:
        return load_timeline(metadata, load_table_properties(metadata))
    except (TableNotFoundError, DamagedFileError):
        return None
