"""Decide whether archiving of one table's timeline is due; pure, from the view and the policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_lake_provider.hudi.instant import WRITE_ACTIONS, Action
from airflow_lake_provider.job_contract import Mode, Service
from airflow_lake_provider.planner.clean import clean_options
from airflow_lake_provider.planner.compaction import last_metadata_compaction
from airflow_lake_provider.planner.rules import (
    Decision,
    Verdict,
    block_without_lock,
    last_completed,
    not_due,
    stable_key,
    writes_after,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_lake_provider.config.policies import ArchivePolicy, TablePolicy
    from airflow_lake_provider.planner.rules import Hold
    from airflow_lake_provider.planner.table_view import TableView

_TRY_AGAIN_AFTER_WRITES = 10
_UNCOMPACTED = "came after the metadata table's last compaction"


def decide_archive(view: TableView, policy: TablePolicy, hold: Hold | None = None) -> Decision:
    """Say whether archiving is due, and why. While `hold` leaves nothing to archive it is not due.

    Whether cleaning is due, blocked or given up does not matter here: what is to be cleaned of archived writes Hudi
    still finds (it lists the partitions then), and of replaced file groups it archives nothing that is not cleaned.
    """
    rules = policy.archive
    if not rules.enabled:
        return not_due(Service.ARCHIVE, "archiving is switched off for this table (archive.enabled: false)")
    writes = view.timeline.completed_writes_by_completion()
    if view.metadata_timeline is not None and last_metadata_compaction(view.metadata_timeline) is None:
        return not_due(Service.ARCHIVE, "archiving never passes the metadata table's compaction, and there is none yet")
    boundary, what = _boundary(view)
    old = [write for write in writes if not boundary or write.requested_time < boundary]
    last_clean = last_completed(view.timeline, Action.CLEAN)
    evidence = {
        "active_writes": len(writes),
        "archivable_writes": len(old),
        "first_write": writes[0].requested_time if writes else None,
        "last_clean": last_clean.requested_time if last_clean is not None else None,
        "boundary": boundary or None,
    }
    if len(writes) <= rules.max_commits:
        return not_due(
            Service.ARCHIVE,
            f"{len(writes)} writes on the active timeline (rule: more than {rules.max_commits})",
            evidence,
        )
    if not old:
        return not_due(Service.ARCHIVE, f"nothing is older than {what}, which archiving never passes", evidence)
    reason = f"{len(writes)} writes on the active timeline (rule: more than {rules.max_commits})"
    # The job keeps more than is held (spark_jobs/retention.py), and Hudi archives what is above its upper bound.
    if hold is not None and len(writes) <= hold.commits(view.timeline) + 2:
        reason = f"{reason}, but held back: {hold.describe()}"
        return not_due(Service.ARCHIVE, reason, {**evidence, **hold.evidence()}, hold.ends_ms)
    due = Decision(
        Service.ARCHIVE,
        Verdict.DUE,
        reason,
        Mode.EXECUTE,
        stable_key(writes[rules.max_commits :], _TRY_AGAIN_AFTER_WRITES),
        (),
        evidence,
        # The archiver keeps what the cleaner retains, by the settings that it is given.
        {**clean_options(policy.clean), **archive_options(rules)},
    )
    return block_without_lock(due, policy.hudi_options)


def archive_options(rules: ArchivePolicy) -> Mapping[str, str]:
    """Return the policy as Hudi's settings."""
    return {
        "hoodie.keep.min.commits": str(rules.min_commits),
        "hoodie.keep.max.commits": str(rules.max_commits),
    }


def _boundary(view: TableView) -> tuple[str, str]:
    """Return the instant that Hudi's archiver never passes, and what it is (TimelineArchiverV2)."""
    pending = view.timeline.pending(*WRITE_ACTIONS)
    savepoints = [instant for instant in view.timeline.completed() if instant.action is Action.SAVEPOINT]
    candidates = [(i.requested_time, f"the pending {i.action} {i.requested_time}") for i in pending[:1]]
    candidates += [(i.requested_time, f"the savepoint {i.requested_time}") for i in savepoints[:1]]
    if view.metadata_timeline is not None:
        last = last_metadata_compaction(view.metadata_timeline)
        newer = writes_after(view.timeline, last.requested_time) if last is not None else ()
        candidates += [(i.requested_time, f"{i.action} {i.requested_time}, which {_UNCOMPACTED}") for i in newer[:1]]
    return min(candidates, default=("", ""))
