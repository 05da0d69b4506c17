"""Decide about the services that are due once in each period, and about index builds. Pure.

The active timeline shows neither when an old partition was written last, nor which files no instant names, nor which
program made a savepoint. So the jobs find that out, and most runs find nothing.
"""

from __future__ import annotations

import hashlib
from datetime import UTC
from typing import TYPE_CHECKING

from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.hudi.base_path import table_id_of
from airflow_lake_provider.hudi.instant import Layout
from airflow_lake_provider.indexing.index_spec import (
    CheckLevel,
    IndexKind,
    find_missing,
    find_setting_problems,
    find_unmet_need,
    parse_indexes,
    requested_options,
)
from airflow_lake_provider.instant_clock import format_instant_time, instant_time_ms
from airflow_lake_provider.job_contract import (
    INDEX_CHECK,
    INDEX_WAIT_S,
    INTEGRITY_KEYS,
    INTEGRITY_MAX_BYTES,
    INTEGRITY_MAX_PARTITIONS,
    ORPHAN_KEEP_DAYS,
    ORPHAN_MAX_FILES,
    ORPHAN_MIN_AGE_DAYS,
    ORPHAN_MODE,
    SAVEPOINT_EXPIRE_S,
    SAVEPOINT_KEEP,
    TRAITS,
    TTL_COLUMN,
    TTL_COLUMN_DAYS,
    TTL_COLUMN_MODE,
    TTL_COLUMN_UNIT,
    TTL_MAX_FILE_GROUPS,
    TTL_MAX_ROWS,
    Mode,
    Service,
)
from airflow_lake_provider.planner.rules import Decision, KeptBy, Verdict, block_without_lock, not_due
from airflow_lake_provider.shared.actions import Action
from airflow_lake_provider.shared.hudi_settings import INDEX_CHECK_TIMEOUT, MERGE_ON_READ, TTL_DAYS, TTL_MAX_PARTITIONS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import tzinfo

    from airflow_lake_provider.config.policies import TablePolicy
    from airflow_lake_provider.config.service_policies import (
        IndexingPolicy,
        IntegrityPolicy,
        OrphanPolicy,
        SavepointPolicy,
        TtlPolicy,
    )
    from airflow_lake_provider.hudi.instant import Instant
    from airflow_lake_provider.indexing.index_spec import IndexSpec
    from airflow_lake_provider.planner.facts import TableFacts
    from airflow_lake_provider.planner.rules import Evidence


def decide_ttl(facts: TableFacts, policy: TablePolicy, now_ms: int) -> Decision:
    """Decide whether the search for expired partitions is due, with the reason."""
    rules = policy.ttl
    service = Service.TTL
    if rules.column is not None:
        return _decide_row_expiry(rules.column, facts, policy, now_ms)
    if rules.retained_days is None:
        reason = "no partition or row of this table expires (ttl.retained_days is not set, nor ttl.column)"
        return not_due(service, reason)
    if not facts.properties.partition_fields:
        return not_due(service, "the table is not partitioned")
    if facts.properties.table_type == MERGE_ON_READ and facts.properties.version < 8:
        reason = f"the table has version {facts.properties.version}: its log files carry no time of writing"
        return not_due(service, reason)
    plans = facts.timeline.pending(Action.COMPACTION, Action.LOGCOMPACTION, Action.CLUSTERING)
    evidence: Evidence = {
        "retained_days": rules.retained_days,
        "pending_plans": ", ".join(plan.requested_time for plan in plans),
    }
    if plans:
        # A file group that is rewritten and deleted at the same time would be replaced twice (DeletePartitionUtils).
        reason = f"waits for the pending {plans[0].action} {plans[0].requested_time}, whose files must stay"
        return not_due(service, reason, evidence)
    reason = f"the search for partitions older than {rules.retained_days} days runs every {rules.check_every_s:,.0f} s"
    return _due(service, reason, evidence, ttl_options(rules), rules.check_every_s, facts, policy, now_ms)


