"""Holds the executor's lease while a job runs; ends the job when the lease cannot be kept."""

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
from airflow_lake_provider.execution.engines.process_identity import identity_from_text, identity_to_text, this_process
from airflow_lake_provider.instant_clock import boot_s

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from airflow_lake_provider.execution.engines.job_files import JobFolder
    from airflow_lake_provider.hooks.lake import LakeHook
    from airflow_lake_provider.job_contract import Service

log = logging.getLogger(__name__)

MOST_INTERVAL_S = 15.0
MOST_RESERVE_S = 90.0
TICK_S = 0.5


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """How a lease of so many seconds is kept. Renewals are frequent, so it is nearly full when an outage begins."""

    lease_s: float

    @property
    def interval_s(self) -> float:
        """The pause between two renewals."""
        return min(MOST_INTERVAL_S, self.lease_s / 4)

    @property
    def reserve_s(self) -> float:
        """What is kept back at the lease's end for ending the job, before another executor may start."""
        return min(MOST_RESERVE_S, self.lease_s * 3 / 8)

    @property
    def tick_s(self) -> float:
        """How often the lease's end is compared with the clock, and a job that was to end is ended again."""
        return min(TICK_S, self.lease_s / 20)


class ExecutorLease:
    """Context manager: takes the lease, renews it in a thread, gives it back.

    When the lease has passed to another executor, or could not be renewed until shortly before its end, `on_lost` is
    called until the block is left: it must end the job, so that the next executor is alone (G2). `error` says why it
    was lost; `require_held` asks before anything is begun.
    """

    def __init__(self, claim: LeaseClaim, on_lost: Callable[[], None]) -> None:
        self._claim = claim
        self._hook = claim.hook
        self._key = claim.key
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
    def lost(self) -> bool:
        """Whether the lease was lost."""
        return self.error is not None

    def __enter__(self) -> ExecutorLease:
        taken = self._claim.take()
        self._token, self._held_from_s, self._times = taken.token, taken.asked_s, LeaseTimes(taken.lease_s)
        # Two threads: whatever a renewal meets, or waits for, the job is ended in time.
        for work in (self._renew_again_and_again, self._guard):
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
            log.warning("the lease could not be given back and will run out by itself: %s", release_error)

    def require_held(self) -> None:
        """Raise when the lease is lost: another executor may be at work."""
        if self.error is not None:
            raise self.error
        # After a pause of the whole process the guarding thread may not have noticed yet.
        if boot_s() >= self._held_from_s + self._times.lease_s:
            raise LeaseLostError(f"the lease of {self._claim.what} ran out before the job began")

    def _renew_again_and_again(self) -> None:
        failed = False
        while not self._stop.wait(self._times.interval_s):
            asked_s = boot_s()
            try:
                self._hook.renew_executor(*self._key, self._token)
            except LeaseLostError as error:
                self._passed = error
                return
            except Exception as error:  # noqa: BLE001 - whatever a server or a proxy answers, the lease may still be kept
                failed = True
                rest_s = self._ends_job_at_s() - boot_s()
                log.warning("the lease could not be renewed, trying again for %.0f s: %s", max(0, rest_s), error)
                continue
            if failed:
                log.info("the lease is renewed again after %.0f s", asked_s - self._held_from_s)
            failed, self._held_from_s = False, asked_s

    def _ends_job_at_s(self) -> float:
        return self._held_from_s + self._times.lease_s - self._times.reserve_s

    def _guard(self) -> None:
        """End the job when the lease has passed on, or nears its end. Nothing may hold this thread up before."""
        # The event's own clock stands still while the machine sleeps, so it is never waited on for long.
        while not self._stop.wait(self._times.tick_s):
            self.error = self._passed or self._find_end()
            if self.error is not None:
                break
        else:
            return
        self._end_job()
        # A line may wait for Airflow to take it; the job has been ended before.
        log.error("the job is ended: %s", self.error)
        # The job may only be starting just now, when there is nothing to end yet: it is ended again and again.
        while not self._stop.wait(self._times.tick_s):
            self._end_job()

    def _find_end(self) -> LakeError | None:
        if boot_s() < self._ends_job_at_s():
            return None
        since_s = boot_s() - self._held_from_s
        return ManagerUnreachableError(
            f"the manager could not be reached for {since_s:.0f} s, so the lease of {self._claim.what} "
            f"({self._times.lease_s:.0f} s, [lake] executor_lease_s) could not be renewed in time"
        )

    def _end_job(self) -> None:
        try:
            self._on_lost()
        except Exception:
            log.exception("the job of %s was not ended, trying again", self._claim.what)


