"""Holds the executor's lease while a job runs; ends the job when the lease cannot be renewed."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from airflow_lake_provider.errors import (
    ExecutorBusyError,
    LakeError,
    LeaseHolder,
    LeaseLostError,
    ManagerUnreachableError,
)
from airflow_lake_provider.execution.engines.job_files import find_text, write_text
from airflow_lake_provider.execution.engines.local_process import identity_from_text, identity_to_text, this_process
from airflow_lake_provider.instant_clock import boot_s
from airflow_lake_provider.job_contract import LIVE_WORK

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from airflow_lake_provider.execution.engines.job_files import JobFolder
    from airflow_lake_provider.hooks.lake import LakeHook
    from airflow_lake_provider.job_contract import Service, Standing

log = logging.getLogger(__name__)

MAX_INTERVAL_S = 15.0
MAX_RESERVE_S = 90.0
TICK_S = 0.5


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """The times of a lease of so many seconds. Renewals are frequent, so it is nearly full when an outage begins."""

    lease_s: float

    @property
    def interval_s(self) -> float:
        """The pause between two renewals."""
        return min(MAX_INTERVAL_S, self.lease_s / 4)

    @property
    def reserve_s(self) -> float:
        """What is reserved at the lease's end for ending the job, before another executor may start."""
        return min(MAX_RESERVE_S, self.lease_s * 3 / 8)

    @property
    def tick_s(self) -> float:
        """How often the lease's end is compared with the clock, and a job that must end is ended again."""
        return min(TICK_S, self.lease_s / 20)


class LeaseKeeper:
    """Context manager: acquires the lease, renews it in a thread, releases it.

    When the lease has passed to another executor, or could not be renewed until shortly before its end, it calls
    `on_lost` until the block ends: that must end the job, so that the next executor is alone (G2). `error` is the
    reason of the loss; call `require_held` before anything begins.
    """

    def __init__(self, request: LeaseRequest, on_lost: Callable[[], None]) -> None:
        self._request = request
        self._hook = request.hook
        self._key = request.key
        self._on_lost = on_lost
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._token = ""
        self._times = LeaseTimes(0.0)
        self._held_from_s = 0.0
        self._passed: LeaseLostError | None = None
        self.error: LakeError | None = None
        """Why the lease was lost and the job ended; None while it is held."""

    @property
    def token(self) -> str:
        """The lease's token; empty before the block begins."""
        return self._token

    @property
    def lost(self) -> bool:
        """Whether the lease was lost."""
        return self.error is not None

    def __enter__(self) -> LeaseKeeper:
        taken = self._request.acquire()
        self._token = taken.token
        self._held_from_s = taken.requested_s
        self._times = LeaseTimes(taken.lease_s)
        # Two threads: whatever a renewal meets, or waits for, the job ends in time.
        for work in (self._renew_repeatedly, self._guard):
            thread = threading.Thread(target=work, name=f"lake-executor-lease{work.__name__}", daemon=True)
            thread.start()
            self._threads.append(thread)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if self.lost:
            return
        try:
            self._hook.release_executor(*self._key, self._token)
        except LakeError as release_error:
            log.warning("the lease could not be released and will end by itself: %s", release_error)

    def require_held(self) -> None:
        """Raise when the lease is lost: another executor may be running."""
        if self.error is not None:
            raise self.error
        # After a pause of the whole process the guarding thread may not have noticed yet.
        if boot_s() >= self._held_from_s + self._times.lease_s:
            raise LeaseLostError(f"the lease of {self._request.what} ended before the job began")

    def _renew_repeatedly(self) -> None:
        failed = False
        while not self._stop.wait(self._times.interval_s):
            requested_s = boot_s()
            try:
                self._hook.renew_executor(*self._key, self._token)
            except LeaseLostError as error:
                self._passed = error
                return
            except Exception as error:  # noqa: BLE001 - after any answer of a server or a proxy, the lease may still hold
                failed = True
                rest_s = self._ends_job_at_s() - boot_s()
                log.warning("the lease could not be renewed, retrying for %.0f s: %s", max(0, rest_s), error)
                continue
            if failed:
                log.info("the lease is renewed again after %.0f s", requested_s - self._held_from_s)
            failed = False
            self._held_from_s = requested_s

    def _ends_job_at_s(self) -> float:
        return self._held_from_s + self._times.lease_s - self._times.reserve_s

    def _guard(self) -> None:
        """End the job when the lease has passed on, or nears its end. Nothing may hold this thread up before."""
        # The event's own clock stops while the machine sleeps, so each wait is short.
        while not self._stop.wait(self._times.tick_s):
            self.error = self._passed or self._find_end()
            if self.error is not None:
                break
        else:
            return
        self._end_job()
        # The log call may block until Airflow accepts it; the job has ended before.
        log.error("the job is ended: %s", self.error)
        # The job may still be starting, when there is nothing to end yet: so this ends it repeatedly.
        while not self._stop.wait(self._times.tick_s):
            self._end_job()

    def _find_end(self) -> LakeError | None:
        if boot_s() < self._ends_job_at_s():
            return None
        since_s = boot_s() - self._held_from_s
        return ManagerUnreachableError(
            f"the manager did not answer for {since_s:.0f} s, so the lease of {self._request.what} "
            f"({self._times.lease_s:.0f} s, [lake] executor_lease_s) could not be renewed in time"
        )

    def _end_job(self) -> None:
        try:
            self._on_lost()
        except Exception:
            log.exception("the job of %s was not ended, trying again", self._request.what)