def _decide_row_expiry(column: str, facts: TableFacts, policy: TablePolicy, now_ms: int) -> Decision:
    rules = policy.ttl
    service = Service.TTL
    if not facts.writes:
        return not_due(service, "the table has no completed write")
    # Other plans do not stop updates of their file groups; Hudi refuses those of a pending clustering.
    plans = facts.timeline.pending(Action.CLUSTERING)
    evidence: Evidence = {
        "column": column,
        "column_days": rules.column_days,
        "pending_plans": ", ".join(plan.requested_time for plan in plans),
    }
    if plans:
        reason = f"waits for the pending {plans[0].action} {plans[0].requested_time}, whose rows must stay"
        return not_due(service, reason, evidence)
    does = "reports" if rules.column_mode == "report" else "deletes"
    reason = (
        f"the search for rows whose {column} is older than {rules.column_days} days runs every "
        f"{rules.check_every_s:,.0f} s and {does} them"
    )
    return _due(service, reason, evidence, ttl_options(rules), rules.check_every_s, facts, policy, now_ms)


def decide_savepoint(facts: TableFacts, policy: TablePolicy, now_ms: int) -> Decision:
    """Decide whether a savepoint is due, or the end of one that the service made, with the reason."""
    rules = policy.savepoint
    service = Service.SAVEPOINT
    if rules.every_s is None:
        return not_due(service, "no savepoints are made for this table (savepoint.every_s is not set)")
    savepoints = [i for i in facts.timeline.instants if i.action is Action.SAVEPOINT and i.is_completed]
    newest = facts.timeline.latest_write_without_holes()
    evidence: Evidence = {
        "savepoints": len(savepoints),
        "oldest_savepoint": savepoints[0].requested_time if savepoints else None,
        "newest_savepoint": savepoints[-1].requested_time if savepoints else None,
        "newest_write": newest.requested_time if newest is not None else None,
    }
    if newest is None:
        return not_due(service, "the table has no completed write", evidence)
    is_saved = bool(savepoints) and savepoints[-1].requested_time >= newest.requested_time
    # Whose savepoints they are, the job reads: the timeline's names do not show it.
    if (is_saved or rules.keep == 0) and not _may_expire(savepoints, rules, facts.zone(policy), now_ms):
        what = f"the newest write {newest.requested_time} has a savepoint" if is_saved else "there is none to remove"
        return not_due(service, f"{what}, and none expires (savepoint.keep {rules.keep})", evidence)
    reason = f"a savepoint every {rules.every_s:,.0f} s, of which {rules.keep} stay"
    return _due(service, reason, evidence, savepoint_options(rules), rules.every_s, facts, policy, now_ms)


def _may_expire(savepoints: list[Instant], rules: SavepointPolicy, zone: tzinfo, now_ms: int) -> bool:
    if len(savepoints) > rules.keep:
        return True
    if rules.expire_after_s is None or len(savepoints) < 2:
        return False
    since_ms = instant_time_ms(savepoints[0].ordering_time, zone)
    return since_ms is not None and now_ms - since_ms > rules.expire_after_s * 1000


def decide_orphans(facts: TableFacts, policy: TablePolicy, now_ms: int) -> Decision:
    """Decide whether the search for orphan files is due, with the reason."""
    rules = policy.orphans
    service = Service.ORPHANS
    if not rules.enabled:
        return not_due(service, "the search for orphan files is off for this table (orphans.enabled: false)")
    evidence: Evidence = {"min_age_days": rules.min_age_days, "keep_days": rules.keep_days}
    does = "quarantines" if rules.mode == "quarantine" else "reports"
    reason = (
        f"the search for orphan files older than {rules.min_age_days} days runs every {rules.check_every_s:,.0f} s "
        f"and {does} them"
    )
    return _due(service, reason, evidence, orphan_options(rules), rules.check_every_s, facts, policy, now_ms)


