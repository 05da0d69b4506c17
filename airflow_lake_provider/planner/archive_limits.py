"""What archiving of one table never passes: Hudi's own limits, and those of the job. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_lake_provider.hudi.archive import list_active
from airflow_lake_provider.instant_clock import DAY_MS, format_instant_time
from airflow_lake_provider.shared.actions import WRITE_ACTIONS, Action
from airflow_lake_provider.shared.hudi_settings import COMPACTION_TRIGGER, MERGE_ON_READ
from airflow_lake_provider.timeline_head import COMPLETED, find_checkpoint_limit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from airflow_lake_provider.config.policies import TablePolicy
    from airflow_lake_provider.planner.facts import TableFacts

UNCOMPACTED = "came after the metadata table's last compaction"
_COUNTS_NOTHING = "TIME_ELAPSED"
_COUNTED = 5
"""Hudi's default of `hoodie.compact.inline.max.delta.commits`, which the job leaves as it is."""


def find_boundary(facts: TableFacts, policy: TablePolicy, now_ms: int) -> tuple[str, str]:
    """Return the instant that archiving never passes, and what it is in words; empty for none."""
    return min(_find_limits(facts, policy, now_ms), default=("", ""))


def trigger_options(policy: TablePolicy) -> Mapping[str, str]:
    """Return the setting with which Hudi's archiver counts no delta commits, where no writer counts them.

    It keeps everything from the last compaction on until so many delta commits came, for a trigger of the writer. A
    table that insert overwrites fill has none, and would never be archived. Where the service compacts, it decides by
    its own rules.
    """
    return {COMPACTION_TRIGGER: _COUNTS_NOTHING} if policy.compaction.enabled else {}


def _find_limits(facts: TableFacts, policy: TablePolicy, now_ms: int) -> Iterator[tuple[str, str]]:
    for write in facts.timeline.pending(*WRITE_ACTIONS)[:1]:
        yield write.requested_time, f"the pending {write.action} {write.requested_time}"
    if facts.first_savepoint is not None:
        saved = facts.first_savepoint.requested_time
        yield saved, f"the savepoint {saved}"
    if facts.last_metadata_compaction is not None:
        for write in facts.writes_after(facts.last_metadata_compaction.requested_time)[:1]:
            yield write.requested_time, f"{write.action} {write.requested_time}, which {UNCOMPACTED}"
    yield from _find_heads(facts)
    yield from _find_checkpoints(facts, policy, now_ms)
    yield from _find_trigger(facts, policy)


def _find_heads(facts: TableFacts) -> Iterator[tuple[str, str]]:
    """Yield what the job cannot take away, and lets no write behind it be archived."""
    if not facts.properties.slices_by_completion:
        return
    compacted = facts.last_metadata_compaction
    completed = {i.requested_time: i.ordering_time for i in facts.timeline.completed()}
    for head in list_active(facts.timeline):
        if not head.lets_writes_pass:
            continue
        if head.state != COMPLETED:
            yield head.requested_time, f"the pending {head.action} {head.requested_time}"
        elif compacted is not None and completed[head.requested_time] >= compacted.requested_time:
            yield head.requested_time, f"{head.action} {head.requested_time}, which {UNCOMPACTED}"


def _find_checkpoints(facts: TableFacts, policy: TablePolicy, now_ms: int) -> Iterator[tuple[str, str]]:
    rules = policy.archive
    if not rules.checkpoint_days:
        return
    since = format_instant_time(now_ms - rules.checkpoint_days * DAY_MS, facts.zone(policy))
    commits = {time: metadata.checkpoints for time, metadata in facts.view.commits.items()}
    found = find_checkpoint_limit(commits, rules.checkpoint_keys, since)
    if found is not None:
        requested, name = found
        yield requested, f"the commit {requested}, which has the newest checkpoint {name} of a stream"


def _find_trigger(facts: TableFacts, policy: TablePolicy) -> Iterator[tuple[str, str]]:
    """Yield what Hudi keeps for a compaction that a writer triggers (`getEarliestInstantToRetainForCompaction`)."""
    if facts.properties.table_type != MERGE_ON_READ or trigger_options(policy):
        return
    writes = sorted(facts.writes, key=lambda write: write.requested_time)
    compactions = [write.requested_time for write in writes if write.action is Action.COMMIT]
    last = compactions[-1] if compactions else ""
    deltas = [w.requested_time for w in writes if w.action is Action.DELTACOMMIT and w.requested_time > last]
    if len(deltas) >= _COUNTED:
        kept = deltas[-_COUNTED]
    elif last or deltas:
        kept = last or deltas[0]
    else:
        return
    yield kept, f"the instant {kept}, from which on a writer's trigger of compaction counts {_COUNTED} delta commits"
