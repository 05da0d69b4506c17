"""What the doctor examines, read from storage once. Nothing is written."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import UTC
from types import MappingProxyType
from typing import TYPE_CHECKING

from airflow_lake_provider.doctor.metadata_table import read_metadata_table
from airflow_lake_provider.errors import DamagedFileError
from airflow_lake_provider.hudi.active_writes import LOCK_FILE, HeartbeatRule, load_heartbeats, load_markers_ms
from airflow_lake_provider.hudi.archive import load_archived_behind
from airflow_lake_provider.hudi.commit_metadata import find_damaged_files, load_commit_metadata, newest_file_ids_of
from airflow_lake_provider.hudi.instant import TimelineProblem
from airflow_lake_provider.hudi.known_damage import load_known_damage
from airflow_lake_provider.hudi.pending import find_lost_files, load_index_plan, load_service_plan
from airflow_lake_provider.hudi.properties import JobZone, TableProperties, load_table_properties, zone_of_jobs
from airflow_lake_provider.hudi.rewrite_block import load_rewrite_block
from airflow_lake_provider.hudi.timeline import Timeline, load_timeline
from airflow_lake_provider.instant_clock import (
    describe_foreign,
    find_foreign,
    find_overtaken,
    listed,
    remedy,
    stamps_of,
)
from airflow_lake_provider.job_contract import ENDED_BEAT_MS, PLANNED_BEAT_MS, REWRITE_BLOCK, Mode, Service
from airflow_lake_provider.obstacles import find_empty_plans
from airflow_lake_provider.shared.actions import Action, State
from airflow_lake_provider.table_layout import HASHING_METADATA, find_buckets, find_layout_problem, read_layout

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from airflow_lake_provider.hudi.commit_metadata import CommitMetadata
    from airflow_lake_provider.hudi.instant import Instant
    from airflow_lake_provider.instant_clock import Stamp
    from airflow_lake_provider.job_contract import DamageKind
    from airflow_lake_provider.storage.store import FileEntry
    from airflow_lake_provider.storage.table_storage import Storage
    from airflow_lake_provider.timeline_head import ArchivedBehind


@dataclass(frozen=True, slots=True)
class SeenFile:
    """A file as it was seen: path below the base path, size, modification time in ms. A changed one differs."""

    path: str
    size_bytes: int
    modified_ms: int


@dataclass(frozen=True, slots=True)
class SeenDamage:
    """What a check of integrity has found, in words, and the file that says it."""

    file: SeenFile
    what: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """One table at one moment. Times are ms since the epoch, by the store's clock."""

    base_path: str
    now_ms: int
    properties: TableProperties
    timeline: Timeline
    files: Mapping[str, SeenFile]
    """Files of pending instants (and their checksums), by name."""
    heartbeats: Mapping[str, int]
    lock: SeenFile | None
    """Lock file of Hudi's FileSystemBasedLockProvider; None when there is none."""
    markers_ms: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """When the markers of each pending instant last changed, by requested time: its executor is writing files."""
    clustering_plans: frozenset[str] = frozenset()
    """Requested times of pending replacecommits whose plan is a clustering (layout 1 spells it so)."""
    clustered_file_groups: Mapping[str, tuple[tuple[str, int], ...]] = field(
        default_factory=lambda: MappingProxyType({})
    )
    """Partitions of each pending clustering plan with the number of file groups in it, by requested time."""
    clustering_problem: str = ""
    """Why no service may execute a pending clustering of this table, in words; empty when one may."""
    index_partitions: Mapping[str, frozenset[str]] = field(default_factory=lambda: MappingProxyType({}))
    """Metadata partitions that each pending index plan names, by requested time."""
    metadata_compactions: int | None = None
    """Completed compactions on the metadata table's timeline; None without a metadata table."""
    metadata_heartbeats: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    lost_files: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Which files of the plans that were begun are gone or empty, in words, by requested time."""
    metadata_problem: str = ""
    """Why the metadata table has to be built again, in words; empty when nothing shows that."""
    empty_plans: frozenset[str] = frozenset()
    """Names of the pending plans of zero bytes."""
    empty_metadata_plans: tuple[SeenFile, ...] = ()
    """The same of the metadata table's timeline."""
    archived_behind: ArchivedBehind | None = None
    """Archived writes that Hudi no longer takes for what they are."""
    rewrite_block: SeenFile | None = None
    """The mark of a rewrite that would have changed what readers see; None when there is none."""
    why_blocked: str = ""
    """What that mark says."""
    damage: Mapping[DamageKind, SeenDamage] = field(default_factory=lambda: MappingProxyType({}))
    """What checks of integrity have found, and not found gone."""
    problems: tuple[TimelineProblem, ...] = ()
    stamps: tuple[Stamp, ...] = ()
    """Names and times of the timeline's files, which show the time zones that named them."""
    zone: JobZone = field(default_factory=lambda: JobZone("UTC", UTC))
    """The zone in which the jobs name instants."""
    rule: HeartbeatRule = field(default_factory=HeartbeatRule)

    def idle_s(self, instant: Instant) -> float:
        """Return for how long a pending instant showed no sign of life, heartbeats aside."""
        seen = self.files.get(instant.file_name)
        touched_ms = seen.modified_ms if seen is not None else self.now_ms
        return max(0, self.now_ms - max(touched_ms, self.markers_ms.get(instant.requested_time, 0))) / 1000

    def has_heartbeat(self, instant: Instant) -> bool:
        """Whether an executor ever beat for this instant and did not take the heartbeat back; its planner does not."""
        return self.heartbeats.get(instant.requested_time, 0) > PLANNED_BEAT_MS

    def is_alive(self, instant: Instant) -> bool:
        """Whether the instant's heartbeat lives."""
        return self.rule.is_live(self.heartbeats.get(instant.requested_time), self.now_ms)

    def has_failed(self, instant: Instant) -> bool:
        """Whether the provider's last execution ended with an error; one that was killed leaves a later heartbeat."""
        return self.heartbeats.get(instant.requested_time) == ENDED_BEAT_MS

    def is_empty(self, instant: Instant) -> bool:
        """Whether the file of a pending plan has zero bytes."""
        return f"{instant.requested_time}.{instant.action}.requested" in self.empty_plans

    def living(self) -> tuple[str, ...]:
        """Return the instants whose heartbeat lives, on the table or on its metadata table."""
        beats = (*self.heartbeats.items(), *self.metadata_heartbeats.items())
        return tuple(sorted({time for time, beat_ms in beats if self.rule.is_live(beat_ms, self.now_ms)}))

    def files_of(self, instant: Instant) -> tuple[SeenFile, ...]:
        """Return the files of a pending instant in all its states, the instant's own ones before their checksums."""
        start = f"{instant.requested_time}.{instant.action.value}."
        found = (seen for name, seen in self.files.items() if name.removeprefix(".").startswith(start))
        return tuple(sorted(found, key=lambda seen: (seen.path.endswith(".crc"), seen.path)))


