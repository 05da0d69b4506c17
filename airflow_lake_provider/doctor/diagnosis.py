"""Name what is stuck on a timeline: pure rules over the evidence. Each knows what it blocks and what to do.

Sources: Hudi issues 8567, 6056 and 4457 (forgotten instants that stop archiving), 8232 (clustering and clean), RFC-45
(index plans), `TimelineArchiverV2`, `FileSystemBasedLockProvider`, `BaseHoodieWriteClient` (rollback of failed writes),
`BaseHoodieTableServiceClient.logCompact`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import combinations
from types import MappingProxyType
from typing import TYPE_CHECKING

from airflow_lake_provider.config.policies import DoctorPolicy, StuckKind
from airflow_lake_provider.doctor.evidence import find_zone_problems
from airflow_lake_provider.job_contract import DamageKind
from airflow_lake_provider.obstacles import explain_empty_plan, stops_all
from airflow_lake_provider.shared.actions import Action, State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from airflow_lake_provider.doctor.evidence import Evidence
    from airflow_lake_provider.hudi.instant import Instant
    from airflow_lake_provider.timeline_server.snapshot import TimelineSnapshot

# --- What waits behind a finding on this very table: pure, from the evidence

_MAX_NAMED = 5
# Hudi archives nothing at or after these, and takes them for holes.
_HOLES = frozenset(
    {
        StuckKind.FAILED_WRITE,
        StuckKind.DANGLING_REPLACECOMMIT,
        StuckKind.PLAN_WITHOUT_EXECUTOR,
        StuckKind.BLOCKING_CLUSTERING,
        StuckKind.UNGUARDED_SERVICE,
        StuckKind.OVERTAKEN_LOG_COMPACTION,
        StuckKind.EMPTY_PLAN,
    }
)


def blocked_behind(evidence: Evidence, kind: StuckKind, instant: str) -> tuple[str, ...]:
    """Return one line for each thing that is blocked; empty when nothing waits yet."""
    lines: list[str] = []
    if kind is StuckKind.ORPHANED_LOCK:
        waiting = [f"{i.action} {i.requested_time} ({i.state.value})" for i in evidence.timeline.pending()]
        lines += [f"pending: {_listed(waiting)}"] if waiting else []
    if kind in _HOLES:
        lines += _after_pending(evidence, instant)
    groups = evidence.clustered_file_groups.get(instant, ())
    if groups and kind in {StuckKind.BLOCKING_CLUSTERING, StuckKind.UNGUARDED_SERVICE}:
        named = [f"{count} in {partition or 'the table'}" for partition, count in groups]
        lines.append(f"updates of {sum(count for _, count in groups)} file groups: {_listed(named)}")
    if kind is StuckKind.STALE_INDEX_BUILD:
        own = evidence.index_partitions.get(instant, frozenset())
        same = [time for time, parts in sorted(evidence.index_partitions.items()) if time > instant and parts & own]
        lines += [f"index plans for the same partitions: {_listed(same)}"] if same else []
    return tuple(lines)


def _after_pending(evidence: Evidence, instant: str) -> list[str]:
    later = [write.requested_time for write in evidence.timeline.completed_writes if write.requested_time > instant]
    lines = []
    if later:
        lines.append(f"{len(later)} later writes are complete and cannot be archived: {_listed(later)}")
    builds = [index.requested_time for index in evidence.timeline.pending(Action.INDEXING)]
    if builds:
        lines.append(f"index builds: {_listed(builds)}")
    return lines


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:_MAX_NAMED])
    return shown if len(names) <= _MAX_NAMED else f"{shown} and {len(names) - _MAX_NAMED} more"


FROZEN_AFTER_WRITES = 60
"""Twice what Hudi keeps by default (`hoodie.keep.max.commits` = 30)."""
_ARCHIVING = "archiving, index builds, and readers that wait until nothing earlier is pending"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is stuck. `instant` is its requested time, empty when it is none."""

    kind: StuckKind
    instant: str
    message: str
    holds_up: str
    """What a finding of this kind always blocks."""
    repair: str
    """What repairs it."""
    blocks: tuple[str, ...] = ()
    """What is blocked behind it on this table now."""


