"""The end of an index build: wait for writers that may not know of the index, check it, complete its plan."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_lake_provider.job_contract import FailureKind
from lake_jobs.hudi.table import hold_lock
from lake_jobs.indexing.barrier import BARRIER_INTERVAL_S
from lake_jobs.indexing.check import check, find_damage
from lake_jobs.indexing.outcome import IndexFailure, caught_up_to
from lake_jobs.indexing.rules import find_in_the_way
from lake_jobs.indexing.state import complete_plan, load_index_state, unprotect_file_groups
from lake_jobs.indexing.writers import find_writers_in_flight

if TYPE_CHECKING:
    from lake_jobs.indexing.build import BuiltIndex
    from lake_jobs.indexing.rules import IndexPlan, WriterInFlight
    from lake_jobs.indexing.settings import IndexOptions
    from lake_jobs.services.context import ServiceContext


def finish(context: ServiceContext, plan: IndexPlan, options: IndexOptions, built: BuiltIndex) -> str:
    """Complete a plan whose index is built and in use; return what its check found, empty when the index is whole.

    Writers in flight do not matter, unless they may have begun without knowing of the index: this function waits for
    those, and the check finds what they left out. A dead writer is no reason to wait: its rows are in no file of the
    table.
    """
    if built.is_completed:
        return ""
    deadline = time.monotonic() + options.check_timeout_s
    is_compared = built.is_compared or options.check != "full"
    while True:
        _wait_for_unaware_writers(context, plan, options, built, deadline)
        if not is_compared:
            # A full check takes long, so writers do not wait for it; what commits meanwhile is in the cheap one.
            damage = check(context, plan, options, built.passed)
            if damage:
                return damage
            is_compared = True
        # Writers go on meanwhile: under the lock only what completed since is left.
        damage = find_damage(context, plan, built.passed)
        if damage:
            return damage
        with hold_lock(context.spark, built.lock_client):
            # Writers that take no part in locking begin and end whether the lock is held or not.
            if _find_in_the_way(context, options, built):
                continue
            damage = check(context, plan, replace(options, check="cheap"), built.passed)
            if not damage:
                unprotect_file_groups(context, plan)
                complete_plan(context, plan, caught_up_to(load_index_state(context)))
            return damage


def _find_in_the_way(context: ServiceContext, options: IndexOptions, built: BuiltIndex) -> list[WriterInFlight]:
    return find_in_the_way(
        find_writers_in_flight(context, context.read_table_state()), built.unaware, no_writer=options.no_writer
    )


def _wait_for_unaware_writers(
    context: ServiceContext, plan: IndexPlan, options: IndexOptions, built: BuiltIndex, deadline: float
) -> None:
    is_reported = False
    while found := _find_in_the_way(context, options, built):
        awaited = ", ".join(map(str, found))
        if options.no_writer:
            raise IndexFailure(
                FailureKind.CONFLICT,
                f"{plan.partition} is built, and its plan left open: {awaited} is in flight, though the request "
                "says that no writer runs; the next run checks it and goes on from there",
            )
        if not is_reported:
            is_reported = True
            context.log_progress(f"index {plan.partition} is built; it may be unknown to {awaited}: waiting")
        if time.monotonic() >= deadline:
            indexes = load_index_state(context)
            raise IndexFailure(
                FailureKind.CONFLICT,
                f"{plan.partition} is built and holds every write up to {caught_up_to(indexes)}; {awaited} may not "
                f"know of it and did not end within {options.check_timeout_s:.0f} s; the next run goes on from there",
            )
        time.sleep(BARRIER_INTERVAL_S)
