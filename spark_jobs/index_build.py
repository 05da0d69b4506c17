"""One index build: wait at the fence, begin under the table's lock, let Hudi build."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from failure_kind import causes_of, describe
from hudi_table import NoTableError, be_sole_executor, hold_lock, open_client, requested_times
from index_fence import find_habit, look_at_writers
from index_rules import Begin, BuildState, IndexPlan, decide_fence
from index_settings import build_settings, reads_up_to_its_plan, stays_current
from index_table import METADATA_FOLDER, find_build_state, look_at_indexes
from planned_service import open_patient_client
from py4j.protocol import Py4JJavaError
from service_settings import ALWAYS, LOCK_FILE_PROVIDER, wait_for_lock_without_end

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hudi_table import TableLook
    from index_settings import IndexOptions, WantedIndex
    from planned_service import Visit

FENCE_EVERY_S = 2.0
LOOK_EVERY_S = 0.1
FRESHEN_EVERY_S = 1.0


class WritersInTheWayError(Exception):
    """Until the end of the wait there was no moment at which the build could begin without losing a write."""


class PlanOutdatedError(Exception):
    """A write that was requested after the plan completed before the build began; the build would leave it out."""


def build_index(visit: Visit, plan: IndexPlan, wanted: WantedIndex | None, options: IndexOptions) -> None:
    """Build the index of a plan that is requested. Returns when Hudi completed it.

    Raises WritersInTheWayError, PlanOutdatedError, PlanBusyError, or Py4JJavaError when Hudi fails or its catch-up
    takes too long.
    """
    own = build_settings(plan.partition, wanted, visit.settings)
    settings = wait_for_lock_without_end({**visit.settings, **own})
    spark, base_path = visit.spark, visit.job.base_path
    with ExitStack() as stack:
        # The guard outlives the build: closing it would delete a lock file that the builder holds.
        guard = stack.enter_context(open_patient_client(visit))
        builder = stack.enter_context(open_client(spark, base_path, settings, ALWAYS))
        stack.enter_context(be_sole_executor(spark, guard, plan.instant))
        build = _Build(builder, plan)
        _begin(visit, guard, build, options)
        build.wait()


class _Build:
    """Hudi's build in a thread of its own, so that the lock can be given back in the middle of it."""

    def __init__(self, client: Any, plan: IndexPlan) -> None:
        self.plan = plan
        self._client = client
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=f"index-build-{plan.instant}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    def wait(self) -> None:
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self._client.index(self.plan.instant)
        except Exception as error:  # noqa: BLE001 - handed to the waiting thread as it is
            self._error = error


def _begin(visit: Visit, guard: Any, build: _Build, options: IndexOptions) -> None:
    deadline = time.monotonic() + options.wait_s
    said = ""
    while True:
        with hold_lock(visit.spark, guard), keep_lock_file(visit):
            look = visit.look()
            verdict = decide_fence(
                look_at_writers(visit.spark, look),
                find_habit(visit.spark, look),
                stays_current=stays_current(build.plan.partition),
                no_writer=options.no_writer,
            )
            if verdict.begin is not Begin.WAIT:
                _require_fresh_plan(look, build.plan)
                started = time.monotonic()
                visit.say(f"indexing {build.plan.instant}: begins {verdict.begin}: {verdict.reason}")
                if build.plan.partition != "files":
                    _make_place(visit, build.plan)
                build.start()
                _wait_under_lock(visit, build, verdict.begin)
                visit.say(f"the table's lock was held for {time.monotonic() - started:.1f} s")
                return
        if verdict.reason != said:
            visit.say(f"indexing {build.plan.instant} waits: {verdict.reason}")
            said = verdict.reason
        if time.monotonic() >= deadline:
            raise WritersInTheWayError(f"no quiet moment within {options.wait_s:.0f} s: {verdict.reason}")
        time.sleep(FENCE_EVERY_S)


def _make_place(visit: Visit, plan: IndexPlan) -> None:
    """Put an empty log file where the index will be.

    A writer's commit fails when the table's properties announce an index that has no file group, as a builder that is
    killed between the two would leave it. Hudi clears the folder before it makes the real ones.
    """
    jvm, none = visit.spark._jvm, visit.spark._jvm.org.apache.hudi.common.util.Option.empty()
    metadata = jvm.org.apache.hudi.metadata
    kind = metadata.MetadataPartitionType.fromPartitionPath(plan.partition)
    file_id = metadata.HoodieTableMetadataUtil.getFileIDForFileGroup(kind, 0, plan.partition, none)
    folder = f"{visit.job.base_path}/{METADATA_FOLDER}/{plan.partition}"
    path = jvm.org.apache.hadoop.fs.Path(f"{folder}/.{file_id}_{plan.instant}.log.1_0-0-0")
    path.getFileSystem(visit.spark._jsc.hadoopConfiguration()).create(path).close()


def _require_fresh_plan(look: TableLook, plan: IndexPlan) -> None:
    if not reads_up_to_its_plan(plan.partition):
        return
    completed = requested_times(look.timeline.getCommitsTimeline().filterCompletedInstants())
    late = [time for time in completed if time > plan.instant]
    if late:
        raise PlanOutdatedError(f"the plan {plan.instant} is older than the completed writes {', '.join(late)}")


def _wait_under_lock(visit: Visit, build: _Build, begin: Begin) -> None:
    """Return when writers may go on: they find the index's place, or the index itself."""
    partition, instant = build.plan.partition, build.plan.instant
    while not build.ended:
        built = find_build_state(visit.spark, visit.job.base_path, instant)
        if begin is Begin.BESIDE and built is not BuildState.ABSENT:
            return
        if built is BuildState.COMPLETED or partition == "files":
            indexes = _look_or_none(visit)
            if indexes is not None and partition in indexes.complete:
                return
        time.sleep(LOOK_EVERY_S)


def _look_or_none(visit: Visit) -> Any:
    try:
        return look_at_indexes(visit)
    except (NoTableError, Py4JJavaError):
        # Hudi rewrites hoodie.properties in place; a look may fall into that moment.
        return None


@contextmanager
def keep_lock_file(visit: Visit) -> Iterator[None]:
    """Keep the file of FileSystemBasedLockProvider young while it is held: an old one is taken for an orphan."""
    if not visit.settings["hoodie.write.lock.provider"].strip().endswith(LOCK_FILE_PROVIDER):
        yield
        return
    folder = visit.settings.get("hoodie.write.lock.filesystem.path") or f"{visit.job.base_path}/.hoodie"
    path = visit.spark._jvm.org.apache.hadoop.fs.Path(f"{folder}/lock")
    fs = path.getFileSystem(visit.spark._jsc.hadoopConfiguration())
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
