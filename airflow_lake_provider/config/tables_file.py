"""Parse the tables file (YAML) into a TablesConfig; every mistake is named with its line and the allowed values.

Shape (the settings of a policy are the fields of `TablePolicy`; `tables_schema` describes all of it to editors):

    defaults:                     # optional; a policy
      compaction: {delta_commits: 5}
      doctor: {repairs: [failed_write, orphaned_lock]}
      maintenance_window: {days: [sat, sun], begin: "22:00", end: "06:00", time_zone: Europe/Berlin}
      hudi_options: {hoodie.write.lock.provider: ...}
    limits:                       # optional; service runs that may be active at once, over all tables
      pools: {heavy: 2}
      queues: {spark: 8}
    budgets:                      # optional; slots, core hours and bytes of a day; the ranked order spends them
      all: {core_hours_per_day: 200}
      labels: {gold: {slots: 4}}
    tables:                       # optional; the first match wins
      - base_path: /lake/sales/*  # glob pattern or one path
        name: orders              # glob pattern, optional
        compaction: {delta_commits: 3, log_to_base_ratio: 0.3}
      - discover: /lake/landing   # instead of base_path: search this root for tables
        discover_depth: 3

The overrides (an Airflow Variable) have the same shape: their defaults are laid over the file's, and what their first
matching entry says over what the file says of the table.
"""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import time
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

import yaml
from pydantic import ConfigDict, Field, ValidationError, model_validator
from pydantic.json_schema import GenerateJsonSchema

from airflow_lake_provider.config.kinds import (
    From1,
    Listed,
    NullMeans,
    Positive,
    Settings,
    Text,
    Written,
    describe,
    problem,
)
from airflow_lake_provider.config.policies import MaintenanceWindow, TablePolicy
from airflow_lake_provider.errors import ConfigError, LakeError
from airflow_lake_provider.hudi.base_path import identity_of, normalise_base_path, normalise_root

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pydantic_core import CoreSchema, ErrorDetails

    from airflow_lake_provider.config.kinds import Place

# --- Which policy holds for which table: the tables file with the overrides over it


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
        return bool(self.base_path) and not any(character in self.base_path for character in "*?[")

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
    """Most active runs of each of pools"""
    queues: Mapping[str, From1] = Field(default_factory=dict)
    """Most active runs of each of queues"""


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
    """What the tables of each queue have."""
    pools: Mapping[str, Budget] = Field(default_factory=dict)
    """What the tables of each pool have."""
    owners: Mapping[str, Budget] = Field(default_factory=dict)
    """What the tables of each owner have; the commit callback names the owner."""
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
        entry, over = self._entry.find(base_path, name), self._override.find(base_path, name)
        if over is not None:
            return self.overrides[over].policies[-1 if entry is None else entry]
        return self.defaults if entry is None else self.entries[entry].policy

    def policy_without_overrides(self, base_path: str, name: str) -> TablePolicy:
        """Return the policy that a table has by the file alone, and by the overrides' defaults."""
        entry = self._entry.find(base_path, name)
        return self.defaults if entry is None else self.entries[entry].policy

    def layers_of(self, base_path: str, name: str) -> tuple[Layer, ...]:
        """Return what sets values of a table's policy, the lowest first."""
        entry, over = self._entry.find(base_path, name), self._override.find(base_path, name)
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


def _normalised(pattern: str) -> str:
    try:
        return normalise_base_path(pattern)
    except LakeError:  # a pattern that begins with a wildcard, or an empty one
        return pattern.rstrip("/")


def _matches(value: str, pattern: str) -> bool:
    # A path with brackets in it must still match itself.
    return not pattern or value == pattern or fnmatch.fnmatchcase(value, pattern)


# --- What a tables file may hold

DEFAULT_DISCOVER_DEPTH = 3
MOST_VALUES = 200_000
"""Aliases make a small text large; no real file comes near this."""
SCHEMA_FILE = Path(__file__).with_name("tables.schema.json")

_NO_DOTS = r"(?!(.*/)?\.\.(/|$))"


def _not_empty(key: str, pattern: str) -> dict[str, Any]:
    return {"required": [key], "properties": {key: {"pattern": pattern}}}


