"""What engines share whose job is a process of the worker's machine, with the request's path among its arguments."""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING

from airflow_lake_provider.engines.engine import Handle
from airflow_lake_provider.engines.local_process import LocalProcess, find_marked, is_of_this_host, kill_marked

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_lake_provider.engines.engine import EngineJob

log = logging.getLogger(__name__)

FAMILY_PATIENCE_S = 5.0
_PAUSE_S = 0.1


class LocalJob:
    """A job that ends with the process that started it, so it has no external id."""

    def __init__(self) -> None:
        self._process: LocalProcess | None = None

    def start(self, job: EngineJob, command: Sequence[str], env: Mapping[str, str] | None = None) -> Handle:
        """Start the command, which must hold the request's path. Raises EngineError."""
        self._process = LocalProcess.start(command, env)
        return Handle(job)

    def wait(self, handle: Handle) -> None:
        """Log the job's output until it ends; of another process's job, only wait for its end."""
        mark = handle.job.request_path
        if self._process is not None:
            code = self._process.follow(FAMILY_PATIENCE_S)
            # Not the verdict: a driver may die after its plan was completed.
            log.log(logging.INFO if code == 0 else logging.WARNING, "%s ended with code %d", handle.job.name, code)
            # A JVM outlives its Python by a moment, or for good, and would go on writing.
            _wait_for_family(mark, FAMILY_PATIENCE_S)
            kill_marked(mark)
        elif is_of_this_host(handle.job.host):
            _wait_for_family(mark, math.inf)

    def stop(self, handle: Handle) -> None:
        """Kill the whole family of the job's processes. Raises EngineError when one lives on.

        A driver of another host cannot be reached, and need not be: it watches its submitter, which ends it before it
        loses its lease.
        """
        if not is_of_this_host(handle.job.host):
            return
        killed = kill_marked(handle.job.request_path)
        if self._process is not None:
            self._process.kill()
        if killed:
            log.info("killed %d processes of %s", killed, handle.job.name)


def _wait_for_family(mark: str, patience_s: float) -> None:
    deadline = time.monotonic() + patience_s
    while any(find_marked(mark)) and time.monotonic() < deadline:
        time.sleep(_PAUSE_S)
