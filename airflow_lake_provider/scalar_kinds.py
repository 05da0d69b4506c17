"""Kinds of settings that are one value: numbers, flags, texts, names, hours."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import time
from typing import TYPE_CHECKING, Any, Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

if TYPE_CHECKING:
    from airflow_lake_provider.located import Located, SettingError

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
