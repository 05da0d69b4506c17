"""Find the Hudi tables below a root, by listing folders: bounded, and never outside the root.

A folder with `.hoodie` in it is a table; what lies below a table belongs to it and is not searched. Folders whose names
begin with `.` or `_` hold no tables. On a local disk a link that leads out of the root is not followed.
"""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.hudi.base_path import normalise_base_path
from airflow_lake_provider.hudi.properties import load_table_properties

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from airflow_lake_provider.storage.table_storage import Storage

MOST_FOLDERS = 100_000
MOST_PROBLEMS = 100
_HUDI_FOLDER = ".hoodie"


@dataclass(frozen=True, slots=True)
class FoundTable:
    """A table: its base path, and the name that its properties give it."""

    base_path: str
    name: str


@dataclass(frozen=True, slots=True)
class FoundTables:
    """What lies below a root. `problems` are folders that could not be read, and why."""

    tables: tuple[FoundTable, ...]
    problems: tuple[str, ...]
    folders: int
    is_complete: bool
    """False when there are more folders than are searched, or a folder could not be listed."""


def discover_tables(
    root: str, open_storage: Callable[[str], Storage], depth: int, most_folders: int = MOST_FOLDERS
) -> FoundTables:
    """Return the tables at a root and up to `depth` levels below it. Raises StorageError when no client can be made."""
    walk = _Walk(open_storage(root), depth, most_folders)
    tables = []
    for folder in walk.table_folders():
        try:
            base_path = normalise_base_path(f"{root.rstrip('/')}/{folder}")
            name = load_table_properties(open_storage(base_path)).name
            tables.append(FoundTable(base_path, name or base_path.rsplit("/", 1)[-1]))
        except LakeError as error:  # a damaged table must not hide the others
            walk.problems.append(str(error))
    return FoundTables(tuple(tables), tuple(walk.problems[:MOST_PROBLEMS]), walk.folders, walk.is_complete)


class _Walk:
    """Breadth first, so that a bound cuts off what lies deepest."""

    def __init__(self, storage: Storage, depth: int, most_folders: int) -> None:
        self._storage = storage
        self._depth = depth
        self._most_folders = most_folders
        self._real_root = os.path.realpath(storage.root) if storage.is_local else ""
        self.folders = 0
        self.problems: list[str] = []
        self.is_complete = True

    def table_folders(self) -> Iterator[str]:
        """Yield the folders of tables, relative to the root."""
        waiting = deque([("", 0)])
        while waiting:
            if self.folders >= self._most_folders:
                self.is_complete = False
                self.problems.append(f"more than {self._most_folders} folders: the rest is not searched")
                return
            folder, level = waiting.popleft()
            names = self._list_folders(folder)
            if _HUDI_FOLDER in names:
                yield folder
            elif level < self._depth:
                children = (f"{folder}/{name}" if folder else name for name in sorted(names))
                waiting.extend((child, level + 1) for child in children if self._may_enter(child))

    def _list_folders(self, folder: str) -> list[str]:
        self.folders += 1
        try:
            return [entry.name for entry in self._storage.list_entries(folder) if entry.is_folder]
        except (LakeError, FileNotFoundError) as error:
            self.is_complete = False
            self.problems.append(f"{self._storage.base_path}/{folder}: {error}")
            return []

    def _may_enter(self, folder: str) -> bool:
        if folder.rsplit("/", 1)[-1].startswith((".", "_")):
            return False
        if not self._real_root:
            return True
        real = os.path.realpath(f"{self._storage.root}/{folder}")
        if real.startswith(self._real_root.rstrip("/") + "/"):
            return True
        self.problems.append(f"{self._storage.base_path}/{folder} leads out of the root and is not followed")
        return False
