"""Which columns of a table's rows reach a sink, and what stands for those that must not be read there.

The options have Debezium's names where it has one for the same: `column.include.list`, `column.exclude.list` and
`column.mask.with.<n>.chars`. A hash has its salt in an option of its own, so that it can be a reference to a secret.
The rules hold for all that leaves the table: rows before and after, the schema, and the rows that `verify` compares.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.replication.job import COLUMN_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from airflow_lake_provider.replication.change import Change

INCLUDE, EXCLUDE = "column.include.list", "column.exclude.list"
HASH, SALT = "column.mask.hash.SHA-256", "column.mask.hash.salt"
_CHARS = re.compile(r"column\.mask\.with\.(\d{1,4})\.chars")
_decode = json.JSONDecoder().raw_decode


@dataclass(frozen=True, slots=True)
class ColumnRules:
    """The rules of one entry. Names are those of the table's own columns."""

    table: str
    include: frozenset[str] = frozenset()
    """Besides the key's, these alone reach the sink; empty: all but the excluded ones."""
    exclude: frozenset[str] = frozenset()
    hashed: frozenset[str] = frozenset()
    salt: str = ""
    masked: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """How many asterisks stand for a value."""
    kept: frozenset[str] = frozenset()
    """The key's columns: without them a row has no name."""

    @property
    def is_empty(self) -> bool:
        """Whether rows leave the table as they are."""
        return not (self.include or self.exclude or self.hashed or self.masked)

    def for_key(self, key: Collection[str], columns: Collection[str]) -> ColumnRules:
        """Return the rules of a table with this key. Raises ConfigError for a name that is no column, or is a key's.

        A wrong name would otherwise let out what it was to keep in.
        """
        named = {
            INCLUDE: self.include, EXCLUDE: self.exclude, HASH: self.hashed, "column.mask.with.<n>.chars": self.masked
        }  # fmt: skip
        for option, names in named.items():
            unknown, in_key = sorted({*names} - {*columns}), sorted({*names} & {*key})
            if unknown:
                raise ConfigError(
                    f"table {self.table} has no column {unknown[0]!r}, which {option} names: it has "
                    f"{', '.join(columns)}"
                )
            if in_key and option != INCLUDE:
                raise ConfigError(
                    f"{option} names {in_key[0]!r}, a column of the key of table {self.table}: rows would have no name "
                    "in the sink; leave it out there, or name other fields in key"
                )
        return ColumnRules(self.table, self.include, self.exclude, self.hashed, self.salt, self.masked, frozenset(key))

    def has(self, name: str) -> bool:
        """Whether a column reaches the sink."""
        return name in self.kept or (name not in self.exclude and (not self.include or name in self.include))

    def is_text(self, name: str) -> bool:
        """Whether a text stands for a column's values."""
        return name in self.hashed or name in self.masked

    def change(self, change: Change) -> Change:
        """Return a change as the sink gets it."""
        before, after = change.before, change.after
        return change._replace(
            before=None if before is None else self.row(before), after=None if after is None else self.row(after)
        )

    def row(self, text: str) -> str:
        """Return a row's JSON as the sink gets it; what is left as it is keeps each of its characters."""
        kept = [(name, part) for name, part in _parts(text) if self.has(name)]
        return "{" + ",".join(f"{json.dumps(name)}:{self._value(name, part)}" for name, part in kept) + "}"

    def _value(self, name: str, part: str) -> str:
        if part == "null" or not self.is_text(name):
            return part
        if name in self.masked:
            return f'"{"*" * self.masked[name]}"'
        value = json.loads(part) if part.startswith('"') else part
        return f'"{hashlib.sha256(f"{self.salt}{value}".encode()).hexdigest()}"'

    def schema(self, text: str) -> str:
        """Return an Avro schema with the columns that reach the sink, and their types there; empty stays empty."""
        if not text or self.is_empty:
            return text
        body: dict[str, Any] = json.loads(text)
        kept = [found for found in body["fields"] if self.has(found["name"])]
        masked = {"type": ["null", "string"], "default": None}
        fields = [{**found, **masked} if self.is_text(found["name"]) else found for found in kept]
        return json.dumps({**body, "fields": fields}, separators=(",", ":"))


def parse_column_rules(options: Mapping[str, str], table: str) -> ColumnRules:
    """Read an entry's rules. Raises ConfigError."""
    rest = {key: text for key, text in options.items() if key.startswith(COLUMN_OPTIONS)}
    lists = {name: _names_of(rest.pop(name, "")) for name in (INCLUDE, EXCLUDE, HASH)}
    salt, masked = rest.pop(SALT, ""), dict[str, int]()
    for key in list(rest):
        if (found := _CHARS.fullmatch(key)) is not None:
            masked |= dict.fromkeys(_names_of(rest.pop(key)), int(found[1]))
    what = f"the sink of table {table}"
    if rest:
        raise ConfigError(
            f"{what} knows no setting {min(rest)}; known: {INCLUDE}, {EXCLUDE}, {HASH} with {SALT}, and "
            "column.mask.with.<n>.chars"
        )
    if lists[INCLUDE] and lists[EXCLUDE]:
        raise ConfigError(f"{what} has both {INCLUDE} and {EXCLUDE}: set one of them")
    if lists[HASH] and not salt:
        raise ConfigError(
            f"{what} has {HASH} without {SALT}: a guessed value would be known by its hash; set a salt, for "
            "example a reference to a Variable"
        )
    twice = lists[HASH] & masked.keys()
    if twice:
        raise ConfigError(f"{what} has two masks of column {min(twice)!r}: set one of them")
    return ColumnRules(table, lists[INCLUDE], lists[EXCLUDE], lists[HASH], salt, MappingProxyType(masked))


def _names_of(text: str) -> frozenset[str]:
    return frozenset(part.strip() for part in text.split(",") if part.strip())


def _parts(text: str) -> list[tuple[str, str]]:
    """Return the fields of a JSON object as Spark prints it, without spaces; values as their texts.

    A number that is parsed and printed again may lose digits, and takes longer.
    """
    found, at = [], 1
    while text[at] != "}":
        name, end = _decode(text, at)
        _, at = _decode(text, end + 1)
        found.append((name, text[end + 1 : at]))
        at += text[at] == ","
    return found
