"""Experimental: Hudi's own Flink jobs, compaction and clustering, submitted with `flink run`, followed through REST.

Built from Hudi's `HoodieFlinkCompactor` and `HoodieFlinkClusteringJob` and Flink's documentation; tried against a fake
`flink` and a fake REST API, never against Flink. The engine chooses the id of the job before it submits it, so it can
cancel a job whose submitter died.
"""

from __future__ import annotations

import hashlib
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx
from airflow.sdk import BaseHook

from airflow_lake_provider.config.owned_options import REFERENCE, SECRET_KEY, is_open_secret
from airflow_lake_provider.errors import ConfigError, EngineAwayError, EngineError, ServiceRefusedError
from airflow_lake_provider.execution.engines.engine import Handle
from airflow_lake_provider.execution.engines.job_files import write_text
from airflow_lake_provider.execution.engines.local_process import LocalProcess, is_of_this_host, kill_marked
from airflow_lake_provider.job_contract import (
    FailureKind,
    JobResult,
    Mode,
    Outcome,
    Service,
    ServiceResult,
    to_json,
)

if TYPE_CHECKING:
    from airflow_lake_provider.execution.engines.engine import EngineJob
    from airflow_lake_provider.job_contract import ServiceRequest

log = logging.getLogger(__name__)

EXPERIMENTAL = "engine flink is experimental: it never ran on Flink, only against a fake of its program and REST API"

# --- The `flink run` command of Hudi's Flink jobs. Pure
#
# Options as of Hudi's `FlinkCompactionConfig` and `FlinkClusteringConfig`, and Flink's command line.

COMPACTOR = "org.apache.hudi.sink.compact.HoodieFlinkCompactor"
CLUSTERING_JOB = "org.apache.hudi.sink.clustering.HoodieFlinkClusteringJob"


@dataclass(frozen=True, slots=True)
class FlinkCluster:
    """A session cluster: the JobManager's REST address (`host:port`), the Hudi bundle, the client's program."""

    address: str
    bundle: str
    program: str = "flink"


def build_command(job: EngineJob, cluster: FlinkCluster, job_id: str) -> list[str]:
    """Return the command. Raises ServiceRefusedError for what Hudi's Flink jobs cannot do."""
    if len(job.request.services) != 1:
        raise ServiceRefusedError(f"table {job.request.base_path}: engine flink runs one service per job")
    (request,) = job.request.services
    for key, value in {**job.conf, **job.request.hudi_options, **request.options}.items():
        if value.startswith(REFERENCE):
            raise ServiceRefusedError(
                f"table {job.request.base_path}: {key} refers to a secret, and Flink's client takes settings on its "
                "command line only: set it in the configuration of the Flink cluster"
            )
    class_name, arguments = _hudi_job(request, job.request.base_path)
    command = [cluster.program, "run", "--detached", "--jobmanager", cluster.address]
    command += [f"-D{key}={value}" for key, value in job.conf.items()]
    # Flink's own option for high availability; nothing else finds a job whose submitter died before it reported the id.
    command += [f"-D$internal.pipeline.job-id={job_id}", "--class", class_name, cluster.bundle]
    command += ["--path", job.request.base_path, *arguments]
    for key, value in {**job.request.hudi_options, **request.options}.items():
        command += ["--hoodie-conf", f"{key}={value}"]
    return command


def _hudi_job(request: ServiceRequest, base_path: str) -> tuple[str, list[str]]:
    if request.mode is Mode.SCHEDULE:
        raise ServiceRefusedError(
            f"table {base_path}: Hudi's Flink jobs execute what they schedule; use mode {Mode.SCHEDULE_AND_EXECUTE}, "
            "or schedule with another engine"
        )
    may_schedule = request.mode is Mode.SCHEDULE_AND_EXECUTE and not request.instants
    schedule = ["--schedule"] if may_schedule else []
    if request.service is Service.COMPACTION:
        if request.instants:
            return COMPACTOR, ["--plan-select-strategy", "instants", "--target-instants", ",".join(request.instants)]
        return COMPACTOR, [*schedule, "--plan-select-strategy", "all"]
    if request.service is Service.CLUSTERING:
        if len(request.instants) > 1:
            raise ServiceRefusedError(
                f"table {base_path}: Hudi's Flink job executes one clustering plan, not {', '.join(request.instants)}"
            )
        return CLUSTERING_JOB, ["--instant-time", *request.instants] if request.instants else schedule
    raise ServiceRefusedError(
        f"table {base_path}: Hudi has no Flink job for {request.service}: use engine spark-submit"
    )


ENDED = frozenset({"FINISHED", "FAILED", "CANCELED"})
PAUSE_S = 1.0
END_PATIENCE_S = 60.0
FOLLOW_PATIENCE_S = 120.0
HTTP_TIMEOUT_S = 30.0


