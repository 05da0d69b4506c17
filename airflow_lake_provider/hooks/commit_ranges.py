"""What the asset events of a DAG run say of new commits, for tasks that read exactly these rows."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.manager.loop.commit_events import COMMITS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(frozen=True, slots=True)
class CommitRange:
    """The commits of a table that completed after `after` (exclusive) up to `until` (inclusive)."""

    base_path: str
    after: str
    until: str
    complete_until: str
    """Every write that began up to this time is in this range or in an earlier one."""


def find_ranges(events: Iterable[Any]) -> tuple[CommitRange, ...]:
    """Return the ranges of the events of commits, by table, oldest first; ranges that adjoin or overlap are one.

    `events` are a run's events of one asset (`triggering_asset_events[asset]`), from the manager or from
    `HudiCommitTrigger`. Those of services are left out, and so are those that a user made by Airflow's API; one that
    came twice counts once.
    """
    bodies = [body for event in events if (body := _find_body(event.extra)) is not None]
    ranges: list[CommitRange] = []
    for body in sorted(bodies, key=lambda body: (body["base_path"], body["after"], body["until"])):
        found = CommitRange(body["base_path"], body["after"], body["until"], body["complete_until"])
        if found.after == found.until:
            continue  # it only says that the table is complete up to a later time
        if ranges and found.base_path == ranges[-1].base_path and found.after <= ranges[-1].until:
            last = ranges.pop()
            until = max(last.until, found.until)
            found = replace(last, until=until, complete_until=max(last.complete_until, found.complete_until))
        ranges.append(found)
    return tuple(ranges)


_TIMES = ("after", "until", "complete_until")


def _find_body(extra: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    # A task may read the path, and write to a folder of the range's name. Airflow marks what a user of its API says.
    if not extra or extra.get("from_rest_api"):
        return None
    body = extra.get("payload") if extra.get("from_trigger") else extra
    if not isinstance(body, dict) or body.get("kind") != COMMITS:
        return None
    return body if all(re.fullmatch(r"\d*", str(body.get(name)), re.ASCII) for name in _TIMES) else None
