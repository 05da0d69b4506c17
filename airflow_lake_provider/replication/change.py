"""One change of one row, and its text for readers. All of it is JSON text: Spark makes it, sinks pass it on."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Context, Decimal
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


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
    texts = (text for change in changes for text in (change.key, change.before, change.after) if text is not None)
    return sum(len(text) if text.isascii() else len(text.encode()) for text in texts)


def checksum_of(changes: Iterable[Change], start: int = 0) -> int:
    """Sum up 64 bits of each change's digest, so that the order of rows does not matter; `start` is an earlier sum."""
    total = start
    for change in changes:
        text = f"{change.op.value}\0{change.key}\0{change.before}\0{change.after}"
        total += int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())
    return total & 0xFFFF_FFFF_FFFF_FFFF
