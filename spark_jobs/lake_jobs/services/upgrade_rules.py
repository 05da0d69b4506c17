"""How the version of a table changes: in which steps, and what has moved of its timeline. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from airflow_lake_provider.errors import ServiceRefusedError

if TYPE_CHECKING:
    from collections.abc import Iterable

VERSIONS = (6, 8, 9)
"""What Hudi 1.2 upgrades from and to. It has no release whose tables have version 7."""
MOVED_FROM = 8
"""The first version whose timeline has a folder of its own."""
_COMPLETED = re.compile(r"(?P<requested>\d{14,17})(?:_\d+)?\.(?P<action>[a-z]+)")
_INSTANT = re.compile(r"(?P<requested>\d{14,17})(?:_\d+)?\.[a-z]+(?:\.(?:requested|inflight))?")


def steps_to(present: int, target: int) -> tuple[int, ...]:
    """Return the versions on the way to a target, one after another. Raises ServiceRefusedError for an unknown one.

    Hudi itself does several at once, and what fails in the last one leaves a table that has half of the first one.
    """
    for version in (present, target):
        if version not in VERSIONS:
            raise ServiceRefusedError(
                f"table version {version}: only {', '.join(map(str, VERSIONS))} can be changed into each other; bring "
                "an older table to version 6 with the Hudi release that wrote it"
            )
    if present < target:
        return tuple(version for version in VERSIONS if present < version <= target)
    return tuple(version for version in reversed(VERSIONS) if target <= version < present)


def times_of(names: Iterable[str]) -> frozenset[str]:
    """Return the requested times of the instants among the names in a folder."""
    return frozenset(found["requested"] for name in names if (found := _INSTANT.fullmatch(name)))


def completed_in(names: Iterable[str]) -> frozenset[str]:
    """Return the completed instants among the names in a folder, as `requested time.action`."""
    found = filter(None, map(_COMPLETED.fullmatch, names))
    return frozenset(f"{name['requested']}.{name['action']}" for name in found if name["action"] != "inflight")


def find_moved(version: int, old_folder: Iterable[str], new_folder: Iterable[str]) -> bool:
    """Whether a part of a timeline lies where its version has none: a change of the version was interrupted.

    The names are those in `.hoodie`, and in its folder `timeline`.
    """
    return bool(times_of(new_folder if version < MOVED_FROM else old_folder))