# --- How a try gets the executor's lease: at once when it is free, or when its holder has surely ended; else it waits
#
# A lease is long, so that a running job bears an API server that is away. A worker that died must not block the next
# try for as long: where the next try can see that the holder's process has ended, it says so, and takes the lease
# over. What the holder's job left running is ended by the job's record (`JobRun`), before anything begins.

ASK_AGAIN_AFTER_S = 10.0
MARGIN_S = 30.0
"""How much longer than the holder's lease is waited, for servers that answer late."""


@dataclass(frozen=True, slots=True)
class TakenLease:
    """A lease that was given for `lease_s`, asked for at `asked_s` of `boot_s`."""

    token: str
    lease_s: float
    asked_s: float


class LeaseClaim:
    """One try's claim on the lease of a table's service."""

    def __init__(self, hook: LakeHook, table_id: str, service: Service, folder: JobFolder) -> None:
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

    def take(self) -> TakenLease:
        """Take the lease. Raises ExecutorBusyError while another run holds it, or an earlier try for too long."""
        me = this_process()
        if me is not None:
            # Before the lease is asked for: whoever finds it held can find its holder.
            write_text(self._folder.holder_path, identity_to_text(me))
        ended: LeaseHolder | None = None
        while True:
            asked_s = boot_s()
            try:
                token, lease_s = self.hook.acquire_executor(*self.key, *self._me, ended=ended)
            except ExecutorBusyError as error:
                ended = self._settle(error, ended)
            else:
                return TakenLease(token, lease_s, asked_s)

    def _settle(self, error: ExecutorBusyError, ended: LeaseHolder | None) -> LeaseHolder | None:
        """Return the holder when it has surely ended, None after a pause. Raises when there is nothing to wait for."""
        holder = error.holder
        if holder is None or holder == ended:
            raise error
        if self._has_ended(holder):
            log.info(
                "%s: try %d of run %s has ended, its lease is taken over", self.what, holder.try_number, holder.run_id
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
        """Whether the holder's process has surely ended. An earlier try of this run, given up by Airflow, is killed."""
        if (holder.run_id, holder.try_number) == self._me:
            # The answer to this very try was lost.
            return True
        text = find_text(self._folder.of(holder.run_id, holder.try_number).holder_path)
        process = None if text is None else identity_from_text(text)
        if process is None or not process.is_here:
            return False
        if process.is_alive and self._is_earlier_try(holder):
            log.warning("%s: process %d of try %d still runs and is killed", self.what, process.pid, holder.try_number)
            process.kill()
        return not process.is_alive

    def _pause(self, holder: LeaseHolder, error: ExecutorBusyError) -> None:
        now_s = boot_s()
        if self._waits_until_s is None:
            self._waits_until_s = now_s + holder.rest_s + MARGIN_S
        rest_s = self._waits_until_s - now_s
        if rest_s <= 0:
            raise error
        log.info(
            "%s: try %d of this run holds the lease, and from here (another host or container) nobody sees whether it "
            "has ended; its lease ends in %.0f s unless it is renewed; this try waits until %s",
            self.what,
            holder.try_number,
            holder.rest_s,
            (datetime.now(UTC) + timedelta(seconds=rest_s)).isoformat(timespec="seconds"),
        )
        if self.hook.pause(min(ASK_AGAIN_AFTER_S, rest_s, max(0.1, holder.rest_s))):
            raise error
