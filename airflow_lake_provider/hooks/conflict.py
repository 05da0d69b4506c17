"""Opens tables for early conflict detection in tasks and triggers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.conflict.conflict_table import open_conflict_table
from airflow_lake_provider.conflict.preflight import find_obstacles
from airflow_lake_provider.hooks.timeline import table_opener

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


class Preflight:
    """Looks again and again at one table, reading only what changed; not to be shared by threads."""

    def __init__(
        self, base_path: str, partitions: Collection[str], hudi_options: Mapping[str, str], storage_options: Any
    ) -> None:
        self._table = open_conflict_table(table_opener(storage_options)(base_path), hudi_options)
        self._partitions = tuple(partitions)

    def obstacles(self) -> tuple[str, ...]:
        """Return who stands in the way now. Raises LakeError of a table that cannot be looked at."""
        return find_obstacles(self._table.look(int(time.time() * 1000)), self._partitions)