def collect_evidence(
    storage: Storage,
    now_ms: int,
    rule: HeartbeatRule | None = None,
    spark_conf: Mapping[str, str] = MappingProxyType({}),
    *,
    hudi_options: Mapping[str, str] = MappingProxyType({}),
    reads_all: bool = False,
) -> Evidence:
    """Read what the doctor needs. Raises what reading properties and timeline raises.

    `rule` defines when the table's writers count as dead; None takes Hudi's own settings for it. `spark_conf` are the
    table's Spark settings: the jobs' time zone may be among them. `hudi_options` may name its index. With
    `reads_all` the file of every instant is read, which finds the damaged ones.
    """
    # Heartbeats before and after the timeline: an executor's beat begins before its instant and ends after it.
    heartbeats = load_heartbeats(storage)
    properties = load_table_properties(storage)
    timeline = load_timeline(storage, properties)
    pending = frozenset(instant.requested_time for instant in timeline.pending())
    entries = [entry for entry in storage.list_entries(properties.timeline_path) if not entry.is_folder]
    files = _seen_files(entries, properties.timeline_path, pending)
    plans = _read_plans(storage, properties, timeline)
    lock = storage.stat(LOCK_FILE)
    block = storage.stat(REWRITE_BLOCK)
    why_blocked = load_rewrite_block(storage)
    metadata = read_metadata_table(storage, properties)
    return Evidence(
        base_path=storage.base_path,
        now_ms=now_ms,
        properties=properties,
        timeline=timeline,
        files=MappingProxyType(files),
        heartbeats=MappingProxyType(heartbeats | load_heartbeats(storage)),
        rule=rule if rule is not None else HeartbeatRule(),
        lock=None if lock is None else SeenFile(LOCK_FILE, lock.size_bytes, lock.modified_ms),
        markers_ms=MappingProxyType({time: load_markers_ms(storage, time) for time in pending}),
        clustering_plans=frozenset(
            i.requested_time for i in timeline.pending(Action.REPLACECOMMIT) if i.requested_time in plans.clusterings
        ),
        clustered_file_groups=MappingProxyType(plans.clusterings),
        clustering_problem=(
            _find_clustering_problem(storage, properties, timeline, hudi_options)
            if plans.clusterings or timeline.pending(Action.CLUSTERING)
            else ""
        ),
        index_partitions=MappingProxyType(plans.indexes),
        metadata_compactions=metadata.compactions,
        metadata_heartbeats=metadata.heartbeats,
        lost_files=MappingProxyType(_find_lost_files(storage, properties, timeline)),
        metadata_problem=metadata.problem,
        empty_plans=frozenset(find_empty_plans((entry.name, entry.size_bytes) for entry in entries)),
        empty_metadata_plans=tuple(
            SeenFile(f"{metadata.plans_folder}/{entry.name}", entry.size_bytes, entry.modified_ms)
            for entry in metadata.empty_plans
        ),
        archived_behind=load_archived_behind(storage, properties, timeline),
        rewrite_block=None if block is None else SeenFile(REWRITE_BLOCK, block.size_bytes, block.modified_ms),
        why_blocked=why_blocked,
        damage=MappingProxyType(
            {
                kind: SeenDamage(SeenFile(kind.place, entry.size_bytes, entry.modified_ms), what)
                for kind, entry, what in load_known_damage(storage)
            }
        ),
        problems=(*timeline.problems, *_damaged(storage, properties, timeline, plans, reads_all=reads_all)),
        stamps=stamps_of((entry.name, entry.modified_ms) for entry in entries),
        zone=zone_of_jobs(properties.time_zone, spark_conf),
    )