def diagnose(evidence: Evidence, policy: DoctorPolicy | None = None) -> tuple[Finding, ...]:
    """Return every finding, in the order of the timeline, lock and table-wide ones first."""
    ages = policy if policy is not None else DoctorPolicy()
    found = (finding for rule in _RULES for finding in rule(evidence, ages))
    return tuple(replace(f, blocks=blocked_behind(evidence, f.kind, f.instant)) for f in found)


def needs_doctor(seen: TimelineSnapshot) -> bool:
    """Whether a timeline has anything on it that may be stuck: findings of other kinds develop over hours."""
    is_partly_indexed = bool(seen.properties.metadata_partitions_inflight)
    return bool(seen.timeline.pending() or seen.timeline.problems) or is_partly_indexed


def has_unsure_executor(evidence: Evidence, instant: Instant, policy: DoctorPolicy) -> bool:
    """Whether a service that Hudi gives no heartbeat has begun, and too little time has passed to take it for dead."""
    return (
        instant.state is State.INFLIGHT
        and instant.action in {Action.CLUSTERING, Action.REPLACECOMMIT, Action.CLEAN}
        and not evidence.has_heartbeat(instant)
        and evidence.idle_s(instant) <= policy.unguarded_after_s
    )


def _lock(evidence: Evidence, policy: DoctorPolicy) -> Iterator[Finding]:
    if evidence.lock is None or evidence.living():
        return
    age_s = (evidence.now_ms - evidence.lock.modified_ms) / 1000
    if age_s > policy.stuck_after_s:
        yield Finding(
            StuckKind.ORPHANED_LOCK,
            "",
            f".hoodie/lock is {_age(age_s)} old and no writer has a heartbeat: its holder was killed",
            "every writer and every service waits for it",
            "make sure that no writer runs, then delete .hoodie/lock; set hoodie.write.lock.filesystem.expire "
            "(minutes) in writers and hudi_options so that it ends by itself",
        )


def dead_writes(evidence: Evidence, policy: DoctorPolicy) -> tuple[Instant, ...]:
    """Return the pending writes whose writer is dead, by requested time.

    A writer in single-writer mode sends no heartbeat: without one the doctor leaves a write alone as long as a service
    without one (`doctor.unguarded_after_s`).
    """
    writes = (i for i in evidence.timeline.pending_writes() if i.requested_time not in evidence.clustering_plans)
    return tuple(
        instant
        for instant in writes
        if _is_left(evidence, instant, policy)
        and (evidence.has_heartbeat(instant) or evidence.idle_s(instant) > policy.unguarded_after_s)
    )


def _failed_writes(evidence: Evidence, policy: DoctorPolicy) -> Iterator[Finding]:
    for instant in dead_writes(evidence, policy):
        is_dangling = instant.action is Action.REPLACECOMMIT and instant.state is State.REQUESTED
        idle = _age(evidence.idle_s(instant))
        yield Finding(
            StuckKind.DANGLING_REPLACECOMMIT if is_dangling else StuckKind.FAILED_WRITE,
            instant.requested_time,
            f"replacecommit {instant.requested_time} was requested {idle} ago and never began; run_ttl of Hudi 1.2 "
            "leaves one when nothing is expired"
            if is_dangling
            else f"{instant.action} {instant.requested_time} is {instant.state.value}, {_beat(evidence, instant)} and "
            f"was last touched {idle} ago: its writer failed",
            _ARCHIVING if is_dangling else f"{_ARCHIVING}; on tables of version 6 also the scheduling of compaction",
            "roll it back: the service rollback does; a writer in multi-writer mode does not, one in single-writer "
            "mode does at its next commit",
        )