class TableChoice(Settings):
    """Which tables an entry of the file speaks of."""

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
    """A root to search for tables, instead of base_path; it must lie within [lake] allowed_roots"""
    discover_depth: From1 = DEFAULT_DISCOVER_DEPTH
    """How many levels below the root to search"""


class TableSettings(TablePolicy, TableChoice):
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
            "dependentRequired": {"discover_depth": ["discover"]},
        }
    )
    called: ClassVar[str] = "a table"

    @model_validator(mode="after")
    def _check_choice(self) -> TableSettings:
        given = self.model_fields_set
        if {"discover", "base_path"} <= given:
            raise problem("a table has either base_path or discover, not both")
        if "discover_depth" in given and "discover" not in given:
            raise problem("discover_depth needs discover", "discover_depth")
        if not self.pattern.base_path and not self.name:
            raise problem("a table needs base_path, name or discover")
        return self

    @property
    def pattern(self) -> TablePattern:
        """Which tables this entry speaks of."""
        discovery = self.discovery
        base_path = _normalised(self.base_path) if discovery is None else f"{discovery.root}/*"
        return TablePattern(base_path, self.name)

    @property
    def discovery(self) -> Discovery | None:
        """Where this entry has tables searched for."""
        if not self.discover:
            return None
        try:
            return Discovery(normalise_root(self.discover), self.discover_depth)
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
    tables: Listed[TableSettings] = ()
    """The first entry that matches a table wins"""


class _Schema(GenerateJsonSchema):
    """Leaves out the titles, which only repeat the names, and writes hours as the file has them."""

    def field_title_should_be_set(self, schema: CoreSchema) -> bool:
        return False

    def encode_default(self, dft: Any) -> Any:
        return f"{dft:%H:%M}" if isinstance(dft, time) else super().encode_default(dft)


def tables_schema() -> dict[str, Any]:
    """Return the schema of the file for editors (JSON schema, draft 2020-12)."""
    schema = TablesFile.model_json_schema(schema_generator=_Schema)
    return {
        "$schema": GenerateJsonSchema.schema_dialect,
        **schema,
        "title": "Tables file of airflow-lake-provider",
        "type": ["object", "null"],
    }


def schema_text() -> str:
    """Return the schema as the shipped file has it."""
    return json.dumps(tables_schema(), indent=2) + "\n"


# --- Read and check a file


@dataclass(frozen=True, slots=True)
class ParsedTables:
    """A tables file, or the overrides, as written; nothing is inherited yet. Lines count from 1."""

    file_name: str = ""
    settings: TablesFile = field(default_factory=TablesFile)
    defaults_line: int = 1
    lines: tuple[int, ...] = ()
    written_defaults: Mapping[str, int] = field(default_factory=dict)
    """The lines of what the defaults set, as `Layer.lines`."""
    written: tuple[Mapping[str, int], ...] = ()
    """The same of each entry."""

    def layers(self, title: str) -> tuple[Layer, tuple[Layer, ...]]:
        """Return the defaults and the entries as layers; `title` names the file."""
        return Layer(f"defaults of {title}", self.file_name, self.written_defaults), tuple(
            Layer(f"entry {number} of {title} ({_named(entry.pattern)})", self.file_name, lines)
            for number, (entry, lines) in enumerate(zip(self.settings.tables, self.written, strict=True), 1)
        )


def read_tables_file(path: str) -> str:
    """Return the file's text; an empty path has none. Raises ConfigError."""
    if not path:
        return ""
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"[lake] tables_file = {path!r} cannot be read: {error}") from error


def load_tables_file(path: str) -> TablesConfig:
    """Read and parse a tables file; an empty path gives the defaults. Raises ConfigError."""
    return build_config(parse_tables(read_tables_file(path), path))


def parse_tables_file(text: str, file_name: str) -> TablesConfig:
    """Parse the text of a tables file. Raises ConfigError that names file and line."""
    return build_config(parse_tables(text, file_name))


