"""S3 and compatible stores, through pyarrow.

Options are pyarrow's (`endpoint_override`, `access_key`, `secret_key`, `session_token`, `region`, `anonymous`, ...),
`max_attempts` of one request, and `timeout_s`, the bound on one question, however many requests it takes. Without
keys, those of the environment, the AWS files or the instance are used.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TypeVar

from pyarrow.fs import AwsStandardS3RetryStrategy, FileSelector, FileType, S3FileSystem

from airflow_lake_provider.errors import StorageOptionError
from airflow_lake_provider.storage.bounded_calls import BoundedCalls
from airflow_lake_provider.storage.store import (
    MAX_FILE_BYTES,
    MAX_UNANSWERED,
    NS_PER_MS,
    QUESTION_TIMEOUT_S,
    FileEntry,
    Store,
    bounded,
    require_size,
    without_markers,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyarrow.fs import FileInfo

T = TypeVar("T")

# A request is tried three times: 24 s and some pauses for an endpoint that never answers.
TIMEOUTS_S = {"connect_timeout": 5.0, "request_timeout": 7.0}
MAX_ATTEMPTS = 3
_TEXTS = frozenset(
    {
        "access_key",
        "secret_key",
        "session_token",
        "region",
        "scheme",
        "endpoint_override",
        "role_arn",
        "session_name",
        "external_id",
        "proxy_options",
        "tls_ca_file_path",
    }
)
_FLAGS = frozenset({"anonymous", "force_virtual_addressing"})
_NUMBERS = frozenset({"connect_timeout", "request_timeout", "load_frequency", "max_attempts", "timeout_s"})


class S3Store(Store):
    """One S3 endpoint. A folder exists while a file below it does, or a marker object of its name with a slash."""

    lists_at_once = True  # since December 2020, and in compatible stores

    def __init__(self, options: Mapping[str, Any], url: str = "the S3 store") -> None:
        self._url = url
        arguments = parse_options(options)
        attempts = int(arguments.pop("max_attempts", MAX_ATTEMPTS))
        self._timeout_s = float(arguments.pop("timeout_s", QUESTION_TIMEOUT_S))
        try:
            self._fs = S3FileSystem(**arguments, retry_strategy=AwsStandardS3RetryStrategy(max_attempts=attempts))
        except (TypeError, ValueError, OSError) as error:
            raise StorageOptionError(f"no S3 file system with options {sorted(options)}: {error}") from error
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._calls = BoundedCalls(self._url, self._timeout_s, max_unanswered=MAX_UNANSWERED)

    def _call(self, call: Callable[[], T]) -> T:
        if self._pid != os.getpid():  # threads do not outlive a fork
            self._begin()
        try:
            return self._calls.run(call)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise explain(error) from error

    def list_entries(self, path: str) -> list[FileEntry]:
        """Return the entries of a folder, in no order."""
        try:
            listed: list[FileInfo] = self._call(lambda: self._fs.get_file_info(FileSelector(path)))
        except OSError as error:
            if "NO_SUCH_BUCKET" in str(error):
                raise FileNotFoundError(path) from error
            raise
        entries = without_markers(map(_entry, bounded(path, listed)))
        return [entry for entry in (self._with_time(path, entry) for entry in entries) if entry is not None]

    def _with_time(self, folder: str, entry: FileEntry) -> FileEntry | None:
        """Return an entry with the time of the object itself where the listing's cannot be read; None without object.

        Some servers leave out the last digits of a time when they are zeros.
        """
        if entry.is_folder or entry.modified_ms:
            return entry
        try:
            return self.stat(f"{folder}/{entry.name}")
        except FileNotFoundError:
            return None

    def read_bytes(self, path: str, limit_bytes: int = MAX_FILE_BYTES) -> bytes:
        """Return a file's content."""

        def read() -> bytes:
            with self._fs.open_input_stream(path) as stream:
                # Arrow allocates what the server promises, and at most this.
                return bytes(stream.read(limit_bytes + 1))

        try:
            content = self._call(read)
        except OSError as error:
            # One that is removed between the request for its size and that for its content ends in many kinds of error;
            # a server that does not answer is not called twice.
            if "NETWORK_CONNECTION" not in str(error):
                self.stat(path)
            raise
        require_size(path, len(content), limit_bytes)
        return content

    def stat(self, path: str) -> FileEntry:
        """Return the entry of one file or folder."""
        info: FileInfo = self._call(lambda: self._fs.get_file_info(path))
        if info.type == FileType.NotFound:
            raise FileNotFoundError(path)
        return _entry(info)

    def create(self, path: str, content: bytes) -> None:
        """Write a new object; it is visible only when complete."""

        def write() -> None:
            with self._fs.open_output_stream(path) as stream:
                stream.write(content)

        self._call(write)

    def write(self, path: str, content: bytes) -> None:
        """Write an object; it is visible only when complete."""
        self.create(path, content)

    def remove(self, path: str) -> None:
        """Remove an object, or all below a folder, one after the other."""
        if self.stat(path).is_folder:
            self._fs.delete_dir(path)  # one after the other, however long it takes
        else:
            self._call(lambda: self._fs.delete_file(path))

    def move(self, source: str, target: str) -> None:
        """Copy an object, then remove the first one."""
        try:
            self._call(lambda: self._fs.move(source, target))
        except OSError as error:
            if "NO_SUCH_KEY" in str(error):
                raise FileNotFoundError(source) from error
            raise


# An expired token answers a HEAD with 400 and no body, in which the reason would be.
_CREDENTIALS = (
    "HTTP status 400",
    "HTTP status 401",
    "HTTP status 403",
    "ACCESS_DENIED",
    "EXPIRED",
    "INVALID_ACCESS_KEY",
)


def explain(error: OSError) -> OSError:
    """Return the error, with the credentials named where they are a likely cause. Pure."""
    message = str(error)
    if not any(text in message.upper() for text in _CREDENTIALS):
        return error
    return OSError(
        f"{message}. The store refuses the credentials, or they have expired: check or renew those of its connection"
    )


def _entry(info: FileInfo) -> FileEntry:
    is_folder = info.type == FileType.Directory
    return FileEntry(info.base_name, info.size or 0, (info.mtime_ns or 0) // NS_PER_MS, is_folder)


def parse_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of pyarrow's S3FileSystem; values may be texts, as in connections.

    Raises StorageError for an unknown option or a wrong value.
    """
    arguments: dict[str, Any] = dict(TIMEOUTS_S)
    for key, value in options.items():
        if key in _TEXTS:
            arguments[key] = value
        elif key in _FLAGS:
            arguments[key] = _flag(key, value)
        elif key in _NUMBERS:
            arguments[key] = _number(key, value)
        else:
            known = ", ".join(sorted(_TEXTS | _FLAGS | _NUMBERS))
            raise StorageOptionError(f"unknown storage option {key!r} of S3; known are {known}")
    return arguments


def _flag(key: str, value: Any) -> bool:
    if str(value).lower() not in {"true", "false"}:
        raise StorageOptionError(f"storage option {key} must be true or false, not {value!r}")
    return str(value).lower() == "true"


def _number(key: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = 0.0
    if not 0 < number < float("inf"):
        raise StorageOptionError(f"storage option {key} must be a number above 0, not {value!r}")
    return number if key.endswith(("timeout", "timeout_s")) else int(number)
