"""Drivers in YARN's application masters: submitted, followed with their output in the task's log, ended by their tag.

The connection names the ResourceManager's REST API; the NodeManagers' are asked for the driver's output. Each
application carries its job's tag, which finds it without an id. APIs that want Kerberos (SPNEGO) get a ticket of the
job's own login.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import logging
import re
import time
from base64 import b64encode
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import requests
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

from airflow_lake_provider.errors import ConfigError, EngineAwayError, EngineError
from airflow_lake_provider.execution.engines.engine import (
    Death,
    Handle,
    as_shortage,
    error_of,
    find_failed_login,
    login_of,
)
from airflow_lake_provider.execution.engines.spark_submit import (
    END_PATIENCE_S,
    HTTP_TIMEOUT_S,
    PAUSE_S,
    as_unreported,
    create_operator,
    kill_submitting,
    submit,
)
from airflow_lake_provider.job_contract import FailureKind
from airflow_lake_provider.shared.http_answer import within
from airflow_lake_provider.shared.plain_text import first_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

    from airflow_lake_provider.execution.engines.engine import EngineJob, Login

log = logging.getLogger(__name__)

ENDED = frozenset({"FINISHED", "FAILED", "KILLED"})
POLL_S = 2.0
"""Once an application has ended, its NodeManager has the output for a few seconds only."""
AWAY_PATIENCE_S = 120.0
"""A ResourceManager that is restarted, or fails over, answers again within that."""
OUTPUT_BYTES = 1 << 20
MAX_ANSWER_BYTES = 16 << 20
"""Of what a packed answer unpacks to."""
NODE_TIMEOUT_S = 5.0
NODE_FAILURES = 5
"""After so many requests in a row that a NodeManager did not answer, the worker cannot reach it."""
_RECOVERED = "ACTIVE"
TAIL_LINES = 200
_FULL = "cannot accept submission of application"
_MEMORY = "memory limit"
"""Hadoop 2 has "physical memory limits" in the reason, Hadoop 3 "the 'PHYSICAL' memory limit"."""


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
        if death is None:
            return None
        printed = follower.printed(death)
        return find_failed_login(printed, manager.login) or as_shortage(death, printed)

    def stop(self, handle: Handle) -> None:
        """Kill every application with the job's tag. Raises EngineError when one still runs."""
        kill_submitting(handle.job)
        manager = _manager_of(handle.job)
        deadline = time.monotonic() + END_PATIENCE_S
        seen = dict[str, dict[str, Any]]()
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
        except (requests.RequestException, ValueError, TypeError, RecursionError) as error:
            raise as_unreported(
                f"YARN's ResourceManager does not report what it runs: {first_line(error)}", error
            ) from error

    def require_recovered(self) -> None:
        """Raise EngineAwayError while it has not loaded its applications since it was started.

        Meanwhile its REST API answers already, and knows none of those that run.
        """
        with _expecting_yarn():
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
        with _expecting_yarn():
            # "apps" is null when there is none.
            found = self.ask("GET", "apps", params={"applicationTags": tag}).get("apps") or {}
            return [_application_of(app) for app in found.get("app", [])]

    def _find(self, application_id: str) -> dict[str, Any] | None:
        try:
            with _expecting_yarn():
                return _application_of(self.ask("GET", f"apps/{application_id}")["app"])
        except EngineError as error:
            answer = getattr(error.__cause__, "response", None)
            if answer is not None and answer.status_code == requests.codes.not_found:
                return None
            raise

    def read_output(self, app: dict[str, Any]) -> str | None:
        """Return what the driver has printed so far; None when no NodeManager answers at the address."""
        url = f"{_container_url(app)}/logs/stdout"
        size = {"size": OUTPUT_BYTES}
        try:
            answer = self._request("GET", url, timeout_s=NODE_TIMEOUT_S, params=size)
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

    def _request(self, method: str, url: str, timeout_s: float = 0.0, **how: Any) -> requests.Response:
        """Return a whole answer. Raises requests.RequestException, also for one that is too large or takes too long."""
        timeout_s = timeout_s or HTTP_TIMEOUT_S

        def exchange() -> requests.Response:
            answer = requests.request(method, url, auth=self._auth, timeout=timeout_s, stream=True, **how)
            read_at_most(answer, MAX_ANSWER_BYTES)
            return answer

        try:
            answer = within(timeout_s, exchange)
        except TimeoutError as error:
            raise requests.Timeout(str(error)) from error
        answer.raise_for_status()
        return answer