class FlinkEngine:
    """Experimental. Submits Hudi's Flink jobs to the session cluster of the connection."""

    def start(self, job: EngineJob) -> Handle:
        """Submit the job and wait until Flink has it. Raises EngineError, or ServiceRefusedError for other services."""
        job_id = job_id_of(job)
        command = build_command(job, find_cluster(job.conn_id), job_id)
        log.warning("%s", EXPERIMENTAL)
        log.info("flink command: %s", [_masked(part) for part in command])
        code = LocalProcess.start(command).follow()
        if code != 0:
            self.stop(Handle(job))
            raise EngineError(f"flink run ended with code {code}; its output is above")
        return Handle(job, job_id)

    def wait(self, handle: Handle) -> None:
        """Wait until the job ends, and write the result that Hudi's job does not write."""
        state = self._follow(handle.job)
        message = f"Flink job {job_id_of(handle.job)} ended as {state}" if state else "Hudi's Flink job ran nothing"
        log.info("%s", message)
        is_well = state in {"FINISHED", None}
        outcome = Outcome.FAILED if not is_well else Outcome.COMPLETED if state else Outcome.NOTHING_TO_DO
        kind = None if is_well else FailureKind.OTHER
        services = tuple(
            ServiceResult(service.service, outcome, failure_kind=kind, message=message)
            for service in handle.job.request.services
        )
        write_text(handle.job.request.result_path, to_json(JobResult(handle.job.request.job_id, services)))

    def stop(self, handle: Handle) -> None:
        """Cancel the job. Raises EngineError when it still runs or Flink does not answer."""
        job_id = job_id_of(handle.job)
        if is_of_this_host(handle.job.host):
            kill_marked(_mark(job_id))
        cluster = find_cluster(handle.job.conn_id)
        deadline = time.monotonic() + END_PATIENCE_S
        while _state(cluster, job_id) not in {*ENDED, None}:
            if time.monotonic() > deadline:
                raise EngineError(f"Flink job {job_id} of {handle.job.name} does not end")
            _request(cluster, "PATCH", f"/jobs/{job_id}", params={"mode": "cancel"})
            time.sleep(PAUSE_S)

    def _follow(self, job: EngineJob) -> str | None:
        cluster = find_cluster(job.conn_id)
        job_id = job_id_of(job)
        answered_s = time.monotonic()
        while True:
            try:
                state = _state(cluster, job_id)
                if state is None or state in ENDED:
                    return state
                answered_s = time.monotonic()
            except EngineError as error:
                if time.monotonic() - answered_s > FOLLOW_PATIENCE_S:
                    raise
                log.warning("%s; the engine tries again", error)
            time.sleep(PAUSE_S)


def job_id_of(job: EngineJob) -> str:
    """Return the Flink job id (32 hexadecimal digits) of a job."""
    return hashlib.md5(job.tag.encode(), usedforsecurity=False).hexdigest()


def find_cluster(conn_id: str) -> FlinkCluster:
    """Read the connection. Raises ConfigError when something is missing."""
    connection = BaseHook.get_connection(conn_id)
    extra: dict[str, Any] = connection.extra_dejson
    jar = str(extra.get("hudi-flink-bundle", ""))
    if not connection.host or not jar:
        raise ConfigError(
            f"connection {conn_id!r}: engine flink needs the JobManager's REST address as host (and port), and the "
            "path of the Hudi Flink bundle as hudi-flink-bundle in the extra"
        )
    return FlinkCluster(f"{connection.host}:{connection.port or 8081}", jar, str(extra.get("flink-binary", "flink")))


def _masked(part: str) -> str:
    key, is_setting, value = part.partition("=")
    return f"{key}=***" if is_setting and (SECRET_KEY.search(key) or is_open_secret(key, value)) else part


def _mark(job_id: str) -> str:
    return f"-D$internal.pipeline.job-id={job_id}"


def _state(cluster: FlinkCluster, job_id: str) -> str | None:
    """Return the job's state; None when Flink has no such job: there was nothing to run."""
    answer = _request(cluster, "GET", f"/jobs/{job_id}")
    return None if answer.status_code == httpx.codes.NOT_FOUND else str(answer.json()["state"])


def _request(cluster: FlinkCluster, method: str, path: str, **request: Any) -> httpx.Response:
    try:
        answer = httpx.request(method, f"http://{cluster.address}{path}", timeout=HTTP_TIMEOUT_S, **request)
        # There is no such job, or it ended just before the cancellation.
        if answer.status_code not in {httpx.codes.NOT_FOUND, httpx.codes.CONFLICT}:
            answer.raise_for_status()
    except httpx.HTTPStatusError as error:
        message = f"Flink's REST API at {cluster.address} answers: {error}"
        raise (EngineAwayError if error.response.is_server_error else EngineError)(message) from error
    except httpx.HTTPError as error:
        raise EngineAwayError(f"Flink's REST API at {cluster.address} does not answer: {error}") from error
    return answer
