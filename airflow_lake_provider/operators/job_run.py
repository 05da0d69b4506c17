"""One job under its lease: what an earlier executor left is ended or taken up first, so that no plan has two (G2)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from airflow_lake_provider.engines.engine import Handle
from airflow_lake_provider.engines.job_files import read_result, remove, write_text
from airflow_lake_provider.job_contract import request_to_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_lake_provider.engines.engine import Engine, EngineJob
    from airflow_lake_provider.engines.executor_record import ExecutorRecord
    from airflow_lake_provider.job_contract import JobRequest

log = logging.getLogger(__name__)


class JobRun:
    """Runs one job. `run` belongs to the task's main thread, `stop` to any."""

    def __init__(self, job: EngineJob, record: ExecutorRecord, create_engine: Callable[[str], Engine]) -> None:
        self.job = self._job = job
        self._record = record
        self._create_engine = create_engine
        self._engines: dict[str, Engine] = {}
        self._handle: Handle | None = None

    def run(self, require_lease: Callable[[], None]) -> JobRequest:
        """Run the job to its end; return the request that was run: an earlier try's, when its job had gone on alone.

        `require_lease` raises when the lease is lost; it is asked just before anything begins. Raises EngineError when
        an earlier job may still be running.
        """
        left = self._record.find()
        if left is not None and self._settle(left):
            return left.job.request
        write_text(self._job.request_path, request_to_json(self._job.request))
        require_lease()
        self._record.begin(self._job)
        self._handle = Handle(self._job)
        try:
            # The process may have slept since it took the lease.
            require_lease()
            self._handle = self._engine(self._job.engine).start(self._job)
            self._record.started(self._handle)
            self._follow(self._handle)
        except BaseException:
            self.stop()
            raise
        return self._job.request

    def stop(self) -> None:
        """End the job, if there is one. What cannot be ended stays on record for the next holder of the lease."""
        handle = self._handle
        if handle is None:
            return
        try:
            self._end(handle)
        except Exception as error:  # noqa: BLE001 - other packages' engines may raise anything, and the lease's thread asks again
            log.warning("%s was not ended: %s", handle.job.name, error)

    def _settle(self, left: Handle) -> bool:
        """Make sure that an earlier job has ended; True when it was this run's own and left a result."""
        if left.external_id and _is_same_work(left.job, self._job):
            log.info("%s of an earlier try is followed: %s", left.job.name, left.external_id)
            self._handle = left
            self._follow(left)
            if read_result(left.job.request.result_path) is not None:
                return True
        else:
            log.info("%s of job %s is ended before this one begins", left.job.name, left.job.request.job_id)
            self._end(left)
            self._record.forget()
        return False

    def _follow(self, handle: Handle) -> None:
        self._engine(handle.job.engine).wait(handle)
        self._record.forget()
        self._handle = None

    def _end(self, handle: Handle) -> None:
        # A driver that is still on its way finds no request any more, and ends by itself.
        remove(handle.job.request_path)
        self._engine(handle.job.engine).stop(handle)

    def _engine(self, name: str) -> Engine:
        if name not in self._engines:
            self._engines[name] = self._create_engine(name)
        return self._engines[name]


def _is_same_work(left: EngineJob, job: EngineJob) -> bool:
    """Whether a job of an earlier try of this run does what this try is to do."""
    run_id, _, _ = job.request.job_id.rpartition("/")
    return left.request.job_id.rpartition("/")[0] == run_id and left.request.services == job.request.services
