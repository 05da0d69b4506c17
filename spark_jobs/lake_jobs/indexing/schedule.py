"""Writes index plans, and drops an index first where the request says so."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_lake_provider.job_contract import (
    EXPRESSION_INDEX_PREFIX,
    INDEX_CLASH,
    SECONDARY_INDEX_PREFIX,
    FailureKind,
    Outcome,
    have_index_clash,
)
from lake_jobs.hudi.files import open_path
from lake_jobs.hudi.metadata_writes import find_metadata_write_mode
from lake_jobs.hudi.settings import ALWAYS
from lake_jobs.hudi.table import hold_lock, open_client
from lake_jobs.indexing.barrier import BARRIER_INTERVAL_S
from lake_jobs.indexing.listing import FOLDER, drop_index, remove_index
from lake_jobs.indexing.outcome import IndexFailure, caught_up_to, explain_no_plan, result_of
from lake_jobs.indexing.rules import Begin, Upkeep, decide_writer_barrier, find_resting
from lake_jobs.indexing.settings import build_settings, drop_mark
from lake_jobs.indexing.state import load_index_state, remove_plan_files
from lake_jobs.indexing.writers import find_writers_in_flight, is_build_running

if TYPE_CHECKING:
    from airflow_lake_provider.job_contract import ServiceResult
    from lake_jobs.indexing.outcome import IndexRunResult
    from lake_jobs.indexing.settings import IndexOptions, WantedIndex
    from lake_jobs.indexing.state import IndexState
    from lake_jobs.services.context import ServiceContext


def schedule_or_record_failure(context: ServiceContext, wanted: WantedIndex, run: IndexRunResult) -> str | None:
    """Write one plan; a failure becomes a part of the run's result, and the other indexes go on."""
    try:
        return schedule(context, wanted, run)
    except IndexFailure as failure:
        context.log_progress(f"index {wanted.partition} FAILED ({failure.kind}): {failure.message}")
        run.failures.append(failure)
        return None


def schedule(context: ServiceContext, wanted: WantedIndex, run: IndexRunResult) -> str | None:
    """Write one plan, unless the index or a plan of it is there: Hudi would write a second one, which never runs."""
    indexes = load_index_state(context)
    pending = [plan.instant for plan in indexes.plans if wanted.partition in plan.partitions]
    if wanted.partition in indexes.complete or pending:
        reason = f"plan {', '.join(pending)} is pending" if pending else "is complete"
        run.notes.append(f"{wanted.partition} {reason}")
        context.log_progress(f"index {wanted.partition} {reason}: nothing to schedule")
        return None
    if wanted.partition in indexes.inflight:
        context.log_progress(
            f"index {wanted.partition} is listed as being built, and no plan builds it: removing its remains"
        )
        drop_index(context, wanted.partition)
    planned = {name for plan in indexes.plans for name in plan.partitions}
    if have_index_clash(indexes.complete | planned | {wanted.partition}):
        raise IndexFailure(FailureKind.REFUSED, f"{wanted.partition} is not built: {INDEX_CLASH}")
    settings = {**context.settings, **build_settings(wanted.partition, wanted, context.settings)}
    jvm = context.spark._jvm
    types = jvm.java.util.ArrayList()
    partitions = jvm.java.util.ArrayList()
    types.add(jvm.org.apache.hudi.metadata.MetadataPartitionType.valueOf(wanted.hudi_type))
    if wanted.partition.startswith((SECONDARY_INDEX_PREFIX, EXPRESSION_INDEX_PREFIX)):
        partitions.add(wanted.partition)
    with open_client(context.spark, context.job.base_path, settings, ALWAYS) as client:
        found = client.scheduleIndexing(types, partitions)
        instant = str(found.get()) if found.isPresent() else None
    if instant is None:
        raise IndexFailure(FailureKind.OTHER, explain_no_plan(load_index_state(context), wanted.partition))
    context.log_progress(f"index {wanted.partition}: scheduled {instant}")
    run.scheduled.append(instant)
    return instant


def drop_wanted(context: ServiceContext, options: IndexOptions) -> None:
    """Drop the wanted indexes that are complete, once in a run, and only when new ones can take their place.

    Raises IndexFailure when a plan cannot be made, an index is being built, or writers would keep the build waiting:
    nothing is dropped then.
    """
    undone = [wanted.partition for wanted in options.wanted if not _is_marked(context, wanted.partition)]
    complete = [partition for partition in undone if partition in load_index_state(context).complete]
    if complete:
        _require_rebuildable(context, complete)
        _drop_in_quiet_moment(context, complete, options)
    for partition in undone:
        _mark(context, partition)


