"""The store that a table lies on: list, read, stat below its base path, through fsspec.

A path is only ever a path here: nothing is globbed, quoted or handed to a shell. Local folders are read with `os`
directly, because fsspec stats every entry of a listing.
"""

from __future__ import annotations

import os
import stat as stat_flags
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import fsspec

from airflow_lake_provider.errors import StorageError, TableNotFoundError

if TYPE_CHECKING:
    from collections.abc import Mapping

MS_PER_S = 1000
NS_PER_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file or folder: its name, size in bytes and modification time in ms since the epoch (0: not known)."""

    name: str
    size_bytes: int
    modified_ms: int
    is_folder: bool = False


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
    fs: Any
    root: str
    is_local: bool
    calls: StorageCalls = field(default_factory=StorageCalls)

    def list_names(self, folder: str) -> list[str]:
        """Return the names in a folder, files and folders, in no order. Raises FileNotFoundError, StorageError."""
        if not self.is_local:
            return [entry.name for entry in self.list_entries(folder)]
        self.calls.lists += 1
        try:
            return os.listdir(self._path(folder))
        except OSError as error:
            raise _as_storage_error(error, self._path(folder)) from error

    def list_entries(self, folder: str) -> list[FileEntry]:
        """Return names with sizes and times. Raises FileNotFoundError, StorageError."""
        path = self._path(folder)
        self.calls.lists += 1
        try:
            if self.is_local:
                with os.scandir(path) as entries:
                    return [entry for item in entries if (entry := _local_entry(item)) is not None]
            self.fs.invalidate_cache(path)  # object stores keep listings: a timeline must be seen as it is now
            return [_remote_entry(info) for info in self.fs.ls(path, detail=True) if _name_of(info) != _last(path)]
        except OSError as error:
            raise _as_storage_error(error, path) from error

    def read_bytes(self, path: str) -> bytes:
        """Return a file's content. Raises FileNotFoundError, StorageError."""
        full = self._path(path)
        self.calls.opens += 1
        try:
            if self.is_local:
                with open(full, "rb") as stream:
                    return stream.read()
            content: bytes = self.fs.cat_file(full)
        except OSError as error:
            raise _as_storage_error(error, full) from error
        return content

    def stat(self, path: str) -> FileEntry | None:
        """Return size and time of one file or folder; None when it is not there."""
        full = self._path(path)
        self.calls.stats += 1
        try:
            if self.is_local:
                status = os.stat(full)
                is_folder = stat_flags.S_ISDIR(status.st_mode)
                return FileEntry(_last(full), status.st_size, status.st_mtime_ns // NS_PER_MS, is_folder)
            return _remote_entry(self.fs.info(full))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _as_storage_error(error, full) from error

    def _path(self, relative: str) -> str:
        return f"{self.root}/{relative}" if relative else self.root


def open_storage(base_path: str, storage_options: Mapping[str, Any] | None = None) -> Storage:
    """Open the store of a base path: a bare path is local, `scheme://` is what fsspec knows by that name.

    Raises StorageError when the scheme's library is not installed or the options do not fit, TableNotFoundError for
    what no file system takes for a path.
    """
    try:
        impossible = "\0" in base_path or not os.fsencode(base_path)
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can carry
        impossible = True
    if impossible:
        raise TableNotFoundError(f"no Hudi table at {base_path!r}: not a path")
    if "://" not in base_path:
        plain = base_path.rstrip("/") or "/"
        return Storage(plain, fsspec.filesystem("file"), plain, is_local=True)
    try:
        fs, root = fsspec.core.url_to_fs(base_path, **dict(storage_options or {}))
    except (ImportError, ValueError, TypeError, OSError) as error:
        raise StorageError(f"no storage for {base_path!r}: {error}") from error
    root = str(root).rstrip("/")
    is_local = isinstance(fs, fsspec.get_filesystem_class("file"))
    return Storage(base_path.rstrip("/"), fs, root, is_local)


def _local_entry(item: os.DirEntry[str]) -> FileEntry | None:
    try:
        status = item.stat()
    except FileNotFoundError:  # removed between listing and stat
        return None
    return FileEntry(item.name, status.st_size, status.st_mtime_ns // NS_PER_MS, item.is_dir())


def _remote_entry(info: Mapping[str, Any]) -> FileEntry:
    is_folder = info.get("type") == "directory"
    return FileEntry(_name_of(info), int(info.get("size") or 0), _modified_ms(info), is_folder)


def _name_of(info: Mapping[str, Any]) -> str:
    return _last(str(info["name"]))


def _last(path: str) -> str:
    return path.rstrip("/").rsplit("/", 1)[-1]


def _modified_ms(info: Mapping[str, Any]) -> int:
    # fsspec has no one name or type for it: seconds, a datetime, or milliseconds (HDFS).
    for key in ("mtime", "LastModified", "last_modified", "modification_time", "modificationTime", "created"):
        value = info.get(key)
        if value is None:
            continue
        if hasattr(value, "timestamp"):
            return int(value.timestamp() * MS_PER_S)
        return int(value) if value > 1e11 else int(value * MS_PER_S)
    return 0


def _as_storage_error(error: OSError, path: str) -> Exception:
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return FileNotFoundError(path)
    return StorageError(f"{path}: {error}")
