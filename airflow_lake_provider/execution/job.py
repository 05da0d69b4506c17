"""One job under its lease: it first ends or resumes what an earlier executor left, so that no plan has two (G2)."""

from __future__ import annotations

import logging
import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

from airflow.sdk.configuration import conf

from airflow_lake_provider.config.owned_options import REFERENCE
from airflow_lake_provider.config.settings import LakeSettings
from airflow_lake_provider.errors import EngineAwayError, EngineError
from airflow_lake_provider.execution.engines.engine import DEFAULT_ENGINE, EngineJob, Handle, create_engine, error_of
from airflow_lake_provider.execution.engines.job_files import (
    ExecutorRecord,
    JobFolder,
    find_result,
    hide_request,
    prune_jobs,
    read_result,
    remove,
    write_request,
    write_text,
)
from airflow_lake_provider.execution.engines.local_process import this_submitter
from airflow_lake_provider.execution.engines.packaging import standing_conf
from airflow_lake_provider.execution.engines.warm import choose_engine, require_own_release
from airflow_lake_provider.execution.lease import LeaseKeeper, LeaseRequest
from airflow_lake_provider.hooks.lake import LakeHook, airflow_trust
from airflow_lake_provider.hudi.base_path import table_id_of
from airflow_lake_provider.job_contract import (
    WORK_AT_ONCE,
    WORK_CA,
    WORK_IDLE_S,
    WORK_KEY,
    WORK_LEASE,
    WORK_MAX_AGE_S,
    WORK_TOKEN,
    WORK_URL,
    JobRequest,
    JobResult,
    Outcome,
    ServiceResult,
    Standing,
    to_json,
)
from airflow_lake_provider.replication.job import ReplicationRequest, ReplicationResult

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow_lake_provider.execution.engines.engine import Death, Engine

log = logging.getLogger(__name__)


