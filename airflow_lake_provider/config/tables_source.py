"""The tables file with its overrides, as they are now; what is wrong leaves the last good configuration in force."""

from __future__ import annotations

import json
import logging
import math
import os
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from airflow_lake_provider.config.kinds import Settings
from airflow_lake_provider.config.tables_config import TableChoice, TablePattern, pattern_of_path
from airflow_lake_provider.config.tables_file import (
    ParsedTables,
    build_config,
    dump_values,
    load_values,
    parse_tables,
    read_tables_file,
)
from airflow_lake_provider.errors import ConfigError, TablesConfigError
from airflow_lake_provider.hudi.base_path import identity_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from airflow_lake_provider.config.policies import TablePolicy
    from airflow_lake_provider.config.settings import LakeSettings
    from airflow_lake_provider.config.tables_config import TablesConfig

log = logging.getLogger(__name__)

Stamp = tuple[int, int, int]
"""Modification time in ns, size in bytes, inode."""

OVERRIDES_MAX_AGE_S = 15.0
"""How long the overrides are used before they are read again."""


@dataclass(frozen=True, slots=True)
class Settle:
    """How long a tables file must not have changed before it takes effect: a program may be writing it."""

    settled_after_s: float = 2.0
    shrunk_after_s: float = 60.0
    """For a file with fewer than half of the entries in force."""


