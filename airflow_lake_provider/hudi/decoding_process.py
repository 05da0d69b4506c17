"""Decode large timeline files, and large notices, in a process of its own, whose memory and time are bounded.

The decoders of JSON and Avro hold the interpreter's lock from the first byte to the last, and no time-out ends them;
a few megabytes can become gigabytes of Python objects. A process, `decoding_worker`, can be limited and ended. It
returns only the fields that a reader asks for, in parts, so that no other thread waits for long.
"""

from __future__ import annotations

import atexit
import marshal
import os
import resource
import select
import struct
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from airflow_lake_provider.errors import DamagedFileError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Decode = Callable[[bytes, str], dict[str, Any] | None]

MAX_PROCESS_BYTES = 2 << 30
MAX_PROCESSES = 2
PLACE_TIMEOUT_S = 60.0
BASE_TIMEOUT_S = 10.0
BYTES_PER_S = 4 * 1024 * 1024
"""Pace below which a file is given up; a slow machine decodes 20 MB in a second."""
IDLE_S = 30.0
MAX_GROWTH = 4
"""Bytes of Python objects that a file's byte may become, beyond a first megabyte; a real commit's become two."""
PART_ITEMS = 500

_LENGTH = struct.Struct(">Q")

CHANGED_ROWS = ("numInserts", "numUpdateWrites", "numDeletes")
"""What a commit says of each file's rows that it changed."""
WANTED = frozenset(
    {
        *("partitionPath", "fileId", "path", "prevCommit", "prevBaseFile", "fileSizeInBytes", "totalWriteBytes"),
        *("numWrites", "totalLogFilesCompacted", "totalLogSizeCompacted", "dataFilePath", "deltaFilePaths", "slices"),
        *("metadataPartitionPath", "indexUptoInstant"),
        *CHANGED_ROWS,
    }
)
"""Fields that readers ask of a record in a list: files in a commit, file slices in a plan, indexes in a build."""


# --- The caller's side


def decode_apart(content: bytes, file_name: str, by: Decoders | None = None) -> dict[str, Any]:
    """Return the file's record without the fields that no reader asks for. Raises DamagedFileError, StorageError.

    `by` decodes another kind of content than timeline files.
    """
    timeout_s = BASE_TIMEOUT_S + len(content) / BYTES_PER_S
    with (by or _TIMELINE_FILES).take() as process:
        timer = threading.Timer(timeout_s, process.kill)
        timer.start()
        try:
            return _ask(process, content, file_name)
        except (OSError, EOFError, ValueError, struct.error) as error:
            _end(process)
            reason = f"more than {timeout_s:.0f} s or {MAX_PROCESS_BYTES >> 20} MiB of memory to decode"
            raise DamagedFileError(f"{file_name}: its {len(content)} bytes take {reason}") from error
        except DamagedFileError:
            raise
        except BaseException:
            _end(process)
            raise
        finally:
            timer.cancel()


def _ask(process: subprocess.Popen[bytes], content: bytes, file_name: str) -> dict[str, Any]:
    assert process.stdin is not None
    assert process.stdout is not None
    name = file_name.encode("utf-8", "replace")
    process.stdin.write(_LENGTH.pack(len(name)) + name + _LENGTH.pack(len(content)))
    process.stdin.write(content)
    process.stdin.flush()
    record: dict[str, Any] = {}
    failure: str | None = None
    while (part := _read_part(process.stdout)) is not None:
        kind, path, value = part
        if kind == "error":
            failure = str(value)
        else:
            _add(record, path, value)
    if failure is not None:
        raise DamagedFileError(failure)
    return record


