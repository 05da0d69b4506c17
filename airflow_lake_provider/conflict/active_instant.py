"""Who is at work on a table: pending instants, heartbeats and marker folders, put together."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from airflow_lake_provider.timeline.instant import Action
from airflow_lake_provider.timeline.markers import split_file_group_key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_lake_provider.conflict.marker_reader import InstantMarkers
    from airflow_lake_provider.timeline.instant import Instant


class Role(StrEnum):
    """What an instant does to file groups."""

    WRITER = "writer"
    """Users' writes, and whoever beats or leaves markers without an instant on the timeline."""
    CLUSTERING = "clustering"
    COMPACTION = "compaction"
    LOG_COMPACTION = "log_compaction"


_ROLES: Mapping[Action, Role] = {
    Action.COMMIT: Role.WRITER,
    Action.DELTACOMMIT: Role.WRITER,
    Action.REPLACECOMMIT: Role.WRITER,
    Action.CLUSTERING: Role.CLUSTERING,
    Action.COMPACTION: Role.COMPACTION,
    Action.LOGCOMPACTION: Role.LOG_COMPACTION,
}


@dataclass(frozen=True, slots=True)
class ActiveInstant:
    """One instant that may touch file groups now.

    `action` is empty where the timeline has no such instant: a writer that is about to begin, or a reservation.
    `beat_ms` is None without a heartbeat; a log compaction that was begun counts as live without one. `planned` are the
    file groups of a service's plan, or those that a writer announced to update; `partitions` all that it will touch,
    None while it has announced nothing.
    """

    instant: str
    action: str
    role: Role
    beat_ms: int | None
    is_live: bool
    markers: InstantMarkers
    planned: frozenset[bytes] = frozenset()
    partitions: frozenset[str] | None = None
    overwritten: frozenset[str] | None = frozenset()
    """Partitions of which it takes out every file group, as far as it says; None: of the whole table."""
    plan_problem: str = ""
    """What cannot be known of its plan; then it may hold any file group."""

    @property
    def unread(self) -> tuple[str, ...]:
        """What could not be read of it."""
        return (*self.markers.unread, self.plan_problem) if self.plan_problem else self.markers.unread

    def overlap(self, mine: frozenset[bytes]) -> frozenset[bytes]:
        """Return which of the file groups it touches, as far as that can be read."""
        if self.overwritten is None:
            return mine
        shared = self.markers.overlap(mine) | (self.planned & mine)
        if not self.overwritten:
            return shared
        return shared | {key for key in mine if split_file_group_key(key)[0] in self.overwritten}


def role_of(instant: Instant, *, is_clustering: bool = False) -> Role | None:
    """Return what a pending instant does to file groups; None for those that write none (clean, rollback, ...).

    In layout 1 a clustering is a `replacecommit`, as an insert overwrite is; only its plan tells.
    """
    return Role.CLUSTERING if is_clustering else _ROLES.get(instant.action)