class JobRun:
    """Runs one job. `run` belongs to the task's main thread, `stop` to any."""

    def __init__(self, job: EngineJob, record: ExecutorRecord, create_engine: Callable[[str], Engine]) -> None:
        self.job = self._job = job
        self._record = record
        self._create_engine = create_engine
        self._engines: dict[str, Engine] = {}
        self._handle: Handle | None = None
        self.death: Death | None = None
        """Why the job died, where its engine knows."""

    @property
    def result_path(self) -> str:
        """Where the job that runs writes its result: an earlier try's, while this one follows it."""
        return self._handle.job.request.result_path if self._handle is not None else self._job.request.result_path

    def run(self, require_lease: Callable[[], None]) -> JobRequest:
        """Run the job to its end; return the request that ran: an earlier try's, when its job continued by itself.

        `require_lease` raises when the lease is lost; it is called just before anything begins. Raises EngineError when
        an earlier job may still be running, and EngineAwayError when this one may be: it stays on record.
        """
        left = self._record.find()
        if left is not None and self._finish_earlier(left):
            return left.job.request
        # Of an earlier execution of the same try, which waited for infrastructure since.
        remove(self._job.request.result_path)
        write_request(self._job)
        try:
            require_lease()
        except BaseException:
            remove(self._job.request_path)
            raise
        self._record.begin(self._job)
        self._handle = Handle(self._job)
        try:
            # The process may have stalled since it acquired the lease.
            require_lease()
            self._handle = self._engine(self._job.engine).start(self._job)
            self._record.started(self._handle)
            self.death = self._follow(self._handle)
        except EngineAwayError:
            # A job that can be found again runs on: ending it now would throw its work away, if it could be ended.
            if not self._handle.external_id:
                self.stop()
            raise
        except BaseException:
            self.stop()
            raise
        self._leave_reason(self.death)
        return self._job.request

    def stop(self) -> None:
        """End the job, if there is one. A job that cannot be ended stays on record for the next holder of the lease."""
        handle = self._handle
        if handle is None:
            return
        try:
            self._end(handle)
        except Exception as error:  # noqa: BLE001 - other packages' engines may raise anything, and the lease's thread retries
            log.warning("%s could not be ended: %s", handle.job.name, error)

    def _finish_earlier(self, left: Handle) -> bool:
        """Make sure that an earlier job has ended; True when it was this run's own and left a result."""
        if left.external_id and _is_same_work(left.job, self._job):
            log.info("this try follows %s of an earlier try: %s", left.job.name, left.external_id)
            self._handle = left
            self._follow(left)
            if self._has_result(left.job.request.result_path):
                return True
        else:
            log.info("this try ends %s of job %s before it begins its own", left.job.name, left.job.request.job_id)
            self._end(left)
            self._record.forget()
        return False

    def _has_result(self, path: str) -> bool:
        if self._job.replication is None:
            return read_result(path) is not None
        result = find_result(path, ReplicationResult)
        return result is not None and result.ended

    def _leave_reason(self, death: Death | None) -> None:
        """Write the result of a job that died without one: the reason, and what the next try needs."""
        request = self._job.request
        if death is not None and self._job.replication is None and read_result(request.result_path) is None:
            services = tuple(
                ServiceResult(asked.service, Outcome.FAILED, failure_kind=death.failure_kind, message=death.reason)
                for asked in request.services
            )
            # A full disk takes no result, and says nothing about the plan.
            with suppress(OSError):
                write_text(request.result_path, to_json(JobResult(request.job_id, services)))

    def _follow(self, handle: Handle) -> Death | None:
        death = self._engine(handle.job.engine).wait(handle)
        if self._job.replication is None:
            hide_request(handle.job.request_path, handle.job.request)
        else:
            # It may hold the sink's password, and the record of an earlier try does not say where.
            remove(handle.job.request_path)
        self._record.forget_job(handle.job)
        self._handle = None
        return death

    def _end(self, handle: Handle) -> None:
        # A driver that is still starting finds no request any more, and ends by itself.
        remove(handle.job.request_path)
        self._engine(handle.job.engine).stop(handle)

    def _engine(self, name: str) -> Engine:
        if name not in self._engines:
            self._engines[name] = self._create_engine(name)
        return self._engines[name]


def _is_same_work(left: EngineJob, job: EngineJob) -> bool:
    """Whether a job of an earlier try of this run does the same work as this try."""
    run_id, _, _ = job.request.job_id.rpartition("/")
    return left.request.job_id.rpartition("/")[0] == run_id and left.request.services == job.request.services


# --- The engine's job of a service: the request, with the place that the operator and `[lake]` set


def work_dir() -> str:
    """Return the folder of job files: `[lake] work_dir`, else `$AIRFLOW_HOME/lake`."""
    home = os.path.expanduser(os.environ.get("AIRFLOW_HOME", "~/airflow"))
    return LakeSettings.from_conf(conf).work_dir or f"{home}/lake"


def manager_patience_s() -> float:
    """Return how long a task retries a manager that does not answer, in seconds. Raises ConfigError."""
    return LakeSettings.from_conf(conf).manager_patience_s


def open_folder(run_id: str, try_number: int, part: str = "") -> JobFolder:
    """Return the folder of a try's files; folders of runs that ended long ago are removed on the way."""
    folder = work_dir()
    prune_jobs(folder)
    return JobFolder(folder, run_id, try_number, part)


def build_job(  # noqa: PLR0913 - what operator and `[lake]` set, each as it is
    request: JobRequest,
    folder: JobFolder,
    engine: str | None,
    conn_id: str | None,
    settings: Mapping[str, str],
    size_bytes: int | None = None,
    why_alone: str = "",
) -> EngineJob:
    """Return the job of a request; an empty engine or connection takes `[lake]`'s.

    `size_bytes` and `why_alone` are those of `choose_engine`.
    """
    lake = LakeSettings.from_conf(conf)
    engine, why = choose_engine(engine or lake.engine, request, size_bytes, lake.warm_work_bytes, why_alone)
    if why:
        log.info("engine %s: %s", engine, why)
    return EngineJob(
        engine=engine,
        name=f"lake-{request.services[0].service.value}-{table_id_of(request.base_path)}",
        request=request,
        request_path=folder.request_path,
        host=socket.gethostname(),
        conn_id=conn_id or lake.spark_conn_id,
        conf=settings,
        jars=lake.spark_jars,
        packages=lake.spark_packages,
    )


