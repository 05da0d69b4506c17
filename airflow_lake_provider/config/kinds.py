"""What a setting of the tables file may be: each kind parses a value and describes itself as JSON schema.

A dataclass declares its settings once, with `setting(...)`; the parser and the published schema both follow from that.
Values come with their lines, because a mistake is named by its line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields, is_dataclass, replace
from datetime import time
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from enum import StrEnum

# --- Kinds of settings that are one value: numbers, flags, texts, names, hours

_CLOCK = re.compile(r"([01][0-9]|2[0-3]):[0-5][0-9]")


class Kind(Protocol):
    """What a setting may be."""

    def parse(self, located: Located, name: str) -> Any:
        """Return the value; raise SettingError that names what is allowed."""

    def schema(self) -> dict[str, Any]:
        """Return the same as JSON schema."""


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number."""

    least: int

    @property
    def allowed(self) -> str:
        """Say what is allowed."""
        return f"a whole number from {self.least}"

    def parse(self, located: Located, name: str) -> int:
        """See Kind."""
        value = located.value
        if type(value) is float and value.is_integer():  # as JSON schema counts them
            value = int(value)
        if type(value) is not int or value < self.least:
            raise _refuse(located, name, self.allowed)
        return value

    def schema(self) -> dict[str, Any]:
        """See Kind."""
        return {"type": "integer", "minimum": self.least}


@dataclass(frozen=True, slots=True)
class Positive:
    """A number above 0."""

    what: str = "a number"

    @property
    def allowed(self) -> str:
        """Say what is allowed."""
        return f"{self.what} above 0"

    def parse(self, located: Located, name: str) -> float:
        """See Kind."""
        value = located.value
        if type(value) not in {int, float} or not 0 < value < float("inf"):
            raise _refuse(located, name, self.allowed)
        return float(value)

    def schema(self) -> dict[str, Any]:
        """See Kind."""
        return {"type": "number", "exclusiveMinimum": 0}


@dataclass(frozen=True, slots=True)
class Flag:
    """Yes or no."""

    allowed: str = "true, false"

    def parse(self, located: Located, name: str) -> bool:
        """See Kind."""
        if type(located.value) is not bool:
            raise _refuse(located, name, self.allowed)
        return located.value

    def schema(self) -> dict[str, Any]:
        """See Kind."""
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class Text:
    """A text that matches a pattern as a whole; `allowed` says it in words."""

    pattern: str
    allowed: str

    def parse(self, located: Located, name: str) -> str:
        """See Kind."""
        if type(located.value) is not str or not re.fullmatch(self.pattern, located.value, re.DOTALL):
            raise _refuse(located, name, self.allowed)
        return located.value

    def schema(self) -> dict[str, Any]:
        """See Kind."""
        return {"type": "string", "pattern": f"^(?:{self.pattern})$"}


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of a closed set of names."""

    names: tuple[str, ...]

    def parse(self, located: Located, name: str) -> str:
        """See Kind."""
        if type(located.value) is not str or located.value not in self.names:
            raise _refuse(located, name, ", ".join(self.names))
        return located.value

    def schema(self) -> dict[str, Any]:
        """See Kind."""
        return {"enum": list(self.names)}


@dataclass(frozen=True, slots=True)
class Clock:
    """An hour and minute. YAML reads 22:30 without quotes as a number; what was written counts."""

    allowed: str = "a time such as 22:30, in quotes"

    def parse(self, located: Located, name: str) -> time:
        """See Kind."""
        if not _CLOCK.fullmatch(located.text):
            raise _refuse(located, name, self.allowed)
        return time.fromisoformat(located.text)

    def schema(self) -> dict[str, Any]:
        """See Kind."""
        return {"type": "string", "pattern": f"^(?:{_CLOCK.pattern})$"}


@dataclass(frozen=True, slots=True)
class TimeZone:
    """A name of the time zone database. Which names there are is not part of the schema."""

    allowed: str = "a name such as Europe/Berlin"

    def parse(self, located: Located, name: str) -> str:
        """See Kind."""
        try:
            return ZoneInfo(str(located.value)).key
        except (ValueError, ZoneInfoNotFoundError, OSError) as error:
            raise _refuse(located, name, self.allowed) from error

    def schema(self) -> dict[str, Any]:
        """See Kind."""
        return {"type": "string", "minLength": 1}


FROM_0 = Whole(0)
FROM_1 = Whole(1)
SECONDS = Positive("seconds")


def _refuse(located: Located, name: str, allowed: str) -> SettingError:
    return located.error(f"{name} is {located.text!r}, allowed: {allowed}")


# --- Values of a file with the lines that they stand on, and the error that names a line


class SettingError(Exception):
    """A wrong setting: the line, and what is allowed. Whoever reads the file adds its name."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True, slots=True)
class Located:
    """A value with its line. `value` is a scalar, a dict of Located, or a list of Located; `text` is as written."""

    value: Any
    line: int
    text: str = "a structure"
    key_lines: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))

    def error(self, message: str) -> SettingError:
        """Return the error that names this line."""
        return SettingError(self.line, message)


def parse_mapping(located: Located, what: str, allowed: Sequence[str] | None) -> Mapping[str, Located]:
    """Return a mapping's items; raise SettingError that names an unknown key and the known ones."""
    body = located.value
    if not isinstance(body, dict):
        raise located.error(f"{what} must be a mapping")
    for key in body:
        if allowed is not None and key not in allowed:
            line = located.key_lines.get(key, located.line)
            raise SettingError(line, f"unknown setting {key!r} in {what}, allowed: {', '.join(allowed)}")
    return body


T = TypeVar("T")

Changes = Mapping[str, Any]
"""Settings that somebody made: field name to value; for a section, to its own changes."""

_KIND = "kind"


