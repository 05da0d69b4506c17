"""Drivers that run inside a cluster and outlive the task: what YARN and Kubernetes share, and Kubernetes.

The Spark provider submits, and on Kubernetes follows (`SparkSubmitOperator` as a `ResumableJobMixin`: submit, poll,
status by an external id). A driver is ended without a recorded id: each job carries its tag, as an application tag on
YARN and as the driver pod's name on Kubernetes.
"""

from __future__ import annotations

import logging
import os
import re
import time
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

import requests
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk.exceptions import AirflowException

from airflow_lake_provider.errors import ConfigError, EngineAwayError, EngineError
from airflow_lake_provider.execution.engines.engine import Handle, error_of, find_failed_login, login_of
from airflow_lake_provider.execution.engines.job_files import write_request
from airflow_lake_provider.execution.engines.local_process import is_of_this_host, kill_marked
from airflow_lake_provider.execution.engines.packaging import (
    application,
    close_output,
    submit_arguments,
    write_secret_conf,
)

if TYPE_CHECKING:
    from airflow_lake_provider.execution.engines.engine import EngineJob

log = logging.getLogger(__name__)

END_PATIENCE_S = 60.0
PAUSE_S = 1.0
HTTP_TIMEOUT_S = 30.0
_ANSWERS_LATER = frozenset({408, 425, 429})


class KubernetesDriver:
    """Drivers in pods of their own. Needs `apache-airflow-providers-cncf-kubernetes` on the worker."""

    def start(self, job: EngineJob) -> Handle:
        """Submit, and return `<namespace>:<pod>`. Raises EngineError; then no pod is left."""
        conf = {"spark.kubernetes.driver.pod.name": _pod_name(job)}
        operator = create_operator(job, conf, with_secrets=True, track_driver_via_k8s_api=True)
        return submit(operator, job, self.stop)

    def wait(self, handle: Handle) -> None:
        """Follow the pod. Raises EngineError when it still runs and cannot be followed."""
        operator = create_operator(handle.job, {}, track_driver_via_k8s_api=True)
        _poll(operator, handle)
        if self._is_active(operator, handle.job):
            raise EngineAwayError(f"driver pod {_pod_name(handle.job)} still runs, but cannot be followed")

    def stop(self, handle: Handle) -> None:
        """Delete the driver's pod; its executors end with it. Raises EngineError when it still runs."""
        kill_submitting(handle.job)
        operator = create_operator(handle.job, {}, track_driver_via_k8s_api=True)
        deadline = time.monotonic() + END_PATIENCE_S
        while self._is_active(operator, handle.job):
            if time.monotonic() > deadline:
                raise EngineError(f"driver pod {_pod_name(handle.job)} of {handle.job.name} does not end")
            _delete_pod(_pod_name(handle.job), _namespace(operator, handle.job))
            time.sleep(PAUSE_S)

    def _is_active(self, operator: SparkSubmitOperator, job: EngineJob) -> bool:
        try:
            status = operator.get_job_status(f"{_namespace(operator, job)}:{_pod_name(job)}", _context())
        except Exception as error:  # the client raises errors of many kinds, and none proves that the pod has ended
            message = f"Kubernetes does not report the state of pod {_pod_name(job)}: {error}"
            raise as_unreported(message, error) from error
        # A node that is cut off reports "Unknown": its pod may be running.
        return status.upper() in {"PENDING", "RUNNING", "UNKNOWN"}


def create_operator(
    job: EngineJob, conf: dict[str, str], *, with_secrets: bool = False, **tracking: Any
) -> SparkSubmitOperator:
    """Return the Spark provider's operator of a job, with the settings that refer to secrets in a file if asked for."""
    arguments = submit_arguments(job)
    arguments["conf"] |= conf
    if with_secrets:
        arguments["properties_file"] = write_secret_conf(job.conf, os.environ) or None
    return SparkSubmitOperator(task_id="lake_driver", application=application(), **arguments, **tracking)


def submit(operator: SparkSubmitOperator, job: EngineJob, stop: Any) -> Handle:
    """Submit a driver that outlives this process.

    Raises EngineError, and ServiceRefusedError for a keytab that is wrong; then `stop` has ended what was submitted.
    """
    # This driver outlives its submitter, so it must not watch it, in case both run on one machine.
    write_request(job.request_path, replace(job.request, submitter=None))
    try:
        return Handle(job, str(operator.submit_job(_context())))
    except (AirflowException, RuntimeError, OSError) as error:
        stop(Handle(job))
        login = login_of(job.conf, operator._get_hook()._connection, job.conn_id)
        if (death := find_failed_login(str(error).splitlines(), login)) is not None:
            raise error_of(death, job.name) from error
        raise EngineError(f"{job.name} could not be submitted: {_reason_of(error)}") from error
    except ValueError as error:
        raise ConfigError(f"connection {job.conn_id!r}: {error}") from error
    finally:
        close_output(operator._hook)


def _reason_of(error: Exception) -> str:
    """Return the error that spark-submit printed; the provider's message is the whole command and its last lines."""
    printed = re.findall(r"^.*?\b([\w.$]+(?:Exception|Error): .+)$", str(error), re.MULTILINE)
    return str(printed[0] if printed else error)


def _poll(operator: SparkSubmitOperator, handle: Handle) -> None:
    try:
        operator.poll_until_complete(handle.external_id, _context())
    except (AirflowException, RuntimeError) as error:
        # Not the verdict: the timeline judges what a failed driver has left.
        log.warning("%s: %s", handle.job.name, error)


def _context() -> Any:
    # The provider stores its ids in the task's state store, which another run of the table could not read.
    return {}


def kill_submitting(job: EngineJob) -> None:
    """Kill a spark-submit of this machine."""
    # A spark-submit of a killed task would submit after this check.
    if is_of_this_host(job.host):
        kill_marked(job.request_path)


def _pod_name(job: EngineJob) -> str:
    # The provider recognises the pod in spark-submit's output by this ending.
    return f"{job.tag}-driver"


def _namespace(operator: SparkSubmitOperator, job: EngineJob) -> str:
    namespace = operator._get_hook()._connection["namespace"]
    if not namespace:
        raise ConfigError(f"connection {job.conn_id!r}: set `namespace` in its extra, the namespace of the drivers")
    return str(namespace)


def _delete_pod(name: str, namespace: str) -> None:
    # Only installations with Spark on Kubernetes have this package.
    kube_client = import_module("airflow.providers.cncf.kubernetes.kube_client")
    try:
        kube_client.get_kube_client().delete_namespaced_pod(name, namespace)
    except kube_client.ApiException as error:
        if error.status != requests.codes.not_found:
            raise as_unreported(f"pod {name} cannot be deleted: {error}", error) from error


def as_unreported(message: str, error: BaseException) -> EngineError:
    """Return the error of a cluster that did not answer, or answered that the request is wrong or not allowed."""
    chain: BaseException | None = error
    while chain is not None:
        # requests puts the status into the response, the client of Kubernetes into the error.
        status = getattr(getattr(chain, "response", chain), "status_code", None) or getattr(chain, "status", None)
        if isinstance(status, int) and 400 <= status < 500 and status not in _ANSWERS_LATER:
            return EngineError(message)
        if isinstance(chain, ImportError):
            return EngineError(message)
        chain = chain.__cause__ or chain.__context__
    return EngineAwayError(message)
