"""One index build: wait at the writer barrier, begin under the table's lock, let Hudi build, announce it to writers."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lake_jobs.hudi.metadata_writes import find_metadata_write_mode
from lake_jobs.hudi.settings import ALWAYS, wait_for_lock_without_end
from lake_jobs.hudi.table import be_sole_executor, hold_lock, open_client, requested_times
from lake_jobs.indexing.barrier import (
    WritersInTheWayError,
    find_unaware,
    find_unaware_instants,
    wait_for_end_of_one,
)
from lake_jobs.indexing.catch_up import Base, BuiltNextTo, caught_up, read_base
from lake_jobs.indexing.check import check
from lake_jobs.indexing.hudi_writer import (
    announce,
    find_build_method,
    list_as_complete,
    open_index_writer,
    read_file_listing,
    take_plan,
)
from lake_jobs.indexing.outcome import IndexDamagedError, PlanOutdatedError, caught_up_to
from lake_jobs.indexing.rules import (
    Begin,
    BuildState,
    IndexPlan,
    decide_writer_barrier,
    find_in_the_way,
)
from lake_jobs.indexing.settings import build_settings, reads_up_to_its_plan, upkeep_of
from lake_jobs.indexing.state import (
    complete_plan,
    find_begun_ms,
    find_build_state,
    load_index_state,
    protect_file_groups,
    unprotect_file_groups,
)
from lake_jobs.indexing.writers import find_writers_in_flight
from lake_jobs.services.context import open_waiting_client

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lake_jobs.hudi.table import LoadedTable
    from lake_jobs.indexing.hudi_writer import IndexWriter
    from lake_jobs.indexing.settings import IndexOptions, WantedIndex
    from lake_jobs.services.context import ServiceContext

POLL_INTERVAL_S = 0.05


@dataclass(frozen=True, slots=True)
class BuiltIndex:
    """An index that was built: the client that takes the table's lock, and writers that may not know of the index."""

    lock_client: Any
    unaware: frozenset[str]
    is_compared: bool = False
    """Whether it was compared with the data files before it was listed, where the request asks for that."""
    is_completed: bool = False
    """Whether its plan is completed, in the hold of the lock in which it was listed."""
    passed: set[str] = field(default_factory=set)
    """Writes that are known to be in the index (`find_missing_writes`)."""


@contextmanager
def built_index(
    context: ServiceContext, plan: IndexPlan, wanted: WantedIndex | None, options: IndexOptions
) -> Iterator[BuiltIndex]:
    """Build the index of a requested plan; within the context the index is complete, and the heartbeat goes on.

    The plan is inflight then, and the caller completes it, except that of `files`, which Hudi completes. Raises
    WritersInTheWayError, PlanOutdatedError, PlanBusyError, BuildLostError, IndexHiddenError, IndexDamagedError,
    IndexUnfitError, IndexFailure, or Py4JJavaError when Hudi fails.
    """
    own = build_settings(plan.partition, wanted, context.settings)
    settings = wait_for_lock_without_end({**context.settings, **own})
    spark = context.spark
    base_path = context.job.base_path
    with ExitStack() as stack:
        # This client outlives the build: closing it would delete a lock file that the builder holds.
        lock_client = stack.enter_context(open_waiting_client(context))
        builder = stack.enter_context(open_client(spark, base_path, settings, ALWAYS))
        method = find_build_method(context, builder)
        stack.enter_context(be_sole_executor(spark, lock_client, plan.instant))
        build = _Build(context, builder, method, plan)
        warm_up(context, builder, plan)
        end = _begin(context, lock_client, build, options)
        build.wait()
        base = build.base
        is_compared = end is None and base is None
        if end is None and base is not None:
            end = _list_caught_up(context, lock_client, build, base, options)
        elif end is None:
            end = _list_checked(context, lock_client, build, options)
        yield BuiltIndex(lock_client, end.unaware, is_compared, end.is_completed, build.passed)