def decide_integrity(facts: TableFacts, policy: TablePolicy, now_ms: int) -> Decision:
    """Decide whether a check of samples is due, with the reason."""
    rules = policy.integrity
    service = Service.INTEGRITY
    if not rules.enabled:
        return not_due(service, "files and keys of this table are not compared (integrity.enabled: false)")
    if not facts.writes:
        return not_due(service, "the table has no completed write")
    evidence: Evidence = {"keys": rules.keys, "max_partitions": rules.max_partitions, "max_bytes": rules.max_bytes}
    reason = (
        f"files and keys of up to {rules.max_partitions} partitions are compared every {rules.check_every_s:,.0f} s"
    )
    return _due(service, reason, evidence, integrity_options(rules), rules.check_every_s, facts, policy, now_ms)


def _due(  # noqa: PLR0913 - the parts of one decision
    service: Service,
    reason: str,
    evidence: Evidence,
    options: Mapping[str, str],
    every_s: float,
    facts: TableFacts,
    policy: TablePolicy,
    now_ms: int,
) -> Decision:
    period_ms = int(every_s * 1000)
    begin_ms = begin_of_period(facts.view.base_path, period_ms, now_ms)
    due = Decision(
        service,
        Verdict.DUE,
        reason,
        Mode.EXECUTE,
        # Of the period, not of the table: most runs leave nothing on the timeline.
        format_instant_time(begin_ms, UTC),
        (),
        evidence,
        options,
        begin_ms + period_ms,
    )
    return block_without_lock(due, policy.hudi_options) if TRAITS[service].needs_lock else due


def begin_of_period(base_path: str, period_ms: int, now_ms: int) -> int:
    """Return when the table's current period began. Each table has its own offset, or all would be due at midnight."""
    digest = hashlib.sha256(table_id_of(base_path).encode()).digest()
    offset_ms = int.from_bytes(digest[:8], "big") % period_ms
    return (now_ms - offset_ms) // period_ms * period_ms + offset_ms


def ttl_options(rules: TtlPolicy) -> Mapping[str, str]:
    """Return the policy as the settings that the job reads: Hudi's own for partitions, ours for rows."""
    if rules.column is not None:
        unit = {} if rules.column_unit is None else {TTL_COLUMN_UNIT: rules.column_unit}
        return {
            TTL_COLUMN: rules.column,
            TTL_COLUMN_DAYS: str(rules.column_days),
            **unit,
            TTL_COLUMN_MODE: rules.column_mode,
            TTL_MAX_ROWS: str(rules.max_rows),
            TTL_MAX_FILE_GROUPS: str(rules.max_file_groups),
        }
    return {
        TTL_DAYS: str(rules.retained_days),
        TTL_MAX_PARTITIONS: str(rules.max_partitions),
    }


def savepoint_options(rules: SavepointPolicy) -> Mapping[str, str]:
    """Return the policy as options of the job."""
    options = {SAVEPOINT_KEEP: str(rules.keep)}
    if rules.expire_after_s is not None:
        options[SAVEPOINT_EXPIRE_S] = str(rules.expire_after_s)
    return options


def orphan_options(rules: OrphanPolicy) -> Mapping[str, str]:
    """Return the policy as options of the job. Where the owner has not enabled the search, it only reports."""
    return {
        ORPHAN_MODE: rules.mode if rules.enabled else "report",
        ORPHAN_MIN_AGE_DAYS: str(rules.min_age_days),
        ORPHAN_KEEP_DAYS: str(rules.keep_days),
        ORPHAN_MAX_FILES: str(rules.max_files),
    }


def integrity_options(rules: IntegrityPolicy) -> Mapping[str, str]:
    """Return the policy as options of the job."""
    return {
        INTEGRITY_KEYS: rules.keys,
        INTEGRITY_MAX_PARTITIONS: str(rules.max_partitions),
        INTEGRITY_MAX_BYTES: str(rules.max_bytes),
    }


# --- Index builds: due when an index is missing, and once in each period to verify those that are there

SAMPLED = frozenset({IndexKind.RECORD_INDEX, IndexKind.SECONDARY_INDEX})
"""The kinds by which Hudi's readers find rows, and which may therefore miss some."""


