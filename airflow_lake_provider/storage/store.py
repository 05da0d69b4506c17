"""A store: list, read and stat files by their full path; the local disk, the file systems of fsspec, and their options.

A path is only ever a path here: no glob, no quoting, no shell.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat as stat_flags
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from airflow_lake_provider.errors import ConfigError, DamagedFileError, LakeError
from airflow_lake_provider.shared.plain_text import first_line
from airflow_lake_provider.storage.bounded_calls import BoundedCalls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

T = TypeVar("T")

MS_PER_S = 1000
MIB = 1024 * 1024
MAX_FILE_BYTES = 128 * MIB
"""Limit of a file whose kind has no smaller one: a commit of 300,000 files has about this size."""
MAX_ENTRIES = 1_000_000
"""Limit of a folder: a listing of ten times as many would take gigabytes of memory."""
NS_PER_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file or folder: its name, size in bytes and modification time in ms since the epoch (0: not known)."""

    name: str
    size_bytes: int
    modified_ms: int
    is_folder: bool = False


class Store(ABC):
    """One store, shared by all tables on it and by all threads.

    Every method raises FileNotFoundError for a missing path, and OSError or StorageError for a store that does not
    answer as expected. A store caches nothing between two calls: a reader must see the timeline of now.
    """

    is_local: ClassVar[bool] = False
    has_folder_times: ClassVar[bool] = False
    """Whether a folder's modification time changes when children are added, removed or renamed."""
    moves_at_once: ClassVar[bool] = False
    """Whether `move` is one step that keeps content and modification time, not a copy and a removal."""
    lists_at_once: ClassVar[bool] = False
    """Whether a listing shows every file whose creation ended before the listing began."""

    @abstractmethod
    def list_entries(self, path: str) -> list[FileEntry]:
        """Return the entries of a folder, in no order."""

    @abstractmethod
    def read_bytes(self, path: str, limit_bytes: int = MAX_FILE_BYTES) -> bytes:
        """Return a file's content. Raises DamagedFileError for a larger file, before its content is allocated."""

    @abstractmethod
    def stat(self, path: str) -> FileEntry:
        """Return the entry of one file or folder."""

    def stat_itself(self, path: str) -> FileEntry:
        """Return the entry of one file or folder. Raises DamagedFileError for a link, where the store has such."""
        return self.stat(path)

    def list_names(self, path: str) -> list[str]:
        """Return the names in a folder, in no order."""
        return [entry.name for entry in self.list_entries(path)]

    def create(self, path: str, content: bytes) -> None:
        """Write a new file as a whole, and the folders that it needs, under a name that no other caller uses."""
        raise OSError(f"{type(self).__name__} is read-only here")

    def write(self, path: str, content: bytes) -> None:
        """Write a file, or replace it with a new modification time. A reader may see it unfinished."""
        raise OSError(f"{type(self).__name__} is read-only here")

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with its content."""
        raise OSError(f"{type(self).__name__} is read-only here")

    def move(self, source: str, target: str) -> None:
        """Move a file to a name that no other caller uses. A concurrent reader reads all of it or nothing."""
        raise OSError(f"{type(self).__name__} is read-only here")


class LocalStore(Store):
    """The local disk, read with `os` directly: fsspec stats every entry of a listing."""

    is_local = True
    has_folder_times = True
    moves_at_once = True
    lists_at_once = True

    def list_names(self, path: str) -> list[str]:
        """Return the names in a folder, without a stat of each."""
        with os.scandir(path) as entries:
            return bounded(path, [item.name for item in islice(entries, MAX_ENTRIES + 1)])

    def list_entries(self, path: str) -> list[FileEntry]:
        """Return the entries of a folder, in no order."""
        with os.scandir(path) as entries:
            listed = bounded(path, [_local_entry(item) for item in islice(entries, MAX_ENTRIES + 1)])
        return [entry for entry in listed if entry is not None]

    def read_bytes(self, path: str, limit_bytes: int = MAX_FILE_BYTES) -> bytes:
        """Return a file's content. Only regular files are read: a pipe never ends, and a link leads elsewhere."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO, errno.ENODEV):  # a link, a socket, a device
                raise _not_a_file(path) from error
            raise
        with open(descriptor, "rb", buffering=0) as stream:
            status = os.fstat(descriptor)
            if stat_flags.S_ISDIR(status.st_mode):
                raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
            if not stat_flags.S_ISREG(status.st_mode):
                raise _not_a_file(path)
            require_size(path, status.st_size, limit_bytes)
            # A file that grows meanwhile is read up to the size that was measured.
            content = bytearray()
            while len(content) < status.st_size and (part := stream.read(status.st_size - len(content))):
                content += part
            return bytes(content)

    def stat(self, path: str) -> FileEntry:
        """Return the entry of one file or folder."""
        return _entry_of(path, os.stat(path))

    def stat_itself(self, path: str) -> FileEntry:
        """Return the entry of one file or folder. Raises DamagedFileError for a link."""
        status = os.lstat(path)
        if stat_flags.S_ISLNK(status.st_mode):
            raise refuse_link(path)
        return _entry_of(path, status)

    def create(self, path: str, content: bytes) -> None:
        """Write a new file: under another name first, so that no reader sees a part of it."""
        os.makedirs(os.path.dirname(path), exist_ok=True)
        unfinished = f"{path}.unfinished"
        with open(unfinished, "xb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.rename(unfinished, path)

    def write(self, path: str, content: bytes) -> None:
        """Write a file in place: never what a link of that name leads to."""
        os.makedirs(os.path.dirname(path), exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with open(os.open(path, flags, 0o666), "wb") as stream:
            stream.write(content)
            os.utime(stream.fileno())  # an empty file that stays empty keeps its time otherwise

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with its content."""
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)

    def move(self, source: str, target: str) -> None:
        """Move a file in one step."""
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.rename(source, target)


def require_size(path: str, size_bytes: int, limit_bytes: int) -> None:
    """Raise DamagedFileError for a file that is larger than its kind can be."""
    if size_bytes > limit_bytes:
        raise DamagedFileError(f"{path}: {size_bytes} bytes, more than the {limit_bytes} that such a file can have")


def bounded(path: str, listed: list[T]) -> list[T]:
    """Return the listing of a folder. Raises DamagedFileError for one that is longer than a folder of Hudi's can be."""
    if len(listed) > MAX_ENTRIES:
        raise DamagedFileError(f"{path}: more than {MAX_ENTRIES:,} entries, where Hudi has at most some thousands")
    return listed


def _not_a_file(path: str) -> DamagedFileError:
    return DamagedFileError(f"{path}: a link, a pipe or a device, where Hudi writes a regular file")


def refuse_link(path: str) -> DamagedFileError:
    """Return the error for a link in a table's metadata."""
    return DamagedFileError(f"{path}: a link, where Hudi makes a folder or a file: replace it by what it leads to")


def _entry_of(path: str, status: os.stat_result) -> FileEntry:
    is_folder = stat_flags.S_ISDIR(status.st_mode)
    return FileEntry(last_name(path), status.st_size, status.st_mtime_ns // NS_PER_MS, is_folder)


def _local_entry(item: os.DirEntry[str]) -> FileEntry | None:
    try:
        status = item.stat()
    except FileNotFoundError:  # removed between listing and stat
        return None
    return FileEntry(item.name, status.st_size, status.st_mtime_ns // NS_PER_MS, item.is_dir())


FOLDER_MARKER = "_$folder$"
"""How the names of objects end that some file systems over object stores leave in the place of a folder."""


def without_markers(entries: Iterable[FileEntry]) -> list[FileEntry]:
    """Return each name once: some stores list a folder's marker object next to the folder. Pure."""
    unique: dict[str, FileEntry] = {}
    for entry in entries:
        if not entry.name.endswith(FOLDER_MARKER) and (entry.is_folder or entry.name not in unique):
            unique[entry.name] = entry
    return list(unique.values())


QUESTION_TIMEOUT_S = 60.0
"""For a whole question: an answer may drip, and the time-outs of most clients begin again with each byte."""
MAX_UNANSWERED = 8
"""Questions that were given up and go on: each has a thread until its answer ends."""


class FsspecStore(Store):
    """Any file system of fsspec, each question to which has a bound in time."""

    def __init__(self, open_fs: Callable[[], Any], url: str = "the store") -> None:
        self._open_fs = open_fs
        self._url = url
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._fs = self._open_fs()
        self._calls = BoundedCalls(self._url, QUESTION_TIMEOUT_S, max_unanswered=MAX_UNANSWERED)

    @property
    def fs(self) -> Any:
        """The file system; one of its own in a forked process, where the other's threads are not."""
        self._begin_after_fork()
        return self._fs

    def _begin_after_fork(self) -> None:
        if self._pid != os.getpid():
            self._begin()

    def list_entries(self, path: str) -> list[FileEntry]:
        """Return the entries of a folder, in no order."""

        def read() -> list[FileEntry]:
            listed = bounded(path, self.fs.ls(path, detail=True))
            # fsspec may list a folder in itself; it lists a file as its own only child.
            others = [info for info in listed if str(info["name"]).strip("/") != path.strip("/")]
            if not others and any(info.get("type") == "file" for info in listed):
                if self.fs.info(path).get("type") != "directory":
                    raise NotADirectoryError(errno.ENOTDIR, "Not a directory", path)
                # adlfs shows the marker of a folder, and hides what is in the folder.
                return without_markers(self._find_children(path))
            return without_markers(map(_fsspec_entry, others))

        return self._as_store(read)

    def _find_children(self, path: str) -> Iterator[FileEntry]:
        for name, info in self.fs.find(path, detail=True).items():
            child, _, below = name.strip("/").removeprefix(path.strip("/")).strip("/").partition("/")
            if child:
                yield FileEntry(child, 0, 0, is_folder=True) if below else _fsspec_entry(info)

    def read_bytes(self, path: str, limit_bytes: int = MAX_FILE_BYTES) -> bytes:
        """Return a file's content."""

        def read() -> bytes:
            require_size(path, int(self.fs.info(path).get("size") or 0), limit_bytes)
            return bytes(self.fs.cat_file(path))

        return self._as_store(read)

    def stat(self, path: str) -> FileEntry:
        """Return the entry of one file or folder."""
        return self._as_store(lambda: _fsspec_entry(self.fs.info(path)))

    def create(self, path: str, content: bytes) -> None:
        """Write a new file."""

        def write() -> None:
            self.fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            self.fs.pipe_file(path, content)

        self._as_store(write)

    def move(self, source: str, target: str) -> None:
        """Move a file, in the way of that file system."""

        def move() -> None:
            self.fs.makedirs(target.rpartition("/")[0], exist_ok=True)
            self.fs.mv(source, target)

        self._as_store(move)

    def _as_store(self, call: Callable[[], T]) -> T:
        """Return what a call of the file system returns; what it raises is an OSError, or one of ours."""
        self._begin_after_fork()
        try:
            return self._calls.run(call)
        except (OSError, LakeError):
            raise
        except Exception as error:  # a server may answer anything, and each client fails in its own way
            raise OSError(f"{type(error).__name__}: {first_line(error)}") from error


def _fsspec_entry(info: Mapping[str, Any]) -> FileEntry:
    is_folder = info.get("type") == "directory"
    return FileEntry(last_name(str(info["name"])), int(info.get("size") or 0), _modified_ms(info), is_folder)


def _modified_ms(info: Mapping[str, Any]) -> int:
    # fsspec has several names and types for it: seconds, a datetime, or milliseconds (HDFS).
    for key in ("mtime", "LastModified", "last_modified", "modification_time", "modificationTime", "created"):
        value = info.get(key)
        if value is None:
            continue
        if hasattr(value, "timestamp"):
            return int(value.timestamp() * MS_PER_S)
        return int(value) if value > 1e11 else int(value * MS_PER_S)
    return 0


def last_name(path: str) -> str:
    """Return the last segment of a path."""
    return path.rstrip("/").rsplit("/", 1)[-1]


# --- Storage options from an Airflow connection. Pure: a connection's fields go in by name
#
# `storage_options` in the extra is added last, for every type, and wins: it holds what has no field of its own.

EXTRA_KEY = "storage_options"

# Fields of the Amazon provider's connection, and their names here.
_AWS_EXTRA = MappingProxyType(
    {
        "aws_access_key_id": "access_key",
        "aws_secret_access_key": "secret_key",
        "aws_session_token": "session_token",
        "region_name": "region",
        "role_arn": "role_arn",
        "external_id": "external_id",
    }
)
_KERBEROS_EXTRA = MappingProxyType(
    {"principal": "kerberos_principal", "keytab": "kerberos_keytab", "ticket_cache": "kerberos_cache"}
)


@dataclass(frozen=True, slots=True)
class StoreConnection:
    """The fields of an Airflow connection that matter to a store."""

    conn_id: str
    conn_type: str
    host: str = ""
    port: int | None = None
    schema: str = ""
    login: str = ""
    password: str = field(default="", repr=False)
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)


def options_of(connection: StoreConnection) -> dict[str, Any]:
    """Return the storage options; for other types, those of the extra alone.

    Raises ConfigError for a value that cannot be an option.
    """
    rule = _RULES.get(connection.conn_type, _generic_options)
    return {**rule(connection), **_extra_options(connection)}


def _extra_options(connection: StoreConnection) -> dict[str, Any]:
    options = connection.extra.get(EXTRA_KEY, {})
    if isinstance(options, str):  # a field of Airflow's form, which holds texts
        try:
            options = json.loads(options or "{}")
        except json.JSONDecodeError:
            options = None
    if not isinstance(options, dict):
        raise ConfigError(f"connection {connection.conn_id!r}: {EXTRA_KEY} in its extra is not a JSON object")
    return options


def _generic_options(_: StoreConnection) -> dict[str, Any]:
    return {}


def _aws_options(connection: StoreConnection) -> dict[str, Any]:
    if bool(connection.login) != bool(connection.password):
        raise ConfigError(f"connection {connection.conn_id!r} has only one of login and password, the two S3 keys")
    options: dict[str, Any] = {}
    if connection.login:
        options = {"access_key": connection.login, "secret_key": connection.password}
    for key, option in _AWS_EXTRA.items():
        if connection.extra.get(key):
            options.setdefault(option, connection.extra[key])
    endpoint = _s3_endpoint(connection.extra)
    if endpoint:
        scheme, separator, address = endpoint.partition("://")
        options["endpoint_override"] = address.rstrip("/") if separator else endpoint
        if separator:
            options["scheme"] = scheme.lower()
    return options


def _s3_endpoint(extra: Mapping[str, Any]) -> str:
    # The Amazon provider allows a separate endpoint for S3.
    services = extra.get("service_config") or {}
    return str((services.get("s3") or {}).get("endpoint_url") or extra.get("endpoint_url") or extra.get("host") or "")


def _hdfs_options(connection: StoreConnection) -> dict[str, Any]:
    options: dict[str, Any] = {
        # Only a name in the form of a Hadoop setting is one; the extra of such connections holds other things too.
        key: value
        for key, value in connection.extra.items()
        if "." in key or key in {"config_dir", "timeout_s"}
    }
    for key, option in _KERBEROS_EXTRA.items():
        if connection.extra.get(key):
            options[option] = connection.extra[key]
    if connection.host and "fs.defaultFS" not in options:
        # Of use to a base path without a NameNode (`hdfs:///table`); the others name theirs. A host without a port may
        # be a nameservice.
        port = f":{connection.port}" if connection.port else ""
        options["fs.defaultFS"] = f"hdfs://{connection.host}{port}"
    return options


def _webhdfs_options(connection: StoreConnection) -> dict[str, Any]:
    # The base path names host and port (`webhdfs://namenode:9870/table`); giving them twice would be refused.
    options: dict[str, Any] = {}
    if connection.login:
        options["user"] = connection.login
    if connection.password:
        options["password"] = connection.password
    if connection.extra.get("principal"):
        options["kerberos"] = True
    if str(connection.extra.get("use_ssl", "")).lower() == "true" or connection.schema == "https":
        options["use_https"] = True
    return options


_RULES: Mapping[str, Callable[[StoreConnection], dict[str, Any]]] = MappingProxyType(
    {"aws": _aws_options, "hdfs": _hdfs_options, "webhdfs": _webhdfs_options}
)
