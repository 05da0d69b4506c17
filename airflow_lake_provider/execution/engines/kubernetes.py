"""Drivers in pods of their own: submitted, followed with their output in the task's log, ended by their name.

The pod's name is the job's, so nothing is read out of spark-submit's output: it names the driver by namespace, in a
line that depends on Spark's version and on its log level.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from http import HTTPStatus
from importlib import import_module
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

from airflow_lake_provider.errors import ConfigError, EngineAwayError, EngineError
from airflow_lake_provider.execution.engines.engine import Death, Handle
from airflow_lake_provider.execution.engines.spark_submit import (
    END_PATIENCE_S,
    PAUSE_S,
    as_unreported,
    create_operator,
    kill_submitting,
    submit,
)
from airflow_lake_provider.job_contract import FailureKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_lake_provider.execution.engines.engine import EngineJob

log = logging.getLogger(__name__)

POLL_S = 2.0
AWAY_PATIENCE_S = 120.0
"""An API server that is restarted, or a node that is cut off for a moment, answers again within that."""
REQUEST_TIMEOUT_S = 30.0
OUTPUT_BYTES = 1 << 20
_ENDED = frozenset({"Succeeded", "Failed"})
_LOST = "Unknown"
"""A node that is cut off does not report its pods, which may be running."""
_KILLED_FOR_MEMORY = "OOMKilled"


class KubernetesDriver:
    """Drivers in pods of their own. Needs `apache-airflow-providers-cncf-kubernetes` on the worker."""

    def start(self, job: EngineJob) -> Handle:
        """Submit, and return `<namespace>:<pod>`. Raises EngineError; then no pod is left."""
        name = _pod_name(job)
        conf = {"spark.kubernetes.driver.pod.name": name}
        operator = create_operator(job, conf, with_secrets=True, track_driver_via_k8s_api=True)
        operator._hook = operator._get_hook()
        operator._hook._kubernetes_driver_pod = name
        return submit(operator, job, self.stop)

    def wait(self, handle: Handle) -> Death | None:
        """Follow the pod, its output in the task's log. Raises EngineAwayError when it cannot be followed."""
        return _Follower(_pod_of(handle.job)).follow()

    def stop(self, handle: Handle) -> None:
        """Delete the driver's pod; its executors end with it. Raises EngineError when it still runs."""
        kill_submitting(handle.job)
        pod = _pod_of(handle.job)
        deadline_s = time.monotonic() + END_PATIENCE_S
        while pod.is_active():
            if time.monotonic() > deadline_s:
                raise EngineError(f"driver pod {pod} of {handle.job.name} does not end")
            pod.delete()
            time.sleep(PAUSE_S)


@dataclass(frozen=True, slots=True)
class _Pod:
    """A driver's pod, by way of the API server's client."""

    client: Any
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    def read(self) -> Any | None:
        """Return the pod's `V1Pod`, None when there is none. Raises EngineError, EngineAwayError for no answer."""
        return self._ask(f"Kubernetes does not report the state of pod {self}", self.client.read_namespaced_pod)

    def is_active(self) -> bool:
        """Whether it runs, or may run."""
        found = self.read()
        return found is not None and found.status.phase not in _ENDED

    def delete(self) -> None:
        """Delete it; one that is not there is deleted."""
        self._ask(f"pod {self} cannot be deleted", self.client.delete_namespaced_pod)

    def read_output(self, seconds: int) -> str:
        """Return what it printed in the last seconds, each line behind its time; empty before its container runs."""
        output = self._ask(
            f"pod {self} shows no output",
            self.client.read_namespaced_pod_log,
            since_seconds=seconds,
            timestamps=True,
            limit_bytes=OUTPUT_BYTES,
            # Some versions of the client return the text of a `bytes` object otherwise.
            _preload_content=False,
        )
        return "" if output is None else output.data.decode("utf-8", "replace")

    def _ask(self, failure: str, ask: Callable[..., Any], **how: Any) -> Any | None:
        try:
            return ask(self.name, self.namespace, _request_timeout=REQUEST_TIMEOUT_S, **how)
        except Exception as error:  # refused, timed out, reset: the client has errors of many kinds for no answer
            if getattr(error, "status", None) == HTTPStatus.NOT_FOUND:
                return None
            raise as_unreported(f"{failure}: {error}", error) from error


