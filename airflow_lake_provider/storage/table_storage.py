"""A table's storage: list, read, stat below its base path, on any store; and the few writes of repairs and
reservations.
"""

from __future__ import annotations

import json
import os
import re
import threading
from dataclasses import dataclass, field
from stat import S_ISLNK
from typing import TYPE_CHECKING, Any

import fsspec
from cachetools import LRUCache

from airflow_lake_provider.errors import (
    DamagedFileError,
    StorageError,
    StorageOptionError,
    TableNotFoundError,
    UnsupportedTableError,
)
from airflow_lake_provider.storage.store import MAX_FILE_BYTES, MIB, FsspecStore, LocalStore, Store, refuse_link
from airflow_lake_provider.storage.webhdfs import bound_answers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow_lake_provider.storage.store import FileEntry

# --- The store of a base path. One store and client serves all tables of the same scheme, authority and options.

# Renewed credentials change options; the client of the old ones is dropped later.
MAX_STORES = 64

_LOCAL = LocalStore()


def open_store(base_path: str, options: Mapping[str, Any]) -> tuple[Store, str]:
    """Return the store and the base path in its spelling. A path without a scheme is local.

    Raises StorageError when the scheme's library is not installed or the options do not fit.
    """
    scheme, separator, rest = base_path.partition("://")
    if not separator:
        return _LOCAL, base_path.rstrip("/") or "/"
    opener = _OPENERS.get(scheme.lower())
    if opener is None:
        # fsspec's library for Azure takes the host names of both interfaces, and only knows `wasb` by another name.
        fsspec_scheme = _SAME_FOR_FSSPEC.get(scheme.lower(), scheme)
        return _open_with_fsspec(f"{fsspec_scheme}://{rest}", options)
    authority, _, path = rest.partition("/")
    # Hadoop treats several slashes as one, and so do the writers.
    segments = [segment for segment in path.split("/") if segment]
    if opener is _open_s3:
        return _STORES.get("s3", authority, options, opener), "/".join([authority, *segments])
    return _STORES.get(scheme.lower(), authority, options, opener), "/" + "/".join(segments)


_SAME_FOR_FSSPEC = {"wasb": "abfs", "wasbs": "abfs"}


class _Stores:
    """The open stores, by the options that opened them."""

    def __init__(self, max_stores: int = MAX_STORES) -> None:
        self._lock = threading.Lock()
        self._stores: LRUCache[tuple[str, str, str], Store] = LRUCache(max_stores)

    def get(
        self, scheme: str, authority: str, options: Mapping[str, Any], opener: Callable[[str, Mapping[str, Any]], Store]
    ) -> Store:
        key = (scheme, authority, json.dumps(dict(options), sort_keys=True, default=repr))
        with self._lock:
            store = self._stores.get(key)
            if store is None:
                store = self._stores[key] = opener(f"{scheme}://{authority}", options)
            return store


_STORES = _Stores()


def _open_hdfs(url: str, options: Mapping[str, Any]) -> Store:
    try:
        from airflow_lake_provider.storage.hdfs import HdfsStore  # its library is optional
    except ImportError as error:
        raise StorageOptionError(
            f"{url} needs hdfs-native: pip install 'airflow-lake-provider[hdfs]' ({error})"
        ) from error
    return HdfsStore(url, options)


def _open_s3(url: str, options: Mapping[str, Any]) -> Store:
    try:
        from airflow_lake_provider.storage.s3 import S3Store  # pyarrow can be built without S3
    except ImportError as error:
        raise StorageOptionError(
            f"{url} needs a pyarrow that was built with S3: pip install pyarrow ({error})"
        ) from error
    return S3Store(options, url)


_OPENERS: dict[str, Callable[[str, Mapping[str, Any]], Store]] = {
    "hdfs": _open_hdfs,
    "viewfs": _open_hdfs,
    "s3": _open_s3,
    "s3a": _open_s3,
}


def _open_with_fsspec(base_path: str, options: Mapping[str, Any]) -> tuple[Store, str]:
    def open_fs() -> Any:
        fs, _ = fsspec.core.url_to_fs(base_path, **dict(options))
        if "webhdfs" in fs.protocol:
            bound_answers(fs)
        # Otherwise a stat is answered from a listing of a while ago.
        fs.dircache.use_listings_cache = False
        return fs

    try:
        fs, root = fsspec.core.url_to_fs(base_path, **dict(options))
    except ImportError as error:  # fsspec names the missing package
        raise StorageOptionError(f"no storage for {base_path!r}: {error}") from error
    except (ValueError, TypeError, OSError) as error:
        raise StorageOptionError(f"no storage for {base_path!r} with options {sorted(options)}: {error}") from error
    root = str(root).rstrip("/")
    if isinstance(fs, fsspec.get_filesystem_class("file")):
        return _LOCAL, root or "/"
    # Hadoop treats several slashes as one, and so do the writers.
    scheme, _, rest = base_path.partition("://")
    store = _STORES.get(scheme.lower(), rest.partition("/")[0], options, lambda url, _: FsspecStore(open_fs, url))
    return store, root if "://" in root else re.sub("/+", "/", root)


@dataclass(slots=True)
class StorageCalls:
    """Counters of calls to the store; read by benchmarks and tests."""

    lists: int = 0
    opens: int = 0
    stats: int = 0


