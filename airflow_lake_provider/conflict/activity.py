"""One table for early conflict detection: which instants are active now, and what completed since."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

from airflow_lake_provider.conflict.contention import (
    UNSET,
    ClashCheck,
    WriteIntent,
    WriterRule,
    find_active_clashes,
    find_commit_clashes,
    find_writer_rule,
)
from airflow_lake_provider.conflict.marker_reader import ActiveInstant, InstantMarkers, MarkerReader, Role, role_of
from airflow_lake_provider.errors import DamagedFileError
from airflow_lake_provider.hudi.active_writes import HeartbeatRule, heartbeat_rule, load_heartbeats
from airflow_lake_provider.hudi.commit_metadata import (
    MeasuredCommits,
    file_group_key,
    load_announced_write,
    load_commit_metadata,
    require_readable_commits,
)
from airflow_lake_provider.hudi.instant import Layout
from airflow_lake_provider.hudi.pending import load_service_plan
from airflow_lake_provider.hudi.properties import zone_of_jobs
from airflow_lake_provider.job_contract import COMPACTIONS_PASS_FROM
from airflow_lake_provider.shared.actions import Action, State
from airflow_lake_provider.timeline_server.views import FileSystemTimelineView

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from datetime import tzinfo

    from airflow_lake_provider.conflict.contention import Clash
    from airflow_lake_provider.hudi.commit_metadata import AnnouncedWrite, CommitMetadata
    from airflow_lake_provider.hudi.instant import Instant
    from airflow_lake_provider.hudi.properties import TableProperties
    from airflow_lake_provider.hudi.timeline import Timeline
    from airflow_lake_provider.storage.table_storage import Storage
    from airflow_lake_provider.timeline_server.snapshot import TimelineSnapshot

_OVERWRITE = "INSERT_OVERWRITE"
_OVERWRITE_TABLE = "INSERT_OVERWRITE_TABLE"


@dataclass(frozen=True, slots=True)
class TableActivity:
    """The active instants of a table at `now_ms`, oldest first, and the timeline that was read after them."""

    base_path: str
    now_ms: int
    actives: tuple[ActiveInstant, ...]
    snapshot: TimelineSnapshot
    rule: WriterRule = UNSET
    """How Hudi resolves conflicts of the table's writers, by their settings."""

    @property
    def compactions_pass(self) -> bool:
        """Whether writers and compactions never meet in this table's version."""
        return _compactions_pass(self.snapshot)

    def live_writers(self) -> tuple[ActiveInstant, ...]:
        """Return the writers whose heartbeat is young enough."""
        return tuple(active for active in self.actives if active.role is Role.WRITER and active.is_live)

    def plans(self) -> tuple[ActiveInstant, ...]:
        """Return the pending services."""
        return tuple(active for active in self.actives if active.role is not Role.WRITER)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a pending instant declares that it will touch; `partitions` of None: it may touch any."""

    file_groups: frozenset[bytes] = frozenset()
    partitions: frozenset[str] | None = None
    is_clustering: bool = False
    overwritten: frozenset[str] | None = frozenset()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class _Names:
    """The instants of one state of the timeline, by requested time."""

    timeline: Timeline
    pending: Mapping[str, Instant]
    completed: frozenset[str]
    compactions: frozenset[str]
    """Pending compactions."""
    writes: tuple[Instant, ...]
    """Completed writes, by completion."""


class ConflictTable:
    """Reads one table repeatedly, and only what changed. Threads must not share it.

    `read_snapshot` gives the timeline as it is now (a view's `snapshot`), `hudi_options` are the table's Hudi settings,
    and `spark_conf` those of its jobs, which name their time zone: what measures the age of an instant needs them.
    All methods raise what `read_snapshot` raises, and StorageError.
    """

    def __init__(
        self,
        storage: Storage,
        read_snapshot: Callable[[], TimelineSnapshot],
        rule: HeartbeatRule = HeartbeatRule(),  # noqa: B008 - frozen
        hudi_options: Mapping[str, str] | None = None,
        spark_conf: Mapping[str, str] | None = None,
    ) -> None:
        self._storage = storage
        self._read_snapshot = read_snapshot
        self.rule = rule
        self.hudi_options = hudi_options or {}
        self.spark_conf = spark_conf or {}
        self._writer_rule = find_writer_rule(self.hudi_options)
        self._markers = MarkerReader(storage)
        self._plans: dict[str, _Plan] = {}
        self._commits: dict[str, CommitMetadata] = {}
        self._measured = MeasuredCommits(storage.base_path)
        self._names: _Names | None = None

    def find_zone(self, snapshot: TimelineSnapshot) -> tzinfo:
        """Return the zone in which the table's instants are named. Raises ConfigError."""
        return zone_of_jobs(snapshot.properties.time_zone, self.spark_conf).zone

    def read_activity(
        self, now_ms: int, partitions: Collection[str] | None = None, writer: str | None = None
    ) -> TableActivity:
        """Read all active instants.

        With `partitions`, direct markers are read only of these; with `writer`, only what a writer of this instant may
        have to give way to: markers of smaller instants, and no plan of a compaction that writers pass.
        """
        # Markers, then heartbeats, then the timeline. A writer that commits in between has its instant completed by
        # then, so it is seen in one of them; and one that begins beats before its instant appears.
        marked = [name for name in self._markers.list_instants() if writer is None or name < writer]
        markers = {name: self._markers.read(name, now_ms, partitions) for name in marked}
        beats = load_heartbeats(self._storage)
        snapshot = self._read_snapshot()
        names = self._find_names(snapshot.timeline)
        may_pass = writer is not None and _compactions_pass(snapshot)
        passed_over = names.completed | names.compactions if may_pass else names.completed
        found = (
            self._active(name, snapshot, beats.get(name), markers.get(name, InstantMarkers(name)), now_ms)
            for name in sorted((names.pending.keys() | markers.keys() | beats.keys()) - passed_over)
        )
        actives = tuple(active for active in found if active is not None)
        return TableActivity(self._storage.base_path, now_ms, actives, snapshot, self._writer_rule)

    def check(self, intent: WriteIntent, now_ms: int, partitions: Collection[str] | None = None) -> ClashCheck:
        """Compare an intent with the active instants, and with what completed since it began."""
        includes_older = intent.role is Role.WRITER and intent.comes_first
        activity = self.read_activity(now_ms, partitions, intent.instant if includes_older else None)
        passes = activity.compactions_pass
        verdict = find_active_clashes(intent, activity.actives, compactions_pass=passes, rule=self._writer_rule)
        commits, damaged = self.find_commits(intent, activity.snapshot)
        return ClashCheck((*verdict.clashes, *commits), (*verdict.unread, *damaged))

    def find_commits(
        self, intent: WriteIntent, snapshot: TimelineSnapshot
    ) -> tuple[tuple[Clash, ...], tuple[str, ...]]:
        """Return the clashes with instants that completed since the intent began, and unreadable files."""
        completed, damaged = self.load_commits(intent.since, snapshot)
        passes = _compactions_pass(snapshot)
        clashes = find_commit_clashes(intent, completed, self._commits, compactions_pass=passes, rule=self._writer_rule)
        return clashes, damaged

    def load_commits(self, since: str, snapshot: TimelineSnapshot) -> tuple[tuple[Instant, ...], tuple[str, ...]]:
        """Return the writes that completed after `since` (exclusive), newest first, and files that cannot be read.

        Their metadata is in `commits` then; each is read once.
        """
        by_completion = reversed(self._find_names(snapshot.timeline).writes)
        completed = tuple(takewhile(lambda instant: (instant.completed_time or "") > since, by_completion))
        damaged = []
        path = snapshot.properties.timeline_path
        unread = [instant for instant in completed if instant.requested_time not in self._commits]
        require_readable_commits(self._storage, path, {instant.file_name for instant in unread})
        for instant in unread:
            try:
                commit = load_commit_metadata(self._storage, path, instant)
                self._commits[instant.requested_time] = self._measured.add(commit)
            except (DamagedFileError, FileNotFoundError) as error:
                damaged.append(str(error))
        return completed, tuple(damaged)

    @property
    def commits(self) -> Mapping[str, CommitMetadata]:
        """The metadata of completed writes that was read so far, by requested time."""
        return self._commits

    def _find_names(self, timeline: Timeline) -> _Names:
        if self._names is None or self._names.timeline is not timeline:
            pending = {instant.requested_time: instant for instant in timeline.pending()}
            completed = frozenset(instant.requested_time for instant in timeline.completed())
            compactions = frozenset(instant.requested_time for instant in timeline.pending(Action.COMPACTION))
            writes = timeline.completed_writes
            self._names = _Names(timeline, pending, completed, compactions, writes)
            self._plans = {name: plan for name, plan in self._plans.items() if name in pending}
        return self._names

    def _plan_of(self, snapshot: TimelineSnapshot, instant: Instant) -> _Plan | None:
        """Return a pending instant's plan; None when it cannot be read. A plan without content is read again."""
        plan = self._plans.get(instant.requested_time)
        if plan is None:
            try:
                plan = self._load_plan(snapshot.properties, instant)
            except (DamagedFileError, FileNotFoundError):
                return None
            if plan.partitions is not None:
                self._plans[instant.requested_time] = plan
        return plan

    def _load_plan(self, properties: TableProperties, instant: Instant) -> _Plan:
        plan = load_service_plan(self._storage, properties, instant)
        if plan is not None and plan.file_groups:
            return _Plan(_keys(plan.file_groups), frozenset(group[0] for group in plan.file_groups), plan.is_clustering)
        announced = load_announced_write(self._storage, properties, instant)
        if instant.action is Action.REPLACECOMMIT and plan is not None and not plan.is_clustering:
            return _plan_of_overwrite(instant, announced)
        if announced is not None:
            return _Plan(_keys(announced.updated_file_groups), announced.partitions)
        return _Plan(is_clustering=plan is not None and plan.is_clustering)

    def _active(
        self, name: str, snapshot: TimelineSnapshot, beat_ms: int | None, markers: InstantMarkers, now_ms: int
    ) -> ActiveInstant | None:
        """Combine what is known of one instant; None when it touches no file group."""
        is_live = self.rule.is_live(beat_ms, now_ms)
        instant = self._find_names(snapshot.timeline).pending.get(name)
        if instant is None:
            return ActiveInstant(name, "", Role.WRITER, beat_ms, is_live, markers)
        if role_of(instant) is None:
            return None
        plan = self._plan_of(snapshot, instant)
        # In layout 1 only the plan identifies a clustering, which conflicts without a heartbeat too.
        may_be = instant.action is Action.REPLACECOMMIT and snapshot.properties.layout is Layout.V1
        role = role_of(instant, is_clustering=may_be if plan is None else plan.is_clustering) or Role.WRITER
        # A log compaction need not send heartbeats.
        is_live = is_live or (role is Role.LOG_COMPACTION and instant.state is State.INFLIGHT)
        plan = plan or _Plan(problem=f"the plan of {instant.action} {name}")
        return ActiveInstant(
            name,
            instant.action,
            role,
            beat_ms,
            is_live,
            markers,
            plan.file_groups,
            plan.partitions,
            plan.overwritten,
            plan.problem,
        )


def open_conflict_table(
    storage: Storage, hudi_options: Mapping[str, str], spark_conf: Mapping[str, str]
) -> ConflictTable:
    """Open a table by its storage, and by the heartbeat rule of its Hudi settings. Raises ConfigError."""
    view = FileSystemTimelineView(storage.base_path, lambda _: storage)
    return ConflictTable(storage, view.snapshot, heartbeat_rule(hudi_options), hudi_options, spark_conf)


def _keys(file_groups: Iterable[tuple[str, str]]) -> frozenset[bytes]:
    return frozenset(file_group_key(*group) for group in file_groups)


def _plan_of_overwrite(instant: Instant, announced: AnnouncedWrite | None) -> _Plan:
    """Return what an insert overwrite or a removal of partitions declares: never all that it replaces."""
    problem = f"which file groups {instant.action} {instant.requested_time} replaces, before its commit"
    if announced is None:
        return _Plan(problem=problem)
    overwritten = {_OVERWRITE: announced.partitions, _OVERWRITE_TABLE: None}.get(announced.operation, frozenset())
    groups = _keys(announced.updated_file_groups)
    return _Plan(groups, announced.partitions, overwritten=overwritten, problem=problem)


def _compactions_pass(snapshot: TimelineSnapshot) -> bool:
    return snapshot.properties.version >= COMPACTIONS_PASS_FROM
