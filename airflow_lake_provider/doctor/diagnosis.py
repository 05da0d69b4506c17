"""Name the stuck shapes of a timeline: pure rules over the evidence. Each knows what it holds up and what to do.

Sources: Hudi issues 8567, 6056 and 4457 (forgotten instants that stop archiving), 8232 (clustering and clean), RFC-45
(index plans), `TimelineArchiverV2`, `FileSystemBasedLockProvider`, `BaseHoodieWriteClient` (rollback of failed writes).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from airflow_lake_provider.timeline.heartbeat import is_live
from airflow_lake_provider.timeline.instant import Action, State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from airflow_lake_provider.doctor.evidence import Evidence
    from airflow_lake_provider.timeline.instant import Instant

STUCK_AFTER_S = 600.0
"""What nobody touched for this long, and nobody's heartbeat speaks for, counts as left behind."""
FROZEN_AFTER_WRITES = 60
"""Twice what Hudi keeps by default (`hoodie.keep.max.commits` = 30)."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One stuck shape. `instant` is its requested time, empty when it is none."""

    shape: str
    instant: str
    says: str
    holds_up: str
    repair: str


def diagnose(evidence: Evidence) -> tuple[Finding, ...]:
    """Return every stuck shape, in the order of the timeline, lock and table-wide ones first."""
    return tuple(finding for rule in _RULES for finding in rule(evidence))


def _lock(evidence: Evidence) -> Iterator[Finding]:
    if evidence.lock_ms is None:
        return
    age_s = (evidence.now_ms - evidence.lock_ms) / 1000
    alive = [time for time, beat in evidence.heartbeats.items() if is_live(beat, evidence.now_ms)]
    if age_s < STUCK_AFTER_S or alive:
        return
    yield Finding(
        "orphaned lock",
        "",
        f".hoodie/lock is {_age(age_s)} old and no writer has a heartbeat: its holder was killed",
        "every writer and every service waits for it",
        "make sure that no writer runs, then delete .hoodie/lock; set hoodie.write.lock.filesystem.expire (minutes) "
        "in writers and hudi_options so that it ends by itself",
    )


def _failed_writes(evidence: Evidence) -> Iterator[Finding]:
    for instant in evidence.timeline.pending_writes():
        if instant.requested_time in evidence.clustering_plans or not _is_left(evidence, instant):
            continue
        if instant.action is Action.REPLACECOMMIT and instant.state is State.REQUESTED:
            yield Finding(
                "dangling replacecommit",
                instant.requested_time,
                f"replacecommit {instant.requested_time} was requested {_age(evidence.age_s(instant.file_name))} ago "
                "and never began; run_ttl of Hudi 1.2 leaves one when nothing is expired",
                "archiving, index builds, and readers that wait for a timeline without holes",
                "the next write, or a clean, with hoodie.clean.failed.writes.policy=LAZY rolls it back",
            )
        else:
            yield Finding(
                "failed write",
                instant.requested_time,
                f"{instant.action} {instant.requested_time} is {instant.state.value}, has no live heartbeat and was "
                f"last touched {_age(evidence.age_s(instant.file_name))} ago: its writer failed",
                "archiving, index builds, and readers that wait for a timeline without holes; on tables of version 6 "
                "also the scheduling of compaction",
                "the next write, or a clean, with hoodie.clean.failed.writes.policy=LAZY rolls it back",
            )


def _service_plans(evidence: Evidence) -> Iterator[Finding]:
    actions = (Action.COMPACTION, Action.LOGCOMPACTION, Action.CLUSTERING, Action.CLEAN)
    plans = [*evidence.timeline.pending(*actions)]
    plans += [
        i for i in evidence.timeline.pending(Action.REPLACECOMMIT) if i.requested_time in evidence.clustering_plans
    ]
    for instant in plans:
        is_clustering = instant.action in {Action.CLUSTERING, Action.REPLACECOMMIT}
        if not _is_left(evidence, instant):
            continue
        what = "clustering" if is_clustering else instant.action.value
        began = "began and was left" if instant.state is State.INFLIGHT else "was planned and never began"
        yield Finding(
            "plan without executor",
            instant.requested_time,
            f"{what} {instant.requested_time} {began}, {_age(evidence.age_s(instant.file_name))} ago",
            "updates of the file groups in it (writers are rejected), cleaning and archiving"
            if is_clustering
            else "archiving beyond it, and readers of its file groups read more log files",
            f"run the service {'compaction' if what == 'logcompaction' else what} with mode execute and this instant; "
            "Hudi rolls back what was begun",
        )


