"""A guard around a user's own write to a Hudi table: it ends a write that cannot win any more, before its commit.

Hudi rejects the loser of two writes at its commit, when all its work is done (RFC-56). The guard reads the table's
markers, heartbeats and timeline while the write runs, wherever it runs, and ends the job by the callback that it is
given. A write that committed before it could be ended stays committed, and its task succeeds.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from functools import wraps
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_lake_provider.conflict.activity import open_conflict_table
from airflow_lake_provider.conflict.guard import GuardWatch, Outlook, WriteForecast, describe_end
from airflow_lake_provider.conflict.guard_register import GuardRegister, PartitionReservation
from airflow_lake_provider.errors import LakeError, WriteConflictError, backoff
from airflow_lake_provider.hooks.open_tables import policy_of, table_opener
from airflow_lake_provider.hudi.base_path import normalise_base_path
from airflow_lake_provider.timeline_server.views import FileSystemTimelineView

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    from airflow.sdk import Context

    from airflow_lake_provider.storage.table_storage import Storage
    from airflow_lake_provider.timeline_server.snapshot import TimelineSnapshot

log = logging.getLogger(__name__)

CANCEL_AGAIN_AFTER_S = 1.0


class HudiWriterGuard:
    """Guards one write, from entering to leaving the `with` block.

    Leaving it raises WriteConflictError when the guard ended the write. When the write was ended while it committed,
    an error of the block is logged and dropped. Entering raises WriteConflictError while other guards hold one of the
    reserved partitions for longer than `wait_s`, LakeError for a table that cannot be read, and ConfigError.

    :param base_path: the table's base path.
    :param cancel: ends the write's job. It is called from another thread, repeatedly until the block is left, and may
        raise.
    :param instant: the write's own instant, or a function that returns it, empty while it is not known.
    :param every_writer_is_guarded: all writers of the table run under guards like this one. The guards then establish
        which instant belongs to which write, by small files below `.hoodie/.locks/guards`. Without this and without
        `instant` the guard ends nothing: it cannot distinguish another writer's conflict from this write's own.
    :param reserve_partitions: partitions, as Hudi spells them, that no other guard reserves at the same time.
    :param hudi_options: the writers' Hudi settings; without them the table's in the tables file.
    :param storage_options: how to open the store; without them the connection in `[lake] storage_conn_ids`.
    :param period_s: the pause between two checks, in seconds.
    :param plan_patience_s: how long a pending clustering may lie in the way before the write counts as lost, in
        seconds. The provider's own clusterings are withdrawn sooner.
    :param wait_s: how long to wait for reserved partitions, and for another guarded write that is just beginning.
    """

    def __init__(
        self,
        base_path: str,
        *,
        cancel: Callable[[], object],
        instant: str | Callable[[], str] | None = None,
        every_writer_is_guarded: bool = False,
        reserve_partitions: Sequence[str] = (),
        hudi_options: Mapping[str, str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        period_s: float = 10.0,
        plan_patience_s: float = 120.0,
        wait_s: float = 60.0,
    ) -> None:
        self.base_path = normalise_base_path(base_path)
        self.forecast = WriteForecast(Outlook.NOT_BEGUN)
        self.ended = ""
        """Why the write was ended; empty while it was not."""
        self._cancel = cancel
        self._instant = instant
        self._is_shared = every_writer_is_guarded
        self._partitions = tuple(reserve_partitions)
        self._hudi_options = hudi_options
        self._storage_options = storage_options
        self._period_s = period_s
        self._plan_patience_s = plan_patience_s
        self._wait_s = wait_s
        self._left = threading.Event()
        self._thread: threading.Thread | None = None
        self._watch: GuardWatch | None = None
        self._register: GuardRegister | None = None
        self._reservation: PartitionReservation | None = None
        self._notes: tuple[str, ...] = ()
        self._began_s = 0.0

    # --- Around the write

    def __enter__(self) -> HudiWriterGuard:
        """Reserve partitions, announce the write, and begin to watch."""
        storage = table_opener(self._storage_options)(self.base_path)
        options = self._find_options()
        view = FileSystemTimelineView(self.base_path, lambda _: storage)
        self._watch = GuardWatch(
            open_conflict_table(storage, options, {}), view.snapshot, self._identify, self._plan_patience_s
        )
        if self._watch.rule.unjudged:
            log.warning("table %s: the guard ends nothing: %s", self.base_path, self._watch.rule.unjudged)
        elif self._instant is None and not self._is_shared:
            log.warning(
                "table %s: the guard ends nothing, because it cannot know which instant is this write's: set "
                "every_writer_is_guarded, or give instant",
                self.base_path,
            )
        self._reserve(storage, options)
        try:
            self._announce(storage, view)
        except BaseException:
            self._release()
            raise
        self._began_s = time.monotonic()
        self._thread = threading.Thread(target=self._run, args=(self._watch,), name="lake-writer-guard", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Stop watching; raise WriteConflictError when the write was ended and did not commit."""
        self._left.set()
        if self._thread is not None:
            self._thread.join()
        has_committed = bool(self.ended) and self._has_committed()
        self._release()
        if not self.ended:
            return False
        if has_committed:
            log.warning("table %s: write %s committed before it could be ended", self.base_path, self.forecast.instant)
            return isinstance(error, Exception)
        if error is not None and not isinstance(error, Exception):
            return False  # the task itself is being ended
        raise WriteConflictError(self.ended) from error

    def wait_for_rivals(self, most_s: float) -> bool:
        """Wait until none of the instants that the write lost to is at work any more; False after `most_s`."""
        rivals = frozenset(clash.instant for clash in self.forecast.clashes)
        deadline_s = time.monotonic() + most_s
        while self._watch is not None and time.monotonic() < deadline_s:
            try:
                if not self._watch.find_at_work(rivals, _now_ms()):
                    return True
            except LakeError as error:
                log.warning("table %s: the guard cannot read the table for now: %s", self.base_path, error)
            threading.Event().wait(self._period_s)
        return False

    def _find_options(self) -> Mapping[str, str]:
        if self._hudi_options is not None:
            return self._hudi_options
        return policy_of(self.base_path).hudi_options

    def _reserve(self, storage: Storage, options: Mapping[str, str]) -> None:
        if not self._partitions:
            return
        reservation = PartitionReservation(storage, open_conflict_table(storage, options, {}), self._partitions)
        obstacles: list[str] = []

        def try_once() -> bool:
            obstacles[:] = reservation.take(_now_ms())
            return not obstacles

        if not self._wait(try_once):
            names = ", ".join(self._partitions)
            raise WriteConflictError(
                f"table {self.base_path}: {names} could not be reserved within {self._wait_s:g} s (wait_s of the guard)"
                f": {'; '.join(obstacles)}. Retry later, or run the writers of these partitions one after another"
            )
        self._reservation = reservation

    def _announce(self, storage: Storage, view: FileSystemTimelineView) -> None:
        if not self._is_shared or self._instant is not None:
            return
        register = GuardRegister(storage, _now_ms())
        if not self._wait(register.wait):
            log.warning("table %s: another guarded write is still beginning; both may end nothing", self.base_path)
        register.start(view.snapshot())
        self._register = register

    def _wait(self, succeeds: Callable[[], bool]) -> bool:
        deadline_s = time.monotonic() + self._wait_s
        while not succeeds():
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return False
            self._left.wait(min(left_s, self._period_s, 1.0 + random.random()))
        return True

    def _release(self) -> None:
        for release in (self._reservation and self._reservation.release, self._register and self._register.end):
            try:
                if release:
                    release()
            except LakeError as error:  # without heartbeats both end by themselves
                log.warning("table %s: %s", self.base_path, error)

    # --- While it runs, in another thread

    def _run(self, watch: GuardWatch) -> None:
        while not self._left.wait(self._period_s):
            try:
                if self._reservation is not None:
                    self._reservation.beat()
                self.forecast = watch.check(_now_ms())
            except LakeError as error:
                log.warning("table %s: the guard cannot read the table for now: %s", self.base_path, error)
                continue
            except Exception:
                log.exception("table %s: a check of the guard failed; the write goes on", self.base_path)
                continue
            self._report(self.forecast)
            if self.forecast.outlook is Outlook.LOSES:
                self.ended = describe_end(self.base_path, self.forecast, watch.rule, time.monotonic() - self._began_s)
                log.warning("%s", self.ended)
                self._end_job()
                return

    def _report(self, forecast: WriteForecast) -> None:
        for note in forecast.notes:
            if note not in self._notes:
                log.info("table %s: write %s goes on; not certain: %s", self.base_path, forecast.instant, note)
        self._notes = forecast.notes

    def _end_job(self) -> None:
        # The job may still be starting, or between two Spark jobs: so this ends it repeatedly.
        while True:
            try:
                self._cancel()
            except Exception as error:  # noqa: BLE001 - the user's callback may raise anything
                log.warning("table %s: the write could not be ended: %s", self.base_path, error)
            if self._left.wait(CANCEL_AGAIN_AFTER_S):
                return

    def _identify(self, snapshot: TimelineSnapshot) -> str:
        if self._instant is not None:
            return self._instant if isinstance(self._instant, str) else self._instant()
        return "" if self._register is None else self._register.identify(snapshot)

    def _has_committed(self) -> bool:
        if self._watch is None:
            return False
        try:
            return self._watch.check(_now_ms()).outlook is Outlook.COMMITTED
        except LakeError as error:
            log.warning("table %s: whether the write committed cannot be read: %s", self.base_path, error)
            return False


