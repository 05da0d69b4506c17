"""Which repair is safe for a finding: pure rules over the evidence, executed by `table_doctor`.

A repair either moves files away that no call of Hudi removes, or is a run of a service with which Hudi repairs it. The
doctor refuses all others with the reason: they need a person who knows what ran.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.config.policies import StuckKind
from airflow_lake_provider.doctor.diagnosis import dead_writes, diagnose, has_unsure_executor
from airflow_lake_provider.errors import DamagedFileError
from airflow_lake_provider.job_contract import COMPACTIONS_PASS_FROM, DamageKind, Mode, Service
from airflow_lake_provider.shared.actions import Action, State
from airflow_lake_provider.timeline_head import COMPLETED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow_lake_provider.config.policies import DoctorPolicy
    from airflow_lake_provider.doctor.diagnosis import Finding
    from airflow_lake_provider.doctor.evidence import Evidence, SeenFile
    from airflow_lake_provider.hudi.instant import Instant
    from airflow_lake_provider.storage.table_storage import Storage


@dataclass(frozen=True, slots=True)
class ServiceCall:
    """A run of a table service."""

    service: Service
    mode: Mode
    instants: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Repair:
    """What the doctor would do about one finding. Equal repairs rest on unchanged files.

    `files` are moved away in this order; `call` is started through the manager. With a `refusal` nothing is done.
    """

    kind: StuckKind
    instant: str
    does: str = ""
    files: tuple[SeenFile, ...] = ()
    call: ServiceCall | None = None
    refusal: str = ""
    needs_request: bool = False
    """Whether the run of `call` is never due by itself, so that a person has to ask for it."""


FOR_PEOPLE = frozenset(
    {StuckKind.ROWS_DIFFER, StuckKind.GONE_FILES, StuckKind.UNLISTED_FILES, StuckKind.DUPLICATE_KEYS}
)
"""Kinds that are repaired when a person asks for it, and never otherwise."""


def find_allowed_repairs(evidence: Evidence, policy: DoctorPolicy) -> tuple[Repair, ...]:
    """Return the repairs that the policy allows and that are safe now; each service call once.

    A caller starts the calls as any due service, and hands repairs with files to `TableDoctor.repair`. What is wrong
    with rows is not among them: a person repairs it, once the cause is known.
    """
    allowed: list[Repair] = []
    for finding in diagnose(evidence, policy):
        repair = plan_repair(finding, evidence, policy)
        is_known = repair.call is not None and any(repair.call == other.call for other in allowed)
        if finding.kind in policy.repairs and finding.kind not in FOR_PEOPLE and not repair.refusal and not is_known:
            allowed.append(repair)
    return tuple(allowed)


def plan_repair(finding: Finding, evidence: Evidence, policy: DoctorPolicy) -> Repair:
    """Return the repair of a finding, or why there is none. Ignores which kinds the policy allows."""
    plan = _PLANS.get(finding.kind)
    if plan is None:
        return Repair(finding.kind, finding.instant, refusal=WITHOUT_REPAIR[finding.kind])
    return plan(finding, evidence, policy)


def _move_lock(finding: Finding, evidence: Evidence, policy: DoctorPolicy) -> Repair:
    lock = evidence.lock
    if lock is None:
        return _refuse(finding, "there is no lock file any more")
    age_s = (evidence.now_ms - lock.modified_ms) / 1000
    if age_s <= policy.lock_after_s:
        return _refuse(
            finding, f"it is {age_s:.0f} s old; wait until {policy.lock_after_s:.0f} s (doctor.lock_after_s)"
        )
    # A holder without a heartbeat (table creation, a writer outside multi-writer mode) still touches what it works at.
    fresh = [i.requested_time for i in evidence.timeline.pending() if evidence.idle_s(i) < age_s]
    if fresh:
        return _refuse(finding, f"instant {fresh[0]} was touched after the lock was taken; its executor may hold it")
    return Repair(finding.kind, "", "move .hoodie/lock away", files=(lock,))


def _run_rollback(finding: Finding, evidence: Evidence, policy: DoctorPolicy) -> Repair:
    # All at once: Hudi chooses them itself, and the request names those that must vanish.
    dead = [instant.requested_time for instant in dead_writes(evidence, policy)]
    repair = _run(finding, Service.ROLLBACK, f"roll back {', '.join(dead)}", *dead)
    # To the service, a write that never had a heartbeat may be one of a living writer in single-writer mode.
    instant = _pending(finding, evidence)
    return replace(repair, needs_request=instant is not None and not evidence.has_heartbeat(instant))


def _run_plan(finding: Finding, evidence: Evidence, policy: DoctorPolicy) -> Repair:
    instant = _pending(finding, evidence)
    if instant is None:
        return _refuse(finding, "the plan is not pending any more")
    if has_unsure_executor(evidence, instant, policy):
        return _refuse(finding, "its executor may be at work (doctor.unguarded_after_s)")
    is_clustering = finding.kind is StuckKind.BLOCKING_CLUSTERING  # which layout 1 calls replacecommit
    if is_clustering and (evidence.clustering_problem or evidence.has_failed(instant)):
        call = ServiceCall(Service.CLUSTERING, Mode.WITHDRAW, (finding.instant,))
        return Repair(finding.kind, finding.instant, f"withdraw clustering {finding.instant}", call=call)
    if instant.action is Action.LOGCOMPACTION and evidence.has_failed(instant):
        call = ServiceCall(Service.LOGCOMPACTION, Mode.WITHDRAW, (finding.instant,))
        return Repair(finding.kind, finding.instant, f"withdraw log compaction {finding.instant}", call=call)
    service = Service.CLUSTERING if is_clustering else Service(instant.action.value)
    return _run(finding, service, f"execute {service} {finding.instant}", finding.instant)


def _remove_log_compaction(finding: Finding, evidence: Evidence, policy: DoctorPolicy) -> Repair:
    instant = _pending(finding, evidence)
    if instant is None or evidence.timeline.overtaking(instant) is None:
        return _refuse(finding, "it is not overtaken any more")
    if instant.state is not State.REQUESTED:
        return _refuse(
            finding, f"it has begun: roll {finding.instant} back with Hudi's rollback, which knows its files"
        )
    return _move_plan(finding, evidence, policy, instant, "move the plan away, which Hudi will never execute")


def _remove_duplicate_index_plan(finding: Finding, evidence: Evidence, policy: DoctorPolicy) -> Repair:
    instant = _pending(finding, evidence)
    if instant is None:
        return _refuse(finding, "the plan is not pending any more")
    own = evidence.index_partitions.get(finding.instant, frozenset())
    earlier = [time for time, parts in evidence.index_partitions.items() if time < finding.instant and own <= parts]
    if not earlier:
        return _refuse(finding, "no earlier plan builds all of its partitions")
    if instant.state is not State.REQUESTED:
        return _refuse(finding, "it has begun")
    first = _at(min(earlier), evidence)
    if first is not None and first.state is State.INFLIGHT and evidence.idle_s(first) > policy.stuck_after_s:
        return _refuse(finding, f"the earlier build {first.requested_time} may be dead: repair stale_index_build first")
    return _move_plan(finding, evidence, policy, instant, f"move the plan away; {min(earlier)} builds the same")


def _reset_index_build(finding: Finding, evidence: Evidence, policy: DoctorPolicy) -> Repair:
    instant = _pending(finding, evidence)
    if instant is None or instant.state is not State.INFLIGHT:
        return _refuse(finding, "the build is not inflight any more")
    if evidence.idle_s(instant) <= policy.unguarded_after_s:
        return _refuse(
            finding, f"a build has no heartbeat; wait {policy.unguarded_after_s:.0f} s (doctor.unguarded_after_s)"
        )
    own = evidence.index_partitions.get(finding.instant, frozenset())
    started = sorted(own & frozenset(evidence.properties.metadata_partitions_inflight))
    if started:
        return _refuse(
            finding, f"{', '.join(started)} is partly built: drop that index first (dropIndex, or SQL's DROP INDEX)"
        )
    if evidence.metadata_heartbeats and evidence.living():
        return _refuse(finding, f"{', '.join(evidence.living())} is at work on the table or its metadata")
    replaced = any(time > finding.instant and own <= parts for time, parts in evidence.index_partitions.items())
    files = [f for f in evidence.files_of(instant) if replaced or ".indexing.inflight" in f.path]
    does = "a later plan builds the same: move this one away" if replaced else "move the inflight file away: the plan "
    return Repair(finding.kind, finding.instant, does + ("" if replaced else "can be executed again"), tuple(files))


def _move_empty_plan(finding: Finding, evidence: Evidence, policy: DoctorPolicy) -> Repair:
    does = "move the empty plan away"
    own = [file for file in evidence.empty_metadata_plans if finding.message.startswith(file.path)]
    if own:
        return _move_metadata_plan(finding, evidence, policy, own[0], does)
    instant = _pending(finding, evidence)
    if instant is None or not evidence.is_empty(instant):
        return _refuse(finding, "the plan is not pending any more, or has content")
    if instant.state is State.INFLIGHT and evidence.markers_ms.get(finding.instant):
        return _refuse(
            finding,
            "its executor has begun to write files: restore the plan from a copy, or remove these files first (the "
            f"markers in .hoodie/.temp/{finding.instant} name them), then the markers",
        )
    writes = (*evidence.timeline.completed_writes, *evidence.timeline.pending_writes())
    newer = [write.requested_time for write in writes if write.requested_time > finding.instant]
    if instant.action is Action.COMPACTION and evidence.properties.version < COMPACTIONS_PASS_FROM and newer:
        return _refuse(
            finding,
            f"up to table version {COMPACTIONS_PASS_FROM - 1} the log files of later writes ({newer[0]}) belong to the "
            "file slices that this plan began: restore it from a copy",
        )
    return _move_plan(finding, evidence, policy, instant, does)


def _move_metadata_plan(
    finding: Finding, evidence: Evidence, policy: DoctorPolicy, file: SeenFile, does: str
) -> Repair:
    if evidence.properties.version < COMPACTIONS_PASS_FROM:
        return _refuse(
            finding, "in this table version, the metadata table has to be built again: remove .hoodie/metadata"
        )
    if evidence.now_ms - file.modified_ms <= policy.stuck_after_s * 1000:
        return _refuse(finding, f"it is young; wait {policy.stuck_after_s:.0f} s (doctor.stuck_after_s)")
    return Repair(finding.kind, finding.instant, does, files=(file,))


def _rebuild_metadata(finding: Finding, evidence: Evidence, policy: DoctorPolicy) -> Repair:
    does = "take the metadata table out of hoodie.properties, so that the next writer builds it again"
    return Repair(finding.kind, "", does, call=ServiceCall(Service.METACOMPACTION, Mode.WITHDRAW))


def _compact_metadata(finding: Finding, evidence: Evidence, policy: DoctorPolicy) -> Repair:
    does = "compact the metadata table"
    return Repair(finding.kind, "", does, call=ServiceCall(Service.METACOMPACTION, Mode.SCHEDULE_AND_EXECUTE))


def _lift_block(finding: Finding, evidence: Evidence, policy: DoctorPolicy) -> Repair:
    if evidence.rewrite_block is None:
        return _refuse(finding, "the block is lifted already")
    return Repair(finding.kind, "", "lift the block: services rewrite the table again", (evidence.rewrite_block,))


def _take_report_back(finding: Finding, evidence: Evidence, policy: DoctorPolicy) -> Repair:
    seen = evidence.damage.get(DamageKind(finding.kind.value))
    if seen is None:
        return _refuse(finding, "the report is taken back already")
    return Repair(finding.kind, "", "take the report back; no row is changed, and checks go on", (seen.file,))


def _archive(finding: Finding, evidence: Evidence, policy: DoctorPolicy) -> Repair:
    behind = evidence.archived_behind
    if behind is None or behind.head.state != COMPLETED:
        return _refuse(finding, "the instant is pending: execute it, or repair it first")
    does = f"archive, which takes {behind.head.action} {finding.instant} away"
    return Repair(finding.kind, finding.instant, does, call=ServiceCall(Service.ARCHIVE, Mode.EXECUTE))


def _move_plan(finding: Finding, evidence: Evidence, policy: DoctorPolicy, instant: Instant, does: str) -> Repair:
    if evidence.is_alive(instant):
        return _refuse(finding, "its heartbeat lives")
    if evidence.idle_s(instant) <= policy.stuck_after_s:
        return _refuse(finding, f"it is young; wait {policy.stuck_after_s:.0f} s (doctor.stuck_after_s)")
    return Repair(finding.kind, finding.instant, does, files=evidence.files_of(instant))


def _run(finding: Finding, service: Service, does: str, *instants: str) -> Repair:
    return Repair(finding.kind, finding.instant, does, call=ServiceCall(service, Mode.EXECUTE, instants))


def _refuse(finding: Finding, reason: str) -> Repair:
    return Repair(finding.kind, finding.instant, refusal=reason)


def _pending(finding: Finding, evidence: Evidence) -> Instant | None:
    return _at(finding.instant, evidence)


def _at(requested_time: str, evidence: Evidence) -> Instant | None:
    found = (i for i in evidence.timeline.pending() if i.requested_time == requested_time)
    return next(found, None)


WITHOUT_REPAIR: Mapping[StuckKind, str] = {
    StuckKind.UNREADABLE_FILE: "the content that the file should have is unknown",
    StuckKind.LOST_FILES: "only a copy has their rows",
    StuckKind.GONE_FILES: "only a copy has their rows",
    StuckKind.UNGUARDED_SERVICE: "its executor may be at work, and a second one would destroy its files",
    StuckKind.FOREIGN_TIME_ZONE: "a person has to run writers and jobs in one time zone",
    StuckKind.DISORDERED_WRITES: "only the writer has the rows, and writes them again",
    StuckKind.ARCHIVED_BEHIND_SAVEPOINT: "whether the savepoint may go is its owner's decision",
    StuckKind.INDEX_WITHOUT_PLAN: "the partly built index has to be dropped by Hudi (dropIndex, or SQL's DROP INDEX)",
}
"""Kinds for which the doctor has no repair, with the reason."""
_PLANS: Mapping[StuckKind, Callable[[Finding, Evidence, DoctorPolicy], Repair]] = {
    StuckKind.ORPHANED_LOCK: _move_lock,
    StuckKind.FAILED_WRITE: _run_rollback,
    StuckKind.DANGLING_REPLACECOMMIT: _run_rollback,
    StuckKind.PLAN_WITHOUT_EXECUTOR: _run_plan,
    StuckKind.BLOCKING_CLUSTERING: _run_plan,
    StuckKind.OVERTAKEN_LOG_COMPACTION: _remove_log_compaction,
    StuckKind.EMPTY_PLAN: _move_empty_plan,
    StuckKind.LOST_METADATA_TABLE: _rebuild_metadata,
    StuckKind.STALE_INDEX_BUILD: _reset_index_build,
    StuckKind.DUPLICATE_INDEX_PLAN: _remove_duplicate_index_plan,
    StuckKind.FROZEN_ARCHIVE: _compact_metadata,
    StuckKind.ROWS_DIFFER: _lift_block,
    StuckKind.UNLISTED_FILES: _rebuild_metadata,
    StuckKind.DUPLICATE_KEYS: _take_report_back,
    StuckKind.ARCHIVED_BEHIND_HEAD: _archive,
}


# --- What the doctor did to a table, kept with the table: `.hoodie/.aux/lake_doctor/<id>.<begun|ended>.json`
#
# Hudi keeps auxiliary files in `.aux` and lists it nowhere. A repair is written down before anything is touched, and
# again when it ended: one that only began stands for a doctor that died. The folder `<id>` next to it holds the files
# that were moved away, unchanged.

RECORDS = ".hoodie/.aux/lake_doctor"
MAX_RECORD_BYTES = 16 * 1024 * 1024
BEGUN = "begun"
ENDED = "ended"
STILL_STUCK = "still stuck"
"""Result of a repair after which the finding is still there."""


@dataclass(frozen=True, slots=True)
class RemovedFile:
    """A file that was moved away: where it was, where it is now, and what it was."""

    path: str
    kept_as: str
    size_bytes: int
    modified_ms: int


@dataclass(frozen=True, slots=True)
class Record:
    """One repair. `at` is ISO 8601 with zone; `evidence` is what the decision rested on, in words."""

    record_id: str
    at: str
    by: str
    kind: str
    instant: str
    evidence: tuple[str, ...]
    does: str
    result: str = ""
    """How it ended; empty while it has only begun."""
    removed: tuple[RemovedFile, ...] = ()
    run_id: str = ""
    """The DAG run that was started, where the repair is a service."""


def keep_begun(storage: Storage, record: Record) -> int:
    """Write a repair down before it is done; return the store's time, in ms. Raises StorageError."""
    path = _path(record.record_id, BEGUN)
    storage.create(path, _to_json(record))
    written = storage.stat(path)
    return 0 if written is None else written.modified_ms


