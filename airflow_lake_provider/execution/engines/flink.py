"""Experimental: Hudi's own Flink jobs, compaction and clustering, submitted with `flink run`, followed through REST.

Run on a real Flink with a job that stands in for Hudi's (`tests/clusters/test_flink.py`); Hudi's own are built from
`HoodieFlinkCompactor` and `HoodieFlinkClusteringJob` alone. The engine chooses the ids of a job before it submits it,
so it can cancel a job whose submitter died.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import logging
import re
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from urllib.request import Request

from airflow.sdk import BaseHook

from airflow_lake_provider.config.owned_options import REFERENCE, SECRET_KEY, is_open_secret
from airflow_lake_provider.errors import ConfigError, EngineAwayError, EngineError, ServiceRefusedError
from airflow_lake_provider.execution.engines.engine import MAX_REASON, Death, Handle, find_exception
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
from airflow_lake_provider.shared.http_answer import ServerAnswer, ask
from airflow_lake_provider.shared.plain_text import MAX_SAID, first_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from airflow_lake_provider.execution.engines.engine import EngineJob
    from airflow_lake_provider.job_contract import ServiceRequest

log = logging.getLogger(__name__)

EXPERIMENTAL = "engine flink is experimental: it ran on Flink with a job that stands in for Hudi's, never with Hudi's"

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
    command += [_mark(job), f"-D$internal.pipeline.job-id={job_id}", "--class", class_name, cluster.bundle]
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
MAX_ANSWER_BYTES = 16 << 20
_NOT_THERE = frozenset({http.client.NOT_FOUND, http.client.CONFLICT})
SUBMISSIONS = 64
"""So many submissions of one job have an id of their own: Flink accepts none twice, and a try may begin again."""
HEARTBEAT_TIMEOUT_S = 50.0
"""Flink's default: so long after the death of their JobManager TaskManagers work on."""
_HEARTBEAT_KEY = "heartbeat.timeout"
_NO_SLOT = "NoResourceAvailableException"
_NO_ANSWER = re.compile(
    r"\b(?:Connect\w*|UnknownHost|NoRouteToHost|ConnectionIdle|Timeout)Exception: |ongoing leader election"
)


