"""One table as early conflict detection sees it: who is at work now, and what completed since."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_lake_provider.conflict.active_instant import ActiveInstant, Role, role_of
from airflow_lake_provider.conflict.contention import Verdict, find_active_clashes, find_commit_clashes
from airflow_lake_provider.conflict.marker_reader import InstantMarkers, MarkerReader
from airflow_lake_provider.errors import DamagedFileError
from airflow_lake_provider.timeline.commit_metadata import load_commit_metadata
from airflow_lake_provider.timeline.heartbeat import HeartbeatRule, load_heartbeats
from airflow_lake_provider.timeline.markers import file_group_key
from airflow_lake_provider.timeline.service_plan import load_service_plan

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from airflow_lake_provider.conflict.contention import Claim, Clash
    from airflow_lake_provider.timeline.commit_metadata import CommitMetadata
    from airflow_lake_provider.timeline.instant import Instant
    from airflow_lake_provider.timeline.storage import Storage
    from airflow_lake_provider.timeline.timeline import Timeline
    from airflow_lake_provider.view.snapshot import TimelineSnapshot
    from airflow_lake_provider.view.timeline_view import TableTimelineView


@dataclass(frozen=True, slots=True)
class TableActivity:
    """Who is at work on a table at `now_ms`, oldest instant first, and the timeline that was read after them."""

    base_path: str
    now_ms: int
    actives: tuple[ActiveInstant, ...]
    snapshot: TimelineSnapshot

    def live_writers(self) -> tuple[ActiveInstant, ...]:
        """Return the writers whose heartbeat is young enough."""
        return tuple(active for active in self.actives if active.role is Role.WRITER and active.is_live)

    def dead_writers(self) -> tuple[ActiveInstant, ...]:
        """Return the writers whose heartbeat ran out, or that have none."""
        return tuple(active for active in self.actives if active.role is Role.WRITER and not active.is_live)

    def plans(self) -> tuple[ActiveInstant, ...]:
        """Return the pending services."""
        return tuple(active for active in self.actives if active.role is not Role.WRITER)


@dataclass(frozen=True, slots=True)
class _Plan:
    file_groups: frozenset[bytes] = frozenset()
    is_clustering: bool = False


@dataclass(frozen=True, slots=True)
class _Roles:
    """What one state of the timeline says of its instants."""

    timeline: Timeline
    pending: Mapping[str, tuple[Instant, Role]]
    idle: frozenset[str]
    """Instants that touch no file group: completed ones, and pending ones of other actions."""


class ConflictTable:
    """Looks at one table again and again; reads only what changed. Not to be shared by threads.

    All methods raise what the view raises, and StorageError.
    """

    def __init__(self, storage: Storage, view: TableTimelineView, rule: HeartbeatRule = HeartbeatRule()) -> None:  # noqa: B008 - frozen
        self._storage = storage
        self._view = view
        self._rule = rule
        self._markers = MarkerReader(storage)
        self._plans: dict[str, _Plan] = {}
        self._commits: dict[str, CommitMetadata] = {}
        self._roles: _Roles | None = None

    def look(self, now_ms: int, partitions: Collection[str] | None = None) -> TableActivity:
        """Look at everybody at work; with `partitions`, direct markers are read only of these."""
        # Markers, then heartbeats, then the timeline. A writer that commits in between has its instant completed by
        # then, so it is seen in one of them; and one that begins beats before its instant appears.
        marked = self._markers.list_instants()
        markers = {instant: self._markers.read(instant, now_ms, partitions) for instant in marked}
        beats = load_heartbeats(self._storage)
        snapshot = self._view.snapshot()
        roles = self._find_roles(snapshot)
        names = (roles.pending.keys() | markers.keys() | beats.keys()) - roles.idle
        actives = tuple(
            self._active(
                name, roles.pending.get(name), beats.get(name), markers.get(name, InstantMarkers(name)), now_ms
            )
            for name in sorted(names)
        )
        return TableActivity(self._storage.base_path, now_ms, actives, snapshot)

    def check(self, claim: Claim, now_ms: int, partitions: Collection[str] | None = None) -> Verdict:
        """Compare a claim with who is at work, and with what completed since it began."""
        activity = self.look(now_ms, partitions)
        verdict = find_active_clashes(claim, activity.actives)
        commits, damaged = self.find_commits(claim, activity.snapshot)
        return Verdict((*verdict.clashes, *commits), (*verdict.unread, *damaged))

    def find_commits(self, claim: Claim, snapshot: TimelineSnapshot) -> tuple[tuple[Clash, ...], tuple[str, ...]]:
        """Return the clashes with instants that completed since the claim began, and files that cannot be read."""
        completed = [
            instant
            for instant in snapshot.timeline.completed_writes_by_completion()
            if (instant.completed_time or "") > claim.since
        ]
        damaged = []
        for instant in completed:
            if instant.requested_time in self._commits:
                continue
            try:
                path = snapshot.properties.timeline_path
                self._commits[instant.requested_time] = load_commit_metadata(self._storage, path, instant)
            except (DamagedFileError, FileNotFoundError) as error:
                damaged.append(str(error))
        return find_commit_clashes(claim, completed, self._commits), tuple(damaged)

    def _find_roles(self, snapshot: TimelineSnapshot) -> _Roles:
        timeline = snapshot.timeline
        if self._roles is not None and self._roles.timeline is timeline:
            return self._roles
        pending = timeline.pending()
        found = {}
        for instant in pending:
            plan = self._plan_of(snapshot, instant)
            role = role_of(instant, is_clustering=plan is not None and plan.is_clustering)
            if role is not None:
                found[instant.requested_time] = (instant, role)
        names = {instant.requested_time for instant in pending}
        idle = {instant.requested_time for instant in timeline.completed()} | (names - found.keys())
        roles = _Roles(timeline, found, frozenset(idle))
        self._plans = {name: plan for name, plan in self._plans.items() if name in names}
        # A plan that cannot be read now is tried again at the next look.
        self._roles = roles if len(self._plans) == len(names) else None
        return roles

    def _plan_of(self, snapshot: TimelineSnapshot, instant: Instant) -> _Plan | None:
        """Return a pending instant's plan, read once; None while it cannot be read."""
        name = instant.requested_time
        if name not in self._plans:
            try:
                plan = load_service_plan(self._storage, snapshot.properties, instant)
            except (DamagedFileError, FileNotFoundError):
                return None
            groups = () if plan is None else plan.file_groups
            keys = frozenset(file_group_key(*group) for group in groups)
            self._plans[name] = _Plan(keys, is_clustering=plan is not None and plan.is_clustering)
        return self._plans[name]

    def _active(
        self,
        name: str,
        pending: tuple[Instant, Role] | None,
        beat_ms: int | None,
        markers: InstantMarkers,
        now_ms: int,
    ) -> ActiveInstant:
        is_live = self._rule.is_live(beat_ms, now_ms)
        if pending is None:
            return ActiveInstant(name, "", Role.WRITER, beat_ms, is_live, markers)
        instant, role = pending
        plan = self._plans.get(name)
        planned = plan.file_groups if plan is not None else frozenset()
        problem = "" if plan is not None else f"the plan of {instant.action} {name}"
        return ActiveInstant(name, instant.action.value, role, beat_ms, is_live, markers, planned, problem)
