"""Which of a service's own savepoints have expired: a pure function over what their metadata says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

MADE_BY_REPLICATION = "airflow-lake-provider replication"
"""In the metadata of a savepoint (`savepointedBy`) that stands only while a stream reads a snapshot."""


@dataclass(frozen=True, slots=True)
class Savepoint:
    """A completed savepoint; `made_ms` is when it was made, ms since the epoch."""

    instant: str
    made_by: str
    made_ms: int


def choose_expired(own: Iterable[Savepoint], keep: int, made_before_ms: int | None) -> tuple[str, ...]:
    """Return the instants whose savepoints go, oldest first: beyond the newest `keep`, or made before a time.

    The newest one stays, however old it is, unless none is to be kept.
    """
    ordered = sorted(own, key=lambda found: found.instant)
    stay = frozenset(found.instant for found in ordered[-keep:]) if keep else frozenset()
    newest = ordered[-1].instant if ordered and keep else ""
    return tuple(
        found.instant
        for found in ordered
        if found.instant not in stay
        or (made_before_ms is not None and found.made_ms < made_before_ms and found.instant != newest)
    )
