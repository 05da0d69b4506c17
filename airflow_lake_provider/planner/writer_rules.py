"""What each trace of a table's writers proves: one rule for each requirement of the report (`conformance`). Pure.

What a check learns comes first, then the row that follows from all that is known.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby, pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING

from airflow_lake_provider.hudi.properties import ProcessZone
from airflow_lake_provider.instant_clock import describe_foreign, find_foreign, instant_time_ms, is_proven
from airflow_lake_provider.job_contract import LAST_VERSION_OF_1_0, OPTIMISTIC, Service, find_lock_problem
from airflow_lake_provider.planner.conformance import (
    BLOCKS,
    CLOCKS_MS,
    GUARDED,
    MAX_CHARACTERS,
    REMEMBERED,
    Conformity,
    Requirement,
    Row,
    find_heartbeat,
    find_lock,
)
from airflow_lake_provider.shared.actions import Action
from airflow_lake_provider.shared.hudi_settings import (
    AUTO_DELETE_INDEXES,
    COMPACTION_PAYLOAD_CLASS,
    CONCURRENCY_MODE,
    LOCK_PROVIDER,
    RECORD_MERGE_MODE,
    STREAMING_WRITES,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_lake_provider.hudi.instant import Instant
    from airflow_lake_provider.planner.conformance import Check, Learnt

# --- Heartbeats and the lock


def _heartbeat_row(check: Check, learnt: Learnt) -> Row:
    proof = learnt.heartbeat
    settings = (f"{CONCURRENCY_MODE}={OPTIMISTIC}",)
    if proof is None or not check.is_recent(proof.instant):
        text = (
            "no write was seen in flight, and "
            + (
                "folders of this store have no times"
                if check.signs.heartbeats_changed_ms is None
                else ".hoodie/.heartbeat was changed since by another process"
            )
            if check.commits
            else "no writer has committed yet"
        )
        return Row(Requirement.HEARTBEAT, Conformity.UNKNOWN, text)
    if proof.holds:
        return Row(Requirement.HEARTBEAT, Conformity.MET, proof.how)
    return Row(Requirement.HEARTBEAT, Conformity.BROKEN, proof.how, settings)


def _lock_row(check: Check, learnt: Learnt) -> Row:
    provider = check.policy.hudi_options.get(LOCK_PROVIDER, "").strip()
    mode = f"{CONCURRENCY_MODE}={OPTIMISTIC}"
    settings = (mode, f"{LOCK_PROVIDER}={provider}") if provider else (mode,)
    beat = learnt.heartbeat
    proof = learnt.lock
    if beat is not None and not beat.holds and check.is_recent(beat.instant):
        text = f"single-writer mode, which takes no lock: {beat.how}"
        return Row(Requirement.LOCK, Conformity.BROKEN, text, (mode,))
    if proof is not None and check.is_recent(proof.instant):
        if proof.holds:
            return Row(Requirement.LOCK, Conformity.MET, proof.how)
        return Row(Requirement.LOCK, Conformity.BROKEN, proof.how, settings)
    problem = find_lock_problem(check.policy.hudi_options)
    if problem is not None:
        return Row(Requirement.LOCK, Conformity.UNKNOWN, f"the tables file names no lock to compare with: {problem}")
    seen = " (it sends heartbeats, as multi-writer mode does)" if beat is not None and beat.holds else ""
    text = f"which lock a writer takes is not visible here{seen}: compare its settings with {LOCK_PROVIDER}={provider}"
    return Row(Requirement.LOCK, Conformity.UNKNOWN, text)


# --- Services that the writer runs itself

_SWITCHES: Mapping[str, str] = MappingProxyType(
    {
        Service.COMPACTION: "hoodie.compact.inline=false",
        Service.LOGCOMPACTION: "hoodie.log.compaction.inline=false",
        Service.CLUSTERING: "hoodie.clustering.inline=false",
        Service.CLEAN: "hoodie.clean.automatic=false",
        Service.ARCHIVE: "hoodie.archive.automatic=false",
    }
)
_ENDANGERED: Mapping[str, tuple[Service, ...]] = MappingProxyType(
    {
        # The writer executes whatever plan is pending: two executors of one plan delete each other's files.
        Service.COMPACTION: (Service.COMPACTION, Service.LOGCOMPACTION),
        Service.LOGCOMPACTION: (Service.COMPACTION, Service.LOGCOMPACTION),
        Service.CLUSTERING: (Service.CLUSTERING,),
    }
)
_REPEATED = 2
"""Once may be a person at work; from twice on it is a setting."""


def _learn_services(check: Check, learnt: Learnt, now: Learnt) -> Learnt:
    served = check.registered.served if check.registered is not None else frozenset()
    foreign = [entry for entry in learnt.foreign if entry[1] not in served]
    until = learnt.judged_until
    for instant in sorted(check.view.timeline.completed(), key=lambda instant: instant.ordering_time):
        service = check.service_of(instant)
        if service is None or instant.ordering_time <= learnt.judged_until:
            continue
        until = max(until, instant.ordering_time)
        if not _is_ours(check, learnt, instant):
            foreign.append((service.value, instant.requested_time, instant.ordering_time))
    first = check.commits[0].requested_time if check.commits else ""
    if learnt.first_write and first > learnt.first_write and check.registered is not None:
        span = (learnt.checked_ms, check.now_ms)
        if not any(run.touches(*span) for run in check.registered.runs) and not _has_served(check, span):
            foreign.append((Service.ARCHIVE.value, first, now.newest))
    return replace(now, foreign=tuple(foreign[-REMEMBERED:]), judged_until=until, first_write=first)


def _is_ours(check: Check, learnt: Learnt, instant: Instant) -> bool:
    """Whether the provider made an instant, or may have."""
    if check.registered is None:
        return False  # it services registered tables only
    zone = check.zone.zone
    began_ms, ended_ms = (instant_time_ms(time, zone) or 0 for time in (instant.requested_time, instant.ordering_time))
    # What was before the first check, or before the table was registered (again), has no record.
    if ended_ms <= max(check.registered.registered_ms, learnt.since_ms or check.now_ms):
        return True
    is_reported = instant.requested_time in check.registered.served
    return is_reported or any(run.touches(began_ms, ended_ms) for run in check.registered.runs)


def _has_served(check: Check, span: tuple[int, int]) -> bool:
    """Whether a task reported the end of a service, of whatever instant, between two moments."""
    reported = (int(token) for token in check.registered.served if len(token) == _MS_DIGITS) if check.registered else ()
    return any(span[0] - CLOCKS_MS <= time_ms <= span[1] for time_ms in reported)


_MS_DIGITS = 13
"""A task reports an instant (14 or 17 digits) and the moment of its report, ms since the epoch."""


def _services_row(check: Check, learnt: Learnt) -> Row:
    found = {service: [done for kind, _, done in learnt.foreign if kind == service] for service in _SWITCHES}
    active = {service: times for service, times in found.items() if times and not _has_stopped(check, times)}
    repeated = {service: times for service, times in active.items() if len(times) >= _REPEATED}
    if repeated:
        named = "; ".join(
            f"{len(times)} {service}s by another process, the last completed {times[-1]}"
            for service, times in repeated.items()
        )
        blocks = dict.fromkeys(blocked for service in repeated for blocked in _ENDANGERED.get(service, ()))
        settings = tuple(_SWITCHES[service] for service in repeated)
        return Row(Requirement.SERVICES, Conformity.BROKEN, named, settings, tuple(blocks))
    if active:
        service, times = next(iter(active.items()))
        text = f"one {service} (completed {times[-1]}) by another process: a person's, or a writer's"
        return Row(Requirement.SERVICES, Conformity.UNKNOWN, text, (_SWITCHES[service],))
    last = max((done for _, _, done in learnt.foreign), default="")
    quiet = [write for write in check.commits if write.ordering_time > last and _is_judged(check, learnt, write)]
    text = f"{len(quiet)} commits in a row without a service by another process"
    is_proven = bool(last) or len(quiet) >= _QUIET
    return Row(Requirement.SERVICES, Conformity.MET if is_proven else Conformity.UNKNOWN, text)


_QUIET = 5
"""Commits without a service that show that a writer runs none: Hudi's own default for compactions."""


