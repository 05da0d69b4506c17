"""Finds out whether a table that is known below a table's base path is one that Hudi takes for partitions of it."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from airflow_lake_provider.hudi.properties import PROPERTIES_FILE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_lake_provider.storage.table_storage import Storage

_PARTITION_FILES = (
    ".hoodie_partition_metadata",
    ".hoodie_partition_metadata.parquet",
    ".hoodie_partition_metadata.orc",
)


def find_inner_table(storage: Storage, folders: Iterable[str]) -> str:
    """Return the uppermost folder with a table on the ways to some folders; empty where Hudi gets to none.

    Hudi's listing of partitions ends at a folder that is one. Raises StorageError.
    """
    return next((found for folder in folders if (found := _find_on_the_way(storage, folder))), "")


def _find_on_the_way(storage: Storage, folder: str) -> str:
    for place in accumulate(folder.split("/"), "{}/{}".format):
        if storage.stat(f"{place}/{PROPERTIES_FILE}") is not None:
            return place
        if any(storage.stat(f"{place}/{name}") is not None for name in _PARTITION_FILES):
            return ""
    return ""
