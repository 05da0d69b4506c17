"""What this package says of a table: read afresh, by a long-lived local view, and by two shared servers.

One server hears of each commit that its writer announces; the other one never hears anything. Both have a watcher with
a poll interval of 20 s. Their clock is moved on after each step, so a poll interval passes without waiting. It is less
than the pause between two heartbeats, which would show a watcher what its server does not ask for.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from airflow_lake_provider.conflict.marker_reader import MarkerReader
from airflow_lake_provider.hudi.archive import load_archive
from airflow_lake_provider.hudi.commit_metadata import split_file_group_key
from airflow_lake_provider.hudi.pending import load_pending_plans, load_service_plan, resolve_clusterings
from airflow_lake_provider.hudi.properties import TableProperties, load_table_properties
from airflow_lake_provider.hudi.timeline import Timeline, load_timeline
from airflow_lake_provider.indexing.table_indexes import readiness_of
from airflow_lake_provider.planner.facts import TableFacts
from airflow_lake_provider.planner.table_view import TableViewCache
from airflow_lake_provider.timeline_server.cache import SharedTimelines
from airflow_lake_provider.timeline_server.snapshot import NOW, Freshness, TimelineSnapshot
from airflow_lake_provider.timeline_server.views import (
    FileSystemTimelineView,
    MemoryTimelineView,
    TableTimelineView,
)
from airflow_lake_provider.timeline_server.watch import Watch, WatchKind, find_changes
from tests.oracle.hudi_answers import FileGroups, Moment
from tests.oracle.places import Place

POLL_S = 20.0
POLL_MS = 21_000
DAY_MS = 86_400_000
WATCHED_MS = 30 * DAY_MS
DILIGENCES = (0.4, 0.4, 0.04)
POLLING = Freshness(unannounced_max_age_s=POLL_S / 2)
"""What a sensor asks for from its second poke on."""


def moments_of(timeline: Timeline) -> tuple[Moment, ...]:
    return tuple(
        Moment(i.requested_time, i.action.value, i.state.value, i.completed_time or "") for i in timeline.instants
    )


@dataclass(frozen=True, slots=True)
class FreshAnswers:
    """All answers that are read from the storage at one moment."""

    properties: TableProperties
    timeline: Timeline
    archive: frozenset[Moment]
    archive_problems: tuple[str, ...]
    plans: dict[str, FileGroups]
    index_plans: dict[str, tuple[str, ...]]
    ready: tuple[str, ...]
    """Indexes that a sensor of readiness says readers may use."""


@dataclass(slots=True)
class Reader:
    """A sensor with a cursor, which polls now and then; `began` is its first cursor."""

    source: str
    after: str
    began: str
    diligence: float
    """How often it polls, of all steps. A seldom one is a DAG that was paused: commits are archived meanwhile."""
    found: list[tuple[str, str]] = field(default_factory=list)


class Clock:
    """The machine's clock, moved on."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def __call__(self) -> int:
        return int(time.time() * 1000) + self.ahead_ms