def _now_ms() -> int:
    return int(time.time() * 1000)


# --- The same around any operator that submits a job and can end it


class HudiWriterGuardMixin:
    """Guards the job of the operator that stands behind it: `class Guarded(HudiWriterGuardMixin, SparkSubmitOperator)`.

    The operator's `on_kill` ends the job. After a conflict it executes the operator again, in the same try of the task,
    up to `guard_tries` times; then the task fails, and Airflow's own retries apply.

    :param hudi_base_path: the table's base path (templated).
    :param guard_options: further arguments of `HudiWriterGuard` (templated).
    :param guard_tries: how often to run the job in one try of the task.
    :param guard_pause_s: the pause after the first conflict; it doubles with each further one, up to ten minutes.
    :param guard_rival_wait_s: how long the next try waits for the writers that this one lost to, before that pause.
    """

    hudi_base_path: str
    guard_options: dict[str, Any]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Let Airflow render the guard's fields as well."""
        super().__init_subclass__(**kwargs)
        fields = tuple(getattr(cls, "template_fields", ()))
        added = tuple(name for name in ("hudi_base_path", "guard_options") if name not in fields)
        cls.template_fields = (*fields, *added)  # type: ignore[attr-defined]
        if "__init__" not in cls.__dict__:
            # Airflow prepares the constructor of a class that has one other than its first base's.
            @wraps(HudiWriterGuardMixin.__init__)
            def construct(self: Any, **arguments: Any) -> None:
                super(cls, self).__init__(**arguments)

            cls.__init__ = construct  # type: ignore[method-assign]

    def __init__(
        self,
        *,
        hudi_base_path: str,
        guard_options: dict[str, Any] | None = None,
        guard_tries: int = 3,
        guard_pause_s: float = 30.0,
        guard_rival_wait_s: float = 3600.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.hudi_base_path = hudi_base_path
        self.guard_options = guard_options or {}
        self.guard_tries = guard_tries
        self.guard_pause_s = guard_pause_s
        self.guard_rival_wait_s = guard_rival_wait_s

    def execute(self, context: Context) -> Any:
        """Run the operator under a guard, again after a conflict."""
        if self.guard_tries < 1:
            raise AirflowFailException(f"guard_tries is {self.guard_tries}: at least one try is needed")
        # An operator keeps its job; each try begins with the operator as it was.
        fresh = dict(self.__dict__)
        for tries in range(1, self.guard_tries + 1):
            guard = self._make_guard()
            try:
                result = None
                with guard:
                    result = super().execute(context)  # type: ignore[misc]
                return result
            except WriteConflictError as error:
                if tries == self.guard_tries:
                    raise AirflowException(f"{error} ({tries} tries)") from error
                log.warning("%s; try %d of %d follows", error, tries + 1, self.guard_tries)
                self.__dict__.clear()
                self.__dict__.update(fresh)
                if not guard.wait_for_rivals(self.guard_rival_wait_s):
                    raise AirflowException(f"{error}; that one is still at work (guard_rival_wait_s)") from error
                threading.Event().wait(backoff(self.guard_pause_s, tries, MAX_PAUSE_S) * random.uniform(0.75, 1.25))
        raise AssertionError  # the last try returned or raised

    def _make_guard(self) -> HudiWriterGuard:
        try:
            return HudiWriterGuard(self.hudi_base_path, cancel=self._end_guarded_job, **self.guard_options)
        except TypeError as error:
            raise AirflowFailException(f"guard_options: {error}") from error

    def _end_guarded_job(self) -> None:
        self.on_kill()  # type: ignore[attr-defined]


MAX_PAUSE_S = 600.0
