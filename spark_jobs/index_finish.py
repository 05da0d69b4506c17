"""The end of an index build: wait for writers that may not know of the index, check it, complete its plan."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from hudi_table import hold_lock
from index_build import FENCE_EVERY_S, keep_lock_file
from index_check import find_differences, find_hiding, find_uncompared, find_unmentioned
from index_fence import look_at_writers
from index_outcome import IndexFailure, caught_up_to
from index_place import give_place_up
from index_rules import find_in_the_way
from index_table import complete_plan, find_modified_ms, look_at_indexes, timeline_file
from job_contract import FailureKind
from planned_service import seconds_since

if TYPE_CHECKING:
    from index_build import Built
    from index_rules import IndexPlan, WriterInFlight
    from index_settings import IndexOptions
    from planned_service import Visit


def finish(visit: Visit, plan: IndexPlan, options: IndexOptions, built: Built) -> str:
    """Complete a plan whose index is built and in use; return what its check found, empty when the index is whole.

    Writers in flight do not matter, unless they may have begun without knowing of the index: they are waited for, and
    what they left out shows in the check. Dead ones are not waited for: their rows are in no file of the table.
    """
    deadline = time.monotonic() + options.check_timeout_s
    is_compared = options.check != "full"
    while True:
        _wait_for_unaware_writers(visit, plan, options, built, deadline)
        if not is_compared:
            # A full check takes long, so writers do not wait for it; what commits meanwhile is in the cheap one.
            damage = check(visit, plan, options)
            if damage:
                return damage
            is_compared = True
        with hold_lock(visit.spark, built.guard), keep_lock_file(visit):
            # Writers that take no part in locking come and go, whoever holds the lock.
            if _find_in_the_way(visit, options, built):
                continue
            damage = check(visit, plan, replace(options, check="cheap"))
            if not damage:
                give_place_up(visit, plan)
                complete_plan(visit, plan, caught_up_to(look_at_indexes(visit)))
            return damage


def _find_in_the_way(visit: Visit, options: IndexOptions, built: Built) -> list[WriterInFlight]:
    return find_in_the_way(look_at_writers(visit, visit.look()), built.unaware, no_writer=options.no_writer)


def _wait_for_unaware_writers(
    visit: Visit, plan: IndexPlan, options: IndexOptions, built: Built, deadline: float
) -> None:
    said = False
    while found := _find_in_the_way(visit, options, built):
        awaited = ", ".join(map(str, found))
        if options.no_writer:
            raise IndexFailure(
                FailureKind.CONFLICT,
                f"{plan.partition} is built, and its plan left open: {awaited} is in flight, though no writer was said "
                "to run; the next run checks it and goes on from there",
            )
        if not said:
            said = True
            visit.say(f"index {plan.partition} is built; it may be unknown to {awaited}: waiting")
        if time.monotonic() >= deadline:
            indexes = look_at_indexes(visit)
            raise IndexFailure(
                FailureKind.CONFLICT,
                f"{plan.partition} is built and holds every write up to {caught_up_to(indexes)}; {awaited} may not "
                f"know of it and did not end within {options.check_timeout_s:.0f} s; the next run goes on from there",
            )
        time.sleep(FENCE_EVERY_S)


def check(visit: Visit, plan: IndexPlan, options: IndexOptions) -> str:
    """Return what is wrong with a built index, empty when nothing is."""
    started = time.monotonic()
    look = visit.look()
    begun_ms = find_modified_ms(visit.spark, timeline_file(look, f"{plan.instant}.indexing.inflight"))
    missing = find_unmentioned(visit.spark, look, plan.partition, begun_ms or 0, plan.instant)
    damage = f"not in the index: {', '.join(missing)}" if missing else find_hiding(visit, plan)
    kind, reason = f"{options.check} check", ""
    if not damage and options.check == "full":
        reason = find_uncompared(visit.spark, look, plan.partition)
        kind = f"check by timeline only ({reason})" if reason else kind
        damage = "" if reason else "; ".join(find_differences(visit.spark, look, plan.partition))
    visit.say(f"index {plan.partition}: {kind} {'FAILED' if damage else 'passed'} in {seconds_since(started)}")
    return damage