def _service_plans(evidence: Evidence, policy: DoctorPolicy) -> Iterator[Finding]:
    actions = (Action.COMPACTION, Action.LOGCOMPACTION, Action.CLUSTERING, Action.CLEAN)
    plans = [*evidence.timeline.pending(*actions)]
    plans += [
        i for i in evidence.timeline.pending(Action.REPLACECOMMIT) if i.requested_time in evidence.clustering_plans
    ]
    for instant in plans:
        is_overtaken = instant.action is Action.LOGCOMPACTION and evidence.timeline.overtaking(instant) is not None
        if is_overtaken or evidence.is_empty(instant) or not _is_left(evidence, instant, policy):
            continue
        is_clustering = instant.action in {Action.CLUSTERING, Action.REPLACECOMMIT}
        what = "clustering" if is_clustering else instant.action.value
        idle = _age(evidence.idle_s(instant))
        if has_unsure_executor(evidence, instant, policy):
            yield Finding(
                StuckKind.UNGUARDED_SERVICE,
                instant.requested_time,
                f"{what} {instant.requested_time} began {idle} ago; Hudi gives it no heartbeat, so nothing shows "
                "whether it runs",
                "what waits for it, if its executor is dead; a second executor would destroy the first one's files",
                f"wait until nothing of it changes for {_age(policy.unguarded_after_s)} (doctor.unguarded_after_s), or "
                "make sure that it does not run and execute it",
            )
            continue
        began = "began and was left" if instant.state is State.INFLIGHT else "was planned and never began"
        lost = evidence.lost_files.get(instant.requested_time, "")
        if lost and not is_clustering:
            yield Finding(
                StuckKind.LOST_FILES,
                instant.requested_time,
                f"{what} {instant.requested_time} reads files that are gone or cut short: {lost}",
                f"this {what}; readers of these file groups, which fail or miss rows; {_ARCHIVING}",
                "put the files back from a copy or a backup: then the manager executes the plan. Where all files of a "
                f"file group are gone that was replaced, run {what} with mode withdraw and this instant instead",
            )
            continue
        if is_clustering and evidence.has_failed(instant):
            yield Finding(
                StuckKind.BLOCKING_CLUSTERING,
                instant.requested_time,
                f"{what} {instant.requested_time} failed {idle} ago, and its plan stayed"
                + (f"; it reads files that are gone or cut short: {lost}" if lost else ""),
                "updates of the file groups in it (writers are rejected), cleaning and archiving",
                "run the service clustering with mode withdraw and this instant: nothing is lost, and writers go on. "
                "The log of the failed run names the cause",
            )
            continue
        yield Finding(
            StuckKind.BLOCKING_CLUSTERING if is_clustering else StuckKind.PLAN_WITHOUT_EXECUTOR,
            instant.requested_time,
            f"{what} {instant.requested_time} {began}, {idle} ago",
            "updates of the file groups in it (writers are rejected), cleaning and archiving"
            if is_clustering
            else "archiving beyond it, and readers of its file groups read more log files",
            f"run the service clustering with mode withdraw and this instant: {evidence.clustering_problem}"
            if is_clustering and evidence.clustering_problem
            else f"run the service {what} with mode execute and this instant; Hudi rolls back what was begun",
        )


def _log_compaction(evidence: Evidence, policy: DoctorPolicy) -> Iterator[Finding]:
    for instant in evidence.timeline.pending(Action.LOGCOMPACTION):
        newer = evidence.timeline.overtaking(instant)
        if newer is not None:
            yield Finding(
                StuckKind.OVERTAKEN_LOG_COMPACTION,
                instant.requested_time,
                f"log compaction {instant.requested_time} is {instant.state.value}, overtaken by {newer.action} "
                f"{newer.requested_time}: Hudi refuses to execute it, and never removes it",
                "archiving beyond it, indefinitely",
                "remove its plan; nothing was written for a plan that is only requested. Schedule log compactions only "
                "while no compaction is pending",
            )


