"""One job under its lease: what an earlier executor left is ended or taken up first, so that no plan has two (G2)."""

from __future__ import annotations

import logging
import os
import re
import socket
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow.sdk.configuration import conf

from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.execution.engines.engine import DEFAULT_ENGINE, EngineJob, Handle
from airflow_lake_provider.execution.engines.job_files import JobFolder, read_result, remove, write_text
from airflow_lake_provider.hudi.base_path import table_id_of
from airflow_lake_provider.job_contract import MEMORY_KEYS, FailureKind, request_to_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from airflow_lake_provider.execution.engines.engine import Engine
    from airflow_lake_provider.execution.engines.job_files import ExecutorRecord
    from airflow_lake_provider.job_contract import JobRequest, JobResult

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


# --- More memory for the tries after one that ran out of it: twice as much, once. Pure, but for reading results

# Spark's own default for both.
_DEFAULT = "1g"
_SIZE = re.compile(r"(?P<number>\d+)(?P<unit>[kmgt]?)b?", re.IGNORECASE)


def find_out_of_memory(results: Iterable[JobResult | None]) -> JobResult | None:
    """Return what the first of the earlier tries that ran out of memory left; None when none did."""
    return next(
        (
            result
            for result in results
            if result is not None
            and any(service.failure_kind is FailureKind.OUT_OF_MEMORY for service in result.services)
        ),
        None,
    )


def with_more_memory(conf: Mapping[str, str], failed: JobResult) -> dict[str, str]:
    """Return the Spark settings with twice what driver and executors of the failed try had. Raises ConfigError.

    That may stand in spark-defaults.conf or the connection; what is set here wins over both.
    """
    had = {**conf, **failed.memory}
    return {**conf, **{key: _doubled(key, had.get(key, _DEFAULT)) for key in MEMORY_KEYS}}


def earlier_results(try_number: int, read: Callable[[int], JobResult | None]) -> list[JobResult | None]:
    """Return the results of the tries before this one; tries count from 1."""
    return [read(number) for number in range(1, try_number)]


def _doubled(key: str, size: str) -> str:
    match = _SIZE.fullmatch(size.strip())
    if match is None:
        raise ConfigError(f"{key} is {size!r}: not a size such as 512m or 4g")
    return f"{int(match['number']) * 2}{match['unit']}"


# --- The engine's job of a service: the request, with what the operator and `[lake]` say about where it runs


def work_dir() -> str:
    """Return the folder of job files: `[lake] work_dir`, else `$AIRFLOW_HOME/lake`."""
    home = os.path.expanduser(os.environ.get("AIRFLOW_HOME", "~/airflow"))
    return _option("work_dir", f"{home}/lake")


def manager_patience_s() -> float:
    """Return for how long a task waits for a manager that is away, in seconds. Raises ConfigError."""
    text = _option("manager_patience_s", "600")
    try:
        return float(text)
    except ValueError as error:
        raise ConfigError(f"[lake] manager_patience_s = {text!r}: expected seconds") from error


def open_folder(run_id: str, try_number: int) -> JobFolder:
    """Return where a try's files lie."""
    return JobFolder(work_dir(), run_id, try_number)


def build_job(
    request: JobRequest, folder: JobFolder, engine: str | None, conn_id: str | None, settings: Mapping[str, str]
) -> EngineJob:
    """Return the job of a request; an empty engine or connection is `[lake]`'s."""
    return EngineJob(
        engine=engine or _option("engine", DEFAULT_ENGINE),
        name=f"lake-{request.services[0].service.value}-{table_id_of(request.base_path)}",
        request=request,
        request_path=folder.request_path,
        host=socket.gethostname(),
        conn_id=conn_id or _option("spark_conn_id", "spark_default"),
        conf=settings,
        jars=_option("spark_jars", ""),
        packages=_option("spark_packages", ""),
    )


def results_before(folder: JobFolder) -> list[JobResult | None]:
    """Return what the tries before this one left."""
    return earlier_results(
        folder.try_number, lambda number: read_result(replace(folder, try_number=number).result_path)
    )


def _option(name: str, default: str) -> str:
    return str(conf.get("lake", name, fallback="") or default)