def parse_tables(text: str, file_name: str) -> ParsedTables:
    """Parse the text of a tables file or of the overrides. Raises ConfigError that names file and line."""
    document = _Document(text, file_name)
    if document.data is None:
        return ParsedTables(file_name)
    settings = document.parse(TablesFile)
    places = [("tables", index) for index in range(len(settings.tables))]
    return ParsedTables(
        file_name,
        settings,
        document.line(("defaults",)),
        tuple(document.line(place) for place in places),
        document.lines_below(("defaults",)),
        tuple(document.lines_below(place) for place in places),
    )


def find_mistakes(text: str, file_name: str) -> list[str]:
    """Return every mistake of a tables file with file and line; of settings that contradict each other, the first.

    A text that is not YAML, or whose keys stand twice, is one mistake: what follows it cannot be read.
    """
    try:
        document = _Document(text, file_name)
        mistakes = [] if document.data is None else document.find_mistakes(TablesFile)
        if not mistakes:
            build_config(parse_tables(text, file_name))
    except ConfigError as error:
        return [str(error)]
    return mistakes


def parse_window(text: str, what: str) -> MaintenanceWindow:
    """Parse one maintenance window, in YAML or JSON; without a word in it, it is always open. Raises ConfigError."""
    document = _Document(text, what, is_file=False)
    return MaintenanceWindow() if document.data is None else document.parse(MaintenanceWindow)


def build_config(file: ParsedTables, overrides: ParsedTables | None = None) -> TablesConfig:
    """Let every entry inherit. Raises ConfigError that names the entry whose settings contradict each other."""
    over = overrides or ParsedTables()
    defaults = _checked(TablePolicy(), file.settings.defaults, (file, file.defaults_line))
    defaults = _checked(defaults, over.settings.defaults, (over, over.defaults_line))
    entries = []
    for entry, line in zip(file.settings.tables, file.lines, strict=True):
        pattern = entry.pattern
        entries.append(TableEntry(pattern.base_path, pattern.name, _checked(defaults, entry, (file, line))))
    return TablesConfig(
        entries=tuple(entries),
        defaults=defaults,
        overrides=tuple(
            _override(entry, entries, defaults, (over, line))
            for entry, line in zip(over.settings.tables, over.lines, strict=True)
        ),
        discoveries=tuple(
            entry.discovery for entry in (*file.settings.tables, *over.settings.tables) if entry.discovery is not None
        ),
        limits=over.settings.limits.over(file.settings.limits),
        layers=_layers(file, over),
        budgets=over.settings.budgets.over(file.settings.budgets),
    )


def _layers(file: ParsedTables, over: ParsedTables) -> Layers:
    file_defaults, entries = file.layers("the tables file")
    over_defaults, overrides = over.layers(over.file_name)
    return Layers((file_defaults, over_defaults), entries, overrides)


def _named(pattern: TablePattern) -> str:
    given = (("base_path", pattern.base_path), ("name", pattern.name))
    return ", ".join(f"{key}: {value}" for key, value in given if value)


def _override(
    entry: TableSettings, entries: list[TableEntry], defaults: TablePolicy, where: tuple[ParsedTables, int]
) -> TableOverride:
    policies = []
    is_covered = False
    mine = entry.pattern
    for pattern, policy in (*((other.pattern, other.policy) for other in entries), (TablePattern("", ""), defaults)):
        # Where no table can be meant by both, or an earlier entry has them all, nothing can contradict.
        is_met = not is_covered and not mine.excludes(pattern)
        policies.append(_checked(policy, entry, where) if is_met else policy)
        is_covered = is_covered or pattern.covers(mine)
    return TableOverride(mine, tuple(policies))


def _checked(base: TablePolicy, layer: TablePolicy, where: tuple[ParsedTables, int]) -> TablePolicy:
    policy = layer.over(base)
    found = policy.find_problem() if policy is not base else None
    if found is not None:
        raise ConfigError(f"{where[0].file_name}:{where[1]}: {found}")
    return policy


_NOTHING = yaml.ScalarNode("tag:yaml.org,2002:null", "", yaml.Mark("", 0, 0, 0, None, 0))


class _MistakeError(Exception):
    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


M = TypeVar("M", bound=Settings)


