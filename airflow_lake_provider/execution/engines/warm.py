"""Warm Spark: which engine runs a job whose settings say `warm` or `auto`, and the engine `warm` itself.

A standing application runs the jobs of many tables, several at once, so that none of them starts a JVM.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any

from airflow_lake_provider import __version__
from airflow_lake_provider.config.owned_options import REFERENCE
from airflow_lake_provider.errors import ConfigError, EngineError, ManagerUnreachableError
from airflow_lake_provider.execution.engines.engine import Death, EngineJob, Handle
from airflow_lake_provider.execution.engines.job_files import write_text
from airflow_lake_provider.hooks.lake import LakeHook
from airflow_lake_provider.hudi.base_path import table_id_of
from airflow_lake_provider.hudi.instant import instant_from_dict
from airflow_lake_provider.job_contract import (
    CONTRACT_VERSION,
    LIVE_WORK,
    TRAITS,
    TTL_COLUMN,
    JobRequest,
    Mode,
    from_json,
    to_json,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_lake_provider.execution.engines.engine import Engine
    from airflow_lake_provider.hudi.instant import Instant

log = logging.getLogger(__name__)

# --- Which engine runs a job whose settings say `warm` or `auto`. Pure

SUBMIT = "spark-submit"
WARM = "warm"
AUTO = "auto"


def choose_engine(
    wanted: str, request: JobRequest, size_bytes: int | None, most_bytes: int, why: str = ""
) -> tuple[str, str]:
    """Return the engine of a job and the reason, empty where the settings name it.

    `size_bytes` is what the job is expected to read, None when that is not known; it counts for `auto` only. `why` is
    why this try needs a spark-submit of its own, empty when it does not.
    """
    if wanted not in {WARM, AUTO}:
        return wanted, ""
    (service,) = request.services
    why = why or TRAITS[service.service].why_alone
    if service.mode in {Mode.WITHDRAW, Mode.UNDO, Mode.RESTORE, Mode.UPGRADE, Mode.ERASE}:
        why = f"mode {service.mode} is rare"
    if any(value.startswith(REFERENCE) for value in (*request.hudi_options.values(), *service.options.values())):
        why = "its options refer to secrets, which the manager does not keep"
    if why:
        return SUBMIT, f"{service.service} gets a spark-submit of its own: {why}"
    # Rows expire by what their files say, partitions by the timeline.
    reads = TRAITS[service.service].reads_data_files or TTL_COLUMN in {**request.hudi_options, **service.options}
    if wanted == AUTO and reads:
        if size_bytes is None:
            return SUBMIT, f"{service.service} gets a spark-submit of its own: how much it reads is not known"
        if size_bytes > most_bytes:
            return SUBMIT, (
                f"{service.service} gets a spark-submit of its own: it reads about {size_bytes:,} bytes, more than "
                f"[lake] warm_work_bytes {most_bytes:,}"
            )
    return WARM, "a standing application runs it"


def expected_bytes(evidence: object) -> int | None:
    """Return what a service reads, by the evidence of the manager's decision; None when that does not say."""
    if not isinstance(evidence, dict) or evidence.get("unsized_file_groups", 0):
        return None
    sizes = (evidence.get("log_bytes"), evidence.get("base_bytes"))
    return sum(size for size in sizes if isinstance(size, int)) if all(isinstance(s, int) for s in sizes) else None


def application_key(queue: str, conn_id: str, conf: Mapping[str, str]) -> str:
    """Return the key of this release's standing application for a queue, connection and Spark configuration.

    An application of another release is given no item of this one: it may not know what a request says.
    """
    text = json.dumps([__version__, CONTRACT_VERSION, queue, conn_id, sorted(conf.items())])
    return f"warm-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def require_own_release(key: str, settings: Mapping[str, Any]) -> None:
    """Raise ConfigError when another release than this one submitted the work of a key; `settings` are the key's own.

    While workers are upgraded one by one, the task that starts an application may run on any of them.
    """
    conf = {str(name): str(value) for name, value in settings["spark_conf"].items()}
    if application_key(str(settings["queue"]), str(settings["spark_conn_id"]), conf) != key:
        raise ConfigError(
            f"the work of {key} was submitted by another release of airflow-lake-provider than that of this worker, "
            f"{__version__}, whose application must not run it: it runs by spark-submits of its own after [lake] "
            "warm_patience_s, or by the next application on an upgraded worker"
        )


# --- The engine `warm`: the job is an item of work that a standing application pulls from the manager

ASK_INTERVAL_S = 1.0
END_PATIENCE_S = 60.0