def warm_up(context: ServiceContext, client: Any, plan: IndexPlan) -> None:
    """Do once without the table's lock what a build does with it, so that writers do not wait for a cold JVM.

    A JVM loads a class when it is first used, and each job is a JVM of its own. Nothing is written. Raises
    Py4JJavaError.
    """
    find_build_state(context.spark, context.job.base_path, plan.instant)
    find_unaware_instants(context)
    # Hudi measures an object of a new kind by a helper that attaches to the JVM, or tries to.
    context.spark._jvm.org.apache.hudi.common.util.ObjectSizeCalculator.getObjectSize(plan.instant)
    # Hudi makes a metadata table where there is none.
    if "files" in load_index_state(context).complete:
        read_file_listing(context, client, plan)


@dataclass(frozen=True, slots=True)
class _Listed:
    """What the hold of the lock left in which an index was listed."""

    unaware: frozenset[str] = frozenset()
    """Writers that may not know of the index."""
    is_completed: bool = False


def _list(
    context: ServiceContext, build: _Build, options: IndexOptions, *, was_alone: bool, is_compared: bool = True
) -> _Listed:
    """List an index that is built, and complete its plan unless something is left to wait for or to compare.

    `was_alone`: the lock was held during the build. The caller holds the table's lock.
    """
    list_as_complete(context, build.plan, build.definition, build.passed, was_alone=was_alone)
    writers = find_writers_in_flight(context, state := context.read_table_state())
    unaware = find_unaware(context, state, writers)
    if not is_compared or find_in_the_way(writers, unaware, no_writer=options.no_writer):
        return _Listed(unaware)
    unprotect_file_groups(context, build.plan)
    complete_plan(context, build.plan, caught_up_to(load_index_state(context)))
    context.log_progress(f"index {build.plan.partition} is listed, and its plan {build.plan.instant} completed")
    return _Listed(unaware, is_completed=True)


def _list_checked(context: ServiceContext, lock_client: Any, build: _Build, options: IndexOptions) -> _Listed:
    """List an index that writers updated. What has completed is checked while they go on, the rest under the lock."""
    is_there = find_build_state(context.spark, context.job.base_path, build.plan.instant) is BuildState.COMPLETED
    damage = check(context, build.plan, options, build.passed) if is_there else ""
    if damage:
        raise IndexDamagedError(damage)
    with hold_lock(context.spark, lock_client):
        return _list(context, build, options, was_alone=False)


def _list_caught_up(
    context: ServiceContext, lock_client: Any, build: _Build, base: Base, options: IndexOptions
) -> _Listed:
    """Write into an index what writers left out of it, and list it in the same hold of the lock."""
    built = BuiltNextTo(lock_client, build.client, build.plan, base, build.definition)
    with caught_up(context, built, options, build.passed):
        return _list(context, build, options, was_alone=False, is_compared=options.check != "full")


