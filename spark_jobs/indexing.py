"""Asynchronous indexing (RFC-45): schedule once, build beside writers, finish or clean up what a dead builder left."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from hudi_table import (
    PlanBusyError,
    find_heartbeat_age_s,
    hold_lock,
    leave_expired_heartbeat,
    open_client,
    remove_heartbeat,
)
from index_build import (
    Built,
    WritersInTheWayError,
    built_index,
    find_unaware,
)
from index_builder import builder_lives
from index_check import find_differences, find_uncompared
from index_finish import check, finish
from index_listing import drop_index
from index_outcome import (
    IndexFailure,
    IndexHiddenError,
    PlanOutdatedError,
    Tally,
    failure_of,
    refused,
    result_of,
)
from index_rules import BuildState, IndexPlan, Step, decide_step, find_rivals
from index_schedule import drop_wanted, schedule, try_to_schedule
from index_settings import WantedIndex, hudi_settings_of, hudi_type_of, index_options
from index_table import (
    IndexLook,
    find_build_state,
    look_at_indexes,
    remove_plan,
)
from job_contract import FailureKind, Mode
from planned_service import open_visit, seconds_since
from py4j.protocol import Py4JJavaError
from service_settings import ALWAYS

if TYPE_CHECKING:
    from index_settings import IndexOptions
    from job_contract import JobRequest, ServiceRequest, ServiceResult
    from planned_service import Visit
    from pyspark.sql import SparkSession

OLDEST_VERSION = 8
MOST_PLANS = 20
MOST_BUILDS = 2
"""How often one run builds an index whose check fails."""


def run_indexing(spark: SparkSession, job: JobRequest, request: ServiceRequest) -> ServiceResult:
    """Schedule and build indexes. Running it twice is harmless: an index that is complete is left alone.

    Raises ServiceRefusedError, IndexRequestError, NoTableError, or Py4JJavaError when scheduling fails.
    """
    options = index_options({**job.hudi_options, **request.options})
    visit = open_visit(
        spark,
        replace(job, hudi_options=hudi_settings_of(job.hudi_options)),
        replace(request, options=hudi_settings_of(request.options)),
    )
    if visit.first_look.table_version < OLDEST_VERSION:
        return refused(
            f"the table has version {visit.first_look.table_version}; index builds need {OLDEST_VERSION} or newer: "
            "upgrade it first (Spark SQL: call upgrade_table; all its writers and readers need Hudi 1.0 or newer then)"
        )
    if "files" in {wanted.partition for wanted in options.wanted} and not _writers_keep_files(visit):
        return refused(
            "a writer with hoodie.metadata.enable=false would leave the file listing behind, and readers miss its "
            "rows: set hoodie.metadata.enable=true in all writers, and then in hudi_options"
        )
    tally = Tally()
    # Where nothing is scheduled, nothing would take the place of what is dropped.
    if options.drop_first and request.mode is not Mode.EXECUTE:
        try:
            drop_wanted(visit, options)
        except IndexFailure as failure:
            visit.say(f"indexing FAILED ({failure.kind}): {failure.message}")
            tally.failures.append(failure)
            return result_of(tally)
    if request.mode is Mode.SCHEDULE:
        for wanted in options.wanted:
            try_to_schedule(visit, wanted, tally)
        return result_of(tally)
    _build_pending(visit, options, tally)
    if request.mode is Mode.SCHEDULE_AND_EXECUTE:
        for wanted in options.wanted:
            _schedule_and_build(visit, wanted, options, tally)
    return result_of(tally)


def _build_pending(visit: Visit, options: IndexOptions, tally: Tally) -> None:
    wanted = {index.partition: index for index in options.wanted}
    chosen = visit.request.instants
    for plan in look_at_indexes(visit).plans:
        if chosen and plan.instant not in chosen:
            continue
        if plan.partition in tally.built and look_at_indexes(visit).plan_of(plan.instant) is None:
            continue  # what a dead builder left was removed, and second plans with it
        _build(visit, plan.instant, wanted.get(plan.partition), options, tally)


def _schedule_and_build(visit: Visit, wanted: WantedIndex, options: IndexOptions, tally: Tally) -> None:
    indexes = look_at_indexes(visit)
    if any(plan.partition == wanted.partition for plan in indexes.plans):
        return  # it was tried just now
    if wanted.partition in indexes.complete and options.check == "full" and wanted.partition not in tally.built:
        _verify(visit, wanted, tally)
        return
    instant = try_to_schedule(visit, wanted, tally)
    if instant is not None:
        _build(visit, instant, wanted, options, tally)


def _verify(visit: Visit, wanted: WantedIndex, tally: Tally) -> None:
    """Compare an index that was there already with the data files. It is in use, so damage is reported only."""
    look = visit.look()
    reason = find_uncompared(visit.spark, look, wanted.partition)
    if reason:
        said = f"{wanted.partition} is complete; its contents were not checked: {reason}"
        visit.say(said)
        tally.said.append(said)
        return
    damage = "; ".join(find_differences(visit.spark, look, wanted.partition))
    visit.say(f"index {wanted.partition} is complete: full check {'FAILED' if damage else 'passed'}")
    if damage:
        message = f"{wanted.partition} is damaged: {damage}; build it anew with drop_first"
        tally.failures.append(IndexFailure(FailureKind.OTHER, message))
    else:
        tally.said.append(f"{wanted.partition} is complete, and nothing differs from the data files")


def _build(visit: Visit, instant: str, wanted: WantedIndex | None, options: IndexOptions, tally: Tally) -> None:
    started = time.monotonic()
    planned = look_at_indexes(visit).plan_of(instant)
    try:
        for number in range(1, MOST_BUILDS + 1):
            # What a writer did to the first build it must not do again: the second one keeps the lock.
            damage = _take_step(visit, instant, wanted, replace(options, is_repeated=number > 1), tally)
            if not damage:
                visit.say(f"indexing {instant}: done in {seconds_since(started)}")
                return
            visit.say(f"indexing {instant}, build {number}: the check failed: {damage}")
            # A plan that writers had overtaken was replaced.
            pending = (
                plan.instant for plan in look_at_indexes(visit).plans if planned and plan.partition == planned.partition
            )
            instant = next(pending, instant)
        name = planned.partition if planned is not None else "the index"
        raise IndexFailure(
            FailureKind.CONFLICT,
            f"{name}, plan {instant}, fails its check after {MOST_BUILDS} builds and is not there now: {damage}; the "
            "next run builds it again: make sure that each writer of the table takes this lock and keeps the metadata "
            "table (hoodie.metadata.enable=true)",
        )
    except IndexFailure as failure:
        visit.say(f"indexing {instant} FAILED ({failure.kind}): {failure.message}")
        tally.failures.append(failure)


def _take_step(visit: Visit, instant: str, wanted: WantedIndex | None, options: IndexOptions, tally: Tally) -> str:
    """Bring one plan to its end; return what the check found, empty when the index is whole."""
    indexes = look_at_indexes(visit)
    plan = indexes.plan_of(instant)
    if plan is None:
        raise IndexFailure(FailureKind.PLAN_GONE, f"plan {instant} is not pending any more")
    built = find_build_state(visit.spark, visit.job.base_path, instant)
    rivals = find_rivals(plan, indexes.plans)
    busy = next((rival for rival in rivals if builder_lives(visit, indexes.look, rival)), None)
    step = decide_step(plan, indexes.complete, indexes.inflight, built, builder_lives=busy is not None)
    visit.say(f"indexing {instant} of {plan.partition}, up to {plan.up_to}: {step}, its build is {built}")
    if busy is not None:
        age_s = find_heartbeat_age_s(visit.spark, visit.job.base_path, busy.instant)
        seen = "it wrote not long ago" if age_s is None else f"its last heartbeat was {age_s:.0f} s ago"
        raise IndexFailure(FailureKind.BUSY, f"another builder has plan {busy.instant} of {plan.partition}, {seen}")
    if step is Step.REDUNDANT:
        remove_plan(visit, instant, keep_request=False)
        tally.said.append(f"plan {instant} was removed: {plan.partition} is complete")
        return ""
    if step is Step.FINISH:
        return _take_over(visit, plan, options, tally)
    if step is Step.RUN_AGAIN:
        _clean_up(visit, plan, indexes)
    return _run_fresh(visit, plan, wanted, options, tally)


def _run_fresh(visit: Visit, plan: IndexPlan, wanted: WantedIndex | None, options: IndexOptions, tally: Tally) -> str:
    """Run a plan; one that writers have overtaken is replaced by a new one."""
    for _ in range(MOST_PLANS):
        try:
            return _run(visit, plan, wanted, options, tally)
        except PlanOutdatedError as error:
            visit.say(f"{error}; a new one takes its place")
            remove_plan(visit, plan.instant, keep_request=False)
            index = wanted or WantedIndex(plan.partition, hudi_type_of(plan.partition))
            instant = schedule(visit, index, tally)
            again = None if instant is None else look_at_indexes(visit).plan_of(instant)
            if again is None:
                raise IndexFailure(FailureKind.PLAN_GONE, f"somebody else builds {plan.partition}") from error
            plan, options = again, replace(options, is_replaced=True)
    raise IndexFailure(
        FailureKind.CONFLICT, f"{plan.partition}: writes completed between plan and build {MOST_PLANS} times"
    )


def _run(visit: Visit, plan: IndexPlan, wanted: WantedIndex | None, options: IndexOptions, tally: Tally) -> str:
    try:
        with built_index(visit, plan, wanted, options) as built:
            # Hudi itself completes a plan of the file listing.
            end = check if plan.partition == "files" else partial(finish, built=built)
            damage = end(visit, plan, options)
    except PlanBusyError as error:
        raise IndexFailure(FailureKind.BUSY, f"another builder has plan {plan.instant}") from error
    except WritersInTheWayError as error:
        raise IndexFailure(FailureKind.CONFLICT, f"{plan.partition}: {error}") from error
    except IndexHiddenError as error:
        damage = str(error)
    except IndexFailure:
        leave_expired_heartbeat(visit.spark, visit.job.base_path, plan.instant)
        raise
    except Py4JJavaError as error:
        leave_expired_heartbeat(visit.spark, visit.job.base_path, plan.instant)
        if not _is_completed(visit, plan.instant):
            raise failure_of(visit, plan, error) from error
        damage = check(visit, plan, options)
    if damage:
        _forget(visit, plan)
        return damage
    tally.complete(plan)
    return ""


def _take_over(visit: Visit, plan: IndexPlan, options: IndexOptions, tally: Tally) -> str:
    """Complete a plan whose builder ended after it had built the index, which was in use all the time."""
    with open_client(visit.spark, visit.job.base_path, visit.settings, ALWAYS) as client:
        with hold_lock(visit.spark, client):
            unaware = find_unaware(visit)
        damage = finish(visit, plan, options, Built(client, unaware))
    if damage:
        _forget(visit, plan)
        return damage
    remove_heartbeat(visit.spark, visit.job.base_path, plan.instant)
    visit.say(f"indexing {plan.instant}: what the dead builder left is whole, and completed")
    tally.complete(plan)
    return ""


def _forget(visit: Visit, plan: IndexPlan) -> None:
    """Drop an index that failed its check; its plan is pending again, or a new one takes its place."""
    drop_index(visit, plan.partition)
    if _is_completed(visit, plan.instant):
        raise IndexFailure(
            FailureKind.CONFLICT, f"{plan.partition} failed its check and was dropped; the next run builds it"
        )
    remove_plan(visit, plan.instant, keep_request=True)


def _clean_up(visit: Visit, plan: IndexPlan, indexes: IndexLook) -> None:
    """Remove what a dead builder left of an index that never was complete."""
    visit.say(f"indexing {plan.instant}: its builder is dead; removing the half-built {plan.partition}")
    built = find_build_state(visit.spark, visit.job.base_path, plan.instant)
    # Hudi drops requests along with an index, and clears what is not listed when it builds.
    if plan.partition in indexes.inflight or (plan.is_inflight and built is not BuildState.ABSENT):
        drop_index(visit, plan.partition)
    remove_plan(visit, plan.instant, keep_request=True)


def _is_completed(visit: Visit, instant: str) -> bool:
    indexing = visit.look().timeline.filterCompletedInstants().getInstants()
    return any(found.requestedTime() == instant and found.getAction() == "indexing" for found in indexing)


def _writers_keep_files(visit: Visit) -> bool:
    # Without a metadata table there is nothing to tell by how its writers are set.
    declared = {**visit.job.hudi_options, **visit.request.options}.get("hoodie.metadata.enable", "")
    return "files" in visit.first_look.metadata_partitions or declared.strip().lower() == "true"
