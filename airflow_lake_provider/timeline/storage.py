"""A table's storage: list, read, stat below its base path, on whatever store that lies; and the few writes of repairs
and reservations.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.errors import StorageError, TableNotFoundError
from airflow_lake_provider.timeline.stores import open_store

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_lake_provider.timeline.store import FileEntry, Store


@dataclass(slots=True)
class StorageCalls:
    """How often the store was asked; read by benchmarks and tests."""

    lists: int = 0
    opens: int = 0
    stats: int = 0


@dataclass(slots=True)
class Storage:
    """Access below one base path; every path argument is relative to it. Opened by `open_storage`."""

    base_path: str
    store: Store
    root: str
    calls: StorageCalls = field(default_factory=StorageCalls)

    @property
    def is_local(self) -> bool:
        """Whether the table lies on this machine's disk."""
        return self.store.is_local

    @property
    def folders_tell_time(self) -> bool:
        """Whether a folder's modification time changes when its children come, go or are renamed."""
        return self.store.folders_tell_time

    def list_names(self, folder: str) -> list[str]:
        """Return the names in a folder, files and folders, in no order. Raises FileNotFoundError, StorageError."""
        self.calls.lists += 1
        path = self._path(folder)
        try:
            return self.store.list_names(path)
        except OSError as error:
            raise _as_storage_error(error, path) from error

    def list_entries(self, folder: str) -> list[FileEntry]:
        """Return names with sizes and times. Raises FileNotFoundError, StorageError."""
        self.calls.lists += 1
        path = self._path(folder)
        try:
            return self.store.list_entries(path)
        except OSError as error:
            raise _as_storage_error(error, path) from error

    def read_bytes(self, path: str) -> bytes:
        """Return a file's content. Raises FileNotFoundError, StorageError."""
        self.calls.opens += 1
        full = self._path(path)
        try:
            return self.store.read_bytes(full)
        except OSError as error:
            raise _as_storage_error(error, full) from error

    def stat(self, path: str) -> FileEntry | None:
        """Return size and time of one file or folder; None when it is not there."""
        self.calls.stats += 1
        full = self._path(path)
        try:
            return self.store.stat(full)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _as_storage_error(error, full) from error

    @property
    def moves_at_once(self) -> bool:
        """Whether `move` is one step that keeps content and modification time."""
        return self.store.moves_at_once

    def create(self, path: str, content: bytes) -> None:
        """Write a new file as a whole, under a name that nobody else uses. Raises StorageError."""
        full = self._path(path)
        try:
            self.store.create(full, content)
        except OSError as error:
            raise _as_storage_error(error, full) from error

    @property
    def lists_at_once(self) -> bool:
        """Whether a listing shows every file whose creation ended before the listing began."""
        return self.store.lists_at_once

    def write(self, path: str, content: bytes = b"") -> None:
        """Write a file, or write it anew; a reader may meet it unfinished. Raises StorageError."""
        full = self._path(path)
        try:
            self.store.write(full, content)
        except OSError as error:
            raise _as_storage_error(error, full) from error

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with all that lies in it, unless it is gone already. Raises StorageError."""
        full = self._path(path)
        try:
            self.store.remove(full)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise _as_storage_error(error, full) from error

    def move(self, source: str, target: str) -> None:
        """Move a file to a name that nobody else uses. Raises FileNotFoundError, StorageError."""
        full = self._path(source)
        try:
            self.store.move(full, self._path(target))
        except OSError as error:
            raise _as_storage_error(error, full) from error

    def _path(self, relative: str) -> str:
        return f"{self.root}/{relative}" if relative else self.root


def open_storage(base_path: str, storage_options: Mapping[str, Any] | None = None) -> Storage:
    """Open the storage of a base path: a bare path is local, `hdfs://`, `s3://` and `s3a://` are known here, and
    `scheme://` is otherwise what fsspec knows by that name.

    Raises StorageError when the scheme's library is not installed or the options do not fit, TableNotFoundError for
    what no file system takes for a path.
    """
    try:
        impossible = "\0" in base_path or not os.fsencode(base_path)
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can carry
        impossible = True
    if impossible:
        raise TableNotFoundError(f"no Hudi table at {base_path!r}: not a path")
    store, root = open_store(base_path, storage_options or {})
    return Storage(base_path.rstrip("/") or "/", store, root)


def _as_storage_error(error: OSError, path: str) -> Exception:
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return FileNotFoundError(path)
    return StorageError(f"{path}: {error}")
