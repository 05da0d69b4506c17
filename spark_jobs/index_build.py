"""One index build: wait at the fence, begin under the table's lock, let Hudi build, announce it to writers."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from failure_kind import causes_of, describe
from hudi_table import be_sole_executor, hold_lock, open_client, requested_times
from index_fence import find_habit, look_at_writers
from index_outcome import PlanOutdatedError
from index_place import keep_place
from index_rules import Begin, BuildState, IndexPlan, decide_fence, find_blind
from index_settings import build_settings, reads_up_to_its_plan, stays_current
from index_table import find_begun_ms, find_build_state, look_at_indexes
from index_writer import announce, find_build_method, open_index_writer, settle, take_plan
from planned_service import open_patient_client
from py4j.protocol import Py4JJavaError
from service_settings import ALWAYS, LOCK_FILE_PROVIDER, wait_for_lock_without_end
from whole_file import open_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hudi_table import TableLook
    from index_settings import IndexOptions, WantedIndex
    from index_writer import IndexWriter
    from planned_service import Visit

FENCE_EVERY_S = 2.0
LOOK_EVERY_S = 0.05
FRESHEN_EVERY_S = 1.0


class WritersInTheWayError(Exception):
    """Until the end of the wait there was no moment at which the build could begin without losing a write."""


@dataclass(frozen=True, slots=True)
class Built:
    """An index that was built: the client that takes the table's lock, and writers that may not know of the index."""

    guard: Any
    unaware: frozenset[str]


@contextmanager
def built_index(visit: Visit, plan: IndexPlan, wanted: WantedIndex | None, options: IndexOptions) -> Iterator[Built]:
    """Build the index of a plan that is requested; inside, it is complete, and the builder's heartbeat goes on.

    The plan is inflight then, and for the caller to complete, but for `files`, which Hudi completes. Raises
    WritersInTheWayError, PlanOutdatedError, PlanBusyError, IndexFailure, or Py4JJavaError when Hudi fails.
    """
    own = build_settings(plan.partition, wanted, visit.settings)
    settings = wait_for_lock_without_end({**visit.settings, **own})
    spark, base_path = visit.spark, visit.job.base_path
    with ExitStack() as stack:
        # The guard outlives the build: closing it would delete a lock file that the builder holds.
        guard = stack.enter_context(open_patient_client(visit))
        builder = stack.enter_context(open_client(spark, base_path, settings, ALWAYS))
        method = find_build_method(visit, builder)
        stack.enter_context(be_sole_executor(spark, guard, plan.instant))
        build = _Build(visit, builder, method, plan)
        in_the_way = _begin(visit, guard, build, options)
        build.wait()
        if in_the_way is None:
            with hold_lock(spark, guard), keep_lock_file(visit):
                settle(visit, plan, build.definition)
                in_the_way = find_unaware(visit)
        yield Built(guard, in_the_way)


class _Build:
    """Hudi's build in a thread of its own, so that the lock can be given back in the middle of it."""

    def __init__(self, visit: Visit, client: Any, method: Any, plan: IndexPlan) -> None:
        self.plan = plan
        self.is_announced = False
        self._visit = visit
        self._client = client
        self._method = method
        self._stale_ms = find_begun_ms(visit.spark, visit.job.base_path, plan.instant)
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
        spark, base_path, instant = self._visit.spark, self._visit.job.base_path, self.plan.instant
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
                self._client.index(self.plan.instant)
                return
            with open_index_writer(self._visit, self._client, self._method, self.plan) as self._writer:
                self._writer.build()
        except Exception as error:  # noqa: BLE001 - handed to the waiting thread as it is
            self._error = error