class FlinkEngine:
    """Experimental. Submits Hudi's Flink jobs to the session cluster of the connection."""

    def __init__(self) -> None:
        self._ran_nothing = False

    def start(self, job: EngineJob) -> Handle:
        """Submit the job and wait until Flink has it. Raises EngineError, or ServiceRefusedError for other services."""
        cluster = find_cluster(job.conn_id)
        job_id = _next_id(cluster, job)
        command = build_command(job, cluster, job_id)
        log.warning("%s", EXPERIMENTAL)
        log.info("flink command: %s", [_masked(part) for part in command])
        process = LocalProcess.start(command)
        code = process.follow()
        if code != 0:
            self.stop(Handle(job))
            complaint = find_complaint(process.tail)
            is_away = _NO_ANSWER.search(complaint) is not None
            raise (EngineAwayError if is_away else EngineError)(
                f"{job.name} could not be submitted: {complaint or f'flink run ended with code {code}'}"[:MAX_REASON]
            )
        if any(job_id in line for line in process.tail) or _state(cluster, job_id) is not None:
            log.info("Flink job %s: http://%s/#/job/%s/overview", job_id, cluster.address, job_id)
            return Handle(job, job_id)
        # Hudi's main program, which runs in the client, found nothing to submit.
        self._ran_nothing = True
        _write_result(job, Outcome.NOTHING_TO_DO, "Hudi's Flink job ran nothing")
        return Handle(job)

    def wait(self, handle: Handle) -> Death | None:
        """Wait until the job ends, and write the result that Hudi's job does not write.

        Returns why it ended badly. Raises EngineAwayError when Flink does not answer for too long.
        """
        if self._ran_nothing:
            return None
        job_id = handle.external_id
        cluster = find_cluster(handle.job.conn_id)
        state = self._follow(cluster, job_id)
        if state == "FINISHED":
            _write_result(handle.job, Outcome.COMPLETED, f"Flink job {job_id} ended as {state}")
            return None
        if state is None:
            return Death(
                f"Flink does not know job {job_id} any more: its JobManager was restarted without high availability, "
                "or the job ended long ago"
            )
        trace = _read_trace(cluster, job_id)
        log.info("%s", trace)
        reason = find_exception(trace.splitlines()) or "Flink gives no reason"
        kind = FailureKind.INFRASTRUCTURE if _NO_SLOT in trace else FailureKind.OTHER
        return Death(f"Flink job {job_id} ended as {state}: {reason}"[:MAX_REASON], kind)

    def stop(self, handle: Handle) -> None:
        """Cancel the job. Raises EngineError when it still runs or Flink does not answer."""
        if is_of_this_host(handle.job.host):
            kill_marked(_mark(handle.job))
        cluster = find_cluster(handle.job.conn_id)
        deadline = time.monotonic() + END_PATIENCE_S
        ids = set(ids_of(handle.job))
        while (running := _find_running(cluster, ids)) or _has_slots(cluster, ids):
            if time.monotonic() > deadline:
                found = ", ".join(running) or "that its JobManager has forgotten"
                raise EngineError(f"{handle.job.name} does not end: a TaskManager still works on job {found}")
            for job_id in running:
                _request(cluster, "PATCH", f"/jobs/{job_id}?mode=cancel")
            time.sleep(PAUSE_S)
        if handle.external_id and _state(cluster, handle.external_id) is None:
            self._follow(cluster, handle.external_id)

    def _follow(self, cluster: FlinkCluster, job_id: str) -> str | None:
        """Return the state in which the job ended; None when Flink forgot it, and no TaskManager can work on it."""
        answered_s = time.monotonic()
        unknown_s: float | None = None
        said: str | None = ""
        while True:
            try:
                state = _state(cluster, job_id)
                answered_s = time.monotonic()
                if state != said:
                    log.info("Flink job %s is %s", job_id, state or "unknown")
                    said = state
                if state in ENDED:
                    return state
                unknown_s = (unknown_s or answered_s) if state is None else None
                if unknown_s and _is_gone(cluster, job_id, answered_s - unknown_s):
                    return None
            except EngineError as error:
                if time.monotonic() - answered_s > FOLLOW_PATIENCE_S:
                    raise
                log.warning("%s; the engine tries again", error)
            time.sleep(PAUSE_S)


def ids_of(job: EngineJob) -> list[str]:
    """Return the ids (32 hexadecimal digits) under which a job may be in Flink, one for each submission."""
    return [
        hashlib.md5(f"{job.tag}/{number}".encode(), usedforsecurity=False).hexdigest() for number in range(SUBMISSIONS)
    ]


def find_complaint(output: Iterable[str]) -> str:
    """Return why `flink run` failed: the innermost exception it printed, else its first line. Pure."""
    lines = [line for line in output if line.strip()]
    return find_exception(lines) or next(iter(lines), "")


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


def _mark(job: EngineJob) -> str:
    """Return the argument by which a client of this machine is found; Flink ignores settings that it does not know."""
    return f"-Dlake.job={job.tag}"


def _write_result(job: EngineJob, outcome: Outcome, message: str) -> None:
    log.info("%s", message)
    services = tuple(ServiceResult(asked.service, outcome, message=message) for asked in job.request.services)
    write_text(job.request.result_path, to_json(JobResult(job.request.job_id, services)))


# --- What the JobManager says


def _next_id(cluster: FlinkCluster, job: EngineJob) -> str:
    """Return the id of the next submission. Raises EngineError when there were too many."""
    known = {found["jid"] for found in _list_jobs(cluster)}
    ids = ids_of(job)
    used = max((number for number, job_id in enumerate(ids) if job_id in known), default=-1)
    if used + 1 == len(ids):
        raise EngineError(f"{job.name} was submitted to Flink {len(ids)} times by one try")
    return ids[used + 1]


def _find_running(cluster: FlinkCluster, ids: set[str]) -> list[str]:
    return [found["jid"] for found in _list_jobs(cluster) if found["jid"] in ids and found["state"] not in ENDED]


def _list_jobs(cluster: FlinkCluster) -> list[dict[str, str]]:
    with _expecting_flink(cluster):
        return [{"jid": str(job["jid"]), "state": str(job["state"])} for job in _ask(cluster, "/jobs/overview")["jobs"]]


