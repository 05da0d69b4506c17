"""What a table sets of its own policy: `lake.*` keys of its `hoodie.properties`, where the tables file lets it. Pure.

A process that may write the table's storage chooses these values. So only rules of when services are due and what they
keep are among them, and the file names each with its bounds; what is not allowed is left out, and shown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from airflow_lake_provider.config.may_set import BOUNDED, FRACTIONS, NUMBER, WHOLE
from airflow_lake_provider.shared.plain_text import plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from airflow_lake_provider.config.policies import TablePolicy
    from airflow_lake_provider.config.tables_source import SettingInForce

PREFIX = "lake."
SOURCE = "hoodie.properties of the table"
MAX_KEYS = 100
MAX_VALUE = 1000
"""Characters of a value that is read: it is kept with each run of the service, and compared with all columns."""
MAX_SHOWN = 100
"""Characters of a key and of a value that are shown."""


@dataclass(frozen=True, slots=True)
class OwnSettings:
    """A policy with what the table sets of it."""

    policy: TablePolicy
    values: tuple[tuple[str, str], ...] = ()
    """Names and values that are in force."""
    problems: tuple[str, ...] = ()
    """What the table sets and may not, a sentence each."""


def apply_own(policy: TablePolicy, properties: Mapping[str, str]) -> OwnSettings:
    """Return the policy with the table's own settings, within the bounds of `table_may_set`."""
    own = OwnSettings(policy)
    for key in sorted(key for key in properties if key.startswith(PREFIX))[:MAX_KEYS]:
        name = key.removeprefix(PREFIX)
        try:
            changed = _changed(own.policy, name, properties[key].strip())
        except ValueError as error:
            shown = plain(f"{key:.{MAX_SHOWN}}={properties[key]:.{MAX_SHOWN}}", kept="")
            problem = f"{shown} of hoodie.properties is left out: {error}"
            own = replace(own, problems=(*own.problems, problem))
        else:
            own = replace(own, policy=changed, values=(*own.values, (name, properties[key][:MAX_SHOWN])))
    return own


def settings_with_own(settings: Sequence[SettingInForce], own: OwnSettings) -> Iterator[SettingInForce]:
    """Return the settings in force with those of the table in place of what they override."""
    values = dict(own.values)
    for one in settings:
        if one.name in values:
            yield replace(one, value=values[one.name], source=SOURCE, place=f"hoodie.properties: {PREFIX}{one.name}")
        else:
            yield one


def _changed(policy: TablePolicy, name: str, text: str) -> TablePolicy:
    """Return the policy with a value. Raises ValueError, which says why it must not have it."""
    bounds = _find_bounds(policy.table_may_set, name)
    if len(text) > MAX_VALUE:
        raise ValueError(f"it has {len(text):,} characters, and {MAX_VALUE:,} are read")
    value = _read(name, text)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and not bounds[0] <= value <= bounds[1]:
        raise ValueError(f"table_may_set allows {bounds[0]:g} to {bounds[1]:g}")
    section, _, field = name.rpartition(".")
    try:
        changed = (
            policy.replace(**{name: value})
            if not section
            else policy.model_copy(update={section: getattr(policy, section).replace(**{field: value})})
        )
    except ValidationError as error:
        raise ValueError(error.errors(include_url=False, include_input=False)[0]["msg"]) from error
    problem = changed.find_problem()
    if problem is not None:
        raise ValueError(problem)
    return changed


def _find_bounds(allowed: Sequence[str], name: str) -> tuple[float, float]:
    for entry in allowed:
        bounded = BOUNDED.fullmatch(entry)
        if bounded is not None and bounded[1] == name:
            low, high = sorted((float(bounded[2]), float(bounded[3])))
            return low, high
        if entry == name:
            return float("-inf"), float("inf")
    raise ValueError(f"table_may_set of the tables file names no {plain(name[:MAX_SHOWN], kept='')}")


def _read(name: str, text: str) -> Any:
    if name in WHOLE or name in FRACTIONS:
        if not re.fullmatch(NUMBER, text, re.ASCII):
            raise ValueError("it is no number")
        return int(text) if text.isdecimal() else float(text)
    if name == "clustering.enabled":
        if text not in ("true", "false"):
            raise ValueError("allowed: true or false")
        return text == "true"
    if name == "clustering.sort_columns":
        return tuple(part.strip() for part in text.split(",") if part.strip())
    return text
