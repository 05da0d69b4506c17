"""JSON's values as dataclasses: a file, or an answer, that another process of the provider has written.

Standard library only: it travels to the driver, and the command `lake` starts with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import StrEnum
from functools import cache
from types import MappingProxyType, NoneType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

_T = TypeVar("_T")


def read_exact(kind: type[_T], value: Any) -> _T:
    """Return a JSON value as a dataclass. Raises ValueError for what is missing, unknown or of another type."""
    return cast("_T", _Reader(is_exact=True).read(kind, value, ""))


def read_known(kind: type[_T], value: Any) -> _T:
    """Return a JSON value as a dataclass, whichever release wrote it.

    Fields that the dataclass does not know are ignored, and a missing one has its default. Raises ValueError for a
    missing one without default, and for one of another type.
    """
    return cast("_T", _Reader(is_exact=False).read(kind, value, ""))


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads a value as a type. `place` names the value, for example `services[0].mode`."""

    is_exact: bool
    """Whether each field has to be there, and no other one."""

    def read(self, kind: Any, value: Any, place: str) -> Any:
        if kind is object:
            return value
        choices = get_args(kind)
        if NoneType in choices:
            (wanted,) = (choice for choice in choices if choice is not NoneType)
            return None if value is None else self.read(wanted, value, place)
        if get_origin(kind) is tuple:
            _require(value, list, place)
            return tuple(self.read(choices[0], entry, f"{place}[{number}]") for number, entry in enumerate(value))
        if get_origin(kind) is Mapping:
            _require(value, dict, place)
            return {key: self.read(choices[1], entry, f"{place}.{key}") for key, entry in value.items()}
        if is_dataclass(kind):
            return self._read_fields(kind, value, place)
        if issubclass(kind, StrEnum):
            return _read_enum(kind, value, place)
        return _require(value, kind, place)

    def _read_fields(self, kind: Any, value: Any, place: str) -> Any:
        known = _fields_of(kind)
        prefix = f"{place}." if place else ""
        _require(value, dict, place)
        for name, entry in known.items():
            if name not in value and (self.is_exact or not entry.has_default):
                raise ValueError(f"field '{prefix}{name}' is missing")
        for name in value:
            if self.is_exact and name not in known:
                raise ValueError(f"field '{prefix}{name}' is unknown; known are {', '.join(known)}")
        given = {name: entry.kind for name, entry in known.items() if name in value}
        return kind(**{name: self.read(wanted, value[name], f"{prefix}{name}") for name, wanted in given.items()})


@dataclass(frozen=True, slots=True)
class _Field:
    kind: Any
    has_default: bool


@cache
def _fields_of(kind: Any) -> Mapping[str, _Field]:
    hints = get_type_hints(kind)
    return {
        one.name: _Field(hints[one.name], one.default is not MISSING or one.default_factory is not MISSING)
        for one in fields(kind)
    }


def _read_enum(kind: type[StrEnum], value: Any, place: str) -> StrEnum:
    text = _require(value, str, place)
    try:
        return kind(text)
    except ValueError as error:
        raise ValueError(f"field {place!r} is {value!r}, allowed: {', '.join(kind)}") from error


def _require(value: Any, kind: type, place: str) -> Any:
    # In Python a bool is a number; in a file it is not. A whole number stands for a fraction, too.
    allowed = (int, float) if kind is float else kind
    if not isinstance(value, allowed) or (isinstance(value, bool) and kind is not bool):
        found = type(value).__name__ if isinstance(value, (dict, list)) else repr(value)
        raise ValueError(f"field {place or 'body'!r} is {found}, expected {_NAMES[kind]}")
    return value


_NAMES: Mapping[type, str] = MappingProxyType(
    {str: "a text", int: "a whole number", float: "a number", bool: "true or false", list: "a list", dict: "an object"}
)