def _add(record: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    *parents, last = path
    for key in parents:
        record = record.setdefault(key, {})
    if isinstance(value, list) and isinstance(record.get(last), list):
        record[last] += value
    else:
        record[last] = value


def _read_part(stream: IO[bytes]) -> Any:
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError("the decoding process ended")
    return marshal.loads(stream.read(*_LENGTH.unpack(head)))


class Decoders:
    """Processes of one module, such as `decoding_worker`, that wait for the next content."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._begin()
        atexit.register(self.close)

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._places = threading.BoundedSemaphore(MAX_PROCESSES)
        self._idle: list[subprocess.Popen[bytes]] = []

    @contextmanager
    def take(self) -> Iterator[subprocess.Popen[bytes]]:
        """Hold a process that waits for content. Raises StorageError when none becomes free."""
        if self._pid != os.getpid():  # after a fork the processes answer the parent
            self._begin()
        if not self._places.acquire(timeout=PLACE_TIMEOUT_S):
            raise StorageError(f"{MAX_PROCESSES} large files are being decoded; try again")
        try:
            with self._lock:
                process = self._idle.pop() if self._idle else None
            if process is not None and not _is_waiting(process):
                _end(process)
                process = None
            process = process or _start(self._module)
            try:
                yield process
            finally:
                if process.poll() is None:
                    with self._lock:
                        self._idle.append(process)
                else:
                    _end(process)
        finally:
            self._places.release()

    def close(self) -> None:
        """End those that wait."""
        if self._pid == os.getpid():
            with self._lock:
                idle, self._idle = self._idle, []
            for process in idle:
                _end(process)


def _is_waiting(process: subprocess.Popen[bytes]) -> bool:
    assert process.stdout is not None
    # Its end shows as something to read.
    return process.poll() is None and not select.select([process.stdout], [], [], 0)[0]


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        with suppress(OSError):  # what was not written yet cannot be
            stream and stream.close()


def _start(module: str) -> subprocess.Popen[bytes]:
    root = str(Path(__file__).parents[2])
    environment = {"PYTHONPATH": os.pathsep.join([root, *sys.path]), "PATH": os.environ.get("PATH", os.defpath)}
    return subprocess.Popen(
        [sys.executable, "-P", "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
    )


_TIMELINE_FILES = Decoders("airflow_lake_provider.hudi.decoding_worker")


# --- The process itself


def run(decode: Decode) -> None:
    """Serve the caller at the standard streams, within this process's memory."""
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    limit = MAX_PROCESS_BYTES if most == resource.RLIM_INFINITY else min(MAX_PROCESS_BYTES, most)
    resource.setrlimit(resource.RLIMIT_AS, (limit, most))
    with suppress(BrokenPipeError, KeyboardInterrupt):
        serve(decode, os.fdopen(0, "rb", buffering=0, closefd=False), sys.stdout.buffer)


def serve(decode: Decode, source: IO[bytes], sink: IO[bytes]) -> None:
    """Answer one file after the other until the caller closes the pipe, or asks nothing for `IDLE_S`."""
    while select.select([source], [], [], IDLE_S)[0]:
        head = _take(source, _LENGTH.size)
        if len(head) < _LENGTH.size:
            return
        name = _take(source, *_LENGTH.unpack(head)).decode("utf-8", "replace")
        content = _take(source, *_LENGTH.unpack(_take(source, _LENGTH.size)))
        try:
            budget = _Budget(name, len(content))
            for path, value in _parts(decode(content, name) or {}):
                budget.spend(value)
                _write_part(sink, ("part", path, value))
        except DamagedFileError as error:
            _write_part(sink, ("error", (), str(error)))
        _write_part(sink, None)
        del content
        sink.flush()


def _take(source: IO[bytes], length: int) -> bytes:
    """Read from a pipe without a buffer, of which `select` would not know."""
    content = bytearray()
    while len(content) < length and (part := source.read(min(length - len(content), 1 << 20))):
        content += part
    return bytes(content)


def _write_part(sink: IO[bytes], part: Any) -> None:
    body = marshal.dumps(part)
    sink.write(_LENGTH.pack(len(body)) + body)


def _parts(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield a record in parts: maps by key down to the third level, lists by so many items."""
    if isinstance(value, dict) and value and len(path) < 3:
        for key, inner in value.items():
            yield from _parts(inner, (*path, key))
    elif isinstance(value, list) and value:
        for begin in range(0, len(value), PART_ITEMS):
            yield path, [_wanted(item) for item in value[begin : begin + PART_ITEMS]]
    elif path:
        yield path, value


def _wanted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _wanted(inner) for key, inner in value.items() if key in WANTED}
    return [_wanted(inner) for inner in value] if isinstance(value, list) else value


class _Budget:
    """The memory that a file's record may take at the caller."""

    def __init__(self, name: str, size_bytes: int) -> None:
        self._name = name
        self._size_bytes = size_bytes
        self._left = (1 << 20) + MAX_GROWTH * size_bytes

    def spend(self, value: Any) -> None:
        self._left -= _memory_of(value)
        if self._left < 0:
            raise DamagedFileError(
                f"{self._name}: its {self._size_bytes} bytes unpack to more than {MAX_GROWTH} times their size"
            )


def _memory_of(value: Any) -> int:
    size = sys.getsizeof(value)
    if isinstance(value, dict):
        return size + sum(_memory_of(inner) for inner in value.values())
    return size + sum(map(_memory_of, value)) if isinstance(value, list) else size
