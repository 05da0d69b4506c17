"""Values of a file with the lines that they stand on, and the error that names a line."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


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
