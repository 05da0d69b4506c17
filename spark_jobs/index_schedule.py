"""Writing index plans, and dropping an index first when that is asked for."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from hudi_table import hold_lock, open_client
from index_build import FENCE_EVERY_S
from index_builder import builder_lives
from index_fence import find_habit, look_at_writers
from index_listing import FOLDER, drop_index
from index_outcome import IndexFailure, caught_up_to, why_nothing_was_planned
from index_rules import Begin, decide_fence
from index_settings import build_settings, drop_mark
from index_table import look_at_indexes
from job_contract import FailureKind, Mode
from service_settings import ALWAYS
from whole_file import open_path

if TYPE_CHECKING:
    from index_outcome import Tally
    from index_settings import IndexOptions, WantedIndex
    from index_table import IndexLook
    from planned_service import Visit


def try_to_schedule(visit: Visit, wanted: WantedIndex, tally: Tally) -> str | None:
    """Write one plan; what goes wrong with one index is told with what became of the others."""
    try:
        return schedule(visit, wanted, tally)
    except IndexFailure as failure:
        visit.say(f"index {wanted.partition} FAILED ({failure.kind}): {failure.message}")
        tally.failures.append(failure)
        return None


def schedule(visit: Visit, wanted: WantedIndex, tally: Tally) -> str | None:
    """Write one plan, unless the index or a plan of it is there: Hudi would write a second one, which never runs."""
    indexes = look_at_indexes(visit)
    pending = [plan.instant for plan in indexes.plans if plan.partition == wanted.partition]
    if wanted.partition in indexes.complete or pending:
        said = f"plan {', '.join(pending)} is pending" if pending else "is complete"
        tally.said.append(f"{wanted.partition} {said}")
        visit.say(f"index {wanted.partition} {said}: nothing to schedule")
        return None
    if wanted.partition in indexes.inflight:
        visit.say(f"index {wanted.partition} is listed as being built, and no plan builds it: removing what is left")
        drop_index(visit, wanted.partition)
    settings = {**visit.settings, **build_settings(wanted.partition, wanted, visit.settings)}
    jvm = visit.spark._jvm
    types, partitions = jvm.java.util.ArrayList(), jvm.java.util.ArrayList()
    types.add(jvm.org.apache.hudi.metadata.MetadataPartitionType.valueOf(wanted.hudi_type))
    if wanted.partition.startswith(("secondary_index_", "expr_index_")):
        partitions.add(wanted.partition)
    with open_client(visit.spark, visit.job.base_path, settings, ALWAYS) as client:
        found = client.scheduleIndexing(types, partitions)
        instant = str(found.get()) if found.isPresent() else None
    if instant is None:
        raise IndexFailure(FailureKind.OTHER, why_nothing_was_planned(look_at_indexes(visit), wanted.partition))
    visit.say(f"index {wanted.partition}: scheduled {instant}")
    tally.scheduled.append(instant)
    return instant


def drop_wanted(visit: Visit, options: IndexOptions) -> None:
    """Drop the wanted indexes that are complete, once in a run, and only when new ones can take their place.

    Raises IndexFailure when a plan cannot be made, an index is being built, or writers would keep the build waiting:
    nothing is dropped then.
    """
    undone = [wanted.partition for wanted in options.wanted if not _is_marked(visit, wanted.partition)]
    complete = [partition for partition in undone if partition in look_at_indexes(visit).complete]
    if complete:
        _require_room(visit, complete)
        if visit.request.mode is not Mode.SCHEDULE:
            _wait_for_room(visit, options)
    for partition in undone:
        # Dropping one may have taken others along.
        if partition in complete and partition in look_at_indexes(visit).complete:
            visit.say(f"index {partition}: dropping it first, as asked")
            drop_index(visit, partition)
        _mark(visit, partition)


def _require_room(visit: Visit, partitions: list[str]) -> None:
    indexes = look_at_indexes(visit)
    if not caught_up_to(indexes):
        reason = why_nothing_was_planned(indexes, ", ".join(partitions))
        raise IndexFailure(FailureKind.CONFLICT, f"nothing is dropped: {reason}")
    busy = _find_busy(visit, indexes, partitions)
    if busy:
        raise IndexFailure(FailureKind.BUSY, f"nothing is dropped: {busy}")


def _find_busy(visit: Visit, indexes: IndexLook, partitions: list[str]) -> str:
    for plan in indexes.plans:
        if plan.partition in partitions and plan.is_inflight and builder_lives(visit, indexes.look, plan):
            return f"another builder has plan {plan.instant} of {plan.partition}"
    return ""


def _wait_for_room(visit: Visit, options: IndexOptions) -> None:
    """Wait as the build would, while the indexes are still there for readers."""
    deadline = time.monotonic() + options.wait_s
    with open_client(visit.spark, visit.job.base_path, visit.settings, ALWAYS) as client:
        while True:
            with hold_lock(visit.spark, client):
                look = visit.look()
                verdict = decide_fence(
                    look_at_writers(visit, look),
                    find_habit(visit.spark, look),
                    stays_current=True,
                    no_writer=options.no_writer,
                )
            if verdict.begin is not Begin.WAIT:
                return
            if time.monotonic() >= deadline:
                raise IndexFailure(
                    FailureKind.CONFLICT,
                    f"nothing is dropped: no quiet moment within {options.wait_s:.0f} s: {verdict.reason}",
                )
            time.sleep(FENCE_EVERY_S)


def _is_marked(visit: Visit, partition: str) -> bool:
    fs, path = open_path(visit.spark, _mark_path(visit, partition))
    return bool(fs.exists(path))


def _mark(visit: Visit, partition: str) -> None:
    """Note it, in place of what earlier runs noted of this index."""
    fs, path = open_path(visit.spark, _mark_path(visit, partition))
    fs.mkdirs(path.getParent())
    prefix = str(path.getName()).rpartition("-")[0]
    for status in fs.listStatus(path.getParent()):
        if str(status.getPath().getName()).rpartition("-")[0] == prefix:
            fs.delete(status.getPath())
    fs.create(path).close()


def _mark_path(visit: Visit, partition: str) -> str:
    return f"{visit.job.base_path}/{FOLDER}/{drop_mark(partition, visit.job.job_id)}"