class FileWatch:
    """Says whether a file has changed, and for how long it has been as it is. Its owner keeps threads apart."""

    def __init__(self, path: str, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._monotonic_s = monotonic_s
        self._seen: Stamp | None = None
        self._seen_s = 0.0

    def read_stamp(self) -> Stamp:
        """Return what changes with the file. Raises OSError."""
        found = os.stat(self._path)
        return found.st_mtime_ns, found.st_size, found.st_ino

    def unchanged_s(self, stamp: Stamp) -> float:
        """Return how long the file has been as the stamp says: by its time, or as this process has seen it."""
        if stamp != self._seen:
            self._seen = stamp
            self._seen_s = self._monotonic_s()
        # A store's clock may be ahead of this one.
        return max(time.time() - stamp[0] / 1e9, self._monotonic_s() - self._seen_s)


class TablesSource:
    """Loads the file when it changed, and the overrides when they are old; safe to call from many threads.

    `read_overrides` returns the overrides' text, "" when there are none; it may be slow and may raise ConfigError. Only
    callers that read tables call it, never the answer to a notice.
    """

    def __init__(
        self,
        path: str,
        read_overrides: Callable[[], str] | None = None,
        overrides_name: str = "overrides",
        monotonic_s: Callable[[], float] = time.monotonic,
        settle: Settle | None = None,
    ) -> None:
        self._settle = settle if settle is not None else Settle(0.0, 0.0)
        self._watch = FileWatch(path, monotonic_s)
        self._path = path
        self._read_overrides = read_overrides
        self._overrides_name = overrides_name
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._stamp: Stamp | None = None
        self._file: ParsedTables | None = None
        self._overrides_text: str | None = None if read_overrides is not None else ""
        self._overrides: ParsedTables | None = ParsedTables() if read_overrides is None else None
        self._read_s = float("-inf")
        self._tables: TablesConfig | None = None
        self._problems: dict[str, str] = {}

    @classmethod
    def of(cls, settings: LakeSettings, read_variable: Callable[[str], str]) -> TablesSource:
        """Return the source that `[lake]` names; `read_variable` returns a Variable's text, "" if there is none."""
        name = settings.tables_variable
        if name.lower() == "off":
            return cls(settings.tables_file, settle=Settle())
        return cls(settings.tables_file, lambda: read_variable(name), f"Variable {name}", settle=Settle())

    @property
    def has_overrides(self) -> bool:
        """Whether the overrides that were read last say anything."""
        return bool(self._overrides_text)

    @property
    def searches(self) -> bool:
        """Whether the settings in force name roots to search for tables."""
        return self._tables is not None and bool(self._tables.discoveries)

    @property
    def problem(self) -> str:
        """Say what is wrong with the file or the overrides now; empty when nothing is."""
        return "; ".join(self._problems.values())

    def load(self) -> TablesConfig:
        """Return the tables. Raises TablesConfigError only while no good configuration was ever seen.

        While another thread reads what has changed, those before the change: a large file or a slow store of Variables
        keeps nothing else waiting.
        """
        in_force = self._tables
        if not self._lock.acquire(blocking=in_force is None):
            assert in_force is not None
            return in_force
        try:
            if self._load_file() | self._load_overrides() or self._tables is None:
                self._build()
            if self._tables is None:
                raise TablesConfigError(f"no table is decided until its settings are valid: {self.problem}")
            return self._tables
        finally:
            self._lock.release()

    def _load_file(self) -> bool:
        stamp = self._read_stamp()
        if stamp == self._stamp and self._file is not None:
            return False
        unchanged_s = math.inf if stamp is None else self._watch.unchanged_s(stamp)
        if unchanged_s < self._settle.settled_after_s:
            if self._file is not None:
                return False  # the next load takes it
            # The first load has nothing else to answer with.
            time.sleep(self._settle.settled_after_s - unchanged_s)
        try:
            text = read_tables_file(self._path)
            if self._path and not text.strip():
                raise ConfigError(f"{self._path}: the file is empty; write `tables: []` for a file without entries")
            if self._read_stamp() != stamp:
                # What was read may be a part, and the stamp belongs to what was there before.
                if self._file is None:
                    self._say("file", f"{self._path}: the file changed while it was read")
                return False
            parsed = parse_tables(text, self._path)
        except ConfigError as error:
            self._say("file", str(error))
            self._stamp = stamp
            return False
        before = len(self._file.lines) if self._file is not None else 0
        after = len(parsed.lines)
        if after * 2 < before and unchanged_s < self._settle.shrunk_after_s:
            self._say(
                "file",
                f"{self._path}: the file has {after} entries and had {before}; it takes effect when it has not changed "
                f"for {self._settle.shrunk_after_s:,.0f} s, because it may be half written",
            )
            return False
        self._file = parsed
        self._stamp = stamp
        self._say("file", "")
        return True

    def _load_overrides(self) -> bool:
        now_s = self._monotonic_s()
        if self._read_overrides is None or now_s - self._read_s < OVERRIDES_MAX_AGE_S:
            return False
        self._read_s = now_s
        try:
            text = self._read_overrides()
            if text == self._overrides_text:
                return False
            parsed = parse_tables(text, self._overrides_name)
        except ConfigError as error:
            self._say("overrides", str(error))
            return False
        self._overrides = parsed
        self._overrides_text = text
        self._say("overrides", "")
        return True

    def _build(self) -> None:
        if self._file is None or self._overrides is None:
            return
        try:
            self._tables = build_config(self._file, self._overrides)
        except ConfigError as error:
            self._say("both", str(error))
        else:
            self._say("both", "")

    def _say(self, what: str, problem: str) -> None:
        known = self._problems.pop(what, "")
        if problem:
            self._problems[what] = problem
        if problem and problem != known:
            in_force = (
                "the last good configuration stays in force" if self._tables is not None else "nothing is decided"
            )
            log.error("the tables' settings are wrong, %s: %s", in_force, problem)

    def _read_stamp(self) -> Stamp | None:
        try:
            return self._watch.read_stamp()
        except OSError:
            return None


# --- Where each value of a table's policy comes from

BUILT_IN = "built in"
_SECRET = re.compile(r"password|passwd|secret|token|credential|access.?key|private", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class SettingInForce:
    """One setting of a table's policy, and what sets it."""

    name: str
    """As in the tables file, with its section."""
    value: str
    """As JSON; `"***"` for what a name marks as a secret."""
    source: str
    """`built in`, or the defaults or the entry, of the tables file or of the Variable over it."""
    place: str
    """File and line, `/etc/lake.yaml:12`; empty for what is built in."""


def settings_in_force(tables: TablesConfig, base_path: str, name: str) -> list[SettingInForce]:
    """Return every setting of a table's policy with the line that sets it: the topmost one that writes it."""
    layers = tables.layers_of(base_path, name)[::-1]
    found = []
    for key, value, is_whole in _flat(tables.policy_for(base_path, name)):
        lines = ((layer, layer.find_line(key, is_whole=is_whole)) for layer in layers)
        source, place = next(
            ((layer.what, f"{layer.file_name}:{line}") for layer, line in lines if line is not None), (BUILT_IN, "")
        )
        # A reference to a secret is none itself.
        shown = '"***"' if _SECRET.search(key) and not value.startswith('"secret://') else value
        found.append(SettingInForce(key, shown, source, place))
    return found


def _flat(policy: TablePolicy) -> Iterator[tuple[str, str, bool]]:
    for name in type(policy).model_fields:
        value = getattr(policy, name)
        is_whole = isinstance(value, Settings) and value.is_whole
        if isinstance(value, BaseModel):
            value = {key: getattr(value, key) for key in type(value).model_fields}
        if isinstance(value, Mapping):
            for key, inner in value.items():
                yield f"{name}.{key}", json.dumps(inner, default=_plain), is_whole
        else:
            yield name, json.dumps(value, default=_plain), is_whole


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return {key: getattr(value, key) for key in type(value).model_fields}
    return dict(value) if isinstance(value, Mapping) else str(value)


# --- Pausing one table, or one service of it: an entry of the Variable with `paused`, which decides and starts nothing

_MASKED = "***"


@dataclass(frozen=True, slots=True)
class Pause:
    """What is paused, or not paused any more: a table, or one service of it."""

    is_paused: bool
    service: str = ""
    """Empty: the table."""
    by: str = ""
    """By whom, and why."""
    until: str | None = None
    """When the pause ends by itself, in ISO 8601."""

    def is_in(self, entry: Mapping[str, Any]) -> bool:
        """Whether an entry pauses it."""
        return bool(self._section(entry).get("paused"))

    def write(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        """Return the entry with the pause."""
        ends = {} if self.until is None else {"paused_until": self.until}
        section = _without(self._section(entry), *_OF_PAUSE) | {"paused": self.by} | ends
        return {**entry, self.service: section} if self.service else section

    def remove(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        """Return the entry without the pause."""
        rest = _without(self._section(entry), *_OF_PAUSE)
        if not self.service:
            return rest
        return {**entry, self.service: rest} if rest else _without(entry, self.service)

    def _section(self, entry: Mapping[str, Any]) -> Mapping[str, Any]:
        return (entry.get(self.service) or {}) if self.service else entry


_OF_PAUSE = ("paused", "paused_until")


def pause_in_overrides(text: str, base_path: str, name: str, pause: Pause) -> str:
    """Return the Variable's text with one table or service paused, or not any more; nothing else of it changes.

    Raises ConfigError for a text that cannot be written back as it is, and for a pause that stands elsewhere.
    """
    changed, refused = pause_tables_in_overrides(text, [(base_path, name)], pause)
    for reason in refused.values():
        raise ConfigError(reason)
    return changed


def pause_tables_in_overrides(text: str, wanted: Sequence[tuple[str, str]], pause: Pause) -> tuple[str, dict[str, str]]:
    """Return the Variable's text with tables paused, or not any more, and by base path why some are not changed.

    `wanted` are base paths and names.

    The first entry that matches a table applies. So for a table that a pattern matches, a copy of the pattern's entry
    is put in front of it. Raises ConfigError for a text that cannot be written back as it is.
    """
    if _MASKED in text or _MASKED in pause.by:
        raise ConfigError("the Variable has values that Airflow masks, which cannot be written back: edit it by hand")
    entries = [entry.pattern for entry in parse_tables(text, "the Variable").settings.tables]
    if any(line.lstrip().startswith("#") for line in text.splitlines()):
        raise ConfigError("the Variable has comments, which would be lost: edit it by hand")
    data: dict[str, Any] = load_values(text) or {}
    tables = [_Entry(pattern, values) for pattern, values in zip(entries, data.get("tables") or (), strict=True)]
    refused = {}
    for base_path, name in wanted:
        if not _pause_in(tables, base_path, name, pause):
            refused[base_path] = "no entry of the Variable that names this table pauses it: see the table's policy"
    if len(refused) == len(wanted):
        return text, refused
    after = {**data, "tables": [entry.values for entry in tables]}
    is_json = not text.strip() or text.lstrip().startswith("{")
    changed = json.dumps(after, indent=2) if is_json else dump_values(after)
    # Hours without quotes are numbers to YAML: such a text would be written back wrong.
    parse_tables(changed, "the Variable, written back")
    return changed, refused


@dataclass(slots=True)
class _Entry:
    """An entry of the Variable while it is edited."""

    pattern: TablePattern
    values: dict[str, Any]


def _pause_in(tables: list[_Entry], base_path: str, name: str, pause: Pause) -> bool:
    """Pause a table or service in the entries, or end that; return false where no entry of its own pauses it."""
    matching = [entry for entry in tables if entry.pattern.matches(base_path, name)]
    first = matching[0] if matching else None
    own = first if first is not None and _names(first.values, base_path) else None
    if pause.is_paused:
        if own is None:
            below = {} if first is None else first.values
            own_path = pattern_of_path(base_path)
            own = _Entry(TablePattern(own_path, ""), {**_without(below, *_CHOICE), "base_path": own_path})
            tables.insert(0, own)
        own.values = pause.write(own.values)
        return True
    if own is None or not pause.is_in(own.values):
        return False
    _resume(tables, own, matching[1].values if len(matching) > 1 else {}, pause)
    return True


_CHOICE = tuple(TableChoice.model_fields)


def _resume(tables: list[_Entry], own: _Entry, behind: Mapping[str, Any], pause: Pause) -> None:
    rest = pause.remove(own.values)
    # What only the pause had added goes with it.
    if _without(rest, "base_path", "name") == _without(behind, *_CHOICE) and not pause.is_in(behind):
        tables[:] = [entry for entry in tables if entry is not own]
    else:
        own.values = rest


def _names(entry: Mapping[str, Any], base_path: str) -> bool:
    return identity_of(str(entry.get("base_path", ""))) == identity_of(pattern_of_path(base_path))


def _without(entry: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key not in keys}
