"""HDFS through hdfs-native: no JVM and no libhdfs.

Options are Hadoop's own settings by name (`dfs.ha.namenodes.<nameservice>`, `hadoop.security.authentication`, ...);
they override the files in `HADOOP_CONF_DIR`, or in `config_dir`. Options that are not Hadoop's: `kerberos_principal`,
`kerberos_keytab`, `kerberos_cache`, and `timeout_s`, the bound on one call. The user without Kerberos is set for the
whole process: `HADOOP_USER_NAME`.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from hdfs_native import Client, WriteOptions

from airflow_lake_provider.errors import StorageError, StorageOptionError
from airflow_lake_provider.shared.plain_text import first_line
from airflow_lake_provider.storage.bounded_calls import BoundedCalls
from airflow_lake_provider.storage.store import (
    MAX_ENTRIES,
    MAX_FILE_BYTES,
    FileEntry,
    Store,
    bounded,
    last_name,
    require_size,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hdfs_native import FileStatus

T = TypeVar("T")

TIMEOUT_S = 20.0
# Hadoop's defaults wait for minutes; a reader of a table retries later.
QUICK_FAILOVER = {
    "dfs.client.failover.max.attempts": "4",
    "dfs.client.failover.sleep.base.millis": "200",
    "dfs.client.failover.sleep.max.millis": "1000",
}
# Clients of a parent process: freeing one waits for threads that do not exist here.
_LEFT_BEHIND: list[object] = []
# The NameNode's errors for a name that HDFS does not allow, and for a path that leads through a file.
_NO_SUCH_PATH = ("org.apache.hadoop.fs.InvalidPathException", "(is not a directory)")
_CLIENT_ARGUMENTS = frozenset({"config_dir", "kerberos_principal", "kerberos_keytab", "kerberos_cache"})


@dataclass(frozen=True, slots=True)
class HdfsOptions:
    """Storage options of HDFS, separated by kind."""

    settings: Mapping[str, str]
    client_arguments: Mapping[str, str]
    timeout_s: float = TIMEOUT_S

    @classmethod
    def parse(cls, options: Mapping[str, Any]) -> HdfsOptions:
        """Raise StorageError for an option that is neither the provider's nor in the form of a Hadoop setting."""
        settings = dict(QUICK_FAILOVER)
        arguments = {}
        timeout_s = TIMEOUT_S
        for key, value in options.items():
            if key == "timeout_s":
                timeout_s = _seconds(value)
            elif key in _CLIENT_ARGUMENTS:
                arguments[key] = str(value)
            elif "." in key:
                settings[key] = str(value).lower() if isinstance(value, bool) else str(value)
            else:
                known = ", ".join(sorted({*_CLIENT_ARGUMENTS, "timeout_s"}))
                raise StorageOptionError(
                    f"unknown storage option {key!r} of HDFS: give Hadoop's settings by name, or {known}"
                )
        return cls(settings, arguments, timeout_s)


def _seconds(value: Any) -> float:
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise StorageOptionError(f"storage option timeout_s must be a number of seconds above 0, not {value!r}")
    return seconds


class _Connection:
    """A client, opened by the first call. Replaced as a whole when a call is not answered."""

    def __init__(self, url: str, options: HdfsOptions) -> None:
        self._url = url
        self._options = options
        self._lock = threading.Lock()
        self._client: Client | None = None

    def client(self) -> Client:
        with self._lock:
            if self._client is None:
                arguments: dict[str, Any] = dict(self._options.client_arguments)
                self._client = Client(self._url, dict(self._options.settings), **arguments)
            return self._client