class Ours:
    """All of this package's views of one table."""

    def __init__(self, place: Place, path: str) -> None:
        self.path = path
        self.storage = place.open_table(path)
        self.clock = Clock()
        self.local = FileSystemTimelineView(path, place.open_table, self.clock)

        def start() -> SharedTimelines:
            return SharedTimelines(open_table=place.open_table, now_ms=self.clock)

        self.servers = {name: start() for name in ("silent", "announced")}
        # One manager evaluates after a notice, the other one when its heartbeat says so.
        self.managers = {
            True: TableViewCache(self.servers["announced"]),
            False: TableViewCache(start()),
        }
        self.markers = MarkerReader(self.storage)
        self.mark = 0
        self.readers: list[Reader] = []
        self.views: dict[str, TableTimelineView] = {"local": self.local}
        for name, server in self.servers.items():
            self.views[name] = MemoryTimelineView(self.path, server)
            server.register(self.path)
            server.snapshot(self.path)
            self._watch(server)

    def read(self) -> FreshAnswers:
        properties = load_table_properties(self.storage)
        timeline = load_timeline(self.storage, properties)
        resolved = resolve_clusterings(self.storage, properties, timeline)
        plans = {}
        for instant in resolved.pending():
            plan = load_service_plan(self.storage, properties, instant)
            if plan is not None and plan.file_groups:
                plans[instant.requested_time] = frozenset(plan.file_groups)
        archive = load_archive(self.storage, properties)
        pending = load_pending_plans(self.storage, properties, timeline)
        names = {*properties.metadata_partitions, *properties.metadata_partitions_inflight}
        names |= {name for plan in pending for name in plan.partitions}
        return FreshAnswers(
            properties=properties,
            timeline=timeline,
            archive=frozenset(
                Moment(i.requested_time, i.action.value, "COMPLETED", i.completed_time or "") for i in archive.instants
            ),
            archive_problems=tuple(f"{problem.file_name}: {problem.reason}" for problem in archive.problems),
            plans=plans,
            index_plans={plan.instant: plan.partitions for plan in pending},
            ready=tuple(sorted(name for name in names if readiness_of(name, properties, pending).is_ready)),
        )

    # --- what the servers hear, and time --------------------------------------------------------------------

    def announce(self, instants: tuple[str, ...]) -> None:
        """Do as the callback of a writer does for one server."""
        self.mark += 1
        server = self.servers["announced"]
        server.hint(self.path, instants, self.mark, is_by_writer=True)
        self._work(server)

    def hint(self) -> None:
        """Do as a job of ours that ended does for one server."""
        server = self.servers["announced"]
        server.hint(self.path)
        self._work(server)

    def let_time_pass(self, ms: int) -> None:
        """Let the servers do their usual work after so long."""
        self.clock.ahead_ms += ms
        for server in self.servers.values():
            self._watch(server)
            self._work(server)

    def _watch(self, server: SharedTimelines) -> None:
        """Have a sensor of commits and one of index plans wait, as the server hears of them."""
        for watch in (self._watch_of(WatchKind.COMMIT), self._watch_of(WatchKind.PENDING_INDEX)):
            unannounced_s = POLL_S if watch.needs_unannounced else None
            server.watch(self.path, POLL_S, self.clock() + WATCHED_MS, unannounced_s)

    def _watch_of(self, kind: WatchKind, after: str = "") -> Watch:
        return Watch(kind, ((self.path, after),))

    def _work(self, server: SharedTimelines) -> None:
        while taken := server.due.take(self.clock(), 100):
            for path, is_hinted in taken:
                server.refresh_if_due(path, is_hinted=is_hinted)

    # --- questions ------------------------------------------------------------------------------------------

    def shown(self, source: str) -> TimelineSnapshot:
        """Return what a watcher is shown, by the rule of the sensors."""
        return self.views[source].snapshot(POLLING if source != "local" else NOW)

    def pending_builds(self, source: str) -> tuple[str, ...]:
        """Return what a sensor of pending index builds finds."""
        change = self._find(source, self._watch_of(WatchKind.PENDING_INDEX))
        return tuple(instant.requested_time for instant in change.instants)

    def facts(self, *, is_hinted: bool) -> TableFacts:
        """Return what the manager decides by when it evaluates the table, after a notice or without one."""
        return TableFacts(self.managers[is_hinted].refresh(self.path, self.mark if is_hinted else None))

    def marked(self, instant: str) -> FileGroups:
        found = self.markers.read(instant, self.clock())
        return frozenset(split_file_group_key(key) for key in found.file_groups())

    def add_reader(self, source: str, after: str, diligence: float) -> None:
        self.readers.append(Reader(source, after, after, diligence))

    def poll(self, reader: Reader) -> str:
        """Let a sensor poll once and move its cursor on; return what it says is amiss."""
        change = self._find(reader.source, self._watch_of(WatchKind.COMMIT, reader.after))
        if change.error is not None:
            return str(change.error)
        reader.found += [(instant.requested_time, str(instant.action)) for instant in change.instants]
        reader.after = max(reader.after, str(change.to_dict()["after"]))
        return change.incomplete

    def poll_now_and_then(self, chance: random.Random, newest: str) -> list[str]:
        """Let some sensors poll, and begin a new one; return what they say is amiss."""
        amiss = [said for reader in self.readers if chance.random() < reader.diligence and (said := self.poll(reader))]
        if newest and len(self.readers) < 15:
            self.add_reader(chance.choice(tuple(self.views)), newest, chance.choice(DILIGENCES))
        return amiss

    def _find(self, source: str, watch: Watch) -> Any:
        views: Any = SimpleNamespace(get_view=lambda _: self.views[source])
        return find_changes(watch, views, NOW if source == "local" else watch.freshness(POLL_S / 2))[0]