def _find_clustering_problem(
    storage: Storage, properties: TableProperties, timeline: Timeline, hudi_options: Mapping[str, str]
) -> str:
    buckets = find_buckets(
        newest_file_ids_of(_readable_commits(storage, properties, timeline)),
        has_hashing_metadata=storage.stat(HASHING_METADATA) is not None,
        hudi_options=hudi_options,
    )
    layout = read_layout(properties.raw, buckets)
    return find_layout_problem(Service.CLUSTERING, Mode.EXECUTE, layout, hudi_options)


def _readable_commits(storage: Storage, properties: TableProperties, timeline: Timeline) -> Iterator[CommitMetadata]:
    for write in reversed(timeline.completed_writes):
        try:
            yield load_commit_metadata(storage, properties.timeline_path, write)
        except (FileNotFoundError, DamagedFileError):  # archived since; what is damaged has a finding of its own
            continue


def _damaged(
    storage: Storage, properties: TableProperties, timeline: Timeline, plans: _Plans, *, reads_all: bool
) -> tuple[TimelineProblem, ...]:
    found = {problem.file_name: problem for problem in plans.problems}
    if reads_all:
        suspects = {problem.file_name for problem in find_damaged_files(storage, properties, timeline)}
        instants = tuple(instant for instant in timeline.instants if instant.file_name in suspects)
        # A writer may have been writing one just then, or the archiver taking it away: these are read once more.
        now = find_damaged_files(storage, properties, replace(timeline, instants=instants), is_gone_damage=False)
        found |= {problem.file_name: problem for problem in now}
    return tuple(found[name] for name in sorted(found))


