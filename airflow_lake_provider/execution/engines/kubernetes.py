"""Drivers in pods of their own: submitted, followed with their output in the task's log, ended by their name.

The pod's name is the job's, so nothing is read out of spark-submit's output: it names the driver by namespace, in a
line that depends on Spark's version and on its log level.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import shutil
import time
from collections import deque
from dataclasses import dataclass
from http import HTTPStatus
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

from airflow_lake_provider.errors import ConfigError, EngineAwayError, EngineError
from airflow_lake_provider.execution.engines.engine import MAX_REASON, Death, Handle, as_shortage, find_exception
from airflow_lake_provider.execution.engines.packaging import JOBS_FOLDER, read_defaults
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
    from collections.abc import Callable, Iterable, Mapping

    from airflow_lake_provider.execution.engines.engine import EngineJob

log = logging.getLogger(__name__)

POLL_S = 1.0
AWAY_PATIENCE_S = 120.0
"""An API server that is restarted, or a node that is cut off for a moment, answers again within that."""
REQUEST_TIMEOUT_S = 30.0
OUTPUT_BYTES = 1 << 20
TAIL_LINES = 200
REFUSED_PATIENCE_S = 120.0
"""Kubernetes tries by itself what a container cannot start for, as an image that a registry does not give away."""
START_PATIENCE_S = 600.0
"""A large image is there within that. A volume or a Secret that does not exist is waited for indefinitely."""
_IMAGE = "spark.kubernetes.container.image"
_DRIVER_IMAGE = "spark.kubernetes.driver.container.image"
_UPLOADS = "spark.kubernetes.file.upload.path"
_ENDED = frozenset({"Succeeded", "Failed"})
_STARTING = frozenset({"ContainerCreating", "PodInitializing"})
_NOT_READY = "ContainersNotReady"
_LOST = "Unknown"
"""A node that is cut off does not report its pods, which may be running."""
_KILLED_FOR_MEMORY = "OOMKilled"
_NO_ROOM = re.compile(r"exceeded quota: .*")
_NO_ANSWER = re.compile(
    r"(?:Connect|SocketTimeout|InterruptedIO|UnknownHost|NoRouteToHost|Socket)Exception: .*"
    r"|Message: .*(?=\. Received status: .*\bcode=(?:429|5\d\d)\b)"
)
"""In the words of Spark's client, whose first line for a connection that was refused is `An error has occurred`."""


class KubernetesDriver:
    """Drivers in pods of their own. Needs `apache-airflow-providers-cncf-kubernetes` on the worker."""

    def start(self, job: EngineJob) -> Handle:
        """Submit, and return `<namespace>:<pod>`. Raises EngineError; then no pod is left."""
        require_settings(job.conf, job.jars, _find_defaults())
        name = _pod_name(job)
        conf = {"spark.kubernetes.driver.pod.name": name}
        operator = create_operator(job, conf, with_secrets=True, track_driver_via_k8s_api=True)
        operator._hook = operator._get_hook()
        operator._hook._kubernetes_driver_pod = name
        try:
            return submit(operator, job, self.stop)
        except EngineAwayError:
            raise
        except EngineError as error:
            away = find_away(str(error.__cause__).splitlines())
            if away:
                raise EngineAwayError(f"{job.name}: {away}") from error
            raise

    def wait(self, handle: Handle) -> Death | None:
        """Follow the pod, its output in the task's log. Raises EngineError when it cannot be followed."""
        return _Follower(_pod_of(handle.job)).follow()

    def stop(self, handle: Handle) -> None:
        """Delete the driver's pod; its executors end with it. Raises EngineError when it still runs."""
        kill_submitting(handle.job)
        _pod_of(handle.job).end()


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

    def end(self) -> None:
        """Delete it, and return when it has ended. Raises EngineError when it still runs."""
        deadline_s = time.monotonic() + END_PATIENCE_S
        while self.is_active():
            if time.monotonic() > deadline_s:
                raise EngineError(f"driver pod {self} does not end")
            self.delete()
            time.sleep(PAUSE_S)

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
            raise as_unreported(f"{failure}: {find_message(error)}", error) from error