def _indexing(evidence: Evidence, policy: DoctorPolicy) -> Iterator[Finding]:
    pending = evidence.timeline.pending(Action.INDEXING)
    for instant in pending:
        idle_s = evidence.idle_s(instant)
        if instant.state is State.INFLIGHT and idle_s > policy.stuck_after_s:
            yield Finding(
                StuckKind.STALE_INDEX_BUILD,
                instant.requested_time,
                f"indexing {instant.requested_time} is INFLIGHT since {_age(idle_s)}; Hudi never resumes it",
                "every later build of the same index: scheduling returns nothing while it is listed inflight",
                "drop the partly built index (dropIndex of its partition), remove the inflight file, run it again",
            )
    named = [(time, parts) for time, parts in evidence.index_partitions.items() if parts]
    for (first, parts), (second, others) in combinations(sorted(named), 2):
        if parts & others:
            yield Finding(
                StuckKind.DUPLICATE_INDEX_PLAN,
                second,
                f"indexing {second} builds {', '.join(sorted(parts & others))}, which {first} builds already",
                "itself: it fails when it is executed",
                f"remove the later plan {second}",
            )
    if evidence.properties.metadata_partitions_inflight and not pending:
        partitions = ", ".join(evidence.properties.metadata_partitions_inflight)
        yield Finding(
            StuckKind.INDEX_WITHOUT_PLAN,
            "",
            f"hoodie.table.metadata.partitions.inflight names {partitions}, and no index build is pending",
            "building that index: scheduling returns nothing",
            f"drop the index {partitions} and rebuild it",
        )


def _frozen_archive(evidence: Evidence, policy: DoctorPolicy) -> Iterator[Finding]:
    writes = evidence.timeline.completed_writes
    if len(writes) < FROZEN_AFTER_WRITES or evidence.metadata_compactions != 0:
        return
    yield Finding(
        StuckKind.FROZEN_ARCHIVE,
        "",
        f"{len(writes)} writes on the active timeline, and the metadata table was never compacted, "
        "which Hudi's archiver never passes",
        "archiving: the timeline grows, and with it the time of every commit and query",
        "run the service metacompaction, or let a writer with hoodie.metadata.enable=true commit until the metadata "
        "table is compacted (hoodie.metadata.compact.max.delta.commits)",
    )


def _archived_behind(evidence: Evidence, policy: DoctorPolicy) -> Iterator[Finding]:
    behind = evidence.archived_behind
    if behind is None:
        return
    first = behind.head.requested_time
    writes = _listed(list(behind.writes))
    if behind.is_savepoint:
        yield Finding(
            StuckKind.ARCHIVED_BEHIND_SAVEPOINT,
            first,
            f"{behind.describe()} ({writes}): readers return rows as they were before",
            "readers: updates, deletes and new rows of these writes are missing; compaction, clustering and clean "
            "would make that final, so they are refused",
            "stop every writer and take hoodie.archive.beyond.savepoint=true out of it; remove the savepoint (CALL "
            "delete_savepoint) and archive until its write is archived, before anything is written: readers then find "
            "all again. Where something was written meanwhile, the next compaction loses rows: write them again",
        )
        return
    yield Finding(
        StuckKind.ARCHIVED_BEHIND_HEAD,
        first,
        f"{behind.describe()} ({writes}): their rows would have old values afterwards, and deleted rows be back",
        "compaction, clustering, clean and the like: they are refused, and a writer must not compact inline either",
        "let no writer compact inline until the service archive has taken that instant away: it does where it is an "
        "index build or a restore that completed before the metadata table's last compaction",
    )


def _empty_plans(evidence: Evidence, policy: DoctorPolicy) -> Iterator[Finding]:
    """Name plans of zero bytes, of the table and of its metadata table."""
    own = sorted(evidence.empty_plans)
    for name, path in [(name, name) for name in own] + [(_name(f.path), f.path) for f in evidence.empty_metadata_plans]:
        of_all = stops_all(name) or path != name
        yield Finding(
            StuckKind.EMPTY_PLAN,
            _requested_time(name),
            explain_empty_plan(name)
            if path == name
            else f"{path} is empty (0 bytes), so every writer and service fails",
            f"every write and every service of the table; {_ARCHIVING}" if of_all else _ARCHIVING,
            "move the plan away; nothing is lost, because the service plans again",
        )


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _lost_metadata(evidence: Evidence, policy: DoctorPolicy) -> Iterator[Finding]:
    if evidence.metadata_problem:
        yield Finding(
            StuckKind.LOST_METADATA_TABLE,
            "",
            evidence.metadata_problem,
            "every write and every service of the table; readers with hoodie.metadata.enable=true",
            "put .hoodie/metadata back from a copy that is as new as the table; else run the service metacompaction "
            "with mode withdraw: it takes the metadata table out of hoodie.properties under the table's lock, and a "
            "writer's next commit builds it again. Indexes in it have to be built again",
        )


