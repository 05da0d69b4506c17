"""No run without effect is repeated on an unchanged reason: what the last run found counts in the next decision. Pure.

Hudi leaves nothing on the timeline where it finds nothing to do, so the timeline alone would make a service due again
for ever.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.planner.decision import Decision, Footing, Verdict, not_due
from airflow_lake_provider.planner.turns import TurnEnd, found_nothing
from airflow_lake_provider.planner.writes import writes_after

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_lake_provider.planner.turns import Turn, Turns
    from airflow_lake_provider.policies import TablePolicy
    from airflow_lake_provider.timeline.timeline import Timeline

FIRST_DISTANCE = 10
"""New writes before a run that found nothing is repeated for the first time; then twice as many each time."""
MOST_WRITES = 100
"""At most so many new writes are waited for, and never more than the active timeline holds."""
MOST_PAUSE_MS = 3_600_000
"""The longest pause between two runs that find nothing."""
_RESTS_ON: Mapping[Service, tuple[str, ...]] = MappingProxyType(
    {
        Service.COMPACTION: ("last_compaction",),
        Service.LOGCOMPACTION: ("last_merge",),
        Service.CLUSTERING: ("last_clustering",),
        Service.CLEAN: ("last_clean",),
        Service.ARCHIVE: ("first_write", "boundary", "last_clean"),
        Service.METACOMPACTION: ("last_metadata_compaction",),
        Service.INDEXING: ("missing", "complete"),
    }
)
"""The evidence that is another one after a run that had an effect, or when what was in the way is gone."""


def footing_of(decision: Decision, timeline: Timeline, kept_from: str) -> Footing:
    """Return what has to be remembered of a decision when a run is created for it."""
    evidence = [decision.evidence.get(name) for name in _RESTS_ON.get(decision.service, ())]
    text = json.dumps([evidence, sorted(decision.options.items())])
    writes = timeline.completed_writes_by_completion()
    newest = (writes[-1].completed_time or writes[-1].requested_time) if writes else ""
    basis = hashlib.sha256(text.encode()).hexdigest()[:16]
    if decision.service is not Service.CLEAN:
        return Footing(basis, newest)
    return Footing(basis, newest, kept_from, is_certain=decision.evidence.get("replaced_files") == "yes")


def wait_for_change(decision: Decision, turns: Turns, timeline: Timeline, policy: TablePolicy, now_ms: int) -> Decision:
    """Return a due decision as not due while the last run's "nothing to do" still answers it; all others as they are.

    Plans on the timeline are a reason of their own.
    """
    turn = turns.of.get(decision.service)
    if turn is None or decision.verdict is not Verdict.DUE or decision.plan_instants:
        return decision
    if turn.end is TurnEnd.SUCCESS and turn.key_instant == decision.key_instant:
        reason = f"nothing to do: run {turn.run_id} did what there was to do for this state of the table"
        return replace(
            not_due(decision.service, f"{reason} ({decision.reason})", decision.evidence, decision.look_again_ms),
            footing=decision.footing,
        )
    if decision.footing.is_certain and not turn.is_certain and not turn.fruitless:
        return decision  # now the timeline shows something that was only possible before
    # Whether partitions expire depends on the clock, and its runs have a period of their own.
    if decision.service is Service.TTL or not found_nothing(turn, decision.footing.basis):
        return decision
    return _wait(decision, turn, timeline, policy, now_ms)


def _wait(decision: Decision, turn: Turn, timeline: Timeline, policy: TablePolicy, now_ms: int) -> Decision:
    in_a_row = turn.fruitless + 1
    writes = timeline.completed_writes_by_completion()
    newer = len(writes_after(timeline, turn.newest_write))
    wanted = min(FIRST_DISTANCE * 2 ** min(in_a_row - 1, 10), MOST_WRITES, len(writes))
    pause_ms = min(int(policy.retry_backoff_s * 1000) * 2 ** min(in_a_row - 1, 20), MOST_PAUSE_MS)
    ripe_ms = turn.ended_ms + pause_ms
    if newer >= wanted and now_ms >= ripe_ms:
        return decision
    found = f"run {turn.run_id} found nothing to do" + (
        f", as did {turn.fruitless} before it" if turn.fruitless else ""
    )
    rest = f"{newer} of {wanted} new writes" if newer < wanted else f"{(ripe_ms - now_ms + 999) // 1000} s are left"
    reason = f"{decision.reason}, but {found}; it is tried again when something changes or after a while ({rest})"
    evidence = {**decision.evidence, "runs_that_found_nothing": in_a_row}
    look_again_ms = ripe_ms if newer >= wanted else decision.look_again_ms
    return replace(not_due(decision.service, reason, evidence, look_again_ms), footing=decision.footing)
