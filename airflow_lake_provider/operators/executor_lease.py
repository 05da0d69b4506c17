"""Holds the executor's lease while a job runs; ends the job when the lease cannot be kept."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_lake_provider.boot_time import boot_s
from airflow_lake_provider.errors import LakeError, LeaseLostError, ManagerUnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from airflow_lake_provider.operators.lease_claim import LeaseClaim

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