@dataclass(frozen=True, slots=True)
class Names:
    """A list of names from a closed set."""

    names: tuple[str, ...]
    to_value: Callable[[str], Any] = str
    may_be_empty: bool = True

    @staticmethod
    def of(enum: type[StrEnum]) -> Names:
        """Return the kind whose names are an enum's values."""
        return Names(tuple(enum), enum)

    def parse(self, located: Located, name: str) -> tuple[Any, ...]:
        """See Kind."""
        allowed = f"{name} must be a list of {', '.join(self.names)}"
        if not isinstance(located.value, list) or not (located.value or self.may_be_empty):
            raise located.error(allowed)
        for item in located.value:
            if item.value not in self.names:
                raise item.error(f"{allowed}; it holds {item.text!r}")
        return tuple(self.to_value(item.value) for item in located.value)

    def schema(self) -> dict[str, Any]:
        """See Kind."""
        shape: dict[str, Any] = {"type": "array", "items": {"enum": [str(name) for name in self.names]}}
        return shape if self.may_be_empty else {**shape, "minItems": 1}


@dataclass(frozen=True, slots=True)
class Texts:
    """A list of texts that match a pattern as a whole."""

    pattern: str
    words: str

    def parse(self, located: Located, name: str) -> tuple[str, ...]:
        """See Kind."""
        if not isinstance(located.value, list):
            raise located.error(f"{name} must be a list of {self.words}")
        for item in located.value:
            if not isinstance(item.value, str) or not re.fullmatch(self.pattern, item.value):
                raise item.error(f"{name} holds {item.text!r}, allowed: {self.words}")
        return tuple(item.value for item in located.value)

    def schema(self) -> dict[str, Any]:
        """See Kind."""
        return {"type": "array", "items": {"type": "string", "pattern": f"^({self.pattern})$"}}


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of another program: a mapping of texts whose keys match a pattern. Numbers and flags become texts.

    `refused` are keys that must not be set here, each with what to do instead.
    """

    key_pattern: str
    key_words: str
    refused: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def parse(self, located: Located, name: str) -> Mapping[str, str]:
        """See Kind."""
        for key, item in parse_mapping(located, name, None).items():
            if not re.match(self.key_pattern, key):
                raise item.error(f"{name}: {key!r} is no {self.key_words}")
            if key in self.refused:
                line = located.key_lines.get(key, item.line)
                raise SettingError(line, f"{name}: {key} is set by our services: {self.refused[key]}")
            if item.value is None or isinstance(item.value, (dict, list)):
                raise item.error(f"{name}: {key} is {item.text!r}, allowed: a text, a number, true or false")
        return MappingProxyType({key: item.text for key, item in located.value.items()})

    def schema(self) -> dict[str, Any]:
        """See Kind."""
        return {
            "type": "object",
            "patternProperties": {self.key_pattern: {"type": ["string", "number", "boolean"]}},
            "additionalProperties": False,
            **({"propertyNames": {"not": {"enum": sorted(self.refused)}}} if self.refused else {}),
        }


@dataclass(frozen=True, slots=True)
class Section:
    """A mapping whose keys are the settings of a dataclass.

    Parses to the changes, which `apply_changes` puts over what is inherited; `is_whole` sections inherit nothing.
    """

    cls: type[Any]
    is_whole: bool = False

    def parse(self, located: Located, name: str) -> Any:
        """See Kind."""
        kinds = kinds_of(self.cls)
        body = parse_mapping(located, name, tuple(kinds))
        changes = {key: kinds[key].parse(item, key) for key, item in body.items()}
        return apply_changes(self.cls(), changes) if self.is_whole else MappingProxyType(changes)

    def schema(self) -> dict[str, Any]:
        """See Kind."""
        kinds = kinds_of(self.cls)
        properties = {key: kind.schema() for key, kind in kinds.items()}
        return {"type": "object", "properties": properties, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class Off:
    """Another kind, or null."""

    kind: Any
    what: str = "off"

    def parse(self, located: Located, name: str) -> Any:
        """See Kind."""
        if located.value is None:
            return None
        try:
            return self.kind.parse(located, name)
        except SettingError as error:
            if isinstance(self.kind, Section):
                raise
            raise SettingError(error.line, f"{error}, or null for {self.what}") from error

    def schema(self) -> dict[str, Any]:
        """See Kind."""
        return {"anyOf": [self.kind.schema(), {"type": "null"}]}


def setting(kind: Kind, default: Any) -> Any:
    """Declare a dataclass's field that can be set in the tables file."""
    metadata = MappingProxyType({_KIND: kind})
    if isinstance(default, Mapping):
        return field(default_factory=lambda: MappingProxyType(dict(default)), metadata=metadata)
    return field(default=default, metadata=metadata)


def kinds_of(cls: type[Any]) -> dict[str, Kind]:
    """Return the settings of a dataclass by name, in their order; a field made of a dataclass is a section."""
    return {entry.name: _kind_of(entry) for entry in fields(cls)}


def apply_changes(base: T, changes: Changes) -> T:
    """Return a dataclass's value with changes over it; sections and mappings are merged, all else is replaced."""
    merged = {key: _merge(getattr(base, key), value) for key, value in changes.items()}
    return replace(base, **merged) if merged else base  # type: ignore[type-var]


def _merge(current: Any, value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    if is_dataclass(current):
        return apply_changes(current, value)
    return MappingProxyType({**current, **value})


def _kind_of(entry: Field[Any]) -> Kind:
    declared: Kind | None = entry.metadata.get(_KIND)
    if declared is not None:
        return declared
    factory: Any = entry.default_factory
    if isinstance(factory, type) and is_dataclass(factory):
        return Section(factory)
    raise TypeError(f"{entry.name} can be set in the tables file, so its kind must be declared with setting()")
