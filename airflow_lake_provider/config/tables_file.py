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
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import yaml

from airflow_lake_provider.config.kinds import (
    FROM_1,
    Located,
    Off,
    Section,
    SettingError,
    Text,
    Whole,
    apply_changes,
    kinds_of,
    parse_mapping,
)
from airflow_lake_provider.config.policies import MaintenanceWindow, TablePolicy
from airflow_lake_provider.errors import ConfigError, LakeError
from airflow_lake_provider.hudi.base_path import normalise_root

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from airflow_lake_provider.config.kinds import Changes, Kind

# --- Which policy holds for which table: the tables file with the overrides over it


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


T = TypeVar("T")

DEFAULT_DISCOVER_DEPTH = 3
MOST_VALUES = 200_000
"""Aliases make a small text large; no real file comes near this."""

PATH = Text(r"(?!(.*/)?\.\.(/|$))[^\n]*", "a path or pattern without '..'")
NAME_PATTERN = Text(r"[^\n]*", "a text, in quotes if it looks like a number or date")
ROOT = Text(
    r"(?!(.*/)?\.\.(/|$))(/|[A-Za-z][A-Za-z0-9+.-]*:/)[^\n*?\[\]]+",
    "an absolute path without '..' and without pattern characters",
)
ENTRY_KINDS: Mapping[str, Kind] = MappingProxyType(
    {"base_path": PATH, "name": NAME_PATTERN, "discover": ROOT, "discover_depth": Whole(1)}
)
LIMIT_KINDS: Mapping[str, Kind] = MappingProxyType({"pools": FROM_1, "queues": FROM_1})
TOP_KEYS = ("defaults", "limits", "tables")
POLICY = Section(TablePolicy)
WINDOW = Off(Section(MaintenanceWindow, is_whole=True))


@dataclass(frozen=True, slots=True)
class ParsedEntry:
    """One entry as it is written."""

    pattern: TablePattern
    changes: Changes
    line: int
    discovery: Discovery | None = None


@dataclass(frozen=True, slots=True)
class ParsedTables:
    """A tables file, or the overrides, as written; nothing is inherited yet."""

    file_name: str = ""
    defaults: Changes = field(default_factory=lambda: MappingProxyType({}))
    defaults_line: int = 1
    entries: tuple[ParsedEntry, ...] = ()
    limits: Limits = field(default_factory=Limits)


def load_tables_file(path: str) -> TablesConfig:
    """Read and parse a tables file; an empty path gives the defaults. Raises ConfigError."""
    return build_config(parse_tables(read_tables_file(path), path))


def read_tables_file(path: str) -> str:
    """Return the file's text; an empty path has none. Raises ConfigError."""
    if not path:
        return ""
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"[lake] tables_file = {path!r} cannot be read: {error}") from error


def parse_tables_file(text: str, file_name: str) -> TablesConfig:
    """Parse the text of a tables file. Raises ConfigError that names file and line."""
    return build_config(parse_tables(text, file_name))


def parse_window(text: str, what: str) -> MaintenanceWindow:
    """Parse one maintenance window, in YAML or JSON; without a word in it, it is always open. Raises ConfigError."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        located = _Reader().locate(node) if node is not None else Located(None, 1)
        window: MaintenanceWindow | None = WINDOW.parse(located, what)
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{what}: not YAML: {error}") from error
    except SettingError as error:
        raise ConfigError(f"{what}: {error}") from error
    return window or MaintenanceWindow()


def parse_tables(text: str, file_name: str) -> ParsedTables:
    """Parse the text of a tables file or of the overrides. Raises ConfigError that names file and line."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        return _parse_top(_Reader().locate(node), file_name) if node is not None else ParsedTables(file_name)
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{file_name}: not YAML: {error}") from error
    except SettingError as error:
        raise ConfigError(f"{file_name}:{error.line}: {error}") from error


def build_config(file: ParsedTables, overrides: ParsedTables | None = None) -> TablesConfig:
    """Let every entry inherit. Raises ConfigError that names the entry whose settings contradict each other."""
    over = overrides or ParsedTables()
    defaults = _checked(TablePolicy(), file.defaults, (file, file.defaults_line))
    defaults = _checked(defaults, over.defaults, (over, over.defaults_line))
    entries = tuple(
        TableEntry(e.pattern.base_path, e.pattern.name, _checked(defaults, e.changes, (file, e.line)))
        for e in file.entries
    )
    return TablesConfig(
        entries=entries,
        defaults=defaults,
        overrides=tuple(_override(entry, entries, defaults, over) for entry in over.entries),
        discoveries=tuple(e.discovery for e in (*file.entries, *over.entries) if e.discovery is not None),
        limits=Limits(*({**mine, **theirs} for mine, theirs in zip(_maps(file), _maps(over), strict=True))),
    )