def replication_job(
    request: ReplicationRequest, folder: JobFolder, job_id: str, conn_id: str | None, settings: Mapping[str, str]
) -> EngineJob:
    """Return the job of a run of replication; an empty connection takes `[lake]`'s."""
    lake = LakeSettings.from_conf(conf)
    return EngineJob(
        engine=DEFAULT_ENGINE,
        name=f"lake-replicate-{request.order.stream}",
        # Without the sink's options, which may be secret: what is on record of the job contains this.
        request=JobRequest(job_id, request.base_path, request.table_name, (), request.result_path),
        request_path=folder.request_path,
        host=socket.gethostname(),
        conn_id=conn_id or lake.replication_spark_conn_id or lake.spark_conn_id,
        conf=settings,
        jars=lake.spark_jars,
        packages=lake.spark_packages,
        replication=request,
    )


# --- The standing application of the engine `warm`, as the task of the DAG `lake_warm` runs it


def run_standing_application(key: str, run_id: str, try_number: int, lake_conn_id: str) -> str:
    """Run the application that pulls a key's work, to its end; return its Spark id.

    It is the only one of its key: it runs under a lease, like the executor of a service, and ends when the lease is
    lost. Raises LakeError; work that it had begun is then given to the next one.
    """
    lake = LakeSettings.from_conf(conf)
    hook = LakeHook(lake_conn_id, lake.manager_patience_s)
    settings = hook.get_application(key)
    require_own_release(key, settings)
    folder = open_folder(run_id, try_number)
    record = ExecutorRecord(folder.work_dir, key, Standing.APPLICATION)
    runs: list[JobRun] = []

    def end() -> None:
        for run in runs:
            run.stop()

    lease = LeaseKeeper(LeaseRequest(hook, key, Standing.APPLICATION, folder), on_lost=end)
    with lease:
        options = {
            WORK_URL: hook.find_address()[0],
            WORK_TOKEN: f"{REFERENCE}manager/{lake_conn_id}",
            WORK_KEY: key,
            WORK_LEASE: lease.token,
            WORK_CA: airflow_trust().private_authorities(),
            WORK_AT_ONCE: str(lake.warm_at_once),
            WORK_IDLE_S: str(lake.warm_idle_s),
            WORK_MAX_AGE_S: str(lake.warm_max_age_s),
        }
        request = JobRequest(
            job_id=f"{run_id}/{try_number}",
            base_path="",
            table_name=key,
            services=(),
            result_path=folder.result_path,
            hudi_options=options,
            submitter=this_submitter(),
        )
        job = EngineJob(
            engine=DEFAULT_ENGINE,
            name=f"lake-{key}",
            request=request,
            request_path=folder.request_path,
            host=socket.gethostname(),
            conn_id=str(settings["spark_conn_id"]),
            conf=standing_conf({str(k): str(v) for k, v in settings["spark_conf"].items()}, lake.spark_jars),
            jars=lake.spark_jars,
            packages=lake.spark_packages,
        )
        runs.append(JobRun(job, record, create_engine))
        runs[0].run(lease.require_held)
    if lease.error is not None:
        raise type(lease.error)(f"standing application {key} was ended: {lease.error}") from lease.error
    result = read_result(folder.result_path)
    if result is None or not result.spark_application_id:
        if runs[0].death is not None:
            raise error_of(runs[0].death, f"standing application {key}")
        raise EngineError(f"standing application {key} ended without a result; its output is above")
    return result.spark_application_id
