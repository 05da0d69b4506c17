"""One change of one row, and its text for readers. All of it is JSON text: Spark makes it, sinks pass it on."""

from __future__ import annotations

import base64
import json
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Context, Decimal
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from zlib import crc32

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Op(StrEnum):
    """What happened to the row; `READ` is a row of a snapshot. The first three are Hudi's own letters."""

    INSERT = "i"
    UPDATE = "u"
    DELETE = "d"
    READ = "r"


class ChangeMode(StrEnum):
    """What a sink receives of a change."""

    CHANGES = "changes"
    """Operation, row before and row after: requires a table with Hudi's change data capture."""
    LATEST = "latest"
    """The row as it is now; nothing (a tombstone) when it is deleted. Copy-on-write tables only."""


@dataclass(frozen=True, slots=True)
class CommitRef:
    """One completed commit of the table: its requested and completed time, in Hudi's format."""

    requested_time: str
    completed_time: str

    @property
    def order(self) -> tuple[str, str]:
        """The order of completion."""
        return self.completed_time, self.requested_time


class Change(NamedTuple):
    """One row's change. `key` is a JSON object of the key's fields; `before` and `after` are JSON objects or None.

    A tuple: one is made of each row, in a fifth of the time that a frozen dataclass takes.
    """

    op: Op
    key: str
    before: str | None
    after: str | None


Record: TypeAlias = tuple[bytes, bytes | None]
"""Key and text of a change in UTF-8, as readers get it; None is a tombstone."""


class ChangeColumns(Sequence[Change]):
    """Changes that are held by column. A row becomes an object only where a sink asks for rows."""

    @abstractmethod
    def to_records(self, commit: CommitRef, mode: ChangeMode) -> Iterable[Record]:
        """Return what `records_of` returns of the rows."""

    @abstractmethod
    def to_checksum(self) -> int:
        """Return what `checksum_of` returns of the rows."""

    @abstractmethod
    def to_bytes(self) -> int:
        """Return what `bytes_of` returns of the rows."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Changes of one commit, in order per key. A snapshot's rows carry the commit of the snapshot."""

    commit: CommitRef
    changes: Sequence[Change]
    generation: int
    """The number of snapshots in this sink; a reader that sees it rise must drop the rows of the one before."""
    begins_snapshot: bool = False
    """The first batch of a snapshot: the sink's rows of an earlier generation are out of date."""
    schema: str = ""
    """The table's Avro schema (JSON) as the commit wrote it, for sinks with typed formats; empty without one."""


def message_of(change: Change, commit: CommitRef, mode: ChangeMode) -> str | None:
    """Return the text that readers get; None is a tombstone (mode `latest`, a deleted row)."""
    if mode is ChangeMode.LATEST:
        return change.after
    return (
        f'{{"op":"{change.op.value}","commit":"{commit.requested_time}","completed":"{commit.completed_time}",'
        f'"key":{change.key},"before":{change.before or "null"},"after":{change.after or "null"}}}'
    )


def records_of(changes: Iterable[Change], commit: CommitRef, mode: ChangeMode) -> Iterable[Record]:
    """Return key and `message_of` each change, in UTF-8."""
    if isinstance(changes, ChangeColumns):
        return changes.to_records(commit, mode)
    texts = ((change.key, message_of(change, commit, mode)) for change in changes)
    return ((key.encode(), None if text is None else text.encode()) for key, text in texts)


def load_json(text: str) -> dict[str, Any]:
    """Parse a key or a row with all digits of its decimals, of which a float has fewer."""
    body: dict[str, Any] = json.loads(text, parse_float=Decimal)
    return body


_EXACT = Context(prec=400)
"""Python's own rounds to 28 digits; a double has up to 309 before its point."""


def canonical(values: Mapping[str, Any]) -> str:
    """Return one text for equal rows, whatever wrote them: without nulls, in order of names, numbers by their value.

    Of times with a zone it is the time in UTC, so a column without zones that holds UTC is equal to one with them.
    """
    return json.dumps({name: _plain(value) for name, value in values.items() if value is not None}, sort_keys=True)


def _plain(value: Any) -> Any:
    """Return a value as JSON has it."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, (int, float, Decimal)):
        number = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
        return f"{number.normalize(_EXACT):f}" if number.is_finite() else str(value)
    if isinstance(value, datetime):
        return (value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo is not None else value).isoformat()
    if isinstance(value, date):
        return value.isoformat()
    return base64.b64encode(value).decode() if isinstance(value, (bytes, bytearray, memoryview)) else value


def bytes_of(changes: Iterable[Change]) -> int:
    """Return the size of the changes as JSON, in bytes: keys and images, in UTF-8."""
    if isinstance(changes, ChangeColumns):
        return changes.to_bytes()
    texts = (text for change in changes for text in (change.key, change.before, change.after) if text is not None)
    return sum(len(text) if text.isascii() else len(text.encode()) for text in texts)


def checksum_of(changes: Iterable[Change], start: int = 0) -> int:
    """Add up the CRC-32 of each change, so that the order of rows does not matter; `start` is an earlier sum.

    That of `op`, `key`, `before` and `after` in UTF-8 with a zero byte between them; a missing image is empty.
    """
    if isinstance(changes, ChangeColumns):
        total = start + changes.to_checksum()
    else:
        texts = (f"{op}\0{key}\0{before or ''}\0{after or ''}" for op, key, before, after in changes)
        total = start + sum(crc32(text.encode()) for text in texts)
    return total & 0xFFFF_FFFF_FFFF_FFFF
