"""Drivers that run inside a cluster and outlive the task: YARN and Kubernetes.

Submitting and following is the Spark provider's (`SparkSubmitOperator` as a `ResumableJobMixin`: submit, poll, status
by an external id). Ending a driver whose id nobody recorded is ours: each job carries its tag, as an application tag on
YARN and as the driver pod's name on Kubernetes, so it is found without an id.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

import requests
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk.exceptions import AirflowException

from airflow_lake_provider.errors import ConfigError, EngineError
from airflow_lake_provider.execution.engines.engine import Handle
from airflow_lake_provider.execution.engines.job_files import write_text
from airflow_lake_provider.execution.engines.local_process import is_of_this_host, kill_marked
from airflow_lake_provider.execution.engines.packaging import application, submit_arguments
from airflow_lake_provider.job_contract import request_to_json

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

    from airflow_lake_provider.execution.engines.engine import EngineJob

log = logging.getLogger(__name__)

END_PATIENCE_S = 60.0
PAUSE_S = 1.0
HTTP_TIMEOUT_S = 30.0
YARN_ENDED = frozenset({"FINISHED", "FAILED", "KILLED"})


def find_driver(master: str) -> YarnDriver | KubernetesDriver | None:
    """Return what handles drivers inside a master's cluster; None where Spark runs no Python driver."""
    if master.startswith("yarn"):
        return YarnDriver()
    return KubernetesDriver() if master.startswith("k8s") else None


class YarnDriver:
    """Drivers in YARN's application masters. The connection must say where the ResourceManager's REST API is."""

    def start(self, job: EngineJob) -> Handle:
        """Submit, and return YARN's application id. Raises EngineError; then no application is left."""
        conf = {"spark.yarn.tags": job.tag, "spark.yarn.maxAppAttempts": "1"}
        operator = _operator(job, conf, yarn_track_via_rm_api=True)
        _require_resource_manager(operator._get_hook(), job)
        return _submit(operator, job, self.stop)

    def wait(self, handle: Handle) -> None:
        """Follow the application. Raises EngineError when it runs on and cannot be followed."""
        _poll(_operator(handle.job, {}, yarn_track_via_rm_api=True), handle)
        active = self._active(handle.job)
        if active:
            raise EngineError(f"YARN application {', '.join(active)} runs on, but could not be followed")

    def stop(self, handle: Handle) -> None:
        """Kill every application with the job's tag. Raises EngineError when one lives on."""
        _kill_submitting(handle.job)
        hook = _operator(handle.job, {}, yarn_track_via_rm_api=True)._get_hook()
        deadline = time.monotonic() + END_PATIENCE_S
        while active := self._active(handle.job):
            if time.monotonic() > deadline:
                raise EngineError(f"YARN application {', '.join(active)} of {handle.job.name} does not end")
            for application_id in active:
                _ask_yarn(hook, "PUT", f"/{application_id}/state", json={"state": "KILLED"})
            time.sleep(PAUSE_S)

    def _active(self, job: EngineJob) -> list[str]:
        hook = _operator(job, {}, yarn_track_via_rm_api=True)._get_hook()
        # "apps" is null when there is none.
        found = _ask_yarn(hook, "GET", "", params={"applicationTags": job.tag}).get("apps") or {}
        return [app["id"] for app in found.get("app", []) if app["state"] not in YARN_ENDED]


class KubernetesDriver:
    """Drivers in pods of their own. Needs `apache-airflow-providers-cncf-kubernetes` on the worker."""

    def start(self, job: EngineJob) -> Handle:
        """Submit, and return `<namespace>:<pod>`. Raises EngineError; then no pod is left."""
        operator = _operator(job, {"spark.kubernetes.driver.pod.name": _pod_name(job)}, track_driver_via_k8s_api=True)
        return _submit(operator, job, self.stop)

    def wait(self, handle: Handle) -> None:
        """Follow the pod. Raises EngineError when it runs on and cannot be followed."""
        operator = _operator(handle.job, {}, track_driver_via_k8s_api=True)
        _poll(operator, handle)
        if self._is_active(operator, handle.job):
            raise EngineError(f"driver pod {_pod_name(handle.job)} runs on, but could not be followed")

    def stop(self, handle: Handle) -> None:
        """Delete the driver's pod; its executors go with it. Raises EngineError when it lives on."""
        _kill_submitting(handle.job)
        operator = _operator(handle.job, {}, track_driver_via_k8s_api=True)
        deadline = time.monotonic() + END_PATIENCE_S
        while self._is_active(operator, handle.job):
            if time.monotonic() > deadline:
                raise EngineError(f"driver pod {_pod_name(handle.job)} of {handle.job.name} does not end")
            _delete_pod(_pod_name(handle.job), _namespace(operator, handle.job))
            time.sleep(PAUSE_S)

    def _is_active(self, operator: SparkSubmitOperator, job: EngineJob) -> bool:
        try:
            status = operator.get_job_status(f"{_namespace(operator, job)}:{_pod_name(job)}", _context())
        except Exception as error:  # the client's errors are of many kinds, and none tells that the pod has ended
            raise EngineError(f"Kubernetes does not say how pod {_pod_name(job)} is: {error}") from error
        # A node that is cut off reports "Unknown": its pod may be running.
        return status.upper() in {"PENDING", "RUNNING", "UNKNOWN"}