def _rows_differ(evidence: Evidence, policy: DoctorPolicy) -> Iterator[Finding]:
    if evidence.rewrite_block is not None:
        yield Finding(
            StuckKind.ROWS_DIFFER,
            "",
            evidence.why_blocked,
            "compaction, log compaction and clustering of the table",
            "compare the rows of the named keys with their source; when the cause is gone, lift the block "
            "(--repair rows_differ)",
        )


def _known_damage(evidence: Evidence, policy: DoctorPolicy) -> Iterator[Finding]:
    for kind, seen in evidence.damage.items():
        holds_up, repair = _OF_DAMAGE[kind]
        yield Finding(StuckKind(kind.value), "", seen.what, holds_up, repair)


_OF_DAMAGE: Mapping[DamageKind, tuple[str, str]] = MappingProxyType(
    {
        DamageKind.GONE_FILES: (
            "readers and services of these files: they fail, or miss rows",
            "put the files back from a copy; without one, write their rows again from the source, then run the service "
            "metacompaction with mode withdraw, so that the next writer lists what is there",
        ),
        DamageKind.UNLISTED_FILES: (
            "readers with hoodie.metadata.enable=true: they miss rows of these files, and writers may insert their "
            "keys again",
            "let the metadata table be built again (--repair unlisted_files): under the table's lock the job compares "
            "once more, and takes it out of hoodie.properties; a writer's next commit builds it. Find the writer "
            "that left it out (airflow lake explain)",
        ),
        DamageKind.DUPLICATE_KEYS: (
            "readers: they see these rows several times",
            "find the writer that inserts keys which are there (bulk_insert, insert, two writers at once), then "
            "delete the keys and write them once, or use Hudi's repair_deduplicate. The next check that reads all of "
            "the partitions takes the report back; --repair duplicate_keys does so at once",
        ),
    }
)


def _damage(evidence: Evidence, policy: DoctorPolicy) -> Iterator[Finding]:
    for problem in evidence.problems:
        if problem.file_name in evidence.empty_plans:
            continue
        yield Finding(
            StuckKind.UNREADABLE_FILE,
            _requested_time(problem.file_name),
            f"{problem.file_name}: {problem.reason}",
            "what depends on that instant",
            "compare it with a copy or a backup; a file that is no instant may be removed",
        )


def _requested_time(file_name: str) -> str:
    found = re.match(r"\d{14,17}(?=[._])", file_name)
    return found[0] if found is not None else ""


def _time_zones(evidence: Evidence, policy: DoctorPolicy) -> Iterator[Finding]:
    for problem in find_zone_problems(evidence.stamps, evidence.zone, evidence.properties.time_zone, evidence.now_ms):
        kind = StuckKind.DISORDERED_WRITES if problem.instant else StuckKind.FOREIGN_TIME_ZONE
        yield Finding(kind, problem.instant, problem.message, problem.holds_up, problem.repair)


def _is_left(evidence: Evidence, instant: Instant, policy: DoctorPolicy) -> bool:
    return not evidence.is_alive(instant) and evidence.idle_s(instant) > policy.stuck_after_s


def _beat(evidence: Evidence, instant: Instant) -> str:
    return "its heartbeat has expired" if evidence.has_heartbeat(instant) else "it never had a heartbeat"


def _age(seconds: float) -> str:
    for unit, length_s in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:.0f} {unit}"
    return f"{seconds:.0f} s"


_RULES: tuple[Callable[[Evidence, DoctorPolicy], Iterator[Finding]], ...] = (
    _lock,
    _archived_behind,
    _lost_metadata,
    _empty_plans,
    _rows_differ,
    _known_damage,
    _damage,
    _time_zones,
    _failed_writes,
    _service_plans,
    _log_compaction,
    _indexing,
    _frozen_archive,
)