def _begin(visit: Visit, guard: Any, build: _Build, options: IndexOptions) -> frozenset[str] | None:
    """Wait for a moment to begin in, and begin; return as soon as writers may go on.

    Returns the writers that may not know of the index when it is complete already, None when the build goes on.
    """
    deadline = time.monotonic() + options.wait_s
    awaited: frozenset[str] = frozenset()
    while True:
        with hold_lock(visit.spark, guard), keep_lock_file(visit):
            look = visit.look()
            is_late = time.monotonic() >= deadline
            overtaken_by = _find_late_writes(look, build.plan)
            is_patient = not (options.is_replaced or is_late or overtaken_by)
            verdict = decide_fence(
                look_at_writers(visit, look),
                find_habit(visit.spark, look),
                stays_current=stays_current(build.plan.partition),
                no_writer=options.no_writer,
                is_repeated=options.is_repeated,
                older_than=build.plan.instant if is_patient else "",
            )
            if verdict.begin is not Begin.WAIT:
                if overtaken_by:
                    raise PlanOutdatedError(
                        f"the plan {build.plan.instant} is older than the completed writes {', '.join(overtaken_by)}"
                    )
                started = time.monotonic()
                visit.say(f"indexing {build.plan.instant}: begins {verdict.begin}: {verdict.reason}")
                in_the_way = _start(visit, build, verdict.begin)
                visit.say(f"the table's lock was held for {time.monotonic() - started:.1f} s")
                return in_the_way
        # Once, and not as often as a writer gets older.
        if verdict.awaited != awaited:
            visit.say(f"indexing {build.plan.instant} waits: {verdict.reason}")
            awaited = verdict.awaited
        if is_late:
            raise WritersInTheWayError(f"no quiet moment within {options.wait_s:.0f} s: {verdict.reason}")
        time.sleep(FENCE_EVERY_S)


def _start(visit: Visit, build: _Build, begin: Begin) -> frozenset[str] | None:
    if build.plan.partition == "files":
        # Hudi ends the build under a lock that it takes itself.
        build.start()
        _wait_for_files(visit, build)
        return frozenset()
    take_plan(visit, build.plan)
    build.start()
    try:
        if begin is Begin.BESIDE and _announce_when_there_is_room(visit, build):
            return None
    finally:
        if not build.is_announced:
            # Whatever went wrong: what commits while an index is built that nobody knows of is missing in it.
            build.join()
    build.wait()
    settle(visit, build.plan, build.definition)
    return find_unaware(visit)


def _find_late_writes(look: TableLook, plan: IndexPlan) -> list[str]:
    """Return the completed writes that a plan leaves out."""
    if not reads_up_to_its_plan(plan.partition):
        return []
    completed = requested_times(look.timeline.getCommitsTimeline().filterCompletedInstants())
    return [time for time in completed if time > plan.instant]


def _announce_when_there_is_room(visit: Visit, build: _Build) -> bool:
    """Announce an index as soon as its file groups are there: Hudi makes them before its delta commit.

    Returns whether writers know of it; not when the build is done by then, or failed.
    """
    while not build.ended:
        if build.is_under_way:
            keep_place(visit, build.plan)
            announce(visit, build.plan, build.definition)
            build.is_announced = True
            return True
        time.sleep(LOOK_EVERY_S)
    return False


def find_unaware(visit: Visit) -> frozenset[str]:
    """Return the writers in flight that may have begun without knowing of an index that is complete now."""
    look = visit.look()
    blind = find_blind(look_at_writers(visit, look), find_habit(visit.spark, look))
    return frozenset(writer.instant for writer in blind)


def _wait_for_files(visit: Visit, build: _Build) -> None:
    while not build.ended:
        if build.plan.partition in look_at_indexes(visit).complete:
            return
        time.sleep(LOOK_EVERY_S)


@contextmanager
def keep_lock_file(visit: Visit) -> Iterator[None]:
    """Keep the file of FileSystemBasedLockProvider young while it is held: an old one is taken for an orphan."""
    if not visit.settings["hoodie.write.lock.provider"].strip().endswith(LOCK_FILE_PROVIDER):
        yield
        return
    folder = visit.settings.get("hoodie.write.lock.filesystem.path") or f"{visit.job.base_path}/.hoodie"
    fs, path = open_path(visit.spark, f"{folder}/lock")
    stop = threading.Event()

    def freshen() -> None:
        while not stop.wait(FRESHEN_EVERY_S):
            try:
                fs.setTimes(path, int(time.time() * 1000), -1)
            except Py4JJavaError as error:
                visit.say(f"the lock file is gone: {describe(causes_of(error.java_exception))}")
                return

    thread = threading.Thread(target=freshen, name="index-lock-file", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
