"""What a tables file may hold, and which policy holds for which table: its entries with the overrides over them.

The first entry that matches a table wins, else the defaults hold. `tables_file` reads the text.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import ConfigDict, Field, model_validator

from airflow_lake_provider.config.kinds import From1, Listed, NullMeans, Positive, Settings, Text, problem
from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.config.service_policies import Metastore
from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.hudi.base_path import identity_of, normalise_base_path, normalise_root

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


@dataclass(frozen=True, slots=True)
class TablePattern:
    """Which tables: glob patterns of path and name; an empty one matches all. Each spelling of a path is the same."""

    base_path: str
    name: str

    @property
    def identity(self) -> str:
        """The path or pattern as `identity_of` spells it."""
        return identity_of(self.base_path)

    @property
    def names_one_table(self) -> bool:
        """Whether the base path is a path, not a pattern."""
        return bool(self.base_path) and not _is_pattern(self.base_path)

    def matches(self, base_path: str, name: str) -> bool:
        """Whether the table is one of these."""
        return _matches(identity_of(base_path), self.identity) and _matches(name, self.name)

    def covers(self, other: TablePattern) -> bool:
        """Whether every table that the other one matches is one of these; false when that is unknown."""
        if (self.identity, self.name) == (other.identity, other.name):
            return True
        return not self.name and other.names_one_table and _matches(other.identity, self.identity)

    def excludes(self, other: TablePattern) -> bool:
        """Whether no table can match both; false when that is unknown."""
        if self.names_one_table and other.names_one_table:
            return self.identity != other.identity
        for one, two in ((self, other), (other, self)):
            if one.names_one_table and not _matches(one.identity, two.identity):
                return True
        return False


@dataclass(frozen=True, slots=True)
class Discovery:
    """A root that is searched for tables: its folders, `depth` levels down, or what a Hive metastore names below it."""

    root: str
    depth: int
    metastore: str = ""
    databases: tuple[str, ...] = ("*",)


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
        """The tables that this entry applies to."""
        return TablePattern(self.base_path, self.name)

    @property
    def names_one_table(self) -> bool:
        """Whether the base path is a path, not a pattern."""
        return self.pattern.names_one_table


def find_names_of_all_teams(entries: Iterable[TableEntry]) -> tuple[str, ...]:
    """Return the names that alone select an entry with sinks: a table of any team may take such a name."""
    return tuple(entry.name for entry in entries if entry.name and not entry.base_path and entry.policy.replication)


@dataclass(frozen=True, slots=True)
class Layer:
    """A part of a file that sets values of a policy: its defaults, or one entry."""

    what: str
    """Such as `defaults of the tables file`."""
    file_name: str = ""
    lines: Mapping[str, int] = field(default_factory=dict)
    """The line of each setting that is written there, from 1, by its name with its section."""

    def find_line(self, name: str, *, is_whole: bool = False) -> int | None:
        """Return the line that sets a value; `is_whole`: to write any value of a section sets all of it."""
        section = name.partition(".")[0]
        line = self.lines.get(name, self.lines.get(section))
        if line is None and is_whole:
            line = next((at for written, at in self.lines.items() if written.startswith(f"{section}.")), None)
        return line


@dataclass(frozen=True, slots=True)
class Layers:
    """What sets values, as `TablesConfig` lays it: defaults first, then the entry, then the override."""

    defaults: tuple[Layer, ...] = ()
    entries: tuple[Layer, ...] = ()
    overrides: tuple[Layer, ...] = ()


@dataclass(frozen=True, slots=True)
class TableOverride:
    """One entry of the Variable: which tables, and their policy by the file's entry that matches them.

    The last of `policies` is for tables that no entry of the file matches.
    """

    pattern: TablePattern
    policies: tuple[TablePolicy, ...]


class Limits(Settings):
    """How many service runs may be active at once, over all tables."""

    pools: Mapping[str, From1] = Field(default_factory=dict)
    """Maximum active runs of each pool"""
    queues: Mapping[str, From1] = Field(default_factory=dict)
    """Maximum active runs of each queue"""


class Budget(Settings):
    """What runs of services may have together; null is without a bound. Days are the last 24 hours."""

    slots: Annotated[From1 | None, NullMeans("no bound")] = None
    """Runs that may be active at once."""
    core_hours_per_day: Annotated[Positive | None, NullMeans("no bound")] = None
    """Core hours of Spark jobs, as predicted when a run is created, and as measured when it has ended."""
    bytes_per_day: Annotated[From1 | None, NullMeans("no bound")] = None
    """Bytes that the services write."""


class Budgets(Settings):
    """What runs of services may have, over all tables. When it is short, the ranked order decides which run gets it."""

    all: Budget | None = None
    """What all tables have together."""
    queues: Mapping[str, Budget] = Field(default_factory=dict)
    """What each queue's tables have."""
    pools: Mapping[str, Budget] = Field(default_factory=dict)
    """What each pool's tables have."""
    owners: Mapping[str, Budget] = Field(default_factory=dict)
    """What each owner's tables have; the commit callback names the owner."""
    labels: Mapping[str, Budget] = Field(default_factory=dict)
    """What the tables with each `label` have."""