@contextlib.contextmanager
def _expecting_yarn() -> Iterator[None]:
    """Raise EngineAwayError for an answer of another form: of a proxy, or of another program at the address."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        raise EngineAwayError(
            f"what answers at YARN's address is no ResourceManager: {type(error).__name__} {first_line(error, 100)}"
        ) from error


def _application_of(answer: Any) -> dict[str, Any]:
    """Return an application whose id, state and other texts are texts."""
    app = {**answer, "id": str(answer["id"]), "state": str(answer["state"])}
    for name in ("amContainerLogs", "amHostHttpAddress", "diagnostics"):
        app[name] = str(answer.get(name) or "")
    return app


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
        if not app["amContainerLogs"] or self._unanswered >= NODE_FAILURES:
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
        said = f"{app['state']}, {app['diagnostics'].strip()}" if app["state"] == "ACCEPTED" else app["state"]
        if said == self._said:
            return
        self._said = said
        log.info(
            "YARN application %s in queue %s is %s; its driver's whole output: %s, later: yarn logs -applicationId %s",
            self._id, app.get("queue", "?"), said, app["amContainerLogs"] or "not placed yet", self._id,
        )  # fmt: skip


def _manager_of(job: EngineJob) -> _ResourceManager:
    return _ResourceManager(_create_operator(job, {})._get_hook(), job)


def _create_operator(job: EngineJob, conf: dict[str, str], *, with_secrets: bool = False) -> SparkSubmitOperator:
    connection = SparkSubmitHook(conn_id=job.conn_id)._connection
    auth = Negotiate(login_of(job.conf, connection, job.conn_id), job.name)
    return create_operator(job, conf, with_secrets=with_secrets, yarn_track_via_rm_api=True, yarn_rm_auth=auth)


def _container_url(app: dict[str, Any]) -> str:
    container_id = app["amContainerLogs"].rstrip("/").rpartition("/")[0].rpartition("/")[2]
    scheme = app["amContainerLogs"].partition("://")[0]
    return f"{scheme}://{app['amHostHttpAddress']}/ws/v1/node/containers/{container_id}"


def _death_of(app: dict[str, Any]) -> Death | None:
    if app.get("finalStatus") == "SUCCEEDED":
        return None
    diagnostics = " ".join(app["diagnostics"].split())[:1000]
    kind = FailureKind.OUT_OF_MEMORY if _MEMORY in diagnostics else FailureKind.OTHER
    return Death(f"YARN application {app['id']} ended as {app.get('finalStatus')}: {diagnostics}", kind)


def read_at_most(answer: requests.Response, limit_bytes: int) -> None:
    """Read an answer that was asked for as a stream. Raises requests.RequestException for one that is larger."""
    content = bytearray()
    for chunk in answer.iter_content(65_536):
        content += chunk
        if len(content) > limit_bytes:
            answer.close()
            raise requests.exceptions.ContentDecodingError(f"an answer of more than {limit_bytes:,} bytes")
    answer._content = bytes(content)


# --- SPNEGO (RFC 4559): a REST API that answers 401 gets a ticket of the job's own login
#
# The ticket comes from MIT's library, as in `hdfs-native`: the package `requests-kerberos`, which the Spark provider
# would take, must be compiled, and reads no keytab.


class Negotiate(requests.auth.AuthBase):
    """Answers "401 Negotiate" with a ticket of a login: of its keytab, else of the default ticket cache.

    A request raises ServiceRefusedError for a keytab that is wrong, and EngineAwayError while there is no ticket.
    """

    def __init__(self, login: Login, job_name: str) -> None:
        self._login = login
        self._job_name = job_name

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """Let `requests` show the answer before it returns it."""
        request.register_hook("response", self._answer)
        return request

    def _answer(self, refused: requests.Response, **how: Any) -> requests.Response:
        asked = "negotiate" in refused.headers.get("WWW-Authenticate", "").lower()
        if refused.status_code != requests.codes.unauthorized or not asked:
            return refused
        # Or its connection could not be used again, and would stay open where there is no ticket.
        read_at_most(refused, MAX_ANSWER_BYTES)
        again = refused.request.copy()
        again.headers["Authorization"] = f"Negotiate {self._ticket(urlsplit(str(again.url)).hostname or '')}"
        answer: requests.Response = refused.connection.send(again, **how)
        answer.history.append(refused)
        return answer

    def _ticket(self, host: str) -> str:
        try:
            return b64encode(_first_token(f"HTTP@{host}", self._login)).decode()
        except _GssError as error:
            # As the JDK says it.
            said = re.sub(r"Client '.*' not found", "Client not found", f"GSSAPI: {error}")
            death = find_failed_login([said], self._login)
            raise error_of(death or Death(f"no Kerberos ticket for HTTP@{host}: {error}"), self._job_name) from error


class _GssError(Exception):
    """What MIT's library says."""


