"""What a stream does with a record that its target cannot hold; and options that are numbers, or yes or no."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import TYPE_CHECKING

from airflow_lake_provider.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import MutableMapping

ON_RECORD_ERROR = "on_record_error"


class OnRecordError(StrEnum):
    """The values of `on_record_error`."""

    STOP = "stop"
    """The run fails, and the stream stands still until the record fits."""
    DEAD_LETTER = "dead_letter"
    """The record goes to a place of its own, with the reason; the target keeps its row of before."""
    SKIP = "skip"
    """The record is logged and left out; the target keeps its row of before."""


def take_on_record_error(
    options: MutableMapping[str, str], what: str, default: OnRecordError = OnRecordError.STOP
) -> OnRecordError:
    """Take the policy out of a sink's options. Raises ConfigError."""
    text = options.pop(ON_RECORD_ERROR, default.value)
    if text not in {*OnRecordError}:
        raise ConfigError(f"{what}: {ON_RECORD_ERROR} is {text!r}, allowed: {', '.join(OnRecordError)}")
    return OnRecordError(text)


def take_seconds(options: MutableMapping[str, str], name: str, default: float, what: str) -> float:
    """Take a number of seconds above 0 out of a sink's options. Raises ConfigError."""
    text = options.pop(name, str(default))
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise ConfigError(f"{what}: {name} is {text!r}, allowed: seconds above 0")
    return seconds


_FLAGS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def parse_flag(name: str, text: str) -> bool:
    """Return what an option says, in any of YAML's words. Raises ConfigError."""
    if text.lower() not in _FLAGS:
        raise ConfigError(f"{name} is {text!r}, allowed: true, false")
    return _FLAGS[text.lower()]
