"""Look at tables for a sensor: what is new since its cursor. Blocking file system calls; no Airflow in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.timeline.loader import load_timeline
from airflow_lake_provider.timeline.properties import load_table_properties
from airflow_lake_provider.timeline.storage import open_storage
from airflow_lake_provider.view.changes import COMMIT_ACTIONS, find_commits_after, find_pending_index_builds

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from airflow_lake_provider.timeline.instant import Instant


class WatchKind(StrEnum):
    """What a watch waits for."""

    COMMIT = "commit"
    PENDING_INDEX = "pending_index"


@dataclass(frozen=True, slots=True)
class Watch:
    """Tables to look at. `after` of each table: see `find_commits_after`; pending index builds ignore it."""

    kind: WatchKind
    tables: tuple[tuple[str, str], ...]
    """Pairs of base path and `after`."""
    actions: frozenset[str] = COMMIT_ACTIONS
    storage_options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Finding:
    """What one table shows: new instants, or why it could not be looked at."""

    base_path: str
    instants: tuple[Instant, ...] = ()
    error: LakeError | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the shape that sensors push as XCom; `after` is the cursor to go on from."""
        return {
            "base_path": self.base_path,
            "instants": [
                {
                    "requested_time": instant.requested_time,
                    "action": str(instant.action),
                    "state": str(instant.state),
                    "completed_time": instant.completed_time,
                }
                for instant in self.instants
            ],
            "after": max((i.completed_time or i.requested_time for i in self.instants), default=""),
            "error": None if self.error is None else str(self.error),
        }


def look(watch: Watch) -> tuple[Finding, ...]:
    """Look at each table once; a table that cannot be read is a finding with its error and stops no other."""
    return tuple(_look_at(base_path, after, watch) for base_path, after in watch.tables)


def _look_at(base_path: str, after: str, watch: Watch) -> Finding:
    try:
        storage = open_storage(base_path, dict(watch.storage_options) or None)
        timeline = load_timeline(storage, load_table_properties(storage))
    except LakeError as error:
        return Finding(base_path, error=error)
    if watch.kind is WatchKind.PENDING_INDEX:
        return Finding(base_path, find_pending_index_builds(timeline))
    return Finding(base_path, find_commits_after(timeline, after, watch.actions))


def found(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings that have new instants."""
    return [finding for finding in findings if finding.instants]


def tables_of(base_path: str, after: str, tables: Collection[Mapping[str, Any]] | None) -> tuple[tuple[str, str], ...]:
    """Build a watch's tables from a sensor's arguments: one table, or a list of mappings with both keys."""
    if tables is None:
        return ((base_path, after),)
    return tuple((str(table["base_path"]), str(table.get("after", ""))) for table in tables)