def _is_judged(check: Check, learnt: Learnt, write: Instant) -> bool:
    if check.registered is None:
        return True
    since_ms = max(check.registered.registered_ms, learnt.since_ms)
    return (instant_time_ms(write.ordering_time, check.zone.zone) or 0) > since_ms


def _has_stopped(check: Check, times: Sequence[str]) -> bool:
    """Whether many more commits than between two such services have passed without one."""
    marks = [sum(write.ordering_time <= time for write in check.commits) for time in times]
    gaps = [after - before for before, after in pairwise(marks) if after > before]
    usual = min(gaps[-1] if gaps else _QUIET, REMEMBERED // 2)
    return len(check.commits) - marks[-1] >= max(2, 2 * usual)


# --- Time zone, updates of the metadata table, indexes, notices, version, merging


def _time_zone_row(check: Check, learnt: Learnt) -> Row:
    zone = check.zone
    foreign = find_foreign(check.signs.stamps, zone.offset_ms, check.now_ms)
    if foreign is not None:
        text = describe_foreign(foreign, zone.name, check.view.properties.time_zone)
        name = "<the jobs' zone>" if isinstance(zone.zone, ProcessZone) else zone.name
        settings = (f"spark.driver.extraJavaOptions=-Duser.timezone={name}",)
        return Row(Requirement.TIME_ZONE, Conformity.BROKEN, text, settings)
    if is_proven(check.signs.stamps, zone.offset_ms):
        text = f"the newest instants have the jobs' time ({zone.name}), by the times of their files"
        return Row(Requirement.TIME_ZONE, Conformity.MET, text)
    text = "the files' times do not show it: the table is new, or was copied"
    return Row(Requirement.TIME_ZONE, Conformity.UNKNOWN, text)


def _metadata_row(check: Check, learnt: Learnt) -> Row:
    kinds = [is_streamed for _, is_streamed in learnt.streamed]
    changes = len([kind for kind, _ in groupby(kinds)])
    counted = f"{sum(kinds)} of the last {len(kinds)} writes streamed their update of the metadata table"
    if changes > _REPEATED:
        # Once is a new setting, or a new version.
        return Row(Requirement.METADATA_WRITES, Conformity.BROKEN, counted, (f"{STREAMING_WRITES}=false",))
    if not kinds:
        text = (
            "the table has no metadata table"
            if "files" not in check.view.properties.metadata_partitions
            else "no write shows how it updated the metadata table"
        )
        return Row(Requirement.METADATA_WRITES, Conformity.UNKNOWN, text)
    if kinds[-1] and check.policy.indexing.enabled and check.policy.indexing.indexes:
        counted += f"; index builds wait for a moment without writers, with {STREAMING_WRITES}=false they need not"
    return Row(Requirement.METADATA_WRITES, Conformity.MET, counted)


_MAX_PARTITIONS = 100
"""A table has a handful; its properties are a writer's text, and the registry keeps them."""


def _learn_partitions(check: Check, learnt: Learnt, now: Learnt) -> Learnt:
    properties = check.view.properties
    have = frozenset(properties.metadata_partitions)
    unlisted = max(check.signs.unlisted, default=learnt.unlisted)
    unlisted_ms = check.signs.unlisted.get(unlisted, learnt.unlisted_ms)
    if check.signs.metadata_built_ms > unlisted_ms or "files" not in have:
        unlisted = ""
        unlisted_ms = 0
    partitions = tuple(sorted(have))[:_MAX_PARTITIONS]
    now = replace(now, partitions=partitions, unlisted=unlisted, unlisted_ms=unlisted_ms)
    gone = frozenset(learnt.partitions) - have - frozenset(properties.metadata_partitions_inflight)
    if gone and now.newest > learnt.newest and not _was_indexing(check, learnt):
        return replace(now, lost=tuple(sorted({*learnt.lost, *gone})), lost_at=now.newest, is_back=False)
    if not learnt.lost or not have.issuperset(learnt.lost):
        return now
    if not learnt.is_back:
        return replace(now, is_back=True, lost_at=now.newest)
    # A write has left them in place.
    return replace(now, lost=(), lost_at="", is_back=False) if now.newest > learnt.lost_at else now


def _was_indexing(check: Check, learnt: Learnt) -> bool:
    zone = check.zone.zone
    builds = (i for i in check.view.timeline.instants if i.action is Action.INDEXING)
    return any((instant_time_ms(i.ordering_time, zone) or 0) > learnt.checked_ms - CLOCKS_MS for i in builds) or (
        check.registered is not None
        and any(
            run.service == Service.INDEXING and run.touches(learnt.checked_ms, check.now_ms)
            for run in check.registered.runs
        )
    )


def _indexes_row(check: Check, learnt: Learnt) -> Row:
    if learnt.unlisted:
        text = (
            f"commit {learnt.unlisted} is not in the metadata table: readers that use it leave out its rows, until it "
            "is rebuilt (one commit with hoodie.metadata.enable=false and "
            "hoodie.metadata.auto.delete.partitions=true drops it, the next one builds it)"
        )
        setting = "hoodie.metadata.enable=true"
        return Row(Requirement.INDEXES, Conformity.BROKEN, text, (setting,), GUARDED)
    if learnt.lost:
        newer = sum(write.ordering_time > learnt.lost_at for write in check.commits)
        what = ", ".join(learnt.lost)
        if newer < REMEMBERED and not learnt.is_back:
            # A writer without the metadata table takes all of it away.
            setting = "hoodie.metadata.enable=true" if "files" in learnt.lost else f"{AUTO_DELETE_INDEXES}=false"
            text = f"{what} vanished from the metadata table with the write that completed {learnt.lost_at}, or before"
            return Row(Requirement.INDEXES, Conformity.BROKEN, text, (setting,))
        text = f"{what} vanished with a write; no write since shows whether writers keep it"
        return Row(Requirement.INDEXES, Conformity.UNKNOWN, text)
    indexes = [name for name in learnt.partitions if name != "files"]
    if not indexes:
        return Row(Requirement.INDEXES, Conformity.MET, "the table has no index")
    if check.registered is None or learnt.since_ms == learnt.checked_ms:
        return Row(Requirement.INDEXES, Conformity.UNKNOWN, f"the table has {', '.join(indexes)}; a later check shows")
    return Row(Requirement.INDEXES, Conformity.MET, f"{', '.join(indexes)}: in place since the first check")


_JUDGED = 10
_GRACE_MS = 120_000
"""A callback comes after the commit, and after whatever the writer does then."""
_IN_A_ROW = 3


def _notices_row(check: Check, learnt: Learnt) -> Row:
    settings = ("hoodie.write.commit.callback.on=true",)
    if check.registered is None:
        return Row(Requirement.NOTICES, Conformity.UNKNOWN, "the table is not registered: no notice has named it")
    announced = check.registered.announced
    registered_ms = check.registered.registered_ms
    judged = []
    for write in check.commits[-_JUDGED * 2 :]:
        ended_ms = check.signs.made_ms.get(write.file_name, 0)
        is_announced = write.requested_time in announced
        if is_announced or registered_ms + 1000 < ended_ms <= check.now_ms - _GRACE_MS:
            judged.append((write.requested_time, is_announced))
    judged = judged[-_JUDGED:]
    if not judged:
        text = "no commit is old enough to miss its notice"
        return Row(Requirement.NOTICES, Conformity.UNKNOWN, text)
    count = sum(is_announced for _, is_announced in judged)
    text = f"{count} of the last {len(judged)} commits were announced"
    gaps = sum(not is_announced for is_announced, _ in groupby(flag for _, flag in judged))
    is_silent = not any(is_announced for _, is_announced in judged[-_IN_A_ROW:])
    if is_silent or (gaps >= _IN_A_ROW and len(judged) - count > _JUDGED // 3):
        first = next(time for time, is_announced in judged if not is_announced)
        return Row(Requirement.NOTICES, Conformity.BROKEN, f"{text}, not {first}", settings)
    suffix = [time for time, _ in judged[_last_gap(judged) :]]
    return Row(Requirement.NOTICES, Conformity.MET, f"{text}, all from {suffix[0]} on" if suffix else text)


def _last_gap(judged: Sequence[tuple[str, bool]]) -> int:
    return max((n + 1 for n, (_, is_announced) in enumerate(judged) if not is_announced), default=0)


def _version_row(check: Check, learnt: Learnt) -> Row:
    version = check.view.properties.version
    if version > LAST_VERSION_OF_1_0:
        text = f"table version {version}: Hudi 1.1 or later"
        return Row(Requirement.HUDI_VERSION, Conformity.MET, text)
    if learnt.is_of_1_0 is None:
        text = f"table version {version}: the last writes do not show which Hudi made them"
        return Row(Requirement.HUDI_VERSION, Conformity.UNKNOWN, text)
    made_by = "one of the last writes by Hudi 1.0 or older" if learnt.is_of_1_0 else "written by Hudi 1.1 or later"
    text = f"table version {version}, {made_by}"
    if learnt.is_of_1_0 and check.policy.indexing.enabled and check.policy.indexing.indexes:
        text = f"{text}, which does not maintain an index that is being built: write with Hudi 1.1 or later"
        return Row(Requirement.HUDI_VERSION, Conformity.BROKEN, text)
    return Row(Requirement.HUDI_VERSION, Conformity.MET, text)


def _merge_row(check: Check, learnt: Learnt) -> Row:
    raw = check.view.properties.raw
    key = COMPACTION_PAYLOAD_CLASS
    payload = raw.get(key) or raw.get("hoodie.table.payload.class", "")
    mode = raw.get(RECORD_MERGE_MODE, "")
    if payload and not payload.startswith(_HUDIS_OWN):
        text = f"{payload} merges records: the jobs need its jar (spark_conf: spark.jars)"
        return Row(Requirement.MERGE, Conformity.UNKNOWN, text)
    text = f"record merge mode {mode}" if mode else f"payload class {payload or 'of Hudi'}"
    return Row(Requirement.MERGE, Conformity.MET, f"{text}, by the table's properties, which writers and jobs share")


_HUDIS_OWN = ("org.apache.hudi.", "com.uber.hoodie.")

_RULES = (
    _heartbeat_row,
    _lock_row,
    _services_row,
    _time_zone_row,
    _metadata_row,
    _indexes_row,
    _notices_row,
    _version_row,
    _merge_row,
)


# --- One check: what it finds, and the report of all that is known


def check_writers(check: Check, learnt: Learnt) -> Learnt:
    """Return what is known after this check; its `rows` are the report."""
    newest = check.commits[-1].ordering_time if check.commits else ""
    heartbeat = find_heartbeat(check) or learnt.heartbeat
    lock = find_lock(check, heartbeat) or learnt.lock
    streamed = {**dict(learnt.streamed), **check.signs.streamed}
    kept = [write.requested_time for write in check.commits[-REMEMBERED:]]
    now = replace(
        learnt,
        checked_ms=check.now_ms,
        since_ms=learnt.since_ms or check.now_ms,
        version=check.view.version,
        newest=newest,
        heartbeat=heartbeat,
        lock=lock,
        streamed=tuple((time, streamed[time]) for time in kept if time in streamed),
        is_of_1_0=check.signs.is_of_1_0 if check.signs.is_of_1_0 is not None else learnt.is_of_1_0,
    )
    now = _learn_services(check, learnt, now)
    now = _learn_partitions(check, learnt, now)
    before = {row.requirement: row for row in learnt.rows}
    rows = []
    for row in (rule(check, now) for rule in _RULES):
        old = before.get(row.requirement)
        since_ms = old.since_ms if old is not None and old.state is row.state else check.now_ms
        blocks = row.blocks or BLOCKS.get(row.requirement, ())
        rows.append(
            replace(
                row,
                evidence=row.evidence[:MAX_CHARACTERS],
                since_ms=since_ms,
                blocks=blocks if row.state is Conformity.BROKEN else (),
            )
        )
    return replace(now, rows=tuple(rows))