def _seen_files(entries: Iterable[FileEntry], folder: str, pending: frozenset[str]) -> dict[str, SeenFile]:
    return {
        entry.name: SeenFile(f"{folder}/{entry.name}", entry.size_bytes, entry.modified_ms)
        for entry in entries
        if entry.name.removeprefix(".").partition(".")[0] in pending
    }


@dataclass(frozen=True, slots=True)
class _Plans:
    problems: list[TimelineProblem] = field(default_factory=list)
    clusterings: dict[str, tuple[tuple[str, int], ...]] = field(default_factory=dict)
    indexes: dict[str, frozenset[str]] = field(default_factory=dict)


def _read_plans(storage: Storage, properties: TableProperties, timeline: Timeline) -> _Plans:
    plans = _Plans()
    for instant in timeline.pending(Action.REPLACECOMMIT, Action.CLUSTERING, Action.INDEXING):
        try:
            if instant.action is Action.INDEXING:
                plans.indexes[instant.requested_time] = frozenset(
                    load_index_plan(storage, properties, instant).partitions
                )
                continue
            plan = load_service_plan(storage, properties, instant)
        except FileNotFoundError:
            continue
        except DamagedFileError as error:
            name = f"{instant.requested_time}.{instant.action}.requested"
            plans.problems.append(TimelineProblem.of(name, error))
            continue
        if plan is not None and plan.is_clustering:
            slices = Counter(partition for partition, _ in plan.file_groups)
            plans.clusterings[instant.requested_time] = tuple(sorted(slices.items()))
    return plans


def _find_lost_files(storage: Storage, properties: TableProperties, timeline: Timeline) -> dict[str, str]:
    found = {
        instant.requested_time: find_lost_files(storage, properties, timeline, instant)
        for instant in timeline.pending(Action.COMPACTION, Action.LOGCOMPACTION, Action.CLUSTERING)
        # A clustering that never began has not failed; a compaction may have been refused before it began.
        if instant.state is State.INFLIGHT or instant.action is not Action.CLUSTERING
    }
    return {time: lost for time, lost in found.items() if lost}


# --- What instants of different time zones did, or may do, to a table, in words: for the doctor and the table's page


@dataclass(frozen=True, slots=True)
class ZoneProblem:
    """One thing that is wrong. `instant` is the commit that writes were sorted before; empty when none were yet."""

    instant: str
    message: str
    holds_up: str
    repair: str


def find_zone_problems(stamps: Sequence[Stamp], zone: JobZone, table_zone: str, now_ms: int) -> Iterator[ZoneProblem]:
    """Yield what is wrong with the zones of a table's instants. Pure."""
    foreign = find_foreign(stamps, zone.offset_ms, now_ms)
    if foreign is not None:
        yield ZoneProblem(
            "",
            describe_foreign(foreign, zone.name, table_zone),
            "every service: none is started until the newest instants are all of the jobs' zone",
            remedy(table_zone),
        )
    overtaken = find_overtaken(stamps, zone.offset_ms)
    if overtaken is not None:
        yield ZoneProblem(
            overtaken.instant,
            f"{len(overtaken.writes)} writes ({listed(overtaken.writes)}) were made after {overtaken.action} "
            f"{overtaken.instant} and sort before it: they were named in another time zone than it",
            "readers: rows of these writes are stale or missing, and cleaning removes their files for good",
            "run writers and jobs in one time zone, wait until its clock has passed this instant, then write the rows "
            "of these writes again, from their source",
        )
