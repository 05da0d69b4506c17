"""Everything that deciding needs of a table: the shared timeline, and the metadata of its commits, read once each."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from airflow_lake_provider.errors import DamagedFileError
from airflow_lake_provider.timeline.commit_metadata import load_commit_metadata
from airflow_lake_provider.timeline.heartbeat import load_heartbeats
from airflow_lake_provider.timeline.job_zone import load_stamps
from airflow_lake_provider.timeline.metadata_table import load_metadata_timeline
from airflow_lake_provider.timeline.service_plan import tell_clusterings
from airflow_lake_provider.timeline.signs_of_life import load_touched_ms
from airflow_lake_provider.timeline.timeline import TimelineProblem
from airflow_lake_provider.view.freshness import ANY_AGE, NOW
from airflow_lake_provider.view.shared_timelines import SharedTimelines
from airflow_lake_provider.view.table_view import TableView

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_lake_provider.instant_clock import Stamp
    from airflow_lake_provider.timeline.commit_metadata import CommitMetadata
    from airflow_lake_provider.timeline.instant import Instant
    from airflow_lake_provider.timeline.storage import Storage
    from airflow_lake_provider.view.snapshot import TimelineSnapshot

_LOAD_LOCKS = 32


class TableViewCache:
    """Hands out current views; commit metadata of the least recently used tables goes first."""

    def __init__(self, timelines: SharedTimelines | None = None) -> None:
        self._timelines = timelines if timelines is not None else SharedTimelines()
        self._loading = tuple(threading.Lock() for _ in range(_LOAD_LOCKS))
        self._lock = threading.Lock()
        self._views: OrderedDict[str, TableView] = OrderedDict()

    def refresh(self, base_path: str, covering: int | None = None) -> TableView:
        """Return the table as it is now, or, with a mark, as it is since that mark. Raises what a look raises."""
        if covering is None:
            snapshot = self._timelines.snapshot(base_path, NOW)
        else:
            snapshot = self._timelines.snapshot(base_path, ANY_AGE, covering)
        # Commit metadata is read once, however many wait for it.
        with self._loading[hash(base_path) % _LOAD_LOCKS]:
            return self._refresh(snapshot)

    def _refresh(self, snapshot: TimelineSnapshot) -> TableView:
        base_path = snapshot.base_path
        with self._lock:
            known = self._views.get(base_path)
            if known is not None:
                self._views.move_to_end(base_path)
        if known is not None and known.version == snapshot.version and not _has_damaged_files(known):
            return known
        view = self._load(snapshot, known)
        with self._lock:
            self._views[base_path] = view
            self._views.move_to_end(base_path)
            while len(self._views) > self._timelines.limits.max_tables:
                self._views.popitem(last=False)
        return view

    def supplement(
        self, view: TableView, *, heartbeats: bool, metadata_timeline: bool, plans: Sequence[Instant] = ()
    ) -> TableView:
        """Return the view with what is asked for, read afresh: one listing each. Raises StorageError.

        `plans` are pending plans of which is asked when they were touched last.
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

    def load_stamps(self, view: TableView) -> tuple[Stamp, ...]:
        """Return what the files of a table's timeline tell of clocks, read afresh: one listing. Raises StorageError."""
        return load_stamps(self._timelines.memory.get(view.base_path).storage, view.properties)

    def __len__(self) -> int:
        return len(self._views)

    def _load(self, snapshot: TimelineSnapshot, known: TableView | None) -> TableView:
        snapshot = self._timelines.confirm_properties(snapshot)
        storage = self._timelines.memory.get(snapshot.base_path).storage
        commits, problems = _load_commits(storage, snapshot, known)
        if problems:
            # A writer may have been writing, or archiving, just then: look once more before anything is called damaged.
            snapshot = self._timelines.snapshot(snapshot.base_path, NOW)
            commits, problems = _load_commits(storage, snapshot, known)
        return TableView(
            base_path=snapshot.base_path,
            properties=snapshot.properties,
            timeline=tell_clusterings(storage, snapshot.properties, snapshot.timeline),
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
    for instant in snapshot.timeline.completed_writes_by_completion():
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
