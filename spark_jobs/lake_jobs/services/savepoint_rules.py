"""Which write gets a savepoint, and which of a service's own savepoints have expired: pure functions."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
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


def choose_write(writes: Iterable[tuple[str, str]], until: str) -> str:
    """Return the newest write that a savepoint may stand for; empty when there is none.

    `writes` are requested and completed time of all completed writes, and none is pending that was requested before
    `until` (inclusive). A restore (Hudi 1.2.0, from table version 8 on) takes back what completed after the savepoint's
    write, and a savepoint keeps the files of what was requested before it; so both must be the same writes. Where
    writes overlapped, an older write may be it.
    """
    ordered = sorted(writes)
    latest = list(accumulate((completed for _, completed in ordered), max))
    earliest_after = ""
    for at in reversed(range(len(ordered))):
        requested, completed = ordered[at]
        if requested <= until and completed == latest[at] and (not earliest_after or completed < earliest_after):
            return requested
        earliest_after = min(filter(None, (earliest_after, completed)))
    return ""


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