def decide_indexing(facts: TableFacts, policy: TablePolicy, now_ms: int) -> Decision:
    """Decide whether an index build is due, not due or blocked, with the reason.

    Pending plans are due, whichever process made them; new ones for what `indexing.indexes` names and the table lacks.
    When nothing is missing, sampled searches are due once in each period of `indexing.verify_every_s`.
    """
    rules = policy.indexing
    service = Service.INDEXING
    if not rules.enabled:
        return not_due(service, "indexing is switched off for this table (indexing.enabled: false)")
    properties = facts.properties
    if properties.layout is Layout.V1:
        return not_due(service, f"the table has version {properties.version}: indexes are built from version 8 on")
    try:
        wanted = parse_indexes(rules.indexes)
    except ConfigError as error:
        return Decision(service, Verdict.BLOCKED, str(error), kept_by=KeptBy.TABLE)
    pending = tuple(instant.requested_time for instant in facts.timeline.pending(Action.INDEXING))
    missing = find_missing(wanted, properties)
    evidence: Evidence = {
        "pending_plans": ", ".join(pending),
        "missing": ", ".join(spec.partition for spec in missing),
        "complete": ", ".join(properties.metadata_partitions),
        "settings": "; ".join(find_setting_problems(wanted, policy.hudi_options)),
    }
    due = _due_build(facts, missing, pending, evidence, index_job_options(wanted, rules))
    if due is None and not missing:
        due = _due_to_verify(facts, wanted, rules, evidence, now_ms)
    if due is None:
        names = ", ".join(spec.partition for spec in wanted)
        reason = f"all requested indexes exist: {names}" if names else "indexing.indexes requests no index"
        return not_due(service, reason, evidence)
    need = find_unmet_need(wanted, properties)
    if need is not None and not pending:
        reason = f"{due.reason}, but {need}"
        return Decision(service, Verdict.BLOCKED, reason, evidence=evidence, kept_by=KeptBy.TABLE)
    return block_without_lock(due, policy.hudi_options)


def index_job_options(wanted: Sequence[IndexSpec], rules: IndexingPolicy) -> Mapping[str, str]:
    """Return the options by which a policy travels to the job."""
    return {
        **requested_options(wanted),
        INDEX_CHECK: rules.check,
        INDEX_WAIT_S: f"{rules.wait_s:g}",
        INDEX_CHECK_TIMEOUT: str(rules.check_timeout_s),
    }


def _due_to_verify(
    facts: TableFacts, wanted: Sequence[IndexSpec], rules: IndexingPolicy, evidence: Evidence, now_ms: int
) -> Decision | None:
    names = [spec.partition for spec in wanted if spec.kind in SAMPLED]
    if rules.verify_every_s is None or not names or facts.timeline.pending(Action.RESTORE):
        return None
    period_ms = int(rules.verify_every_s * 1000)
    begin_ms = begin_of_period(facts.view.base_path, period_ms, now_ms)
    key = format_instant_time(begin_ms, UTC)
    reason = f"sampled searches by {', '.join(names)} run every {rules.verify_every_s:,.0f} s (indexing.verify_every_s)"
    options = {**index_job_options(wanted, rules), INDEX_CHECK: CheckLevel.SAMPLE.value}
    mode = Mode.SCHEDULE_AND_EXECUTE
    evidence = {**evidence, "verification": key}
    return Decision(Service.INDEXING, Verdict.DUE, reason, mode, key, (), evidence, options, begin_ms + period_ms)


def _due_build(
    facts: TableFacts,
    missing: Sequence[IndexSpec],
    pending: tuple[str, ...],
    evidence: Evidence,
    options: Mapping[str, str],
) -> Decision | None:
    if pending:
        reason = f"index plan {', '.join(pending)} is pending on the timeline"
        return Decision(Service.INDEXING, Verdict.DUE, reason, Mode.EXECUTE, pending[0], pending, evidence, options)
    last = facts.timeline.latest_write_without_holes() if missing else None
    if last is None:
        return None
    reason = f"the table lacks {', '.join(spec.partition for spec in missing)} (indexing.indexes)"
    return Decision(
        Service.INDEXING, Verdict.DUE, reason, Mode.SCHEDULE_AND_EXECUTE, last.requested_time, (), evidence, options
    )