def _operator(job: EngineJob, conf: dict[str, str], **tracking: Any) -> SparkSubmitOperator:
    arguments = submit_arguments(job)
    arguments["conf"] |= conf
    return SparkSubmitOperator(task_id="lake_driver", application=application(), **arguments, **tracking)


def _submit(operator: SparkSubmitOperator, job: EngineJob, stop: Any) -> Handle:
    # This driver outlives its submitter, so it must not watch it, should both be on one machine.
    write_text(job.request_path, request_to_json(replace(job.request, submitter=None)))
    try:
        return Handle(job, str(operator.submit_job(_context())))
    except (AirflowException, RuntimeError, OSError) as error:
        stop(Handle(job))
        raise EngineError(f"{job.name} could not be submitted: {error}") from error
    except ValueError as error:
        raise ConfigError(f"connection {job.conn_id!r}: {error}") from error
    finally:
        # The provider leaves the pipe of spark-submit open.
        submitted = operator._hook._submit_sp if operator._hook is not None else None
        if submitted is not None and submitted.stdout is not None:
            submitted.stdout.close()


def _poll(operator: SparkSubmitOperator, handle: Handle) -> None:
    try:
        operator.poll_until_complete(handle.external_id, _context())
    except (AirflowException, RuntimeError) as error:
        # Not the verdict: the timeline judges what a driver that failed has left.
        log.warning("%s: %s", handle.job.name, error)


def _context() -> Any:
    # The provider keeps its ids in the task's state store, which another run of the table could not read.
    return {}


def _kill_submitting(job: EngineJob) -> None:
    # A spark-submit whose task was killed would submit after we have looked.
    if is_of_this_host(job.host):
        kill_marked(job.request_path)


def _require_resource_manager(hook: SparkSubmitHook, job: EngineJob) -> None:
    try:
        hook._get_yarn_rm_base_url()
    except ValueError as error:
        raise ConfigError(
            f"connection {job.conn_id!r} runs drivers inside YARN, so an old one must be found and ended before a new "
            f"one starts: {error}"
        ) from error


def _ask_yarn(hook: SparkSubmitHook, method: str, path: str, **request: Any) -> dict[str, Any]:
    url = f"{hook._get_yarn_rm_base_url()}/ws/v1/cluster/apps{path}"
    try:
        answer = requests.request(method, url, auth=hook._resolved_yarn_rm_auth, timeout=HTTP_TIMEOUT_S, **request)
        answer.raise_for_status()
        return dict(answer.json()) if answer.content else {}
    except (requests.RequestException, ValueError) as error:
        raise EngineError(f"YARN's ResourceManager does not say what it runs: {error}") from error


def _pod_name(job: EngineJob) -> str:
    # The provider recognises the pod in spark-submit's output by this ending.
    return f"{job.tag}-driver"


def _namespace(operator: SparkSubmitOperator, job: EngineJob) -> str:
    namespace = operator._get_hook()._connection["namespace"]
    if not namespace:
        raise ConfigError(f"connection {job.conn_id!r}: set `namespace` in its extra; drivers are looked for there")
    return str(namespace)


def _delete_pod(name: str, namespace: str) -> None:
    # Only who runs Spark on Kubernetes has this package.
    kube_client = import_module("airflow.providers.cncf.kubernetes.kube_client")
    try:
        kube_client.get_kube_client().delete_namespaced_pod(name, namespace)
    except kube_client.ApiException as error:
        if error.status != requests.codes.not_found:
            raise EngineError(f"pod {name} cannot be deleted: {error}") from error