# --- How a try acquires the executor's lease: immediately when it is free or its holder has ended; otherwise it waits
#
# A lease is long, so that a running job survives an outage of the API server. A worker that died must not block the
# next try for as long: where the next try can see that the holder's process has ended, it reports that, and takes the
# lease over. The job's record (`JobRun`) ends what the holder's job left running, before anything begins.

RETRY_AFTER_S = 10.0
MARGIN_S = 30.0
"""How much longer than the holder's lease a try waits, for servers that answer late."""


@dataclass(frozen=True, slots=True)
class AcquiredLease:
    """A lease that was granted for `lease_s`, requested at `requested_s` of `boot_s`."""

    token: str
    lease_s: float
    requested_s: float


class LeaseRequest:
    """One try's request for the lease of a table's service."""

    def __init__(self, hook: LakeHook, table_id: str, service: Service | Standing, folder: JobFolder) -> None:
        self.hook = hook
        self.key = (table_id, service)
        self._folder = folder
        self._me = (folder.run_id, folder.try_number)
        self._waits_until_s: float | None = None

    @property
    def what(self) -> str:
        """The service and the table, for messages."""
        table_id, service = self.key
        return f"{service} of table {table_id}"

    def acquire(self) -> AcquiredLease:
        """Acquire the lease. Raises ExecutorBusyError while another run holds it, or an earlier try for too long."""
        me = this_process()
        if me is not None:
            # Before the request: a try that finds the lease held can find its holder.
            write_text(self._folder.holder_path, identity_to_text(me))
        ended: LeaseHolder | None = None
        while True:
            requested_s = boot_s()
            try:
                token, lease_s = self.hook.acquire_executor(*self.key, *self._me, ended=ended)
            except ExecutorBusyError as error:
                ended = self._check_holder(error, ended)
            else:
                return AcquiredLease(token, lease_s, requested_s)

    def _check_holder(self, error: ExecutorBusyError, ended: LeaseHolder | None) -> LeaseHolder | None:
        """Return the holder when it has ended for certain, None after a pause. Raises when waiting cannot help."""
        holder = error.holder
        if holder is None or holder == ended:
            raise error
        if self._has_ended(holder):
            log.info(
                "%s: try %d of run %s has ended, this try takes its lease over",
                self.what,
                holder.try_number,
                holder.run_id,
            )
            return holder
        if not self._is_earlier_try(holder):
            raise error
        self._pause(holder, error)
        return None

    def _is_earlier_try(self, holder: LeaseHolder) -> bool:
        run_id, try_number = self._me
        return holder.run_id == run_id and holder.try_number < try_number

    def _has_ended(self, holder: LeaseHolder) -> bool:
        """Whether the holder's process has ended for certain. Kills an earlier try of this run that Airflow gave up."""
        if (holder.run_id, holder.try_number) == self._me:
            # The answer to this try's own request was lost.
            return True
        folder = self._folder.of(holder.run_id, holder.try_number)
        text = find_text(folder.holder_path)
        process = None if text is None else identity_from_text(text)
        if text is None and self._is_earlier_try(holder):
            return self._has_item_ended(find_text(folder.item_path))
        if process is None or not process.is_here:
            return False
        if process.is_alive and self._is_earlier_try(holder):
            log.warning("%s: process %d of try %d still runs and is killed", self.what, process.pid, holder.try_number)
            process.kill()
        return not process.is_alive

    def _has_item_ended(self, item_id: str | None) -> bool:
        """Whether an earlier try waits in the triggerer for an item that has ended; one that has not is cancelled.

        Airflow gives such a try up when it hears of the first worker's end after the second one has begun.
        """
        if item_id is None:
            return False
        item = self.hook.ask_work([{"item_id": item_id}]).get(item_id)
        if item is None or item["state"] not in LIVE_WORK:
            return True
        log.warning("%s: item %s of an earlier try still runs and is cancelled", self.what, item_id)
        self.hook.cancel_work(item_id, "a later try of its run has begun")
        return False

    def _pause(self, holder: LeaseHolder, error: ExecutorBusyError) -> None:
        now_s = boot_s()
        if self._waits_until_s is None:
            self._waits_until_s = now_s + holder.rest_s + MARGIN_S
        rest_s = self._waits_until_s - now_s
        if rest_s <= 0:
            raise error
        log.info(
            "%s: try %d of this run holds the lease; this try runs on another host or container and cannot see "
            "whether it has ended; the lease ends in %.0f s unless it is renewed; this try waits until %s",
            self.what,
            holder.try_number,
            holder.rest_s,
            (datetime.now(UTC) + timedelta(seconds=rest_s)).isoformat(timespec="seconds"),
        )
        if self.hook.pause(min(RETRY_AFTER_S, rest_s, max(0.1, holder.rest_s))):
            raise error
