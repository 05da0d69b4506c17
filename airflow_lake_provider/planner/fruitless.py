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

from airflow_lake_provider.hudi.instant import WRITE_ACTIONS, Action
from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.planner.backlog import COMPACT_OPERATION
from airflow_lake_provider.planner.rules import Decision, Footing, Verdict, not_due, writes_after
from airflow_lake_provider.planner.turns import TurnEnd, found_nothing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_lake_provider.config.policies import TablePolicy
    from airflow_lake_provider.hudi.commit_metadata import CommitMetadata
    from airflow_lake_provider.hudi.instant import Instant
    from airflow_lake_provider.hudi.timeline import Timeline
    from airflow_lake_provider.planner.table_view import TableView
    from airflow_lake_provider.planner.turns import Turn, Turns

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


# --- Whether there can be files to clean: did a write replace any, and is it old enough for Hudi to let go of them?
# Pure
#
# With KEEP_LATEST_COMMITS Hudi deletes a file slice or a replaced file group when the write that replaced it is older
# than the commits to retain (`CleanPlanner.getFilesToCleanKeepingLatestCommits`). A table that is only appended to
# never has one, and Hudi then plans no clean and leaves nothing on the timeline.


def may_have_replaced(metadata: CommitMetadata | None) -> bool:
    """Whether a write may have replaced a file; of one without metadata that is not known."""
    if metadata is None or metadata.replaced_file_groups or metadata.operation == COMPACT_OPERATION:
        return True
    # Log files are added to a file slice.
    return any(not stat.is_new_group and not stat.is_log for stat in metadata.stats)


def find_kept_from(view: TableView, kept: int) -> str:
    """Return from which moment on (completed times) what writes replaced stays, when a clean keeps so many of them.

    A clean passes neither the oldest pending write nor a savepoint. Empty when there are no more writes than kept.
    """
    writes = view.timeline.completed_writes_by_completion()
    if len(writes) <= kept:
        return ""
    pending = [instant.requested_time for instant in view.timeline.pending(*WRITE_ACTIONS)]
    saved = [i.requested_time for i in view.timeline.completed() if i.action is Action.SAVEPOINT]
    return min([_time(writes[len(writes) - kept]), *pending, *saved])


def find_replacing(view: TableView, cleaned_before: str, kept_from: str) -> Instant | None:
    """Return the first write between two moments that may have replaced a file; None when the timeline shows none."""
    for write in view.timeline.completed_writes_by_completion():
        is_between = cleaned_before <= _time(write) < kept_from
        if is_between and may_have_replaced(view.commits.get(write.requested_time)):
            return write
    return None


def is_nothing_replaced(view: TableView, cleaned_before: str, kept_from: str) -> bool:
    """Whether it is known that between two moments no write replaced a file: the first is where all was cleaned."""
    writes = view.timeline.completed_writes_by_completion()
    if not cleaned_before or not kept_from:
        return False
    if kept_from <= cleaned_before:
        return True
    # What lies before the active timeline cannot be asked.
    return _time(writes[0]) <= cleaned_before and find_replacing(view, cleaned_before, kept_from) is None


def _time(write: Instant) -> str:
    return write.completed_time or write.requested_time
