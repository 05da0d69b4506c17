"""Options as they are taken one by one: a name that is not taken is unknown, and the closest one is named with it."""

from __future__ import annotations

import math
from difflib import get_close_matches
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, NoReturn

from airflow_lake_provider.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

ON_RECORD_ERROR = "on_record_error"


class OnRecordError(StrEnum):
    """The values of `on_record_error`: what a stream does with a record that its target cannot hold."""

    STOP = "stop"
    """The run fails, and the stream stands still until the record fits."""
    DEAD_LETTER = "dead_letter"
    """The record goes to a place of its own, with the reason; the target keeps its row of before."""
    SKIP = "skip"
    """The record is logged and left out; the target keeps its row of before."""


class OptionError(ConfigError):
    """An option is missing, unknown or has a value that it may not have."""

    def __init__(self, message: str, option: str = "") -> None:
        super().__init__(message)
        self.option = option
        """Its name, where one option alone is wrong."""


_FLAGS: Mapping[str, bool] = MappingProxyType(
    {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
)


class TakenOptions:
    """The options of one entry; `what` names the sink in errors.

    `unknown` are those whose value only the run knows: a connection has it, or it is a reference to a secret.
    """

    def __init__(self, options: Mapping[str, str], what: str, unknown: Collection[str] = ()) -> None:
        self._rest = dict(options)
        self._what = what
        self._unknown = frozenset(unknown)
        self._names: list[str] = []

    def text(self, name: str, default: str = "") -> str:
        """Take a text."""
        self._names.append(name)
        return self._rest.pop(name, default)

    def required(self, name: str) -> str:
        """Take a text that must be there. Raises OptionError."""
        found = self.text(name)
        if not found and name not in self._unknown:
            self.refuse(f"needs the setting {name!r}")
        return found

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Take true or false, in any of YAML's words. Raises OptionError."""
        text = self._known(name)
        return default if text is None else self.parse_flag(name, text)

    def parse_flag(self, name: str, text: str) -> bool:
        """Return what an option says, in any of YAML's words. Raises OptionError."""
        if text.lower() not in _FLAGS:
            self.wrong(name, text, "true, false")
        return _FLAGS[text.lower()]

    def seconds(self, name: str, default: float) -> float:
        """Take a number of seconds above 0. Raises OptionError."""
        text = self._known(name)
        if text is None:
            return default
        try:
            seconds = float(text)
        except ValueError:
            seconds = 0.0
        if not 0 < seconds < math.inf:
            self.wrong(name, text, "seconds above 0")
        return seconds

    def count(self, name: str, default: int, what: str, or_one_of: Collection[int] = ()) -> int:
        """Take a whole number from 1 on, or one of `or_one_of`. Raises OptionError."""
        text = self._known(name)
        if not text:
            return default
        number = int(text) if text.removeprefix("-").isdecimal() and text.isascii() else 0
        if number < 1 and number not in or_one_of:
            self.wrong(name, text, f"a number of {what} from 1 on")
        return number

    def choice(self, name: str, default: str, allowed: Iterable[str]) -> str:
        """Take one of these words. Raises OptionError."""
        text = self._known(name)
        words = list(allowed)
        if text is not None and text not in words:
            self.wrong(name, text, ", ".join(words))
        return default if text is None else text

    def names(self, name: str) -> tuple[str, ...] | None:
        """Take a list with commas between its names; None where it is not there."""
        text = self.text(name, "\0")
        return None if text == "\0" else tuple(part.strip() for part in text.split(",") if part.strip())

    def on_record_error(self, default: OnRecordError = OnRecordError.STOP) -> OnRecordError:
        """Take the policy for records that do not fit. Raises OptionError."""
        return OnRecordError(self.choice(ON_RECORD_ERROR, default, OnRecordError))

    def below(self, prefix: str) -> dict[str, str]:
        """Take all options whose names begin so; return them without it."""
        self._names.append(prefix)
        return {name[len(prefix) :]: self._rest.pop(name) for name in list(self._rest) if name.startswith(prefix)}

    def has(self, name: str) -> bool:
        """Whether an option is there and was not taken yet."""
        return name in self._rest

    def knows(self, name: str) -> bool:
        """Whether an option's value is known already, and not only to the run."""
        return name not in self._unknown

    def end(self, also: Collection[str] = ()) -> None:
        """Refuse what was not taken; `also` are names of the entry that others take. Raises OptionError."""
        if not self._rest:
            return
        name = min(self._rest)
        known = sorted({*self._names, *also})
        near = get_close_matches(name, known, n=1)
        hint = f". Did you mean {near[0]!r}?" if near else ""
        shown = ", ".join(f"{known_name}*" if known_name.endswith(".") else known_name for known_name in known)
        self.refuse(f"knows no setting {name!r}, allowed: {shown}{hint}", name)

    def wrong(self, name: str, text: str, allowed: str) -> NoReturn:
        """Refuse the value of an option. Raises OptionError."""
        raise OptionError(f"{self._what}: {name} is {text!r}, allowed: {allowed}", name)

    def refuse(self, why: str, name: str = "") -> NoReturn:
        """Refuse the entry; `why` follows the name of the sink. Raises OptionError."""
        raise OptionError(f"{self._what} {why}", name)

    def _known(self, name: str) -> str | None:
        text = self.text(name, "\0")
        return None if text == "\0" or name in self._unknown else text
