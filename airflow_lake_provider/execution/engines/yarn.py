"""Drivers in YARN's application masters: submitted, followed with their output in the task's log, ended by their tag.

The connection names the ResourceManager's REST API; the NodeManagers' are asked for the driver's output. Each
application carries its job's tag, which finds it without an id. APIs that want Kerberos (SPNEGO) get a ticket of the
job's own login.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

import requests
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

from airflow_lake_provider.errors import ConfigError, EngineAwayError, EngineError
from airflow_lake_provider.execution.engines.engine import Death, Handle, find_failed_login, login_of
from airflow_lake_provider.execution.engines.spark_submit import (
    END_PATIENCE_S,
    HTTP_TIMEOUT_S,
    PAUSE_S,
    as_unreported,
    create_operator,
    kill_submitting,
    submit,
)
from airflow_lake_provider.execution.engines.spnego import Negotiate
from airflow_lake_provider.job_contract import FailureKind

if TYPE_CHECKING:
    from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

    from airflow_lake_provider.execution.engines.engine import EngineJob

log = logging.getLogger(__name__)

ENDED = frozenset({"FINISHED", "FAILED", "KILLED"})
POLL_S = 2.0
"""Once an application has ended, its NodeManager has the output for a few seconds only."""
AWAY_PATIENCE_S = 120.0
"""A ResourceManager that is restarted, or fails over, answers again within that."""
OUTPUT_BYTES = 1 << 20
NODE_TIMEOUT_S = 5.0
NODE_FAILURES = 5
"""After so many requests in a row that a NodeManager did not answer, the worker cannot reach it."""
_RECOVERED = "ACTIVE"
TAIL_LINES = 200
_FULL = "cannot accept submission of application"
_MEMORY = "memory limits"


class YarnDriver:
    """Drivers in YARN's application masters. The connection must name the ResourceManager's REST API."""

    def start(self, job: EngineJob) -> Handle:
        """Submit, and return YARN's application id. Raises EngineError; then no application is left."""
        conf = {"spark.yarn.tags": job.tag, "spark.yarn.maxAppAttempts": "1"}
        operator = _create_operator(job, conf, with_secrets=True)
        # spark-submit itself tries for a quarter of an hour to reach a ResourceManager that is away.
        _ResourceManager(operator._get_hook(), job).require_recovered()
        try:
            return submit(operator, job, self.stop)
        except EngineError as error:
            if _FULL in str(error):
                raise EngineAwayError(f"YARN's queue is full: {error}") from error
            raise

    def wait(self, handle: Handle) -> Death | None:
        """Follow the application, its driver's output in the task's log. Raises EngineAwayError when it cannot."""
        manager = _manager_of(handle.job)
        follower = _Follower(manager, handle)
        death = follower.follow()
        return death and (find_failed_login(follower.printed(death), manager.login) or death)

    def stop(self, handle: Handle) -> None:
        """Kill every application with the job's tag. Raises EngineError when one still runs."""
        kill_submitting(handle.job)
        manager = _manager_of(handle.job)
        deadline, seen = time.monotonic() + END_PATIENCE_S, dict[str, dict[str, Any]]()
        while active := manager.find_active(handle.job.tag):
            seen |= {app["id"]: app for app in active}
            if time.monotonic() > deadline:
                raise EngineError(f"YARN application {', '.join(seen)} of {handle.job.name} does not end")
            for app in active:
                manager.ask("PUT", f"apps/{app['id']}/state", json={"state": "KILLED"})
            time.sleep(PAUSE_S)
        # YARN calls an application killed before its NodeManager has ended the driver's process.
        while any(manager.is_driver_there(app) for app in seen.values()) and time.monotonic() < deadline:
            time.sleep(PAUSE_S)


