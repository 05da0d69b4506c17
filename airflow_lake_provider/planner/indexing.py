"""Decide whether indexes of one table have to be built; pure, from facts and policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.hudi.instant import Action, Layout
from airflow_lake_provider.indexing.index_spec import (
    CheckLevel,
    IndexKind,
    find_missing,
    find_setting_problems,
    find_unmet_need,
    parse_indexes,
    requested_options,
)
from airflow_lake_provider.instant_clock import format_instant_time
from airflow_lake_provider.job_contract import INDEX_CHECK, INDEX_CHECK_TIMEOUT, INDEX_WAIT_S, Mode, Service
from airflow_lake_provider.planner.periodic import begin_of_period
from airflow_lake_provider.planner.rules import Decision, Verdict, block_without_lock, not_due

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_lake_provider.config.policies import IndexingPolicy, TablePolicy
    from airflow_lake_provider.indexing.index_spec import IndexSpec
    from airflow_lake_provider.planner.facts import TableFacts
    from airflow_lake_provider.planner.rules import Evidence

SAMPLED = frozenset({IndexKind.RECORD_INDEX, IndexKind.SECONDARY_INDEX})
"""The kinds by which Hudi's readers find rows, and which may therefore miss some."""


def decide_indexing(facts: TableFacts, policy: TablePolicy, now_ms: int) -> Decision:
    """Decide whether an index build is due, not due or blocked, with the reason.

    Pending plans are due, whichever process made them; new ones for what `indexing.indexes` names and the table lacks.
    When nothing is missing, sampled searches are due once in each period of `indexing.verify_every_s`.
    """
    rules, service = policy.indexing, Service.INDEXING
    if not rules.enabled:
        return not_due(service, "indexing is switched off for this table (indexing.enabled: false)")
    properties = facts.properties
    if properties.layout is Layout.V1:
        return not_due(service, f"the table has version {properties.version}: indexes are built from version 8 on")
    try:
        wanted = parse_indexes(rules.indexes)
    except ConfigError as error:
        return Decision(service, Verdict.BLOCKED, str(error))
    pending = tuple(instant.requested_time for instant in facts.timeline.pending(Action.INDEXING))
    missing = find_missing(wanted, properties)
    evidence: Evidence = {
        "pending_plans": ", ".join(pending),
        "missing": ", ".join(spec.partition for spec in missing),
        "complete": ", ".join(properties.metadata_partitions),
        "settings": "; ".join(find_setting_problems(wanted, policy.hudi_options)),
    }
    due = _due(facts, missing, pending, evidence, index_job_options(wanted, rules))
    if due is None and not missing:
        due = _due_to_verify(facts, wanted, rules, evidence, now_ms)
    if due is None:
        names = ", ".join(spec.partition for spec in wanted)
        reason = f"all requested indexes exist: {names}" if names else "indexing.indexes requests no index"
        return not_due(service, reason, evidence)
    need = find_unmet_need(wanted, properties)
    if need is not None and not pending:
        return Decision(service, Verdict.BLOCKED, f"{due.reason}, but {need}", evidence=evidence)
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
    key = format_instant_time(begin_ms, "UTC")
    reason = f"sampled searches by {', '.join(names)} run every {rules.verify_every_s:,.0f} s (indexing.verify_every_s)"
    options = {**index_job_options(wanted, rules), INDEX_CHECK: CheckLevel.SAMPLE.value}
    mode = Mode.SCHEDULE_AND_EXECUTE
    evidence = {**evidence, "verification": key}
    return Decision(Service.INDEXING, Verdict.DUE, reason, mode, key, (), evidence, options, begin_ms + period_ms)


def _due(
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