def _has_slots(cluster: FlinkCluster, ids: set[str]) -> bool:
    """Whether a TaskManager works on one of the jobs, also on one that a restarted JobManager does not know."""
    with _expecting_flink(cluster):
        workers = _ask(cluster, "/taskmanagers")["taskmanagers"]
        # None of one that has gone meanwhile.
        details = (_ask(cluster, f"/taskmanagers/{quote(worker['id'], safe='')}") or {} for worker in workers)
        return any(slot["jobId"] in ids for worker in details for slot in worker.get("allocatedSlots", ()))


def _is_gone(cluster: FlinkCluster, job_id: str, unknown_for_s: float) -> bool:
    """Whether nothing works on a job that Flink does not know.

    A JobManager that was restarted has the job again in a moment with high availability; without it, TaskManagers work
    on until they miss the old one.
    """
    return unknown_for_s > _heartbeat_timeout_s(cluster) and not _has_slots(cluster, {job_id})


def _state(cluster: FlinkCluster, job_id: str) -> str | None:
    """Return the job's state; None when Flink has no such job."""
    answer = _ask(cluster, f"/jobs/{job_id}")
    with _expecting_flink(cluster):
        return None if answer is None else str(answer["state"])


def _read_trace(cluster: FlinkCluster, job_id: str) -> str:
    """Return the stack trace that ended the job; empty for one that was cancelled, or that Flink forgot meanwhile."""
    try:
        answer = _ask(cluster, f"/jobs/{job_id}/exceptions") or {}
        with _expecting_flink(cluster):
            failures = answer.get("exceptionHistory", {}).get("entries", ())
            return str(failures[0]["stacktrace"]) if failures else ""
    except EngineError as error:
        log.warning("%s", error)
        return ""


def _heartbeat_timeout_s(cluster: FlinkCluster) -> float:
    with _expecting_flink(cluster):
        for entry in _ask(cluster, "/jobmanager/config") or ():
            if entry["key"] == _HEARTBEAT_KEY:
                return parse_duration_s(str(entry["value"]))
    return HEARTBEAT_TIMEOUT_S


_UNITS_S = {"ms": 0.001, "": 0.001, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}


def parse_duration_s(text: str) -> float:
    """Return a duration of Flink's settings in seconds, as `50 s`; its default for a unit that is not known. Pure."""
    found = re.fullmatch(r"\s*(\d+)\s*([a-z]*)\s*", text)
    return float(found[1]) * _UNITS_S[found[2]] if found and found[2] in _UNITS_S else HEARTBEAT_TIMEOUT_S


def _ask(cluster: FlinkCluster, path: str) -> Any:
    """Return what Flink answers, None where it has no such thing. Raises EngineError, EngineAwayError."""
    answer = _request(cluster, "GET", path)
    if answer.status in _NOT_THERE:
        return None
    try:
        return json.loads(answer.content)
    except (ValueError, RecursionError) as error:
        raise EngineAwayError(f"what answers at {cluster.address}{path} is no Flink: {first_line(error)}") from error


def _request(cluster: FlinkCluster, method: str, path: str) -> ServerAnswer:
    """Return the answer, of which size and time have a bound: whatever has the address may answer."""
    request = Request(f"http://{cluster.address}{path}", method=method)
    try:
        answer = ask(request, HTTP_TIMEOUT_S, limit_bytes=MAX_ANSWER_BYTES)
    except (OSError, ValueError) as error:
        raise EngineAwayError(f"Flink's REST API at {cluster.address} does not answer: {first_line(error)}") from error
    # There is no such job, or it ended just before the cancellation.
    if answer.is_success or answer.status in _NOT_THERE:
        return answer
    said = first_line(answer.content[:MAX_SAID].decode("utf-8", "replace"))
    message = f"Flink's REST API at {cluster.address} answers: {answer.status} to {path}: {said}"
    raise (EngineAwayError if answer.status >= http.client.INTERNAL_SERVER_ERROR else EngineError)(message)


@contextmanager
def _expecting_flink(cluster: FlinkCluster) -> Iterator[None]:
    """Raise EngineAwayError for an answer of another form: of a proxy, or of another program at the address."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise EngineAwayError(
            f"what answers at {cluster.address} is no Flink: {type(error).__name__} {first_line(error, 100)}"
        ) from error
