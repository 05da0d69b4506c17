"""Holds the executor's lease while a job runs; ends the job when the lease cannot be kept."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from airflow_lake_provider.errors import LakeError, LeaseLostError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from airflow_lake_provider.hooks.lake import LakeHook
    from airflow_lake_provider.job_contract import Service

log = logging.getLogger(__name__)

RENEWALS_PER_LEASE = 4
END_AGAIN_AFTER_S = 0.5


class ExecutorLease:
    """Context manager: takes the lease, renews it in a thread, gives it back.

    When the lease is lost, or could not be renewed until shortly before its end (the manager is down), `on_lost` is
    called until the block is left: it must end the job, so that whoever takes over is alone (G2). `lost` tells so at
    any time; `require_held` before anything is begun.
    """

    def __init__(
        self,
        hook: LakeHook,
        table_id: str,
        service: Service,
        run_id: str,
        try_number: int,
        on_lost: Callable[[], None],
    ) -> None:
        self._hook = hook
        self._key = (table_id, service)
        self._holder = (run_id, try_number)
        self._on_lost = on_lost
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._token = ""
        self._held_until_s = 0.0
        self.lost = False

    def __enter__(self) -> ExecutorLease:
        asked_at = time.monotonic()
        self._token, lease_s = self._hook.acquire_executor(*self._key, *self._holder)
        self._held_until_s = asked_at + lease_s
        self._thread = threading.Thread(
            target=self._keep, args=(lease_s, asked_at), name="lake-executor-lease", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if self.lost:
            return
        try:
            self._hook.release_executor(*self._key, self._token)
        except LakeError as release_error:
            log.warning("the lease could not be given back and will run out by itself: %s", release_error)

    def require_held(self) -> None:
        """Raise LeaseLostError when the lease is lost: another executor may be at work."""
        # After a pause of the whole process the renewing thread may not have noticed yet.
        if self.lost or time.monotonic() >= self._held_until_s:
            table_id, service = self._key
            raise LeaseLostError(f"the lease of {service} of table {table_id} was lost before the job began")

    def _keep(self, lease_s: float, held_from: float) -> None:
        interval_s = lease_s / RENEWALS_PER_LEASE
        while not self._stop.wait(interval_s):
            asked_at = time.monotonic()
            try:
                self._hook.renew_executor(*self._key, self._token)
                held_from = asked_at
                self._held_until_s = asked_at + lease_s
                continue
            except LeaseLostError as error:
                log.error("%s", error)
            except LakeError as error:
                # One renewal interval is kept back for ending the job before anybody else may start.
                if time.monotonic() - held_from < lease_s - 1.5 * interval_s:
                    log.warning("the lease could not be renewed, trying again: %s", error)
                    continue
                log.error("the lease could not be renewed in time: %s", error)
            self.lost = True
            self._on_lost()
            # The job may only be starting just now, when there is nothing to end yet: it is ended again and again.
            while not self._stop.wait(END_AGAIN_AFTER_S):
                self._on_lost()
            return
