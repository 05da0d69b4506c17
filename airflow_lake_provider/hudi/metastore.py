"""The Hudi tables that a Hive metastore names, asked in its own protocol (Thrift, binary), without a JVM.

What a metastore answers is data of others: each answer is bounded in bytes, depth and time, and a location is a path
only after it was normalised and compared with the root that may be searched. A metastore that wants a login (SASL,
Kerberos) or TLS is not asked.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.errors import LakeError, StorageError
from airflow_lake_provider.hudi.base_path import (
    MAX_PROBLEMS,
    FoundTables,
    is_below,
    is_really_below,
    normalise_base_path,
    read_tables,
)
from airflow_lake_provider.shared.plain_text import first_line, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import TracebackType

    from airflow_lake_provider.storage.table_storage import Storage

TIMEOUT_S = 60.0
"""For each answer."""
SEARCH_TIMEOUT_S = 900.0
"""For all of them: a metastore may name any number of databases, each of which is asked."""
MAX_ANSWER_BYTES = 64 << 20
MAX_VALUES = 2_000_000
"""Of an answer: a value of one byte becomes an object of sixty."""
MAX_TABLES = 100_000
MAX_SHOWN = 130
"""Characters of a name, of which Hive itself takes no more than 128: a problem is kept until the search has ended."""
BATCH = 100
"""Tables that one call asks for: each comes with all of its columns."""


def discover_in_metastore(
    addresses: str,
    databases: Sequence[str],
    root: str,
    open_storage: Callable[[str], Storage],
    most_tables: int = MAX_TABLES,
) -> FoundTables:
    """Return the tables of a metastore's matching databases that lie below a root. Raises StorageError.

    A table of the catalog whose place has no Hudi table is a problem, and hides no other one.
    """
    storage = open_storage(root)
    real_root = os.path.realpath(storage.root) if storage.is_local else ""
    paths: dict[str, None] = {}
    problems: list[str] = []
    named = 0
    is_complete = True
    with connect(addresses) as metastore:
        for table in metastore.hudi_tables(databases):
            named += 1
            if named > most_tables:
                is_complete = False
                problems.insert(0, f"{addresses}: more than {most_tables:,} tables: the rest is not searched")
                break
            try:
                base_path = normalise_base_path(table.location)
            except LakeError as error:
                if len(problems) < MAX_PROBLEMS:
                    problems.append(f"{_shown(table.database)}.{_shown(table.name)}: {error}")
                continue
            if not is_below(base_path, (root,)):
                continue
            if real_root and base_path != storage.root and not is_really_below(base_path, real_root):
                if len(problems) < MAX_PROBLEMS:
                    problems.append(f"{base_path} leads out of the root and is not followed")
                continue
            paths[base_path] = None
    found, unread = read_tables(paths, open_storage)
    problems = [first_line(problem) for problem in (*problems, *unread)][:MAX_PROBLEMS]
    return FoundTables(tuple(found), tuple(problems), named, is_complete)


def _shown(name: str) -> str:
    return plain(name[:MAX_SHOWN], kept="")


@dataclass(frozen=True, slots=True)
class CatalogTable:
    """A table as a metastore names it; nothing of it is checked."""

    database: str
    name: str
    location: str


# --- The calls: those of Hive 2.3 to 4


def connect(addresses: str) -> Metastore:
    """Connect to the first address that answers (`thrift://host:9083`, separated by commas). Raises StorageError."""
    failures = []
    for address in addresses.split(","):
        host, _, port = address.removeprefix("thrift://").rpartition(":")
        try:
            return Metastore(address, socket.create_connection((host, int(port)), TIMEOUT_S))
        except (OSError, OverflowError) as error:
            failures.append(f"{address}: {error}")
    raise StorageError(f"the metastore does not answer: {'; '.join(failures)}")


class Metastore:
    """One connection. Each call raises StorageError for what is no answer."""

    def __init__(self, address: str, connection: socket.socket) -> None:
        self.address = address
        self._socket = connection
        self._received = bytearray()
        self._until_s = 0.0
        self._ends_s = time.monotonic() + SEARCH_TIMEOUT_S

    def __enter__(self) -> Metastore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def hudi_tables(self, databases: Sequence[str]) -> Iterator[CatalogTable]:
        """Yield the Hudi tables of the databases that match one of the patterns."""
        for database in sorted(map(_text, self._call("get_all_databases"))):
            if not any(fnmatchcase(database, pattern.lower()) for pattern in databases):
                continue
            names = sorted(map(_text, self._call("get_all_tables", (1, database))))
            for begin in range(0, len(names), BATCH):
                for table in self._call("get_table_objects_by_name", (1, database), (2, names[begin : begin + BATCH])):
                    found = _read_table(table)
                    if found is not None:
                        yield found

    def _call(self, method: str, *arguments: tuple[int, str | list[str]]) -> list[Any]:
        fields = b"".join(_write_field(number, value) for number, value in arguments)
        head = struct.pack(">I", _VERSION | _CALL) + _write_text(method) + struct.pack(">i", 0)
        now_s = time.monotonic()
        if now_s > self._ends_s:
            raise StorageError(
                f"the metastore {self.address} has not named all tables within {SEARCH_TIMEOUT_S:.0f} s: name fewer "
                "databases"
            )
        self._until_s = now_s + TIMEOUT_S
        try:
            self._socket.settimeout(TIMEOUT_S)
            self._socket.sendall(head + fields + bytes([_STOP]))
            reader = _Reader(self._receive)
            kind = reader.number(_I32) & 0xFF
            reader.take(reader.number(_I32))
            reader.number(_I32)
            answer = reader.value(_STRUCT)
        except (OSError, EOFError, ValueError, struct.error, RecursionError) as error:
            raise StorageError(
                f"the metastore {self.address} does not answer {method} as Hive does: {error}"
            ) from error
        success = answer.get(0)
        if kind != _REPLY or not isinstance(success, list):
            said = next((_text(value) for value in _texts_in(answer)), "nothing")
            raise StorageError(f"the metastore {self.address} refuses {method}: {first_line(said)}")
        return success

    def _receive(self, size: int) -> bytes:
        """Return so many bytes. Raises TimeoutError when the answer as a whole takes too long, EOFError."""
        while len(self._received) < size:
            left_s = self._until_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(f"no whole answer in {TIMEOUT_S:.0f} s")
            self._socket.settimeout(left_s)
            content = self._socket.recv(1 << 16)
            if not content:
                raise EOFError("the connection ended")
            self._received += content
        found = bytes(self._received[:size])
        del self._received[:size]
        return found


_TABLE_NAME = 1
_TABLE_DATABASE = 2
_TABLE_STORAGE = 7
_TABLE_PARAMETERS = 9
_STORAGE_LOCATION = 2
_STORAGE_INPUT_FORMAT = 3


def _read_table(table: Any) -> CatalogTable | None:
    """Return a table if it is one of Hudi's: by Spark's provider, or by the class that Hive reads it with."""
    fields = table if isinstance(table, dict) else {}
    storage = fields.get(_TABLE_STORAGE)
    parameters = fields.get(_TABLE_PARAMETERS)
    if not isinstance(storage, dict):
        return None
    provider = parameters.get(b"spark.sql.sources.provider", b"") if isinstance(parameters, dict) else b""
    reader = _text(storage.get(_STORAGE_INPUT_FORMAT, b""))
    if _text(provider).lower() != "hudi" and ".hudi." not in reader:
        return None
    name, database, location = (
        _text(value)
        for value in (
            fields.get(_TABLE_NAME, b""),
            fields.get(_TABLE_DATABASE, b""),
            storage.get(_STORAGE_LOCATION, b""),
        )
    )
    return CatalogTable(database, name, location)


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


def _texts_in(value: Any) -> Iterator[bytes]:
    if isinstance(value, bytes):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _texts_in(inner)


# --- Thrift's binary form: a struct is fields of type and number up to a stop

_VERSION = 0x8001_0000
_CALL = 1
_REPLY = 2
_STOP = 0
_I32 = 8
_STRING = 11
_STRUCT = 12
_MAP = 13
_SET = 14
_LIST = 15
_NUMBERS = {2: ">b", 3: ">b", 4: ">d", 6: ">h", _I32: ">i", 10: ">q"}
_MAX_DEPTH = 20


def _write_text(text: str) -> bytes:
    content = text.encode()
    return struct.pack(">i", len(content)) + content


def _write_field(number: int, value: str | list[str]) -> bytes:
    if isinstance(value, str):
        return struct.pack(">bh", _STRING, number) + _write_text(value)
    texts = b"".join(map(_write_text, value))
    return struct.pack(">bhbi", _LIST, number, _STRING, len(value)) + texts


class _Reader:
    """Reads one answer, of at most `MAX_ANSWER_BYTES` and `MAX_VALUES`. Raises EOFError, ValueError."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read
        self._left = MAX_ANSWER_BYTES
        self._values = MAX_VALUES

    def take(self, size: int) -> bytes:
        if not 0 <= size <= self._left:
            raise ValueError(f"{size} bytes are announced, more than the {self._left} that are left of an answer")
        self._left -= size
        return self._read(size)

    def number(self, kind: int) -> Any:
        form = _NUMBERS[kind]
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def value(self, kind: int, depth: int = 0) -> Any:
        """Return a struct as a dict by the fields' numbers, a list or set as a list, a text as bytes."""
        self._values -= 1
        if depth > _MAX_DEPTH or self._values < 0:
            raise ValueError(f"more than {_MAX_DEPTH} levels, or {MAX_VALUES:,} values")
        if kind in _NUMBERS:
            return self.number(kind)
        if kind == _STRING:
            return self.take(self.number(_I32))
        if kind == _STRUCT:
            return self._struct(depth)
        if kind in {_LIST, _SET}:
            (inner,) = self.take(1)
            return [self.value(inner, depth + 1) for _ in range(self._count())]
        if kind == _MAP:
            keys, values = self.take(2)
            pairs = ((self.value(keys, depth + 1), self.value(values, depth + 1)) for _ in range(self._count()))
            return {key: value for key, value in pairs if isinstance(key, (bytes, int))}
        raise ValueError(f"{kind} is no type of Thrift")

    def _struct(self, depth: int) -> dict[int, Any]:
        fields: dict[int, Any] = {}
        while True:
            (kind,) = self.take(1)
            if kind == _STOP:
                return fields
            number = self.number(6)
            fields[number] = self.value(kind, depth + 1)

    def _count(self) -> int:
        count = int(self.number(_I32))
        # Each item takes a byte at least, but for an empty struct's stop, which is one as well.
        if not 0 <= count <= self._left:
            raise ValueError(f"{count} items are announced")
        return count