def drop_for_good(context: ServiceContext, options: IndexOptions, run: IndexRunResult) -> ServiceResult:
    """Drop the wanted indexes, complete, half built or planned, and build nothing; return the result of the service.

    It drops no index that another, remaining index needs, none that a builder works on, and nothing while writers that
    decided at their start to update an index would write into it.
    """
    indexes = load_index_state(context)
    there = indexes.complete | indexes.inflight | {name for plan in indexes.plans for name in plan.partitions}
    named = [wanted.partition for wanted in options.wanted]
    dropped = [partition for partition in named if partition in there]
    run.notes += [f"the table does not have {partition}" for partition in named if partition not in there]
    try:
        for partition in dropped:
            resting = sorted(find_resting(partition, there) - set(named))
            if resting:
                raise IndexFailure(
                    FailureKind.REFUSED,
                    f"nothing is dropped: {', '.join(resting)} rests on {partition}; name it in indexes as well",
                )
        shared = [plan for plan in indexes.plans if plan.others and not set(plan.partitions).isdisjoint(dropped)]
        if shared:
            raise IndexFailure(
                FailureKind.REFUSED,
                f"nothing is dropped: plan {shared[0].instant} is of {', '.join(shared[0].partitions)} together; build "
                "it first (mode execute), and then drop",
            )
        busy = _find_busy(context, indexes, dropped)
        if busy:
            raise IndexFailure(FailureKind.BUSY, f"nothing is dropped: {busy}")
        if dropped:
            # Last comes what others rest on.
            _drop_in_quiet_moment(context, dropped[::-1], options, is_for_good=True)
    except IndexFailure as failure:
        context.log_progress(f"indexing FAILED ({failure.kind}): {failure.message}")
        run.failures.append(failure)
        return result_of(run)
    run.notes += [f"{partition} was dropped" for partition in dropped]
    return replace(result_of(run), outcome=Outcome.COMPLETED if dropped else Outcome.NOTHING_TO_DO)


def _require_rebuildable(context: ServiceContext, partitions: list[str]) -> None:
    indexes = load_index_state(context)
    if not caught_up_to(indexes):
        reason = explain_no_plan(indexes, ", ".join(partitions))
        raise IndexFailure(FailureKind.CONFLICT, f"nothing is dropped: {reason}")
    busy = _find_busy(context, indexes, partitions)
    if busy:
        raise IndexFailure(FailureKind.BUSY, f"nothing is dropped: {busy}")


def _find_busy(context: ServiceContext, indexes: IndexState, partitions: list[str]) -> str:
    for plan in indexes.plans:
        for part in plan.parts():
            if part.partition in partitions and part.is_inflight and is_build_running(context, indexes.table, part):
                return f"another builder has plan {part.instant} of {part.partition}"
    return ""


def _drop_in_quiet_moment(
    context: ServiceContext, partitions: list[str], options: IndexOptions, *, is_for_good: bool = False
) -> None:
    """Wait as the build would, while the indexes are still there for readers, and drop them.

    The lock under which no writer stands in the way is held until they are dropped: a streaming writer decides at its
    start which indexes it updates, and would write into a folder that is deleted meanwhile.
    """
    deadline = time.monotonic() + options.wait_s
    with open_client(context.spark, context.job.base_path, context.settings, ALWAYS) as client:
        while True:
            with hold_lock(context.spark, client):
                state = context.read_table_state()
                verdict = decide_writer_barrier(
                    find_writers_in_flight(context, state),
                    find_metadata_write_mode(context.spark, state),
                    upkeep=Upkeep.BY_WRITERS,
                    no_writer=options.no_writer,
                )
                if verdict.begin is not Begin.WAIT:
                    (_drop_with_plans if is_for_good else _drop)(context, partitions)
                    return
            if time.monotonic() >= deadline:
                raise IndexFailure(
                    FailureKind.CONFLICT,
                    f"nothing is dropped: no quiet moment within {options.wait_s:.0f} s: {verdict.reason}",
                )
            time.sleep(BARRIER_INTERVAL_S)


def _drop(context: ServiceContext, partitions: list[str]) -> None:
    for partition in partitions:
        # Dropping one may have taken others along.
        if partition in load_index_state(context).complete:
            context.log_progress(f"index {partition}: dropping it first, as requested")
            remove_index(context, partition)


def _drop_with_plans(context: ServiceContext, partitions: list[str]) -> None:
    for partition in partitions:
        context.log_progress(f"index {partition}: dropping it for good, as requested")
        remove_index(context, partition)
        indexes = load_index_state(context)
        for plan in indexes.plans:
            if plan.partitions == (partition,):
                remove_plan_files(indexes.table, plan.instant)


def _is_marked(context: ServiceContext, partition: str) -> bool:
    fs, path = open_path(context.spark, _mark_path(context, partition))
    return bool(fs.exists(path))


def _mark(context: ServiceContext, partition: str) -> None:
    """Record the drop, in place of what earlier runs recorded of this index."""
    fs, path = open_path(context.spark, _mark_path(context, partition))
    fs.mkdirs(path.getParent())
    prefix = str(path.getName()).rpartition("-")[0]
    for status in fs.listStatus(path.getParent()):
        if str(status.getPath().getName()).rpartition("-")[0] == prefix:
            fs.delete(status.getPath())
    fs.create(path).close()


def _mark_path(context: ServiceContext, partition: str) -> str:
    return f"{context.job.base_path}/{FOLDER}/{drop_mark(partition, context.job.job_id)}"
