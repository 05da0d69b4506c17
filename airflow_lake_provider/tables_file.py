"""Parse the tables file (YAML) into a TablesConfig; every mistake is named with its line and the allowed values.

Shape:

    defaults:                     # optional; a policy
      compaction: {delta_commits: 5}
      clustering: {enabled: true, small_files: 20}
      clean: {commits: 5, retained_commits: 10}
      archive: {min_commits: 20, max_commits: 30}
      doctor: {repairs: [failed_write, orphaned_lock]}
      maintenance_window: {days: [sat, sun], begin: "22:00", end: "06:00", time_zone: Europe/Berlin}
      hudi_options: {hoodie.write.lock.provider: ...}
    tables:                       # optional; the first match wins
      - base_path: /lake/sales/*  # glob pattern or one path
        name: orders              # glob pattern, optional
        compaction: {delta_commits: 3, log_to_base_ratio: 0.3}
"""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import time
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import yaml

from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.maintenance_window import DAYS, MaintenanceWindow
from airflow_lake_provider.policies import TableEntry, TablePolicy, TablesConfig
from airflow_lake_provider.stuck_shape import Shape

if TYPE_CHECKING:
    from collections.abc import Mapping


def load_tables_file(path: str) -> TablesConfig:
    """Read and parse a tables file; an empty path gives the defaults. Raises ConfigError."""
    if not path:
        return TablesConfig()
    try:
        with open(path, encoding="utf-8") as stream:
            text = stream.read()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"[lake] tables_file = {path!r} cannot be read: {error}") from error
    return parse_tables_file(text, file_name=path)