class _Follower:
    """Follows one pod to its end."""

    def __init__(self, pod: _Pod) -> None:
        self._pod = pod
        self._said = ""
        self._printed_until = ""
        self._asked_s = time.monotonic()
        self._shows_output = True

    def follow(self) -> Death | None:
        answered_s = time.monotonic()
        while True:
            try:
                found = self._pod.read()
                reason = f"its node does not report pod {self._pod}"
            except EngineAwayError as error:
                reason = str(error)
                is_lost = True
            else:
                if found is None:
                    return Death(f"Kubernetes has no pod {self._pod} any more: it was deleted, or its node was lost")
                self._log_state(found)
                self._log_output(found)
                if found.status.phase in _ENDED:
                    return self._conclude(found)
                is_lost = found.status.phase == _LOST
            if not is_lost:
                answered_s = time.monotonic()
            elif time.monotonic() - answered_s > AWAY_PATIENCE_S:
                raise EngineAwayError(f"driver pod {self._pod} cannot be followed: {reason}")
            else:
                log.warning("%s", reason)
            time.sleep(POLL_S)

    def _conclude(self, found: Any) -> Death | None:
        death = death_of(found, str(self._pod))
        # Pods that have ended stay until there are 12,500 of them; the output of this one is in the task's log.
        if self._shows_output:
            try:
                self._pod.delete()
            except EngineError as error:
                log.info("%s", error)
        return death

    def _log_state(self, found: Any) -> None:
        said = ", ".join((found.status.phase or "Pending", *find_obstacles(found)))
        if said != self._said:
            self._said = said
            log.info("driver pod %s is %s; its output: kubectl logs -n %s %s", self._pod, said, self._pod.namespace,
                     self._pod.name)  # fmt: skip

    def _log_output(self, found: Any) -> None:
        if not self._shows_output or found.status.phase == "Pending":
            return
        asked_s = time.monotonic()
        try:
            printed = self._pod.read_output(int(asked_s - self._asked_s) + 5)
        except EngineAwayError as error:
            log.info("%s", error)
            return
        except EngineError as error:
            # The task's login may read pods and not `pods/log`.
            self._shows_output = False
            log.warning("%s; the pod is kept when it has ended, so that its output can be read", error)
            return
        self._asked_s = asked_s
        for line in printed.split("\n"):  # `splitlines` knows more ends, which a driver may print inside a line
            printed_at, _, text = line.partition(" ")
            if printed_at > self._printed_until:
                self._printed_until = printed_at
                log.info("%s", text)


def death_of(found: Any, name: str) -> Death | None:
    """Return why the driver of an ended pod died; None of one that succeeded."""
    status = found.status
    if status.phase == "Succeeded":
        return None
    ended = [state.state.terminated for state in status.container_statuses or () if state.state.terminated]
    reasons = [
        *(f"exit code {end.exit_code}, {end.reason or 'no reason'}" for end in ended),
        *(text for text in (status.reason, status.message) if text),
    ]
    is_memory = any(end.reason == _KILLED_FOR_MEMORY for end in ended)
    kind = FailureKind.OUT_OF_MEMORY if is_memory else FailureKind.OTHER
    return Death(f"driver pod {name} failed: {'; '.join(reasons) or 'Kubernetes gives no reason'}", kind)


def find_obstacles(found: Any) -> list[str]:
    """Return why a pod does not run yet: no node has room, its image cannot be pulled, a volume is missing."""
    conditions = [
        f"{condition.reason}: {condition.message}"
        for condition in found.status.conditions or ()
        if condition.status == "False" and condition.message and found.status.phase == "Pending"
    ]
    waiting = [state.state.waiting for state in found.status.container_statuses or () if state.state.waiting]
    return [*conditions, *(f"{wait.reason}: {wait.message}" for wait in waiting if wait.message)]


def _pod_name(job: EngineJob) -> str:
    return f"{job.tag}-driver"


def _pod_of(job: EngineJob) -> _Pod:
    namespace = SparkSubmitHook(conn_id=job.conn_id, conf=dict(job.conf))._connection["namespace"]
    if not namespace:
        raise ConfigError(f"connection {job.conn_id!r}: set `namespace` in its extra, the namespace of the drivers")
    try:
        # Only installations with Spark on Kubernetes have this package.
        client = import_module("airflow.providers.cncf.kubernetes.kube_client").get_kube_client()
    except Exception as error:  # a file or an account that is missing: nothing was asked of a cluster yet
        raise ConfigError(
            f"no access to Kubernetes: {error}; install airflow-lake-provider[kubernetes] and set "
            "[kubernetes_executor] in_cluster or config_file"
        ) from error
    return _Pod(client, str(namespace), _pod_name(job))