class WarmEngine:
    """Submits the job to the manager as an item of work; the DAG `lake_warm` runs the application that pulls it.

    A job that two applications did not survive, and one for which none comes, runs by a spark-submit of its own.
    """

    def __init__(self) -> None:
        # Imported on use: most jobs never need it, and Spark's hook costs a second.
        submit = import_module("airflow_lake_provider.execution.engines.spark_submit")
        self._alone: Engine = submit.SparkSubmitEngine()
        self._alone_handle: Handle | None = None
        self._stopped = threading.Event()

    def start(self, job: EngineJob) -> Handle:
        """Submit the item. Raises ExecutorBusyError while the application ends that of an earlier try."""
        if not submit_item(LakeHook(job.lake_conn_id), job):
            return self._start_alone(job)
        return Handle(job, job.tag)

    def wait(self, handle: Handle) -> Death | None:
        """Log the item's lines until it has ended, and write its result where a driver would."""
        if self._alone_handle is not None or not handle.external_id:
            return self._alone.wait(self._alone_handle or handle)
        hook = LakeHook(handle.job.lake_conn_id)
        seen = 0
        while True:
            item = _find_item(hook, handle.job.tag, seen)
            if item is None:
                # The manager is away: the keeper of the lease ends this job before the lease ends.
                self._stopped.wait(ASK_INTERVAL_S)
                continue
            seen = int(item.get("line_count", 0))
            for line in item.get("lines", ()):
                log.info("%s", line)
            if item["state"] == "alone":
                log.warning("%s runs by a spark-submit of its own now: %s", handle.job.name, item["message"])
                return None if self._stopped.is_set() else self._alone.wait(self._start_alone(handle.job))
            if item["state"] not in LIVE_WORK:
                keep_result(handle.job, item)
                return None
            self._stopped.wait(ASK_INTERVAL_S)

    def stop(self, handle: Handle) -> None:
        """Have the item end, and wait until it has. Raises EngineError when that is unknown."""
        self._stopped.set()
        hook = LakeHook(handle.job.lake_conn_id)
        deadline_s = time.monotonic() + END_PATIENCE_S
        try:
            hook.cancel_work(handle.job.tag, "its task ended it")
        except ManagerUnreachableError as error:
            raise EngineError(f"item {handle.job.tag} of a standing application may still run: {error}") from error
        while (item := _find_item(hook, handle.job.tag, 0)) is None or item["state"] in LIVE_WORK:
            if time.monotonic() > deadline_s:
                raise EngineError(f"item {handle.job.tag} of a standing application does not end")
            time.sleep(ASK_INTERVAL_S / 2)
        self._alone.stop(self._alone_handle or Handle(handle.job))

    def _start_alone(self, job: EngineJob) -> Handle:
        self._alone_handle = self._alone.start(job)
        return self._alone_handle


def submit_item(hook: LakeHook, job: EngineJob) -> bool:
    """Submit a job's item; False when the job has to run alone. Raises ExecutorBusyError as `WarmEngine.start` does."""
    state = hook.submit_work(table_id_of(job.request.base_path), item_of(job))
    if state == "alone":
        log.info("%s runs by a spark-submit of its own: see the log of this run's earlier tries", job.name)
        return False
    log.info("%s is item %s of a standing application (%s)", job.name, job.tag, state)
    return True


def item_of(job: EngineJob) -> dict[str, Any]:
    """Return the item of a job, as the manager's route takes it. The request goes without secrets."""
    (service,) = job.request.services
    run_id, _, try_number = job.request.job_id.rpartition("/")
    conf = {"queue": job.queue, "spark_conn_id": job.conn_id, "spark_conf": dict(job.conf)}
    return {
        "item_id": job.tag,
        "app_key": application_key(job.queue, job.conn_id, job.conf),
        "service": service.service.value,
        "run_id": run_id,
        "try_number": int(try_number),
        "conf": conf,
        "request": to_json(job.request),
        "timeout_s": job.timeout_s,
    }


_FIELDS = ("engine", "name", "request_path", "host", "conn_id", "jars", "packages", "queue", "lake_conn_id")


def job_to_dict(job: EngineJob) -> dict[str, Any]:
    """Return a job as JSON's values; `job_from_dict` is the inverse. Secrets stay references."""
    named = {name: getattr(job, name) for name in _FIELDS}
    return {**named, "timeout_s": job.timeout_s, "conf": dict(job.conf), "request": to_json(job.request)}


def job_from_dict(body: Mapping[str, Any]) -> EngineJob:
    """Return the job of `job_to_dict`."""
    named = {name: str(body[name]) for name in _FIELDS}
    return EngineJob(
        request=from_json(JobRequest, body["request"]),
        conf=dict(body["conf"]),
        timeout_s=float(body["timeout_s"]),
        replication=None,
        **named,
    )


def carry(job: EngineJob, before: Sequence[Instant], began_s: float) -> dict[str, Any]:
    """Return what a task leaves to its trigger, as JSON's values; `take_carried` is the inverse."""
    instants = [instant.to_dict() | {"file_name": instant.file_name} for instant in before]
    return {"job": job_to_dict(job), "before": instants, "began_s": began_s}


def take_carried(event: Mapping[str, Any]) -> tuple[EngineJob, tuple[Instant, ...], float]:
    """Return the job, the instants before it, and when it began (s since the epoch), of what `carry` left."""
    instants = tuple(instant_from_dict(instant) for instant in event["before"])
    return job_from_dict(event["job"]), instants, float(event["began_s"])


def keep_result(job: EngineJob, item: Mapping[str, Any]) -> None:
    """Write the result of an item that ended; one that was cancelled before it began has none."""
    if item["result"]:
        write_text(job.request.result_path, str(item["result"]))
    else:
        log.warning("%s ended without a result: %s", job.name, item["message"] or item["state"])


def _find_item(hook: LakeHook, item_id: str, seen: int) -> dict[str, Any] | None:
    """Return the item; None while the manager does not answer. One that it does not know counts as cancelled."""
    try:
        found = hook.ask_work([{"item_id": item_id, "seen": seen}])
    except ManagerUnreachableError as error:
        log.warning("the manager does not answer for item %s: %s", item_id, error)
        return None
    unknown = {"state": "cancelled", "result": "", "message": "the manager does not know the item", "lines": []}
    return found.get(item_id, unknown)
