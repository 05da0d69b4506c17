"""Decide whether archiving of one table's timeline is due; pure, from facts and policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_lake_provider.hudi.instant import WRITE_ACTIONS
from airflow_lake_provider.instant_clock import DAY_MS, instant_time_ms
from airflow_lake_provider.job_contract import Mode, Service
from airflow_lake_provider.planner.clean import clean_options
from airflow_lake_provider.planner.rules import (
    Decision,
    Verdict,
    block_without_lock,
    not_due,
    stable_key,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_lake_provider.config.policies import ArchivePolicy, TablePolicy
    from airflow_lake_provider.planner.facts import TableFacts

_TRY_AGAIN_AFTER_WRITES = 10
_UNCOMPACTED = "came after the metadata table's last compaction"


def decide_archive(facts: TableFacts, policy: TablePolicy, now_ms: int) -> Decision:
    """Decide whether archiving is due, with the reason. It is not due while replication's hold leaves nothing.

    Whether cleaning is due, blocked or given up does not matter here: Hudi still finds what to clean of archived writes
    (it lists the partitions then), and it archives no replaced file group that is not cleaned.
    """
    rules = policy.archive
    if not rules.enabled:
        return not_due(Service.ARCHIVE, "archiving is switched off for this table (archive.enabled: false)")
    writes, hold = facts.writes, facts.hold
    if facts.view.metadata_timeline is not None and facts.last_metadata_compaction is None:
        return not_due(
            Service.ARCHIVE, "archiving never passes the metadata table's last compaction, and there is none yet"
        )
    boundary, what = _boundary(facts)
    old = [write for write in writes if not boundary or write.requested_time < boundary]
    evidence = {
        "active_writes": len(writes),
        "archivable_writes": len(old),
        "first_write": writes[0].requested_time if writes else None,
        "last_clean": facts.last_clean.requested_time if facts.last_clean is not None else None,
        "boundary": boundary or None,
    }
    if len(writes) <= rules.max_commits:
        return not_due(
            Service.ARCHIVE,
            f"{len(writes)} writes on the active timeline (rule: more than {rules.max_commits})",
            evidence,
        )
    if not old:
        reason = f"nothing is older than {what}, which archiving never passes"
        return not_due(Service.ARCHIVE, f"{reason}{_savepoint_advice(facts, boundary, now_ms)}", evidence)
    reason = f"{len(writes)} writes on the active timeline (rule: more than {rules.max_commits})"
    reason = f"{reason}{_savepoint_advice(facts, boundary, now_ms)}"
    if policy.clean.policy == "hours" and len(writes) <= facts.retained_by_policy(policy.clean, now_ms) + 2:
        reason = f"{reason}, but the clean keeps those of the last {policy.clean.retained_hours} h"
        return not_due(Service.ARCHIVE, reason, evidence)
    # The job keeps more than is held (lake_jobs/hudi/settings.py), and Hudi archives what is above its upper bound.
    if hold is not None and len(writes) <= facts.held_commits + 2:
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


_OLD_SAVEPOINT_MS = DAY_MS


def _savepoint_advice(facts: TableFacts, boundary: str, now_ms: int) -> str:
    """Return what to do about a savepoint of more than a day that keeps instants active; empty for any other limit."""
    savepoint = facts.first_savepoint
    if savepoint is None or savepoint.requested_time != boundary:
        return ""
    since_ms = instant_time_ms(savepoint.requested_time, facts.properties.time_zone)
    if since_ms is None or now_ms - since_ms < _OLD_SAVEPOINT_MS:
        return ""
    return (
        f"; the savepoint {boundary} is {(now_ms - since_ms) // DAY_MS} days old and keeps every later instant active: "
        "remove it when it is no longer needed (CALL delete_savepoint), or lower savepoint.keep if the service made it"
    )


def _boundary(facts: TableFacts) -> tuple[str, str]:
    """Return the instant that Hudi's archiver never passes, and what it is (TimelineArchiverV2)."""
    pending = facts.timeline.pending(*WRITE_ACTIONS)[:1]
    candidates = [(write.requested_time, f"the pending {write.action} {write.requested_time}") for write in pending]
    if facts.first_savepoint is not None:
        saved = facts.first_savepoint.requested_time
        candidates.append((saved, f"the savepoint {saved}"))
    if facts.last_metadata_compaction is not None:
        for write in facts.writes_after(facts.last_metadata_compaction.requested_time)[:1]:
            what = f"{write.action} {write.requested_time}, which {_UNCOMPACTED}"
            candidates.append((write.requested_time, what))
    return min(candidates, default=("", ""))