class _Follower:
    """Follows one pod to its end."""

    def __init__(self, pod: _Pod) -> None:
        self._pod = pod
        self._said = ""
        self._printed_until = ""
        self._asked_s = time.monotonic()
        self._shows_output = True
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._limit_s = math.inf
        self._limited_s = 0.0
        self._has_answered = False

    def follow(self) -> Death | None:
        answered_s = time.monotonic()
        while True:
            found, failure = self._read()
            if found is not None:
                self._log_state(found)
                self._log_output(found)
                if found.status.phase in _ENDED:
                    return self._conclude(found)
                if self._is_stuck(found):
                    return self._give_up(found)
            elif failure is None:
                return Death(f"Kubernetes has no pod {self._pod} any more: it was deleted, or its node was lost")
            if failure is None:
                answered_s = time.monotonic()
            elif time.monotonic() - answered_s > AWAY_PATIENCE_S:
                raise type(failure)(f"driver pod {self._pod} cannot be followed: {failure}") from failure
            else:
                log.warning("%s", failure)
            time.sleep(POLL_S)

    def _read(self) -> tuple[Any | None, EngineError | None]:
        """Return the pod, and why it is not reported for the moment. Raises EngineError for a right that is missing."""
        try:
            found = self._pod.read()
        except EngineError as error:
            # A server that has just started forbids everything until it has read who may do what.
            if self._has_answered or isinstance(error, EngineAwayError):
                return None, error
            raise
        self._has_answered = True
        is_lost = found is not None and found.status.phase == _LOST
        return found, EngineAwayError(f"its node does not report pod {self._pod}") if is_lost else None

    def _is_stuck(self, found: Any) -> bool:
        limit_s = find_limit_s(found)
        if limit_s != self._limit_s:
            self._limit_s = limit_s
            self._limited_s = time.monotonic()
        return time.monotonic() - self._limited_s > limit_s

    def _give_up(self, found: Any) -> Death:
        self._pod.end()
        reasons = "; ".join(find_obstacles(found)) or (
            f"an image, a volume or a Secret is missing (kubectl get events -n {self._pod.namespace})"
        )
        return Death(f"driver pod {self._pod} did not start within {self._limit_s:.0f} s: {reasons}"[:MAX_REASON])

    def _conclude(self, found: Any) -> Death | None:
        death = death_of(found, str(self._pod), find_exception(self._tail))
        # Pods that have ended stay until there are 12,500 of them; the output of this one is in the task's log.
        if self._shows_output:
            try:
                self._pod.delete()
            except EngineError as error:
                log.info("%s", error)
        return death and as_shortage(death, self._tail)

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
                self._tail.append(text)
                log.info("%s", text)


def require_settings(conf: Mapping[str, str], jars: str, defaults: str) -> None:
    """Raise ConfigError for a setting without which nothing can be submitted; `defaults` is spark-defaults.conf."""
    known = conf.keys() | set(re.findall(r"^\s*([^\s#=:]+)", defaults, re.MULTILINE))
    if not known & {_IMAGE, _DRIVER_IMAGE}:
        raise ConfigError(f"set {_IMAGE} in `spark_conf`: the image of drivers and executors")
    if _UPLOADS in known:
        return
    remedy = f"or set {_UPLOADS} to a folder of a store where spark-submit puts them for each run"
    if JOBS_FOLDER not in conf:
        raise ConfigError(
            f"set {JOBS_FOLDER} in `spark_conf` to the jobs' folder in the image (local:///...), {remedy}"
        )
    own = [jar.strip() for jar in jars.split(",") if jar.strip().startswith(("/", "file:"))]
    if own:
        raise ConfigError(
            f"[lake] spark_jars names files of the worker ({', '.join(own)}), which drivers in pods do not have: put "
            f"them into the image, {remedy}"
        )


def find_away(printed: Iterable[str]) -> str:
    """Return why spark-submit could not reach the cluster, or found no room in it; empty for all else. Pure."""
    for line in printed:
        if found := _NO_ROOM.search(line):
            return f"the quota of the namespace is used up: {found[0]}"
        if found := _NO_ANSWER.search(line):
            return f"Kubernetes does not answer: {found[0]}"
    return ""


def find_limit_s(found: Any) -> float:
    """Return how long a pod may stay as it is: indefinitely while it runs, or waits for a node with room. Pure."""
    if found.status.phase != "Pending" or not found.spec.node_name:
        return math.inf
    waiting = [state.state.waiting for state in found.status.container_statuses or () if state.state.waiting]
    return START_PATIENCE_S if all(wait.reason in _STARTING for wait in waiting) else REFUSED_PATIENCE_S


def death_of(found: Any, name: str, exception: str = "") -> Death | None:
    """Return why the driver of an ended pod died, `exception` being its last; None of one that succeeded. Pure."""
    status = found.status
    if status.phase == "Succeeded":
        return None
    ended = [state.state.terminated for state in status.container_statuses or () if state.state.terminated]
    reasons = [
        *(f"exit code {end.exit_code}, {end.reason or 'no reason'}" for end in ended),
        *(text for text in (status.reason, status.message, exception) if text),
    ]
    is_memory = any(end.reason == _KILLED_FOR_MEMORY for end in ended)
    kind = FailureKind.OUT_OF_MEMORY if is_memory else FailureKind.OTHER
    reason = "; ".join(reasons) or "Kubernetes gives no reason"
    return Death(f"driver pod {name} failed: {reason}"[:MAX_REASON], kind)


def find_message(error: Exception) -> str:
    """Return what the API server says; the client's own text begins with the answer's headers. Pure."""
    try:
        return str(json.loads(getattr(error, "body", ""))["message"])
    except (TypeError, ValueError, KeyError):
        return str(error)


def find_obstacles(found: Any) -> list[str]:
    """Return why a pod does not run yet: no node has room, its image cannot be pulled, a volume is missing."""
    conditions = [
        f"{condition.reason}: {condition.message}"
        for condition in found.status.conditions or ()
        if condition.status == "False"
        and condition.message
        and found.status.phase == "Pending"
        # Two conditions say of every pod that does not run that its containers do not.
        and condition.reason != _NOT_READY
    ]
    waiting = [state.state.waiting for state in found.status.container_statuses or () if state.state.waiting]
    return [*conditions, *(f"{wait.reason}: {wait.message}" for wait in waiting if wait.message)]


def _find_defaults() -> str:
    """Return the text of spark-defaults.conf, wherever the spark-submit on PATH would find it."""
    program = shutil.which("spark-submit")
    home = {"SPARK_HOME": str(Path(program).resolve().parents[1])} if program else {}
    return read_defaults(home | dict(os.environ))


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