class HdfsStore(Store):
    """One HDFS cluster or nameservice, `hdfs://` or `viewfs://`. The first call connects to it."""

    has_folder_times = True
    moves_at_once = True
    lists_at_once = True

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self._url = url
        self._options = HdfsOptions.parse(options)
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._connection = _Connection(self._url, self._options)
        self._calls = BoundedCalls(self._url, self._options.timeout_s, self._reconnect)

    def _reconnect(self) -> None:
        self._connection = _Connection(self._url, self._options)

    def list_names(self, path: str) -> list[str]:
        """Return the names in a folder, in no order."""
        return [last_name(status.path) for status in self._list(path)]

    def list_entries(self, path: str) -> list[FileEntry]:
        """Return the entries of a folder, in no order."""
        return [_entry(status) for status in self._list(path)]

    def _list(self, path: str) -> list[FileStatus]:
        # The NameNode returns 1,000 names at a time; the iterator requests the next ones.
        listed = bounded(path, self._call(path, lambda client: list(islice(client.list_status(path), MAX_ENTRIES + 1))))
        if len(listed) == 1 and listed[0].path == path and not listed[0].isdir:
            raise FileNotFoundError(path)  # a file has no children
        return listed

    def read_bytes(self, path: str, limit_bytes: int = MAX_FILE_BYTES) -> bytes:
        """Return a file's content."""

        def read(client: Client) -> bytes:
            stream = client.read(path)
            require_size(path, len(stream), limit_bytes)
            return bytes(stream.read())

        return self._call(path, read)

    def stat(self, path: str) -> FileEntry:
        """Return the entry of one file or folder."""
        return _entry(self._call(path, lambda client: client.get_file_info(path)))

    def create(self, path: str, content: bytes) -> None:
        """Write a new file: under another name first, so that no reader sees a part of it."""
        unfinished = f"{path}.unfinished"

        def write(client: Client) -> None:
            with client.create(unfinished, WriteOptions(overwrite=False, create_parent=True)) as stream:
                stream.write(content)
            client.rename(unfinished, path)

        self._call(path, write)

    def write(self, path: str, content: bytes) -> None:
        """Write a file in place."""

        def write(client: Client) -> None:
            with client.create(path, WriteOptions(overwrite=True, create_parent=True)) as stream:
                if content:
                    stream.write(content)

        self._call(path, write)

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with its content; past the user's trash."""
        if not self._call(path, lambda client: client.delete(path, recursive=True)):
            raise FileNotFoundError(path)

    def move(self, source: str, target: str) -> None:
        """Move a file in one step."""

        def rename(client: Client) -> None:
            client.mkdirs(target.rpartition("/")[0], create_parent=True)
            client.rename(source, target)

        self._call(source, rename)

    def _call(self, path: str, call: Callable[[Client], T]) -> T:
        if self._pid != os.getpid():  # neither the client's threads nor this class's outlive a fork
            _LEFT_BEHIND.append(self._connection)
            self._begin()
        connection = self._connection
        try:
            return self._calls.run(lambda: call(connection.client()))
        except FileNotFoundError:
            raise FileNotFoundError(path) from None  # the original carries a stack trace of the NameNode
        except (RuntimeError, ValueError) as error:
            if any(refusal in str(error) for refusal in _NO_SUCH_PATH):
                raise FileNotFoundError(path) from None
            if "GSSAPIError" in str(error):
                raise explain_kerberos(self._url, self._options.client_arguments, str(error)) from error
            # The NameNode's answer ends in its stack trace, written with escapes.
            said, _, _ = str(error).partition("\\n")
            raise StorageError(f"{self._url}: {first_line(said)}") from error


# --- Kerberos: what MIT's library says, and what to do. The first text that occurs counts

_KEYTAB = "it cannot be read, or does not hold the principal: check both in the connection"
_REMEDIES = (
    ("Decrypt integrity check failed", "the principal's keys have changed since: put its new keytab there", False),
    ("not found in Kerberos database", "the realm has no such principal: correct it in the connection", False),
    ("No Kerberos credentials available", "set `principal` and `keytab` in the connection of this store", False),
    ("No credentials cache found", _KEYTAB, False),
    ("Ticket expired", "no process has renewed it: set `keytab` in the connection, or renew the ticket cache", True),
    ("Cannot contact any KDC", "the KDC does not answer", True),
)


def explain_kerberos(url: str, arguments: Mapping[str, str], message: str) -> StorageError:
    """Return the error of a ticket that cannot be obtained: a retriable one where a retry may help. Pure."""
    principal = arguments.get("kerberos_principal", "the default principal")
    place = next(
        (f"{what} {arguments[key]}" for key, what in _TICKET_PLACES.items() if key in arguments),
        "the default ticket cache",
    )
    reason = message.rpartition(": ")[2].rstrip('")')
    for text, remedy, may_end in _REMEDIES:
        if text in message:
            kind = StorageError if may_end else StorageOptionError
            return kind(f"{url}: no Kerberos ticket of {principal} with {place}: {reason}; {remedy}")
    return StorageError(f"{url}: no Kerberos ticket of {principal} with {place}: {reason}")


_TICKET_PLACES = {"kerberos_keytab": "keytab", "kerberos_cache": "ticket cache"}


def _entry(status: FileStatus) -> FileEntry:
    return FileEntry(last_name(status.path), status.length, status.modification_time, status.isdir)
