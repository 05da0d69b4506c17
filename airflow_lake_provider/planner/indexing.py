"""Decide whether indexes of one table have to be built; pure, from the view and the policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.hudi.instant import Action, Layout
from airflow_lake_provider.indexing.index_spec import (
    CHECK,
    CHECK_TIMEOUT,
    WAIT_S,
    find_missing,
    find_setting_problems,
    find_unmet_need,
    parse_indexes,
    wish_options,
)
from airflow_lake_provider.job_contract import Mode, Service
from airflow_lake_provider.planner.rules import Decision, Verdict, block_without_lock, not_due

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_lake_provider.config.policies import IndexingPolicy, TablePolicy
    from airflow_lake_provider.indexing.index_spec import IndexSpec
    from airflow_lake_provider.planner.rules import Evidence
    from airflow_lake_provider.planner.table_view import TableView


def decide_indexing(view: TableView, policy: TablePolicy) -> Decision:
    """Say whether an index build is due, not due or blocked, and why.

    Pending plans are due whoever made them; new ones for what `indexing.indexes` names and the table has not.
    """
    rules, service = policy.indexing, Service.INDEXING
    if not rules.enabled:
        return not_due(service, "indexing is switched off for this table (indexing.enabled: false)")
    if view.properties.layout is Layout.V1:
        return not_due(service, f"the table has version {view.properties.version}: indexes are built from version 8 on")
    try:
        wanted = parse_indexes(rules.indexes)
    except ConfigError as error:
        return Decision(service, Verdict.BLOCKED, str(error))
    pending = tuple(instant.requested_time for instant in view.timeline.pending(Action.INDEXING))
    missing = find_missing(wanted, view.properties)
    evidence: Evidence = {
        "pending_plans": ", ".join(pending),
        "missing": ", ".join(spec.partition for spec in missing),
        "complete": ", ".join(view.properties.metadata_partitions),
        "settings": "; ".join(find_setting_problems(wanted, policy.hudi_options)),
    }
    due = _due(view, missing, pending, evidence, index_job_options(wanted, rules))
    if due is None:
        names = ", ".join(spec.partition for spec in wanted)
        reason = f"the table has what it shall have: {names}" if names else "no index is asked for (indexing.indexes)"
        return not_due(service, reason, evidence)
    need = find_unmet_need(wanted, view.properties)
    if need is not None and not pending:
        return Decision(service, Verdict.BLOCKED, f"{due.reason}, but {need}", evidence=evidence)
    return block_without_lock(due, policy.hudi_options)


def index_job_options(wanted: Sequence[IndexSpec], rules: IndexingPolicy) -> Mapping[str, str]:
    """Return the options by which a policy travels to the job."""
    return {
        **wish_options(wanted),
        CHECK: rules.check,
        WAIT_S: f"{rules.wait_s:g}",
        CHECK_TIMEOUT: str(rules.check_timeout_s),
    }


def _due(
    view: TableView,
    missing: Sequence[IndexSpec],
    pending: tuple[str, ...],
    evidence: Evidence,
    options: Mapping[str, str],
) -> Decision | None:
    if pending:
        reason = f"index plan {', '.join(pending)} is pending on the timeline"
        return Decision(Service.INDEXING, Verdict.DUE, reason, Mode.EXECUTE, pending[0], pending, evidence, options)
    last = view.timeline.latest_write_without_holes()
    if not missing or last is None:
        return None
    reason = f"the table lacks {', '.join(spec.partition for spec in missing)} (indexing.indexes)"
    return Decision(
        Service.INDEXING, Verdict.DUE, reason, Mode.SCHEDULE_AND_EXECUTE, last.requested_time, (), evidence, options
    )