def _override(
    entry: ParsedEntry, entries: tuple[TableEntry, ...], defaults: TablePolicy, over: ParsedTables
) -> TableOverride:
    policies = []
    is_covered = False
    for pattern, policy in (*((other.pattern, other.policy) for other in entries), (TablePattern("", ""), defaults)):
        # Where no table can be meant by both, or an earlier entry has them all, nothing can contradict.
        is_met = not is_covered and not entry.pattern.excludes(pattern)
        policies.append(_checked(policy, entry.changes, (over, entry.line)) if is_met else policy)
        is_covered = is_covered or pattern.covers(entry.pattern)
    return TableOverride(entry.pattern, tuple(policies))


def _checked(base: TablePolicy, changes: Changes, where: tuple[ParsedTables, int]) -> TablePolicy:
    policy = apply_changes(base, changes)
    problem = policy.find_problem() if changes else None
    if problem is not None:
        raise ConfigError(f"{where[0].file_name}:{where[1]}: {problem}")
    return policy


def _maps(parsed: ParsedTables) -> tuple[Mapping[str, int], Mapping[str, int]]:
    return parsed.limits.pools, parsed.limits.queues


def _parse_top(root: Located, file_name: str) -> ParsedTables:
    parsed = ParsedTables(file_name)
    if root.value is None:
        return parsed
    body = parse_mapping(root, "the file", TOP_KEYS)
    if "defaults" in body:
        changes = POLICY.parse(body["defaults"], "a policy")
        parsed = replace(parsed, defaults=changes, defaults_line=body["defaults"].line)
    if "limits" in body:
        parsed = replace(parsed, limits=_parse_limits(body["limits"]))
    if "tables" in body:
        if not isinstance(body["tables"].value, list):
            raise body["tables"].error("tables must be a list")
        parsed = replace(parsed, entries=tuple(_parse_entry(item) for item in body["tables"].value))
    return parsed


def _parse_limits(located: Located) -> Limits:
    body = parse_mapping(located, "limits", tuple(LIMIT_KINDS))
    return Limits(
        **{
            key: {name: LIMIT_KINDS[key].parse(item, name) for name, item in parse_mapping(value, key, None).items()}
            for key, value in body.items()
        }
    )


def _parse_entry(located: Located) -> ParsedEntry:
    kinds = {**ENTRY_KINDS, **kinds_of(TablePolicy)}
    body = parse_mapping(located, "a table", tuple(kinds))
    values = {key: kinds[key].parse(item, key) for key, item in body.items()}
    own = {key: values.pop(key, None) for key in ENTRY_KINDS}
    if own["discover"] is not None and own["base_path"] is not None:
        raise located.error("a table has either base_path or discover, not both")
    if own["discover_depth"] is not None and own["discover"] is None:
        raise body["discover_depth"].error("discover_depth needs discover")
    discovery = None if own["discover"] is None else _discovery(body["discover"], own)
    base_path = f"{discovery.root}/*" if discovery is not None else (own["base_path"] or "").rstrip("/")
    if not base_path and not own["name"]:
        raise located.error("a table needs base_path, name or discover")
    return ParsedEntry(TablePattern(base_path, own["name"] or ""), MappingProxyType(values), located.line, discovery)


def _discovery(located: Located, own: Mapping[str, Any]) -> Discovery:
    try:
        root = normalise_root(own["discover"])
    except LakeError as error:
        raise located.error(f"discover: {error}") from error
    return Discovery(root, own["discover_depth"] or DEFAULT_DISCOVER_DEPTH)


class _Reader:
    """Turns YAML's nodes (not plain values: only nodes know their lines) into located values."""

    def __init__(self) -> None:
        self._count = 0
        self._constructor = yaml.SafeLoader("")

    def locate(self, node: yaml.Node) -> Located:
        """Return the node's value with lines."""
        line = node.start_mark.line + 1
        self._count += 1
        if self._count > MOST_VALUES:
            raise SettingError(line, "the file is too large, or its aliases make it so")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, line)
        if isinstance(node, yaml.SequenceNode):
            return Located([self.locate(item) for item in node.value], line)
        return Located(_plain(self._constructor.construct_object, node), line, str(node.value))

    def _mapping(self, node: yaml.MappingNode, line: int) -> Located:
        body: dict[str, Located] = {}
        lines: dict[str, int] = {}
        for key_node, value in node.value:
            key_line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise SettingError(key_line, "a key must be a text")
            key = str(key_node.value)
            if key in body:
                raise SettingError(key_line, f"{key!r} stands twice")
            body[key], lines[key] = self.locate(value), key_line
        return Located(body, line, key_lines=lines)


def _plain(construct: Callable[[yaml.Node], T], node: yaml.Node) -> T | str:
    # A date or bytes are no setting; what was written may still be meant as a text, but has to say so by quotes.
    try:
        return construct(node)
    except (yaml.YAMLError, ValueError) as error:
        raise SettingError(node.start_mark.line + 1, f"{node.value!r} cannot be read: {error}") from error


def policy_keys() -> tuple[str, ...]:
    """Return the names of all settings of a policy."""
    return tuple(entry.name for entry in fields(TablePolicy))
