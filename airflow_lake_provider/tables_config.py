"""Which policy holds for which table: the tables file with the overrides over it."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from airflow_lake_provider.policies import TablePolicy

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@dataclass(frozen=True, slots=True)
class TablePattern:
    """Which tables: glob patterns of path and name; an empty one matches all."""

    base_path: str
    name: str

    @property
    def names_one_table(self) -> bool:
        """Whether the base path is a path, not a pattern."""
        return bool(self.base_path) and not any(character in self.base_path for character in "*?[")

    def matches(self, base_path: str, name: str) -> bool:
        """Whether the table is one of these."""
        return _matches(base_path, self.base_path) and _matches(name, self.name)

    def covers(self, other: TablePattern) -> bool:
        """Whether every table that the other one matches is one of these; false when that cannot be told."""
        return self == other or (not self.name and other.names_one_table and _matches(other.base_path, self.base_path))

    def excludes(self, other: TablePattern) -> bool:
        """Whether no table can match both; false when that cannot be told."""
        if self.names_one_table and other.names_one_table:
            return self.base_path != other.base_path
        for one, two in ((self, other), (other, self)):
            if one.names_one_table and not _matches(one.base_path, two.base_path):
                return True
        return False


@dataclass(frozen=True, slots=True)
class Discovery:
    """A root whose folders are searched for tables, `depth` levels down."""

    root: str
    depth: int


@dataclass(frozen=True, slots=True)
class TableEntry:
    """One entry of the tables file: which tables, and their policy.

    A base path without a pattern character registers the table even if it never sends a notice.
    """

    base_path: str
    name: str
    policy: TablePolicy

    @property
    def pattern(self) -> TablePattern:
        """Which tables this entry speaks of."""
        return TablePattern(self.base_path, self.name)

    @property
    def names_one_table(self) -> bool:
        """Whether the base path is a path, not a pattern."""
        return self.pattern.names_one_table

    def matches(self, base_path: str, name: str) -> bool:
        """Whether this entry speaks of that table."""
        return self.pattern.matches(base_path, name)


@dataclass(frozen=True, slots=True)
class TableOverride:
    """One entry of the Variable: which tables, and their policy by the file's entry that matches them.

    The last of `policies` is for tables that no entry of the file matches.
    """

    pattern: TablePattern
    policies: tuple[TablePolicy, ...]


@dataclass(frozen=True, slots=True)
class Limits:
    """How many service runs may be active at once, by pool and by queue, over all tables."""

    pools: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    queues: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class TablesConfig:
    """What holds for all tables: the first entry that matches a table wins, else the defaults hold.

    Then the first override that matches the table is laid over that.
    """

    entries: tuple[TableEntry, ...] = ()
    defaults: TablePolicy = field(default_factory=TablePolicy)
    overrides: tuple[TableOverride, ...] = ()
    discoveries: tuple[Discovery, ...] = ()
    limits: Limits = field(default_factory=Limits)

    def policy_for(self, base_path: str, name: str) -> TablePolicy:
        """Return the policy of a table."""
        index, policy = len(self.entries), self.defaults
        for number, entry in enumerate(self.entries):
            if entry.matches(base_path, name):
                index, policy = number, entry.policy
                break
        for override in self.overrides:
            if override.pattern.matches(base_path, name):
                return override.policies[index]
        return policy

    def named_tables(self) -> Iterator[tuple[str, str]]:
        """Yield path and name of each table that is named by its path."""
        for pattern in (*(e.pattern for e in self.entries), *(o.pattern for o in self.overrides)):
            if pattern.names_one_table:
                yield pattern.base_path, pattern.name or pattern.base_path.rsplit("/", 1)[-1]


def _matches(value: str, pattern: str) -> bool:
    # A path with brackets in it must still match itself.
    return not pattern or value == pattern or fnmatch.fnmatchcase(value, pattern)