class _ResourceManager:
    """The REST APIs of the cluster that a job's connection names. Raises ConfigError when it names none."""

    def __init__(self, hook: SparkSubmitHook, job: EngineJob) -> None:
        self.login = login_of(job.conf, hook._connection, job.conn_id)
        self._auth = hook._resolved_yarn_rm_auth
        try:
            self._url = hook._get_yarn_rm_base_url()
        except ValueError as error:
            raise ConfigError(
                f"connection {job.conn_id!r} runs drivers inside YARN, so an old one must be found and ended before a "
                f"new one starts: {error}"
            ) from error

    def ask(self, method: str, path: str, **request: Any) -> dict[str, Any]:
        """Return what the ResourceManager answers. Raises EngineError, EngineAwayError while it does not answer."""
        try:
            answer = self._request(method, f"{self._url}/ws/v1/cluster/{path}", **request)
            return dict(answer.json()) if answer.content else {}
        except (requests.RequestException, ValueError) as error:
            raise as_unreported(f"YARN's ResourceManager does not report what it runs: {error}", error) from error

    def require_recovered(self) -> None:
        """Raise EngineAwayError while it has not loaded its applications since it was started.

        Meanwhile its REST API answers already, and knows none of those that run.
        """
        state = self.ask("GET", "info")["clusterInfo"].get("haState", _RECOVERED)
        if state != _RECOVERED:
            raise EngineAwayError(f"YARN's ResourceManager has not loaded its applications yet: it is {state}")

    def find_active(self, tag: str) -> list[dict[str, Any]]:
        """Return the applications with a tag that have not ended. Raises EngineAwayError when that is not known yet."""
        found = self._find_tagged(tag)
        if not found:
            self.require_recovered()
            found = self._find_tagged(tag)
        return [app for app in found if app["state"] not in ENDED]

    def find_application(self, application_id: str) -> dict[str, Any] | None:
        """Return an application; None when this ResourceManager knows none of that id.

        Raises EngineAwayError when that is not known yet.
        """
        found = self._find(application_id)
        if found is None:
            self.require_recovered()
            found = self._find(application_id)
        return found

    def _find_tagged(self, tag: str) -> list[dict[str, Any]]:
        # "apps" is null when there is none.
        found = self.ask("GET", "apps", params={"applicationTags": tag}).get("apps") or {}
        return list(found.get("app", []))

    def _find(self, application_id: str) -> dict[str, Any] | None:
        try:
            return dict(self.ask("GET", f"apps/{application_id}")["app"])
        except EngineError as error:
            answer = getattr(error.__cause__, "response", None)
            if answer is not None and answer.status_code == requests.codes.not_found:
                return None
            raise

    def read_output(self, app: dict[str, Any]) -> str | None:
        """Return what the driver has printed so far; None when no NodeManager answers at the address."""
        url, size = f"{_container_url(app)}/logs/stdout", {"size": OUTPUT_BYTES}
        try:
            answer = self._request("GET", url, params=size, timeout=NODE_TIMEOUT_S)
        except requests.HTTPError:
            return ""
        except requests.RequestException:
            return None
        _, _, body = answer.text.partition("LogContents:\n")
        return body.rpartition("End of LogType:stdout")[0]

    def is_driver_there(self, app: dict[str, Any]) -> bool:
        """Whether the NodeManager still runs the driver's container; False also when it does not answer."""
        try:
            container = self._request("GET", _container_url(app)).json()["container"]
        except (requests.RequestException, KeyError, ValueError):
            return False
        return bool(container["state"] not in {"COMPLETE", "DONE"})

    def _request(self, method: str, url: str, **request: Any) -> requests.Response:
        request.setdefault("timeout", HTTP_TIMEOUT_S)
        answer = requests.request(method, url, auth=self._auth, **request)
        answer.raise_for_status()
        return answer


class _Follower:
    """Follows one application to its end."""

    def __init__(self, manager: _ResourceManager, handle: Handle) -> None:
        self._manager = manager
        self._id = handle.external_id
        self._name = handle.job.name
        self._logged = ""
        self._said = ""
        self._unanswered = 0

    def follow(self) -> Death | None:
        answered_s = time.monotonic()
        while True:
            try:
                app = self._manager.find_application(self._id)
            except EngineAwayError as error:
                if time.monotonic() - answered_s > AWAY_PATIENCE_S:
                    raise EngineAwayError(f"YARN application {self._id} cannot be followed: {error}") from error
                log.warning("%s: %s", self._name, error)
            else:
                answered_s = time.monotonic()
                if app is None:
                    return Death(f"YARN's ResourceManager does not know application {self._id} any more")
                self._log_output(app)
                self._log_state(app)
                if app["state"] in ENDED:
                    return _death_of(app)
            time.sleep(POLL_S)

    def printed(self, death: Death) -> list[str]:
        """Return what shows why the application died: YARN's reason, and the last lines of the driver."""
        return [death.reason, *self._logged.splitlines()[-TAIL_LINES:]]

    def _log_output(self, app: dict[str, Any]) -> None:
        if not app.get("amContainerLogs") or self._unanswered >= NODE_FAILURES:
            return
        printed = self._manager.read_output(app)
        self._unanswered = self._unanswered + 1 if printed is None else 0
        if printed is None or not printed.startswith(self._logged):
            return
        # The last line may not be whole yet.
        whole = printed if app["state"] in ENDED else printed[: printed.rfind("\n") + 1]
        for line in whole[len(self._logged) :].splitlines():
            log.info("%s", line)
        self._logged = whole or self._logged

    def _log_state(self, app: dict[str, Any]) -> None:
        said = f"{app['state']}, {app.get('diagnostics', '').strip()}" if app["state"] == "ACCEPTED" else app["state"]
        if said == self._said:
            return
        self._said = said
        log.info(
            "YARN application %s in queue %s is %s; its driver's whole output: %s, later: yarn logs -applicationId %s",
            self._id, app.get("queue", "?"), said, app.get("amContainerLogs", "not placed yet"), self._id,
        )  # fmt: skip


def _manager_of(job: EngineJob) -> _ResourceManager:
    return _ResourceManager(_create_operator(job, {})._get_hook(), job)


def _create_operator(job: EngineJob, conf: dict[str, str], *, with_secrets: bool = False) -> SparkSubmitOperator:
    connection = SparkSubmitHook(conn_id=job.conn_id)._connection
    auth = Negotiate(login_of(job.conf, connection, job.conn_id), job.name)
    return create_operator(job, conf, with_secrets=with_secrets, yarn_track_via_rm_api=True, yarn_rm_auth=auth)


def _container_url(app: dict[str, Any]) -> str:
    container_id = app["amContainerLogs"].rstrip("/").split("/")[-2]
    scheme = app["amContainerLogs"].partition("://")[0]
    return f"{scheme}://{app['amHostHttpAddress']}/ws/v1/node/containers/{container_id}"


def _death_of(app: dict[str, Any]) -> Death | None:
    if app.get("finalStatus") == "SUCCEEDED":
        return None
    diagnostics = " ".join(app.get("diagnostics", "").split())[:1000]
    kind = FailureKind.OUT_OF_MEMORY if _MEMORY in diagnostics else FailureKind.OTHER
    return Death(f"YARN application {app['id']} ended as {app.get('finalStatus')}: {diagnostics}", kind)