def _log_compaction(evidence: Evidence) -> Iterator[Finding]:
    compactions = evidence.timeline.pending(Action.COMPACTION)
    for instant in evidence.timeline.pending(Action.LOGCOMPACTION):
        newer = [c.requested_time for c in compactions if c.requested_time > instant.requested_time]
        if newer:
            yield Finding(
                "log compaction behind a compaction",
                instant.requested_time,
                f"log compaction {instant.requested_time} is pending behind compaction {newer[-1]}",
                "itself: Hudi removes and refuses it when it is executed",
                f"execute compaction {newer[-1]}; schedule the log compaction anew afterwards",
            )


def _indexing(evidence: Evidence) -> Iterator[Finding]:
    pending = evidence.timeline.pending(Action.INDEXING)
    for instant in pending:
        if instant.state is State.INFLIGHT and evidence.age_s(instant.file_name) > STUCK_AFTER_S:
            yield Finding(
                "stale index build",
                instant.requested_time,
                f"indexing {instant.requested_time} is INFLIGHT and was not touched for "
                f"{_age(evidence.age_s(instant.file_name))}",
                "every later build of the same index: scheduling returns nothing while it is listed inflight",
                "drop the partly built index (dropIndex of its partition), remove the inflight file, run it again",
            )
    named = [(time, parts) for time, parts in evidence.index_partitions.items() if parts]
    for (first, parts), (second, others) in combinations(sorted(named), 2):
        if parts & others:
            yield Finding(
                "duplicate index plans",
                second,
                f"indexing {second} builds {', '.join(sorted(parts & others))}, which {first} builds already",
                "itself: it fails when it is executed",
                f"remove the later plan {second}",
            )
    if evidence.properties.metadata_partitions_inflight and not pending:
        partitions = ", ".join(evidence.properties.metadata_partitions_inflight)
        yield Finding(
            "index without a plan",
            "",
            f"hoodie.table.metadata.partitions.inflight names {partitions}, and no index build is pending",
            "building that index: scheduling returns nothing",
            f"drop the index {partitions} and build it anew",
        )


def _frozen_archive(evidence: Evidence) -> Iterator[Finding]:
    writes = evidence.timeline.completed_writes_by_completion()
    if len(writes) < FROZEN_AFTER_WRITES or evidence.metadata_compactions != 0:
        return
    yield Finding(
        "archiving is frozen",
        "",
        f"{len(writes)} writes on the active timeline, and the metadata table was never compacted, "
        "which Hudi's archiver never passes",
        "archiving: the timeline grows, and with it the time of every commit and query",
        "let a writer or service with hoodie.metadata.enable=true commit until the metadata table is compacted "
        "(hoodie.metadata.compact.max.delta.commits)",
    )


def _damage(evidence: Evidence) -> Iterator[Finding]:
    for problem in evidence.problems:
        yield Finding(
            "unreadable file",
            "",
            f"{problem.file_name}: {problem.reason}",
            "what depends on that instant",
            "compare it with a copy or a backup; a file that is no instant may be removed",
        )


def _is_left(evidence: Evidence, instant: Instant) -> bool:
    beat_ms = evidence.heartbeats.get(instant.requested_time)
    return not is_live(beat_ms, evidence.now_ms) and evidence.age_s(instant.file_name) > STUCK_AFTER_S


def _age(seconds: float) -> str:
    for unit, length_s in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:.0f} {unit}"
    return f"{seconds:.0f} s"


_RULES: tuple[Callable[[Evidence], Iterator[Finding]], ...] = (
    _lock,
    _damage,
    _failed_writes,
    _service_plans,
    _log_compaction,
    _indexing,
    _frozen_archive,
)