def keep_ended(storage: Storage, record: Record) -> None:
    """Write down how a repair ended. Raises StorageError."""
    storage.create(_path(record.record_id, ENDED), _to_json(record))


def load_records(storage: Storage) -> tuple[Record, ...]:
    """Return all repairs of a table, oldest first. Raises DamagedFileError, StorageError."""
    try:
        names = storage.list_names(RECORDS)
    except FileNotFoundError:
        return ()
    newest: dict[str, str] = {}
    for name in sorted(names):  # begun comes before ended
        record_id, _, rest = name.partition(".")
        if rest in {f"{BEGUN}.json", f"{ENDED}.json"}:
            newest[record_id] = name
    return tuple(
        _from_json(storage.read_bytes(f"{RECORDS}/{name}", MAX_RECORD_BYTES), name)
        for _, name in sorted(newest.items())
    )


def kept_as(record_id: str, path: str) -> str:
    """Return where a repair keeps a file that it moves away."""
    return f"{RECORDS}/{record_id}/{path.rpartition('/')[2]}"


def _path(record_id: str, state: str) -> str:
    return f"{RECORDS}/{record_id}.{state}.json"


def _to_json(record: Record) -> bytes:
    return json.dumps(asdict(record), indent=2, sort_keys=True).encode()


def _from_json(content: bytes, name: str) -> Record:
    try:
        body: dict[str, Any] = json.loads(content)
        removed = tuple(RemovedFile(**entry) for entry in body.pop("removed"))
        return Record(**{**body, "evidence": tuple(body["evidence"]), "removed": removed})
    except (ValueError, TypeError, KeyError) as error:
        raise DamagedFileError(f"{RECORDS}/{name} is no record of a repair: {error}") from error
