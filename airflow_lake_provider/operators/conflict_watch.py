"""A thread that watches for writers while a service runs, and ends the service for them."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from airflow_lake_provider.errors import LakeError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from airflow_lake_provider.conflict.service_watch import ServiceConflict, ServiceWatch

log = logging.getLogger(__name__)

STOP_AGAIN_AFTER_S = 1.0


class ConflictWatch:
    """Checks each `period_s`, first after `initial_delay_s`; on a conflict it calls `stop` until the block is left.

    `conflict` is what it found. Without a `watch` it does nothing.
    """

    def __init__(
        self, watch: ServiceWatch | None, stop: Callable[[], None], period_s: float, initial_delay_s: float
    ) -> None:
        self._watch = watch
        self._stop = stop
        self._period_s = period_s
        self._initial_delay_s = initial_delay_s
        self._left = threading.Event()
        self._thread: threading.Thread | None = None
        self.conflict: ServiceConflict | None = None

    def __enter__(self) -> ConflictWatch:
        if self._watch is not None:
            self._thread = threading.Thread(
                target=self._run, args=(self._watch,), name="lake-conflict-watch", daemon=True
            )
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, watch: ServiceWatch) -> None:
        pause_s = self._initial_delay_s
        while not self._left.wait(pause_s):
            pause_s = self._period_s
            try:
                self.conflict = watch.check(int(time.time() * 1000))
            except LakeError as error:
                log.warning("writers cannot be watched for now: %s", error)
            if self.conflict is not None:
                # The job may only be starting just now, when there is nothing to end yet: it is ended again and again.
                self._stop()
                while not self._left.wait(STOP_AGAIN_AFTER_S):
                    self._stop()
                return
