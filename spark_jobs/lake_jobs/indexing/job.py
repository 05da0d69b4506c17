"""Asynchronous indexing (RFC-45): schedule, build while writers commit, finish or clean up after a dead builder."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError

from airflow_lake_provider.errors import ServiceRefusedError
from airflow_lake_provider.job_contract import SECONDARY_INDEX_PREFIX, FailureKind, Mode
from airflow_lake_provider.shared.actions import Action
from airflow_lake_provider.shared.hudi_settings import METADATA_ENABLE
from lake_jobs.hudi.settings import ALWAYS
from lake_jobs.hudi.table import (
    PlanBusyError,
    find_heartbeat_age_s,
    hold_lock,
    leave_expired_heartbeat,
    open_client,
    remove_heartbeat,
)
from lake_jobs.indexing.barrier import WritersInTheWayError, find_unaware_instants
from lake_jobs.indexing.build import BuiltIndex, built_index
from lake_jobs.indexing.check import MAX_EXAMPLES, check, find_differences, find_uncompared
from lake_jobs.indexing.finish import finish
from lake_jobs.indexing.listing import Listing, drop_index, list_index
from lake_jobs.indexing.outcome import (
    BuildLostError,
    IndexDamagedError,
    IndexFailure,
    IndexHiddenError,
    IndexRunResult,
    IndexUnfitError,
    PlanOutdatedError,
    failure_of,
    refused,
    result_of,
)
from lake_jobs.indexing.rules import BuildState, IndexPlan, Step, decide_step, find_rivals
from lake_jobs.indexing.samples import find_searched_column, sample_searches
from lake_jobs.indexing.schedule import drop_for_good, drop_wanted, schedule, schedule_or_record_failure
from lake_jobs.indexing.settings import WantedIndex, hudi_settings_of, hudi_type_of, index_options
from lake_jobs.indexing.state import (
    IndexState,
    find_build_state,
    load_index_state,
    remove_plan,
    split_plan,
)
from lake_jobs.indexing.writers import find_hudi_problem, is_build_running
from lake_jobs.services.context import open_context, seconds_since

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_lake_provider.job_contract import JobRequest, ServiceRequest, ServiceResult
    from lake_jobs.indexing.settings import IndexOptions
    from lake_jobs.services.context import ServiceContext

OLDEST_VERSION = 8
MAX_PLANS = 20
SAMPLE = "sample"
"""The check that searches for rows by an index which is in use."""
MAX_BUILDS = 2
"""How often one run builds an index whose check fails."""


def run_indexing(spark: SparkSession, job: JobRequest, request: ServiceRequest) -> ServiceResult:
    """Schedule and build indexes. Running it twice is harmless: an index that is complete is left alone.

    Raises ServiceRefusedError, IndexRequestError, NoTableError, or Py4JJavaError when scheduling fails.
    """
    options = index_options({**job.hudi_options, **request.options})
    context = open_context(
        spark,
        replace(job, hudi_options=hudi_settings_of(job.hudi_options)),
        replace(request, options=hudi_settings_of(request.options)),
    )
    problem = find_hudi_problem(spark, context.first_state)
    if problem:
        raise ServiceRefusedError(f"table {job.table_name} at {job.base_path}: {problem}")
    if context.first_state.table_version < OLDEST_VERSION:
        return refused(
            f"the table has version {context.first_state.table_version}; index builds need {OLDEST_VERSION} or newer: "
            "upgrade it first (Spark SQL: call upgrade_table; all its writers and readers need Hudi 1.0 or newer then)"
        )
    if "files" in {wanted.partition for wanted in options.wanted} and not _writers_keep_files(context):
        return refused(
            "a writer with hoodie.metadata.enable=false would leave the file listing behind, and readers miss its "
            "rows: set hoodie.metadata.enable=true in all writers, and then in hudi_options"
        )
    run = IndexRunResult()
    ended = _drop_as_requested(context, options, run)
    if ended is not None:
        return ended
    if request.mode is Mode.SCHEDULE:
        for wanted in options.wanted:
            schedule_or_record_failure(context, wanted, run)
        return result_of(run)
    _build_pending(context, options, run)
    if request.mode is Mode.SCHEDULE_AND_EXECUTE:
        for wanted in options.wanted:
            _schedule_and_build(context, wanted, options, run)
    return result_of(run)


def _drop_as_requested(context: ServiceContext, options: IndexOptions, run: IndexRunResult) -> ServiceResult | None:
    """Return the result of a run that ends with it; None when the run goes on to build."""
    if options.drop:
        return drop_for_good(context, options, run)
    # Where nothing is scheduled, nothing would replace what is dropped.
    if not options.drop_first or context.request.mode is Mode.EXECUTE:
        return None
    try:
        drop_wanted(context, options)
    except IndexFailure as failure:
        context.log_progress(f"indexing FAILED ({failure.kind}): {failure.message}")
        run.failures.append(failure)
        return result_of(run)
    return None


def _build_pending(context: ServiceContext, options: IndexOptions, run: IndexRunResult) -> None:
    wanted = {index.partition: index for index in options.wanted}
    chosen = _split_plans(context, options, run)
    for plan in load_index_state(context).plans:
        if plan.others or (chosen and plan.instant not in chosen):
            continue
        if plan.partition in run.built and load_index_state(context).plan_of(plan.instant) is None:
            continue  # what a dead builder left was removed, and second plans with it
        _build(context, plan.instant, wanted.get(plan.partition), options, run)


def _split_plans(context: ServiceContext, options: IndexOptions, run: IndexRunResult) -> tuple[str, ...]:
    """Split the chosen plans of several indexes into one for each; return the chosen plans as they are then.

    Hudi completes such a plan when all of its indexes are built. Here each index is begun, checked and completed alone,
    so that one that fails keeps no other back, and none is called complete that is not built.
    """
    chosen = context.request.instants
    for plan in load_index_state(context).plans:
        if not plan.others or (chosen and plan.instant not in chosen):
            continue
        try:
            written = _split(context, plan, options)
        except IndexFailure as failure:
            context.log_progress(f"indexing {plan.instant} FAILED ({failure.kind}): {failure.message}")
            run.failures.append(failure)
            continue
        became = f"became {', '.join(written)}" if written else "was removed"
        note = f"plan {plan.instant} of {', '.join(plan.partitions)} {became}"
        context.log_progress(note)
        run.notes.append(note)
        chosen = chosen and (*chosen, *written)
    return chosen


def _split(context: ServiceContext, plan: IndexPlan, options: IndexOptions) -> tuple[str, ...]:
    indexes = load_index_state(context)
    if plan.is_inflight:
        for part in plan.parts():
            if is_build_running(context, indexes.table, part):
                raise IndexFailure(FailureKind.BUSY, f"another builder has plan {plan.instant} of {part.partition}")
        # What a dead builder completed is in use, and may lack what its builder had still to catch up with. The check
        # needs the inflight file.
        for part in plan.parts():
            if part.partition in indexes.complete and check(context, part, replace(options, check="cheap")):
                drop_index(context, part.partition)
        for part in plan.parts():
            if part.partition not in indexes.complete:
                _clean_up(context, part, indexes)
        remove_plan(context, plan.instant, keep_request=True)
    with (
        open_client(context.spark, context.job.base_path, context.settings, ALWAYS) as client,
        hold_lock(context.spark, client),
    ):
        indexes = load_index_state(context)
        found = indexes.plan_of(plan.instant)
        if found is None or found.is_inflight:
            raise IndexFailure(FailureKind.BUSY, f"another job has plan {plan.instant}")
        planned = {other.partition for other in indexes.plans if not other.others}
        return split_plan(context, found, set(found.partitions) - indexes.complete - planned)


def _schedule_and_build(
    context: ServiceContext, wanted: WantedIndex, options: IndexOptions, run: IndexRunResult
) -> None:
    indexes = load_index_state(context)
    if any(plan.partition == wanted.partition for plan in indexes.plans):
        return  # it was tried just now
    if wanted.partition in indexes.complete and wanted.partition not in run.built:
        if options.check == "full":
            _verify(context, wanted, run)
            return
        if options.check == SAMPLE:
            _verify_by_samples(context, wanted, options, run)
            return
    instant = schedule_or_record_failure(context, wanted, run)
    if instant is not None:
        _build(context, instant, wanted, options, run)


def _verify(context: ServiceContext, wanted: WantedIndex, run: IndexRunResult) -> None:
    """Compare an index that was there already with the data files. It is in use, so damage is reported only."""
    state = context.read_table_state()
    reason = find_uncompared(context.spark, state, wanted.partition)
    if reason:
        note = f"{wanted.partition} is complete; its contents were not checked: {reason}"
        context.log_progress(note)
        run.notes.append(note)
        return
    damage = "; ".join(find_differences(context.spark, state, wanted.partition))
    context.log_progress(f"index {wanted.partition} is complete: full check {'FAILED' if damage else 'passed'}")
    if damage:
        message = f"{wanted.partition} is damaged: {damage}; rebuild it with drop_first"
        run.failures.append(IndexFailure(FailureKind.OTHER, message))
    else:
        run.notes.append(f"{wanted.partition} is complete, and nothing differs from the data files")


def _verify_by_samples(
    context: ServiceContext, wanted: WantedIndex, options: IndexOptions, run: IndexRunResult
) -> None:
    """Search for rows by an index that is in use. One that misses rows is unlisted at once, and rebuilt."""
    partition = wanted.partition
    column = find_searched_column(wanted.partition)
    if column is None:
        run.notes.append(f"{partition} is complete; searches by this kind of index are not sampled")
        return
    samples = sample_searches(context.spark, context.read_table_state(), column, context.job.job_id)
    doubled = ", ".join(samples.doubled[:MAX_EXAMPLES])
    if not samples.missed:
        note = f"{partition}: sampled searches found the {samples.rows} rows that a scan finds"
        if samples.doubled:
            note = (
                f"{partition}: {len(samples.doubled)} sampled keys stand in the table several times ({doubled}), and "
                "an index finds one row of each: remove the duplicates, which an insert or bulk_insert of existing "
                "keys made"
            )
            run.failures.append(IndexFailure(FailureKind.REFUSED, note))
        context.log_progress(note)
        run.notes.append(note)
        return
    examples = ", ".join(samples.missed[:MAX_EXAMPLES])
    damage = f"{partition} misses {len(samples.missed)} of {samples.rows} sampled rows (keys {examples})"
    if samples.is_listing_damaged:
        message = (
            f"the metadata table's file listing lacks files of {len(samples.missed)} of {samples.rows} sampled rows "
            f"(keys {examples}): a writer with hoodie.metadata.enable=false wrote past it; rebuild files, and then the "
            "indexes, with drop_first"
        )
        run.failures.append(IndexFailure(FailureKind.REFUSED, message))
        return
    context.log_progress(f"{damage}: readers may not use it any more; rebuilding it")
    unlisted = _unlist(context, partition)
    instant = schedule_or_record_failure(context, wanted, run)
    if instant is not None:
        _build(context, instant, wanted, replace(options, check="cheap"), run)
    is_built = partition in run.built
    others = f" with {', '.join(unlisted)}, which rests on it" if unlisted else ""
    end = "it was rebuilt in the same run" if is_built else "the next run rebuilds it"
    # People have to know, and a retry would only report that all is well: no kind of failure that is retried.
    run.failures.append(
        IndexFailure(
            FailureKind.REFUSED, f"{damage}; it was unlisted{others}, and {end}: queries meanwhile lacked rows"
        )
    )


def _unlist(context: ServiceContext, partition: str) -> tuple[str, ...]:
    """Take a damaged index out of the table's properties, under the lock; return what had to go with it.

    Its files stay: a writer that streams and knew of it goes on writing them, and the next build removes them.
    """
    with (
        open_client(context.spark, context.job.base_path, context.settings, ALWAYS) as client,
        hold_lock(context.spark, client),
    ):
        complete = load_index_state(context).complete
        # A search by a secondary index ends in the record index.
        rests = partition == "record_index"
        others = tuple(sorted(name for name in complete if rests and name.startswith(SECONDARY_INDEX_PREFIX)))
        for name in (*others, partition):
            list_index(context, name, Listing.ABSENT)
    return others


def _build(
    context: ServiceContext, instant: str, wanted: WantedIndex | None, options: IndexOptions, run: IndexRunResult
) -> None:
    started = time.monotonic()
    planned = load_index_state(context).plan_of(instant)
    try:
        for number in range(1, MAX_BUILDS + 1):
            # What a writer did to the first build it must not do again: the second one keeps the lock.
            damage = _take_step(context, instant, wanted, replace(options, is_repeated=number > 1), run)
            if not damage:
                context.log_progress(f"indexing {instant}: done in {seconds_since(started)}")
                return
            context.log_progress(f"indexing {instant}, build {number}: the check failed: {damage}")
            # A plan that writers had overtaken was replaced.
            pending = (
                plan.instant
                for plan in load_index_state(context).plans
                if planned and plan.partition == planned.partition
            )
            instant = next(pending, instant)
        name = planned.partition if planned is not None else "the index"
        raise IndexFailure(
            FailureKind.CONFLICT,
            f"{name}, plan {instant}, fails its check after {MAX_BUILDS} builds and is not there now: {damage}; the "
            "next run builds it again: make sure that each writer of the table takes this lock and keeps the metadata "
            "table (hoodie.metadata.enable=true)",
        )
    except IndexFailure as failure:
        context.log_progress(f"indexing {instant} FAILED ({failure.kind}): {failure.message}")
        run.failures.append(failure)


def _take_step(
    context: ServiceContext, instant: str, wanted: WantedIndex | None, options: IndexOptions, run: IndexRunResult
) -> str:
    """Bring one plan to its end; return what the check found, empty when the index is whole."""
    indexes = load_index_state(context)
    plan = indexes.plan_of(instant)
    if plan is None:
        raise IndexFailure(FailureKind.PLAN_GONE, f"plan {instant} is not pending any more")
    built = find_build_state(context.spark, context.job.base_path, instant)
    rivals = find_rivals(plan, indexes.plans)
    busy = next((rival for rival in rivals if is_build_running(context, indexes.table, rival)), None)
    step = decide_step(plan, indexes.complete, indexes.inflight, built, is_build_running=busy is not None)
    context.log_progress(f"indexing {instant} of {plan.partition}, up to {plan.up_to}: {step}, its build is {built}")
    if busy is not None:
        age_s = find_heartbeat_age_s(context.spark, context.job.base_path, busy.instant)
        detail = "it wrote not long ago" if age_s is None else f"its last heartbeat was {age_s:.0f} s ago"
        raise IndexFailure(FailureKind.BUSY, f"another builder has plan {busy.instant} of {plan.partition}, {detail}")
    if step is Step.REDUNDANT:
        remove_plan(context, instant, keep_request=False)
        run.notes.append(f"plan {instant} was removed: {plan.partition} is complete")
        return ""
    if step is Step.FINISH:
        return _finish_for_dead_builder(context, plan, options, run)
    if step is Step.RUN_AGAIN:
        _clean_up(context, plan, indexes)
    return _run_fresh(context, plan, wanted, options, run)


def _run_fresh(
    context: ServiceContext, plan: IndexPlan, wanted: WantedIndex | None, options: IndexOptions, run: IndexRunResult
) -> str:
    """Run a plan; one that writers have overtaken is replaced by a new one."""
    for _ in range(MAX_PLANS):
        try:
            return _run(context, plan, wanted, options, run)
        except PlanOutdatedError as error:
            context.log_progress(f"{error}; a new one replaces it")
            remove_plan(context, plan.instant, keep_request=False)
            index = wanted or WantedIndex(plan.partition, hudi_type_of(plan.partition))
            instant = schedule(context, index, run)
            again = None if instant is None else load_index_state(context).plan_of(instant)
            if again is None:
                raise IndexFailure(FailureKind.PLAN_GONE, f"another job builds {plan.partition}") from error
            plan, options = again, replace(options, is_replaced=True)
    raise IndexFailure(
        FailureKind.CONFLICT, f"{plan.partition}: writes completed between plan and build {MAX_PLANS} times"
    )


def _run(
    context: ServiceContext, plan: IndexPlan, wanted: WantedIndex | None, options: IndexOptions, run: IndexRunResult
) -> str:
    try:
        with built_index(context, plan, wanted, options) as built:
            # Hudi itself completes a plan of the file listing.
            end = check if plan.partition == "files" else partial(finish, built=built)
            damage = end(context, plan, options)
    except PlanBusyError as error:
        raise IndexFailure(FailureKind.BUSY, f"another builder has plan {plan.instant}") from error
    except WritersInTheWayError as error:
        raise IndexFailure(FailureKind.CONFLICT, f"{plan.partition}: {error}") from error
    except (BuildLostError, IndexDamagedError, IndexHiddenError) as error:
        damage = str(error)
    except IndexUnfitError as error:
        _drop_failed_index(context, plan)
        remove_plan(context, plan.instant, keep_request=False)
        raise IndexFailure(FailureKind.REFUSED, str(error)) from error
    except IndexFailure:
        leave_expired_heartbeat(context.spark, context.job.base_path, plan.instant)
        raise
    except Py4JJavaError as error:
        leave_expired_heartbeat(context.spark, context.job.base_path, plan.instant)
        if not _is_completed(context, plan.instant):
            raise failure_of(context, plan, error) from error
        damage = check(context, plan, options)
    if damage:
        _drop_failed_index(context, plan)
        return damage
    run.complete(plan)
    return ""


def _finish_for_dead_builder(
    context: ServiceContext, plan: IndexPlan, options: IndexOptions, run: IndexRunResult
) -> str:
    """Complete a plan whose builder ended after it had built the index, which was in use all the time."""
    with open_client(context.spark, context.job.base_path, context.settings, ALWAYS) as client:
        with hold_lock(context.spark, client):
            unaware = find_unaware_instants(context)
        damage = finish(context, plan, options, BuiltIndex(client, unaware))
    if damage:
        _drop_failed_index(context, plan)
        return damage
    remove_heartbeat(context.spark, context.job.base_path, plan.instant)
    context.log_progress(f"indexing {plan.instant}: what the dead builder left is whole, and completed")
    run.complete(plan)
    return ""


def _drop_failed_index(context: ServiceContext, plan: IndexPlan) -> None:
    """Drop an index that failed its check; its plan is pending again, or a new one replaces it."""
    drop_index(context, plan.partition)
    if _is_completed(context, plan.instant):
        raise IndexFailure(
            FailureKind.CONFLICT, f"{plan.partition} failed its check and was dropped; the next run builds it"
        )
    remove_plan(context, plan.instant, keep_request=True)


def _clean_up(context: ServiceContext, plan: IndexPlan, indexes: IndexState) -> None:
    """Remove what a dead builder left of an index that never was complete."""
    context.log_progress(f"indexing {plan.instant}: its builder is dead; removing the half-built {plan.partition}")
    built = find_build_state(context.spark, context.job.base_path, plan.instant)
    # Hudi drops requests along with an index, and clears what is not listed when it builds.
    if plan.partition in indexes.inflight or (plan.is_inflight and built is not BuildState.ABSENT):
        drop_index(context, plan.partition)
    remove_plan(context, plan.instant, keep_request=True)


def _is_completed(context: ServiceContext, instant: str) -> bool:
    indexing = context.read_table_state().timeline.filterCompletedInstants().getInstants()
    return any(found.requestedTime() == instant and found.getAction() == Action.INDEXING for found in indexing)


def _writers_keep_files(context: ServiceContext) -> bool:
    # Without a metadata table nothing shows the settings of its writers.
    declared = {**context.job.hudi_options, **context.request.options}.get(METADATA_ENABLE, "")
    return "files" in context.first_state.metadata_partitions or declared.strip().lower() == "true"