class _Document:
    """A YAML text as plain values, and the lines of its parts: only YAML's nodes know them."""

    def __init__(self, text: str, name: str, *, is_file: bool = True) -> None:
        self._name, self._is_file = name, is_file
        self._count = 0
        self._constructor = yaml.SafeLoader("")
        try:
            self._root: yaml.Node = yaml.compose(text, Loader=yaml.SafeLoader) or _NOTHING
            self.data = self._value(self._root)
        except (yaml.YAMLError, RecursionError) as error:
            raise ConfigError(f"{name}: not YAML: {error}") from error
        except _MistakeError as error:
            raise self._wrong(error.line, str(error)) from error

    def parse(self, model: type[M]) -> M:
        """Return the values as settings. Raises ConfigError for the first mistake."""
        try:
            return model.model_validate(self.data)
        except ValidationError as error:
            first = self._mistakes(model, error)[0]
        raise self._wrong(*first)

    def find_mistakes(self, model: type[Settings]) -> list[str]:
        """Return every mistake with its line, in the order of lines."""
        try:
            model.model_validate(self.data)
        except ValidationError as error:
            return [str(self._wrong(*mistake)) for mistake in self._mistakes(model, error)]
        return []

    def _mistakes(self, model: type[Settings], error: ValidationError) -> list[tuple[int, str]]:
        root = "" if self._is_file else self._name
        found = ((self._line_of(one), describe(model, one, self.text, root)) for one in error.errors(include_url=False))
        # One mistake may be reported by several parts of a model.
        return sorted(dict.fromkeys(found), key=lambda mistake: mistake[0])

    def line(self, place: Place) -> int:
        """Return the line of a value; of what is missing, that of the section that lacks it."""
        return int(self._find(place)[1].start_mark.line) + 1

    def lines_below(self, place: Place) -> dict[str, int]:
        """Return the line of each setting below a section, as `Layer.lines`; none when the section is missing."""
        found: dict[str, int] = {}
        node = self._find(place)[1]
        if not isinstance(node, yaml.MappingNode) or node is self._root:
            return found
        for key, value in node.value:
            if isinstance(value, yaml.MappingNode):
                found.update({f"{key.value}.{name.value}": name.start_mark.line + 1 for name, _ in value.value})
            else:
                found[key.value] = key.start_mark.line + 1
        return found

    def text(self, place: Place) -> str:
        """Return a scalar as it is written."""
        return _text(self._find(place)[1])

    def _line_of(self, error: ErrorDetails) -> int:
        key = error.get("ctx", {}).get("key")
        if key or error["type"] == "extra_forbidden":
            name, _ = self._find((*error["loc"], key) if key else error["loc"])
            return int(name.start_mark.line) + 1
        return self.line(error["loc"])

    def _wrong(self, line: int, message: str) -> ConfigError:
        return ConfigError(f"{self._name}:{line}: {message}" if self._is_file else f"{self._name}: {message}")

    def _find(self, place: Place) -> tuple[yaml.Node, yaml.Node]:
        """Return the nodes of the name and the value that stand at a place, or of the last part on the way to it."""
        found = (self._root, self._root)
        for part in place:
            node = found[1]
            if isinstance(node, yaml.MappingNode):
                pairs = [(key, value) for key, value in node.value if key.value == part]
            else:
                pairs = [(item, item) for item in node.value[part : part + 1]] if isinstance(part, int) else []
            if not pairs:
                break
            found = pairs[0]
        return found

    def _value(self, node: yaml.Node) -> Any:
        line = node.start_mark.line + 1
        self._count += 1
        if self._count > MOST_VALUES:
            raise _MistakeError(line, "the file is too large, or its aliases make it so")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node)
        if isinstance(node, yaml.SequenceNode):
            return [self._value(item) for item in node.value]
        try:
            return self._constructor.construct_object(node)
        except (yaml.YAMLError, ValueError) as error:
            raise _MistakeError(line, f"{node.value!r} cannot be read: {error}") from error

    def _mapping(self, node: yaml.MappingNode) -> Written:
        items: dict[str, Any] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise _MistakeError(line, "a key must be a text")
            if key.value in items:
                raise _MistakeError(line, f"{key.value!r} stands twice")
            items[key.value] = self._value(value)
        return Written(items, {key.value: _text(value) for key, value in node.value})


def _text(node: yaml.Node) -> str:
    return str(node.value) if isinstance(node, yaml.ScalarNode) else "a structure"