LARGE_BYTES = 2 * MIB
"""A larger record costs a process of its own, and seconds."""
MAX_LARGE_BYTES = 4096 * MIB
LARGE_BYTES_PER_S = MIB


@dataclass(slots=True)
class LargeRecords:
    """How much of a table's large records one process unpacks: so much at once, and so much a second after that.

    Without it, hundreds of pending plans within the limit of each would keep a thread of all tables' for hours.
    """

    left_bytes: float = MAX_LARGE_BYTES
    since_s: float = 0.0

    def take(self, size_bytes: int, base_path: str, now_s: float) -> None:
        """Count a record. Raises UnsupportedTableError when the table has to wait, or is too large."""
        if size_bytes <= LARGE_BYTES:
            return
        earned = max(0.0, now_s - self.since_s) * LARGE_BYTES_PER_S
        self.left_bytes, self.since_s = min(MAX_LARGE_BYTES, self.left_bytes + earned), now_s
        if self.left_bytes < size_bytes:
            raise UnsupportedTableError(
                f"{base_path}: its large commits and plans take too much, {MAX_LARGE_BYTES:,} bytes of them within "
                f"{MAX_LARGE_BYTES // LARGE_BYTES_PER_S // 60} minutes: have Hudi archive older instants, and roll "
                "back pending plans that are never executed"
            )
        self.left_bytes -= size_bytes


@dataclass(slots=True)
class Storage:
    """Access below one base path; every path argument is relative to it. Opened by `open_storage`.

    Each call raises DamagedFileError for a path that leads out of the table.
    """

    base_path: str
    store: Store
    root: str
    calls: StorageCalls = field(default_factory=StorageCalls)
    large_records: LargeRecords = field(default_factory=LargeRecords)

    @property
    def is_local(self) -> bool:
        """Whether the table lies on this machine's disk."""
        return self.store.is_local

    @property
    def has_folder_times(self) -> bool:
        """Whether a folder's modification time changes when children are added, removed or renamed."""
        return self.store.has_folder_times

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

    def read_bytes(self, path: str, limit_bytes: int = MAX_FILE_BYTES) -> bytes:
        """Return a file's content. Raises FileNotFoundError, StorageError, DamagedFileError for a larger file."""
        self.calls.opens += 1
        full = self._path(path, refuses_link=True)
        try:
            return self.store.read_bytes(full, limit_bytes)
        except OSError as error:
            raise _as_storage_error(error, full) from error

    def stat(self, path: str) -> FileEntry | None:
        """Return size and time of one file or folder; None when it does not exist."""
        self.calls.stats += 1
        full = self._path(path, refuses_link=True)
        try:
            return self.store.stat_itself(full) if path.startswith(_META) else self.store.stat(full)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _as_storage_error(error, full) from error

    @property
    def moves_at_once(self) -> bool:
        """Whether `move` is one step that keeps content and modification time."""
        return self.store.moves_at_once

    def create(self, path: str, content: bytes) -> None:
        """Write a new file as a whole, under a name that no other caller uses. Raises StorageError."""
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
        """Write a file, or replace it; a reader may see it unfinished. Raises StorageError."""
        full = self._path(path)
        try:
            self.store.write(full, content)
        except OSError as error:
            raise _as_storage_error(error, full) from error

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with its content, unless it does not exist. Raises StorageError."""
        full = self._path(path)
        try:
            self.store.remove(full)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise _as_storage_error(error, full) from error

    def move(self, source: str, target: str) -> None:
        """Move a file to a name that no other caller uses. Raises FileNotFoundError, StorageError."""
        full = self._path(source)
        try:
            self.store.move(full, self._path(target))
        except OSError as error:
            raise _as_storage_error(error, full) from error

    def _path(self, relative: str, *, refuses_link: bool = False) -> str:
        """Return the full path; `refuses_link`: the store's call itself refuses a link at its end."""
        # Some paths stand in the table's files, where its writers may write any path.
        if ".." in relative and ".." in relative.replace("\\", "/").split("/"):
            raise DamagedFileError(f"{self.base_path}: {relative!r} leads out of the table")
        if self.store.is_local and relative.startswith(_META):
            # One call less for each heartbeat of a table, which is a single stat.
            _refuse_links(self.root, relative.rpartition("/")[0] if refuses_link else relative)
        return f"{self.root}/{relative}" if relative else self.root


_META = ".hoodie"


def _refuse_links(root: str, relative: str) -> None:
    """Raise DamagedFileError for a link among the folders of a local table's metadata: it may lead to another table."""
    path = root
    for segment in relative.split("/"):
        path = f"{path}/{segment}"
        try:
            mode = os.lstat(path).st_mode
        except OSError:
            return  # the caller's own call says why
        if S_ISLNK(mode):
            raise refuse_link(path)


def open_storage(base_path: str, storage_options: Mapping[str, Any] | None = None) -> Storage:
    """Open the storage of a base path.

    A path without a scheme is local, `hdfs://`, `s3://` and `s3a://` are known here, and fsspec opens every other
    `scheme://`.

    Raises StorageError when the scheme's library is not installed or the options do not fit, TableNotFoundError for
    a base path that no file system accepts.
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