class _FirstMatch:
    """Finds the first of many patterns that matches a table; those that name one path are found by it."""

    def __init__(self, patterns: Iterable[TablePattern]) -> None:
        self._by_path: dict[str, list[tuple[int, TablePattern]]] = {}
        self._globs: list[tuple[int, TablePattern]] = []
        for number, pattern in enumerate(patterns):
            numbered = number, TablePattern(pattern.identity, pattern.name)
            one = self._by_path.setdefault(pattern.identity, []) if pattern.names_one_table else self._globs
            one.append(numbered)

    def find(self, base_path: str, name: str) -> int | None:
        """Return the number of the first pattern that matches; None when none does."""
        identity = identity_of(base_path)
        named = next((n for n, pattern in self._by_path.get(identity, ()) if _matches(name, pattern.name)), None)
        for number, pattern in self._globs:
            if named is not None and number > named:
                break
            if _matches(identity, pattern.base_path) and _matches(name, pattern.name):
                return number
        return named


@dataclass(frozen=True)
class TablesConfig:
    """What holds for all tables: the first entry that matches a table wins, else the defaults hold.

    Then the first override that matches the table is laid over that.
    """

    entries: tuple[TableEntry, ...] = ()
    defaults: TablePolicy = field(default_factory=TablePolicy)
    overrides: tuple[TableOverride, ...] = ()
    discoveries: tuple[Discovery, ...] = ()
    limits: Limits = field(default_factory=Limits)
    layers: Layers = field(default_factory=Layers, compare=False)
    budgets: Budgets = field(default_factory=Budgets)

    def policy_for(self, base_path: str, name: str) -> TablePolicy:
        """Return the policy of a table."""
        entry = self._entry.find(base_path, name)
        over = self._override.find(base_path, name)
        if over is not None:
            return self.overrides[over].policies[-1 if entry is None else entry]
        return self.defaults if entry is None else self.entries[entry].policy

    def policy_without_overrides(self, base_path: str, name: str) -> TablePolicy:
        """Return the policy that a table has by the file alone, and by the overrides' defaults."""
        entry = self._entry.find(base_path, name)
        return self.defaults if entry is None else self.entries[entry].policy

    def layers_of(self, base_path: str, name: str) -> tuple[Layer, ...]:
        """Return what sets values of a table's policy, the lowest first."""
        entry = self._entry.find(base_path, name)
        over = self._override.find(base_path, name)
        return (
            *self.layers.defaults,
            *(self.layers.entries[n] for n in (entry,) if n is not None),
            *(self.layers.overrides[n] for n in (over,) if n is not None),
        )

    @cached_property
    def _entry(self) -> _FirstMatch:
        return _FirstMatch(entry.pattern for entry in self.entries)

    @cached_property
    def _override(self) -> _FirstMatch:
        return _FirstMatch(override.pattern for override in self.overrides)

    def find_why_observed(self, base_path: str, policy: TablePolicy, *, is_only_discovered: bool) -> str:
        """Return why nothing may start on the table; empty when it is managed, also by an entry that names its path."""
        return policy.find_why_observed(is_only_discovered=is_only_discovered and base_path not in self._named_paths)

    @cached_property
    def _named_paths(self) -> frozenset[str]:
        return frozenset(path for path, _ in self.named_tables())

    def named_tables(self) -> Iterator[tuple[str, str]]:
        """Yield path and name of each table that is named by its path."""
        for pattern in (*(e.pattern for e in self.entries), *(o.pattern for o in self.overrides)):
            if pattern.names_one_table:
                yield pattern.base_path, pattern.name or pattern.base_path.rsplit("/", 1)[-1]


def _matches(value: str, pattern: str) -> bool:
    # A path with brackets in it must still match itself.
    return not pattern or value == pattern or (_is_pattern(pattern) and fnmatch.fnmatchcase(value, pattern))