class _Build:
    """Hudi's build in a thread of its own, so that the lock can be released in the middle of it."""

    def __init__(self, context: ServiceContext, client: Any, method: Any, plan: IndexPlan) -> None:
        self.plan = plan
        self.is_announced = False
        self.base: Base | None = None
        """What had completed when the build began, if writers do not update the index while it is being built."""
        self.passed: set[str] = set()
        """Writes that are known to be in the index (`find_missing_writes`)."""
        self._visit = context
        self.client = client
        self._method = method
        self._stale_ms = find_begun_ms(context.spark, context.job.base_path, plan.instant)
        self._error: Exception | None = None
        self._writer: IndexWriter | None = None
        self._thread = threading.Thread(target=self._run, name=f"index-build-{plan.instant}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    @property
    def is_under_way(self) -> bool:
        """Whether its delta commit has begun, and is not completed: not one that a dead builder of this plan left."""
        spark = self._visit.spark
        base_path = self._visit.job.base_path
        instant = self.plan.instant
        begun_ms = find_begun_ms(spark, base_path, instant)
        is_ours = begun_ms is not None and begun_ms != self._stale_ms
        return is_ours and find_build_state(spark, base_path, instant) is BuildState.PENDING

    @property
    def definition(self) -> Any:
        """Hudi's definition of the index that is being built; None when it has none, or none yet."""
        return None if self._writer is None else self._writer.definition()

    def join(self) -> None:
        self._thread.join()

    def wait(self) -> None:
        self.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            if self.plan.partition == "files":
                self.client.index(self.plan.instant)
                return
            with open_index_writer(self._visit, self.client, self._method, self.plan) as self._writer:
                self._writer.build()
        except Exception as error:  # noqa: BLE001 - handed to the waiting thread as it is
            self._error = error


def _begin(context: ServiceContext, lock_client: Any, build: _Build, options: IndexOptions) -> _Listed | None:
    """Wait for a moment to begin in, and begin; return as soon as writers may go on.

    Returns None when the build goes on, else how it was listed.
    """
    deadline = time.monotonic() + options.wait_s
    awaited: frozenset[str] = frozenset()
    while True:
        with hold_lock(context.spark, lock_client):
            state = context.read_table_state()
            is_late = time.monotonic() >= deadline
            overtaken_by = _find_late_writes(state, build.plan)
            waits_for_older = not (options.is_replaced or is_late or overtaken_by)
            verdict = decide_writer_barrier(
                find_writers_in_flight(context, state),
                find_metadata_write_mode(context.spark, state),
                upkeep=upkeep_of(build.plan.partition),
                no_writer=options.no_writer,
                is_repeated=options.is_repeated,
                older_than=build.plan.instant if waits_for_older else "",
            )
            if verdict.begin is not Begin.WAIT:
                if overtaken_by:
                    raise PlanOutdatedError(
                        f"the plan {build.plan.instant} is older than the completed writes {', '.join(overtaken_by)}"
                    )
                started = time.monotonic()
                context.log_progress(f"indexing {build.plan.instant}: begins {verdict.begin}: {verdict.reason}")
                if verdict.begin is Begin.CATCH_UP:
                    build.base = read_base(state)
                end = _start(context, build, verdict.begin, options)
                context.log_progress(f"the table's lock was held for {time.monotonic() - started:.1f} s")
                return end
        # Once, and not as often as a writer gets older.
        if verdict.awaited != awaited:
            context.log_progress(f"indexing {build.plan.instant} waits: {verdict.reason}")
            awaited = verdict.awaited
        if is_late:
            raise WritersInTheWayError(f"no quiet moment within {options.wait_s:.0f} s: {verdict.reason}")
        wait_for_end_of_one(context, verdict.awaited)


def _start(context: ServiceContext, build: _Build, begin: Begin, options: IndexOptions) -> _Listed | None:
    if build.plan.partition == "files":
        # Hudi ends the build under a lock that it takes itself.
        build.start()
        _wait_for_files(context, build)
        return _Listed()
    take_plan(context, build.plan)
    build.start()
    if begin is Begin.CATCH_UP:
        _wait_for_file_groups(build)
        return None
    try:
        if begin is Begin.CONCURRENTLY and _announce_when_file_groups_exist(context, build):
            return None
    finally:
        if not build.is_announced:
            # Even after an error: the index lacks what commits during a build that writers do not know of.
            build.join()
    build.wait()
    return _list(context, build, options, was_alone=True, is_compared=options.check != "full")


def _find_late_writes(state: LoadedTable, plan: IndexPlan) -> list[str]:
    """Return the completed writes that a plan leaves out."""
    if not reads_up_to_its_plan(plan.partition):
        return []
    completed = requested_times(state.timeline.getCommitsTimeline().filterCompletedInstants())
    return [time for time in completed if time > plan.instant]


def _wait_for_file_groups(build: _Build) -> None:
    """Wait until an index has its place in the metadata table, or its build has failed."""
    while not build.ended and not build.is_under_way:
        time.sleep(POLL_INTERVAL_S)


def _announce_when_file_groups_exist(context: ServiceContext, build: _Build) -> bool:
    """Announce an index as soon as its file groups are there: Hudi makes them before its delta commit.

    Returns whether writers know of it; not when the build is done by then, or failed.
    """
    while not build.ended:
        if build.is_under_way:
            protect_file_groups(context, build.plan)
            announce(context, build.plan, build.definition)
            build.is_announced = True
            return True
        time.sleep(POLL_INTERVAL_S)
    return False


def _wait_for_files(context: ServiceContext, build: _Build) -> None:
    while not build.ended:
        if build.plan.partition in load_index_state(context).complete:
            return
        time.sleep(POLL_INTERVAL_S)