class _Bytes(ctypes.Structure):
    _fields_ = (("length", ctypes.c_size_t), ("start", ctypes.c_void_p))


class _Oid(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint32), ("content", ctypes.c_char_p))


class _Element(ctypes.Structure):
    _fields_ = (("key", ctypes.c_char_p), ("value", ctypes.c_char_p))


class _Elements(ctypes.Structure):
    _fields_ = (("count", ctypes.c_uint32), ("first", ctypes.POINTER(_Element)))


_KERBEROS = b"\x2a\x86\x48\x86\xf7\x12\x01\x02\x02"
_PRINCIPAL_NAME = _KERBEROS + b"\x01"
_SERVICE_NAME = b"\x2a\x86\x48\x86\xf7\x12\x01\x02\x01\x04"
_SPNEGO = b"\x2b\x06\x01\x05\x05\x02"
_INITIATE = 1
_OF_MECHANISM = 2
_FAILED = 0xFFFF0000


def _first_token(service: str, login: Login) -> bytes:
    """Return the token for a service, for example `HTTP@host`. Raises _GssError."""
    library = _load_library()
    with contextlib.ExitStack() as used:
        target = _import_name(library, used, service, _SERVICE_NAME)
        credential = _pointer(library, used, "gss_release_cred")
        if login.keytab:
            user = _import_name(library, used, login.principal, _PRINCIPAL_NAME) if login.principal else None
            # Tickets outlive the credential there; no other process sees them.
            cache = f"MEMORY:{hashlib.sha256(f'{login.principal} {login.keytab}'.encode()).hexdigest()}"
            found = (_Element * 2)(
                _Element(b"client_keytab", f"FILE:{login.keytab}".encode()), _Element(b"ccache", cache.encode())
            )
            how = (user, 0, None, _INITIATE, ctypes.byref(_Elements(2, found)), ctypes.byref(credential), None, None)
            _call(library, "gss_acquire_cred_from", *how)
        # First the mechanism below: SPNEGO does not say why that has no ticket.
        for mechanism in (_KERBEROS, _SPNEGO):
            context = _pointer(library, used, "gss_delete_sec_context", None)
            token = _Bytes()
            used.callback(library.gss_release_buffer, ctypes.byref(ctypes.c_uint32()), ctypes.byref(token))
            wanted = (credential, ctypes.byref(context), target, ctypes.byref(_Oid(len(mechanism), mechanism)), 0, 0)
            _call(library, "gss_init_sec_context", *wanted, None, None, None, ctypes.byref(token), None, None)
        return ctypes.string_at(token.start or 0, token.length)


def _load_library() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libgssapi_krb5.so.2")
    except OSError as error:
        raise ConfigError(f"YARN's REST API wants Kerberos, and MIT's library is not installed: {error}") from error


def _call(library: ctypes.CDLL, name: str, *arguments: Any) -> None:
    minor = ctypes.c_uint32()
    function = getattr(library, name)
    function.restype = ctypes.c_uint32
    if function(ctypes.byref(minor), *arguments) & _FAILED:
        text = _Bytes()
        more = ctypes.c_uint32()
        unused = ctypes.byref(ctypes.c_uint32())
        library.gss_display_status(unused, minor, _OF_MECHANISM, None, ctypes.byref(more), ctypes.byref(text))
        said = ctypes.string_at(text.start or 0, text.length).decode(errors="replace")
        library.gss_release_buffer(unused, ctypes.byref(text))
        raise _GssError(said)


def _pointer(library: ctypes.CDLL, used: contextlib.ExitStack, release: str, *more: Any) -> ctypes.c_void_p:
    pointer = ctypes.c_void_p()
    used.callback(getattr(library, release), ctypes.byref(ctypes.c_uint32()), ctypes.byref(pointer), *more)
    return pointer


def _import_name(library: ctypes.CDLL, used: contextlib.ExitStack, text: str, kind: bytes) -> ctypes.c_void_p:
    name = _pointer(library, used, "gss_release_name")
    content = ctypes.create_string_buffer(text.encode())
    given = _Bytes(len(text.encode()), ctypes.addressof(content))
    _call(library, "gss_import_name", ctypes.byref(given), ctypes.byref(_Oid(len(kind), kind)), ctypes.byref(name))
    return name