def pattern_of_path(base_path: str) -> str:
    """Return the pattern that matches one path alone: a table's writer may name a folder `*`."""
    return re.sub(r"[*?\[]", r"[\g<0>]", base_path)


def _is_pattern(text: str) -> bool:
    return "*" in text or "?" in text or "[" in text


# --- What a tables file may hold

DEFAULT_DISCOVER_DEPTH = 3

_NO_DOTS = r"(?!(.*/)?\.\.(/|$))"


def _normalised(pattern: str) -> str:
    try:
        return normalise_base_path(pattern)
    except LakeError:  # a pattern that begins with a wildcard, or an empty one
        return pattern.rstrip("/")


def _not_empty(key: str, pattern: str) -> dict[str, Any]:
    return {"required": [key], "properties": {key: {"pattern": pattern}}}


_NEEDS = (
    ("discover_depth", "discover"),
    ("discover_metastore", "discover"),
    ("discover_databases", "discover_metastore"),
)
DatabasePattern = Annotated[str, Text(r"[A-Za-z0-9_*?]{1,128}", "a name of a database, with * and ? as patterns")]


class TableChoice(Settings):
    """The tables that an entry of the file applies to."""

    base_path: Annotated[str, Text(rf"{_NO_DOTS}[^\n]*", "a path or pattern without '..'")] = ""
    """Path of a table, or a glob pattern of paths"""
    name: Annotated[str, Text(r"[^\n]*", "a text, in quotes if YAML reads it as a number or date")] = ""
    """Glob pattern of hoodie.table.name"""
    discover: Annotated[
        str,
        Text(
            rf"{_NO_DOTS}(/|[A-Za-z][A-Za-z0-9+.-]*:/)[^\n*?\[\]]+",
            "an absolute path without '..' and without pattern characters",
        ),
    ] = ""
    """A root to search for tables, instead of base_path, within [lake] allowed_roots"""
    discover_depth: From1 = DEFAULT_DISCOVER_DEPTH
    """How many levels below the root to search"""
    discover_metastore: Annotated[Metastore | None, NullMeans("the root's folders are listed")] = None
    """A Hive metastore that names the tables below the root; then no folder is listed"""
    discover_databases: Listed[DatabasePattern] = ("*",)
    """Glob patterns of the metastore's databases"""


class TablesFileEntry(TablePolicy, TableChoice):
    """An entry of the file: which tables, and what is set for them."""

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [
                {"required": ["discover"], "not": {"required": ["base_path"]}},
                {
                    "anyOf": [_not_empty("base_path", "[^/]"), _not_empty("name", ".")],
                    "not": {"required": ["discover"]},
                },
            ],
            "dependentRequired": {
                "discover_depth": ["discover"],
                "discover_metastore": ["discover"],
                "discover_databases": ["discover_metastore"],
            },
        }
    )
    called: ClassVar[str] = "a table"

    @model_validator(mode="after")
    def _check_choice(self) -> TablesFileEntry:
        given = self.model_fields_set
        if {"discover", "base_path"} <= given:
            raise problem("a table has either base_path or discover, not both")
        for name, needed in _NEEDS:
            if name in given and needed not in given:
                raise problem(f"{name} needs {needed}", name)
        if not self.pattern.base_path and not self.name:
            raise problem("a table needs base_path, name or discover")
        return self

    @cached_property
    def pattern(self) -> TablePattern:
        """The tables that this entry applies to."""
        discovery = self.discovery
        base_path = _normalised(self.base_path) if discovery is None else f"{discovery.root}/*"
        return TablePattern(base_path, self.name)

    @property
    def discovery(self) -> Discovery | None:
        """Where discovery searches for the tables of this entry."""
        if not self.discover:
            return None
        try:
            root = normalise_root(self.discover)
            return Discovery(root, self.discover_depth, self.discover_metastore or "", self.discover_databases)
        except LakeError as error:
            raise problem(f"discover: {error}", "discover") from error


class TablesFile(Settings):
    """What a tables file, or the overrides, may hold."""

    called: ClassVar[str] = "the file"

    defaults: TablePolicy = Field(default_factory=TablePolicy)
    """What holds for every table"""
    limits: Limits = Field(default_factory=Limits)
    """How many service runs may be active at once, over all tables"""
    budgets: Budgets = Field(default_factory=Budgets)
    """What service runs may cost, over all tables"""
    tables: Listed[TablesFileEntry] = ()
    """The first entry that matches a table wins"""
