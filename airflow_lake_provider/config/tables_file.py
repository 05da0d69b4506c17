"""Parse the tables file (YAML) into a TablesConfig; every mistake is named with its line and the allowed values.

Shape (the settings of a policy are the fields of `TablePolicy`; `tables_schema` has all of it for editors):

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

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import yaml
from pydantic import ValidationError

from airflow_lake_provider.config.kinds import (
    Settings,
    Written,
    describe,
    json_schema,
)
from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.config.service_policies import MaintenanceWindow
from airflow_lake_provider.config.tables_config import (
    Layer,
    Layers,
    TableEntry,
    TableOverride,
    TablePattern,
    TablesConfig,
    TablesFile,
    TablesFileEntry,
)
from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.shared.collector import collector_paused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic_core import ErrorDetails

    from airflow_lake_provider.config.kinds import Place

MAX_VALUES = 200_000
"""Aliases make a small text large; no real file comes near this."""
MAX_DEPTH = 50
"""Lists and mappings in each other. libyaml's composer is recursive, and a deep text would end the process."""
MAX_MISTAKES = 100
"""Mistakes that are described; each costs a search for its line."""
SCHEMA_FILE = Path(__file__).with_name("tables.schema.json")


def tables_schema() -> dict[str, Any]:
    """Return the schema of the file for editors (JSON schema, draft 2020-12)."""
    return {**json_schema(TablesFile, "Tables file of airflow-lake-provider"), "type": ["object", "null"]}


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
    with collector_paused():
        return _parse_tables(text, file_name)


def _parse_tables(text: str, file_name: str) -> ParsedTables:
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
    entry: TablesFileEntry, entries: list[TableEntry], defaults: TablePolicy, where: tuple[ParsedTables, int]
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


_BASE = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's, which every wheel of PyYAML has: a fifth of the time of the one in Python."""
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def load_values(text: str) -> Any:
    """Return the plain values of a text that `parse_tables` has accepted."""
    with collector_paused():
        return yaml.load(text, Loader=_BASE)


def dump_values(values: Mapping[str, Any]) -> str:
    """Return the text of plain values, in their order."""
    return str(yaml.dump(values, Dumper=_DUMPER, sort_keys=False, allow_unicode=True))


class _MistakeError(Exception):
    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


M = TypeVar("M", bound=Settings)


class _Loader(_BASE):  # type: ignore[misc, valid-type]
    """Finds the type of each scalar once: ten thousand entries have the same dozen keys."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._tags: dict[tuple[type, Any, Any], str] = {}

    def resolve(self, kind: type, value: Any, implicit: Any) -> str:
        """Return the tag of a node without one."""
        key = (kind, value, implicit)
        tag = self._tags.get(key)
        if tag is None:
            tag = self._tags[key] = str(super().resolve(kind, value, implicit))
        return tag


def _compose(text: str) -> yaml.Node | None:
    """Return the text's root. Raises YAMLError, and ConfigError for a text that is too deep."""
    depth = 0
    for event in yaml.parse(text, Loader=_BASE):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                line = event.start_mark.line if event.start_mark else 0
                raise _MistakeError(line + 1, f"more than {MAX_DEPTH} lists and mappings in each other")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
    return yaml.compose(text, Loader=_Loader)


class _Document:
    """A YAML text as plain values, and the lines of its parts: only YAML's nodes know them."""

    def __init__(self, text: str, name: str, *, is_file: bool = True) -> None:
        self._name = name
        self._is_file = is_file
        self._count = 0
        self._constructor = yaml.SafeLoader("")
        try:
            self._root: yaml.Node = _compose(text) or _NOTHING
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
        some = error.errors(include_url=False)[:MAX_MISTAKES]
        found = ((self._line_of(one), describe(model, one, self.text, root)) for one in some)
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
        if self._count > MAX_VALUES:
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
