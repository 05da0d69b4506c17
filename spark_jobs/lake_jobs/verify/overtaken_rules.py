"""Which write changed what a clustering's plan rewrites since the plan was made.

A clustering puts the rows of its plan in the place of its file groups. What a later write put into them would be lost,
and what it replaced would come back. Hudi refuses such a write only where the writer shares lock, concurrency mode,
conflict resolution and `hoodie.clustering.updates.strategy` with the service, and none of these is in the table. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable


class LaterWrite(NamedTuple):
    """A write that completed after a plan was made, and the ids of its file groups."""

    instant: str
    operation: str
    written: frozenset[str]
    replaced: frozenset[str]


def find_overtaking(planned: Collection[str], writes: Iterable[LaterWrite]) -> str:
    """Return which write changed what a plan rewrites, and what the plan would do to it; empty when none did."""
    for write in writes:
        if not write.replaced.isdisjoint(planned):
            return f"{write.operation} {write.instant} has replaced files of the plan, whose rows would come back"
        if not write.written.isdisjoint(planned):
            return f"{write.operation} {write.instant} has written into files of the plan, and its rows would be lost"
    return ""