def parse_tables_file(text: str, file_name: str) -> TablesConfig:
    """Parse the text of a tables file. Raises ConfigError that names file and line."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{file_name}: not YAML: {error}") from error
    return _Parser(file_name).parse(root)


class _Parser:
    """Walks YAML nodes (not plain values), because only nodes know their lines."""

    def __init__(self, file_name: str) -> None:
        self._file_name = file_name

    def parse(self, root: yaml.Node | None) -> TablesConfig:
        if root is None:
            return TablesConfig()
        body = self._mapping(root, "the file", allowed=("defaults", "tables"))
        defaults = TablePolicy()
        if "defaults" in body:
            defaults = self._policy(body["defaults"], defaults, extra=())
        entries: list[TableEntry] = []
        if "tables" in body:
            node = body["tables"]
            if not isinstance(node, yaml.SequenceNode):
                raise self._error(node, "tables must be a list")
            entries = [self._entry(item, defaults) for item in node.value]
        return TablesConfig(entries=tuple(entries), defaults=defaults)

    def _entry(self, node: yaml.Node, defaults: TablePolicy) -> TableEntry:
        body = self._mapping(node, "a table", allowed=("base_path", "name", *_policy_keys()))
        base_path = self._text(body["base_path"], "base_path") if "base_path" in body else ""
        name = self._text(body["name"], "name") if "name" in body else ""
        if not base_path and not name:
            raise self._error(node, "a table needs base_path or name")
        if ".." in base_path.split("/"):
            raise self._error(body["base_path"], "base_path must not contain '..'")
        return TableEntry(base_path.rstrip("/"), name, self._policy(node, defaults, extra=("base_path", "name")))

    def _policy(self, node: yaml.Node, base: TablePolicy, extra: tuple[str, ...]) -> TablePolicy:
        body = self._mapping(node, "a policy", allowed=(*extra, *_policy_keys()))
        changes: dict[str, Any] = {}
        for key, value in body.items():
            if key in extra:
                continue
            if key == "maintenance_window":
                changes[key] = self._window(value)
            elif key in _SECTIONS:
                changes[key] = self._section(value, key, getattr(base, key))
            elif key == "hudi_options":
                changes[key] = MappingProxyType(dict(base.hudi_options) | self._options(value))
            else:
                changes[key] = self._scalar(value, key)
        policy = replace(base, **changes)
        problem = policy.find_problem()
        if problem is not None:
            raise self._error(node, problem)
        return policy

    def _section(self, node: yaml.Node, section: str, base: Any) -> Any:
        body = self._mapping(node, section, allowed=tuple(entry.name for entry in fields(base)))
        changes = {
            key: self._shapes(value) if key == "repairs" else self._scalar(value, key, section)
            for key, value in body.items()
        }
        return replace(base, **changes)

    def _shapes(self, node: yaml.Node) -> tuple[Shape, ...]:
        if not isinstance(node, yaml.SequenceNode):
            raise self._error(node, f"repairs must be a list of {', '.join(Shape)}")
        names = {item: self._text(item, "a shape") for item in node.value}
        for item, name in names.items():
            if name not in set(Shape):
                raise self._error(item, f"repairs holds {name!r}, allowed: {', '.join(Shape)}")
        return tuple(Shape(name) for name in names.values())

    def _window(self, node: yaml.Node) -> MaintenanceWindow | None:
        if isinstance(node, yaml.ScalarNode) and node.tag.endswith(":null"):
            return None
        body = self._mapping(node, "maintenance_window", allowed=("days", "begin", "end", "time_zone"))
        changes: dict[str, Any] = {}
        for key, value in body.items():
            if key == "days":
                changes[key] = self._days(value)
                continue
            text = self._text(value, key)
            try:
                changes[key] = time.fromisoformat(text) if key != "time_zone" else ZoneInfo(text).key
            except (ValueError, ZoneInfoNotFoundError, OSError) as error:
                allowed = "a name such as Europe/Berlin" if key == "time_zone" else "a time such as 22:30, in quotes"
                raise self._error(value, f"{key} is {text!r}, allowed: {allowed}") from error
        return replace(MaintenanceWindow(), **changes)

    def _days(self, node: yaml.Node) -> tuple[str, ...]:
        items = node.value if isinstance(node, yaml.SequenceNode) else []
        days = tuple(self._text(item, "a day").lower() for item in items)
        if not days or not set(days) <= set(DAYS):
            raise self._error(node, f"days must be a list of {', '.join(DAYS)}")
        return days

    def _options(self, node: yaml.Node) -> dict[str, str]:
        body = self._mapping(node, "hudi_options", allowed=None)
        for key, value in body.items():
            if not key.startswith("hoodie."):
                raise self._error(value, f"hudi_options: {key!r} is no Hudi setting (hoodie.*)")
        return {key: self._text(value, key) for key, value in body.items()}

    def _scalar(self, node: yaml.Node, key: str, section: str = "") -> Any:
        kind, allowed, check = _SCALARS[key]
        may_be_off = (section, key) in _MAY_BE_OFF
        if may_be_off:
            allowed = f"{allowed}, or null for off"
        value = yaml.SafeLoader("").construct_object(node) if isinstance(node, yaml.ScalarNode) else node
        if kind is float and type(value) is int:
            value = float(value)
        if value is None and may_be_off:
            return None
        if type(value) is not kind or not check(value):
            shown = node.value if isinstance(node, yaml.ScalarNode) else "a structure"
            raise self._error(node, f"{key} is {shown!r}, allowed: {allowed}")
        return value

    def _mapping(self, node: yaml.Node, what: str, allowed: tuple[str, ...] | None) -> Mapping[str, yaml.Node]:
        if not isinstance(node, yaml.MappingNode):
            raise self._error(node, f"{what} must be a mapping")
        body: dict[str, yaml.Node] = {}
        for key_node, value in node.value:
            key = self._text(key_node, "a key")
            if allowed is not None and key not in allowed:
                raise self._error(key_node, f"unknown setting {key!r} in {what}, allowed: {', '.join(allowed)}")
            if key in body:
                raise self._error(key_node, f"{key!r} stands twice in {what}")
            body[key] = value
        return body

    def _text(self, node: yaml.Node, what: str) -> str:
        if not isinstance(node, yaml.ScalarNode):
            raise self._error(node, f"{what} must be a text")
        return str(node.value)

    def _error(self, node: yaml.Node, message: str) -> ConfigError:
        return ConfigError(f"{self._file_name}:{node.start_mark.line + 1}: {message}")


def _policy_keys() -> tuple[str, ...]:
    return tuple(entry.name for entry in fields(TablePolicy))


_ANY = lambda value: True  # noqa: E731 - a table cell
_FROM_1 = (int, "a whole number from 1", lambda value: value >= 1)
_FROM_0 = (int, "a whole number from 0", lambda value: value >= 0)
_SECTIONS = frozenset({"compaction", "clustering", "clean", "archive", "doctor"})
_MAY_BE_OFF = frozenset(
    {
        ("compaction", "delta_commits"),
        ("compaction", "log_to_base_ratio"),
        ("clustering", "commits"),
        ("clustering", "small_files"),
    }
)
_SCALARS: Mapping[str, tuple[type, str, Any]] = {
    "enabled": (bool, "true, false", _ANY),
    "delta_commits": _FROM_1,
    "log_to_base_ratio": (float, "a number above 0", lambda value: value > 0),
    "min_log_bytes": _FROM_0,
    "commits": _FROM_1,
    "small_files": _FROM_1,
    "small_file_bytes": _FROM_1,
    "retained_commits": _FROM_1,
    "min_commits": _FROM_1,
    "max_commits": _FROM_1,
    "max_active_runs": _FROM_1,
    "heartbeat_timeout_s": (float, "seconds above 0", lambda value: value > 0),
    "max_runs_per_instant": _FROM_1,
    "retry_backoff_s": (float, "seconds above 0", lambda value: value > 0),
    "stuck_after_s": (float, "seconds above 0", lambda value: value > 0),
    "lock_after_s": (float, "seconds above 0", lambda value: value > 0),
    "unguarded_after_s": (float, "seconds above 0", lambda value: value > 0),
}
