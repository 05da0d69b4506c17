"""Everything that deciding needs of a table: the shared timeline, and the metadata of its commits, read once each."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from cachetools import LRUCache

from airflow_lake_provider.errors import DamagedFileError
from airflow_lake_provider.hudi.commit_metadata import load_commit_metadata
from airflow_lake_provider.hudi.heartbeat import load_heartbeats, load_touched_ms, load_writer_signs
from airflow_lake_provider.hudi.plans import resolve_clusterings
from airflow_lake_provider.hudi.properties import load_stamps
from airflow_lake_provider.hudi.timeline import TimelineProblem, load_metadata_timeline
from airflow_lake_provider.timeline_server.cache import SharedTimelines
from airflow_lake_provider.timeline_server.snapshot import ANY_AGE, NOW, Freshness

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_lake_provider.hudi.commit_metadata import CommitMetadata
    from airflow_lake_provider.hudi.heartbeat import WriterSigns
    from airflow_lake_provider.hudi.instant import Instant
    from airflow_lake_provider.hudi.properties import TableProperties
    from airflow_lake_provider.hudi.timeline import Timeline
    from airflow_lake_provider.instant_clock import Stamp
    from airflow_lake_provider.storage.table_storage import Storage
    from airflow_lake_provider.timeline_server.snapshot import TimelineSnapshot

# --- Everything that deciding needs to know of one table, as one value


@dataclass(frozen=True, slots=True)
class TableView:
    """A table at one moment. `version` changes when, and only when, its timeline does."""

    base_path: str
    properties: TableProperties
    timeline: Timeline
    """As `resolve_clusterings` returns it: a pending clustering has that action in every layout."""
    commits: Mapping[str, CommitMetadata]
    """Metadata of completed writes on the active timeline, by requested time; damaged ones are in `problems`."""
    version: str
    problems: tuple[TimelineProblem, ...] = ()
    heartbeats_ms: Mapping[str, int] | None = None
    """Last beat of each instant that has one, ms since the epoch; None when the view was loaded without them."""
    touched_ms: Mapping[str, int] | None = None
    """When pending plans in question, or their markers, last changed, ms since the epoch; None when not loaded."""
    metadata_timeline: Timeline | None = None
    """The metadata table's own timeline; None when it was not loaded, or when there is none."""


class TableViewCache:
    """Hands out current views; commit metadata of the least recently used tables goes first."""

    def __init__(self, timelines: SharedTimelines | None = None) -> None:
        self._timelines = timelines if timelines is not None else SharedTimelines()
        self._lock = threading.Lock()
        self._views: LRUCache[str, TableView] = LRUCache(self._timelines.limits.max_tables)

    def refresh(self, base_path: str, covering: int | None = None) -> TableView:
        """Return the table as it is now, or, with a mark, as it is since that mark. Raises what a refresh raises."""
        if covering is None:
            snapshot = self._timelines.snapshot(base_path, NOW)
        else:
            snapshot = self._timelines.snapshot(base_path, ANY_AGE, covering)
        # Commit metadata is read once, however many wait for it. Each table has its own lock: a store that never
        # answers must not hold up tables of others.
        with self._timelines.memory.get(base_path).commits_lock:
            return self._refresh(snapshot)

    def find_snapshot(self, base_path: str, covering: int, max_age_s: float) -> TimelineSnapshot | None:
        """Return the timeline in memory if it is current for a mark and no older than so many seconds, else None.

        It reads no storage and never waits.
        """
        return self._timelines.find_current(base_path, Freshness(max_age_s), covering)

    def _refresh(self, snapshot: TimelineSnapshot) -> TableView:
        base_path = snapshot.base_path
        with self._lock:
            known = self._views.get(base_path)
        if known is not None and known.version == snapshot.version and not _has_damaged_files(known):
            return known
        view = self._load(snapshot, known)
        with self._lock:
            self._views[base_path] = view
        return view

    def supplement(
        self, view: TableView, *, heartbeats: bool, metadata_timeline: bool, plans: Sequence[Instant] = ()
    ) -> TableView:
        """Return the view with the requested parts, read afresh: one listing each. Raises StorageError.

        `plans` are the pending plans whose last change the decision needs.
        """
        if not heartbeats and not metadata_timeline and not plans:
            return view
        storage = self._timelines.memory.get(view.base_path).storage
        return replace(
            view,
            heartbeats_ms=MappingProxyType(load_heartbeats(storage)) if heartbeats else None,
            metadata_timeline=load_metadata_timeline(storage) if metadata_timeline else None,
            touched_ms=MappingProxyType(
                {plan.requested_time: load_touched_ms(storage, view.properties.timeline_path, plan) for plan in plans}
            ),
        )

    def storage(self, base_path: str) -> Storage:
        """Return the storage that the table's view is read from. Raises what opening it raises."""
        return self._timelines.memory.get(base_path).storage

    def load_stamps(self, view: TableView) -> tuple[Stamp, ...]:
        """Return names and times of the timeline's files, read afresh: one listing. Raises StorageError."""
        return load_stamps(self._timelines.memory.get(view.base_path).storage, view.properties)

    def load_signs(self, view: TableView, commits: Sequence[Instant], *, reads_headers: bool) -> WriterSigns:
        """Return the traces of the table's writers, read afresh. Raises StorageError."""
        metadata = {
            i.requested_time: view.commits[i.requested_time] for i in commits if i.requested_time in view.commits
        }
        return load_writer_signs(
            self._timelines.memory.get(view.base_path).storage,
            view.properties,
            view.timeline.pending_writes(),
            metadata,
            reads_headers=reads_headers,
        )

    def __len__(self) -> int:
        return len(self._views)

    def _load(self, snapshot: TimelineSnapshot, known: TableView | None) -> TableView:
        snapshot = self._timelines.confirm_properties(snapshot)
        storage = self._timelines.memory.get(snapshot.base_path).storage
        commits, problems = _load_commits(storage, snapshot, known)
        if problems:
            # A writer may have been writing, or archiving, just then: refresh once more before reporting damage.
            snapshot = self._timelines.snapshot(snapshot.base_path, NOW)
            commits, problems = _load_commits(storage, snapshot, known)
        return TableView(
            base_path=snapshot.base_path,
            properties=snapshot.properties,
            timeline=resolve_clusterings(storage, snapshot.properties, snapshot.timeline),
            commits=MappingProxyType(commits),
            version=snapshot.version,
            problems=(*snapshot.timeline.problems, *problems),
        )


def _has_damaged_files(view: TableView) -> bool:
    return len(view.problems) > len(view.timeline.problems)


def _load_commits(
    storage: Storage, snapshot: TimelineSnapshot, known: TableView | None
) -> tuple[dict[str, CommitMetadata], list[TimelineProblem]]:
    known_files = {} if known is None else {i.requested_time: i.file_name for i in known.timeline.instants}
    commits: dict[str, CommitMetadata] = {}
    problems: list[TimelineProblem] = []
    for instant in snapshot.timeline.completed_writes:
        time_ = instant.requested_time
        if known is not None and time_ in known.commits and known_files.get(time_) == instant.file_name:
            commits[time_] = known.commits[time_]
            continue
        try:
            commits[time_] = load_commit_metadata(storage, snapshot.properties.timeline_path, instant)
        except FileNotFoundError:
            problems.append(TimelineProblem(instant.file_name, "vanished while the timeline was read"))
        except DamagedFileError as error:
            problems.append(TimelineProblem.of(instant.file_name, error))
    return commits, problems
