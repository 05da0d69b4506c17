"""HTTP client of the manager, for Airflow's tasks (they cannot reach the metadata database)."""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, ClassVar

import httpx
from airflow.sdk import BaseHook
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowNotFoundException

from airflow_lake_provider.config.manager_address import find_manager_url
from airflow_lake_provider.config.manager_trust import ManagerTrust, explain, read_trust, ssl_context
from airflow_lake_provider.config.settings import LakeSettings
from airflow_lake_provider.errors import (
    ConfigError,
    ExecutorBusyError,
    HoldLostError,
    HoldRefusedError,
    LakeError,
    LeaseHolder,
    LeaseLostError,
    ManagerUnreachableError,
    ServiceRefusedError,
    SinkBusyError,
)
from airflow_lake_provider.hooks.reader_hold import hudi_hold, id_of
from airflow_lake_provider.hooks.route_path import route
from airflow_lake_provider.http import MOUNT_PATH
from airflow_lake_provider.instant_clock import boot_s

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import PurePath

    from airflow.sdk import Connection

    from airflow_lake_provider.hooks.reader_hold import ReaderHold
    from airflow_lake_provider.job_contract import Service, Standing

DEFAULT_CONN_ID = "lake_default"
TIMEOUT_S = 30.0
SWEEP_TIMEOUT_S = 300.0
MAX_TABLES = 200
"""Found tables that one request registers: the longest names of so many fit into what the manager reads."""
# A renewal that hangs must end while there is still time to end the job before the lease ends.
RENEW_TIMEOUT_S = 5.0
RETRY_AFTER_S = 5.0


class LakeHook(BaseHook):
    """Calls the manager under `/v1/hoodie`.

    The connection (type `lake`) holds the API server's address as host (with schema and port, or a whole URL) and a
    service token as password. Without the connection, the address of the execution API and the first of
    `[lake] service_tokens` are used, so a one-machine Airflow needs no connection at all.
    """

    conn_name_attr: ClassVar[str] = "lake_conn_id"
    default_conn_name: ClassVar[str] = DEFAULT_CONN_ID
    conn_type: ClassVar[str] = "lake"
    hook_name: ClassVar[str] = "Lake manager"

    def __init__(self, lake_conn_id: str = DEFAULT_CONN_ID, retry_for_s: float = 0.0) -> None:
        """Name the connection, and how long to retry requests that the manager does not answer, in seconds."""
        super().__init__()
        self.lake_conn_id = lake_conn_id
        self.retry_for_s = retry_for_s
        self._client: httpx.Client | None = None
        self._away_since_s: float | None = None
        self._given_up = threading.Event()

    def get_conn(self) -> httpx.Client:
        """Return the client, opened on first use."""
        if self._client is None:
            base_url, token = self._address()
            self._client = httpx.Client(
                base_url=base_url.rstrip("/") + MOUNT_PATH,
                headers={"Authorization": f"Bearer {token}"},
                timeout=TIMEOUT_S,
                verify=ssl_context(base_url, airflow_trust()),
            )
            # A trigger makes a hook for each of its questions, in a process that runs for weeks.
            weakref.finalize(self, self._client.close)
        return self._client

    def _address(self) -> tuple[str, str]:
        try:
            connection = self.get_connection(self.lake_conn_id)
        except AirflowNotFoundException:
            connection = None
        return address_of(self.lake_conn_id, connection)

    def test_connection(self) -> tuple[bool, str]:
        """Serve the connection form's test button."""
        try:
            self.list_tables(limit=1)
        except LakeError as error:
            return False, str(error)
        return True, "the manager answers and accepts the token"

    def list_tables(self, after: str = "", limit: int = 1000) -> list[dict[str, Any]]:
        """Return tables of the registry with ids after `after`."""
        return list(self._call("GET", "/tables", params={"after": after, "limit": limit})["tables"])

    def get_table(self, table_id: str) -> dict[str, Any]:
        """Return one table with its last decisions."""
        return self._call("GET", route("tables", table_id))

    def list_silent_tables(self, limit: int = 1000) -> list[dict[str, Any]]:
        """Return the tables that were silent past their heartbeat."""
        return list(self._call("GET", "/tables/silent", params={"limit": limit})["tables"])

    def send_hints(self, hints: Sequence[Mapping[str, Any]], unchanged_table_ids: Sequence[str] = ()) -> dict[str, Any]:
        """Request evaluations of tables (`base_path`, `table_name`, `instants`), and postpone the unchanged ones."""
        body = {"hints": [dict(hint) for hint in hints], "unchanged_table_ids": list(unchanged_table_ids)}
        return self._call("POST", "/hints", json=body)

    def list_discovery_roots(self) -> list[dict[str, Any]]:
        """Return the roots to search for tables: `root`, `depth`, `metastore` with `databases`, and `problem`.

        The last says why one must not be searched.
        """
        return list(self._call("GET", "/discovery/roots")["roots"])

    def register_tables(self, tables: Sequence[Mapping[str, Any]]) -> int:
        """Register tables that were found (`base_path`, `table_name`); return how many are new."""
        registered = 0
        for begin in range(0, len(tables), MAX_TABLES):
            body = {"tables": [dict(table) for table in tables[begin : begin + MAX_TABLES]]}
            registered += int(self._call("POST", "/discovery/tables", json=body, timeout=SWEEP_TIMEOUT_S)["registered"])
        return registered

    def sweep(self) -> int:
        """Begin to evaluate every waiting table; return how many wait (1,000 at most)."""
        return int(self._call("POST", "/sweep", timeout=SWEEP_TIMEOUT_S)["waiting"])

    def acquire_executor(
        self, table_id: str, service: Service | Standing, run_id: str, try_number: int, ended: LeaseHolder | None = None
    ) -> tuple[str, float]:
        """Acquire the lease, also of a holder that has ended; return token and seconds.

        Raises ExecutorBusyError, which names the holder.
        """
        body: dict[str, Any] = {"run_id": run_id, "try_number": try_number}
        if ended is not None:
            body["ended"] = {"run_id": ended.run_id, "try_number": ended.try_number}
        answer = self._call("POST", _executor(table_id, service), json=body, conflict=ExecutorBusyError)
        try:
            return str(answer["token"]), float(answer["lease_s"])
        except (TypeError, ValueError) as error:
            raise ManagerUnreachableError(
                f"the answer to the request for a lease contains none: {str(answer)[:200]}"
            ) from error

    def renew_executor(self, table_id: str, service: Service | Standing, token: str) -> None:
        """Prolong the lease. Raises LeaseLostError when the manager reports that another executor has it.

        Another answer renews nothing: ManagerUnreachableError when it is not the manager's, ConfigError when refused.
        """
        path = f"{_executor(table_id, service)}/renew"
        answer = self._send("POST", path, json={"token": token}, conflict=LeaseLostError, timeout=RENEW_TIMEOUT_S)
        # A proxy's maintenance page may be JSON with status 200 as well.
        if answer.get("token") != token:
            raise ManagerUnreachableError(f"the answer to the renewal of a lease names no lease: {str(answer)[:200]}")

    def release_executor(self, table_id: str, service: Service | Standing, token: str) -> None:
        """Release the lease."""
        self._call("POST", f"{_executor(table_id, service)}/release", json={"token": token})

    def submit_work(self, table_id: str, item: Mapping[str, Any]) -> str:
        """Submit an item for a standing application; return its state.

        Raises ExecutorBusyError while an application runs the table's service for another try, which is to end first.
        """
        answer = self._call("POST", route("tables", table_id, "work"), json=dict(item), conflict=ExecutorBusyError)
        return str(answer["state"])

    def ask_work(self, questions: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """Return the items' states by id, and renew the leases that the questions name; it is not repeated."""
        body = {"items": [dict(question) for question in questions]}
        answer = self._send("POST", "/work/ask", json=body, conflict=LakeError)
        try:
            return {str(item["item_id"]): dict(item) for item in answer["items"]}
        except (KeyError, TypeError, ValueError) as error:
            # An item that is not in the answer counts as unknown, and its task fails.
            raise ManagerUnreachableError(f"the answer about items of work names none: {str(answer)[:200]}") from error

    def cancel_work(self, item_id: str, reason: str) -> None:
        """Cancel an item."""
        self._send("POST", "/work/cancel", json={"item_id": item_id, "reason": reason[:1000]}, conflict=LakeError)

    def get_application(self, key: str) -> dict[str, Any]:
        """Return what a standing application is submitted with: `queue`, `spark_conn_id`, `spark_conf`."""
        return self._call("GET", "/work/application", params={"key": key})

    def find_address(self) -> tuple[str, str]:
        """Return the address of the manager's routes and a service token, for a standing application."""
        base_url, token = self._address()
        return base_url.rstrip("/") + MOUNT_PATH, token

    def report_run(self, table_id: str, report: Mapping[str, Any]) -> None:
        """Report what a try of a service did: `run_id`, `try_number`, `service`, `outcome`, `job_ms`, files, bytes.

        It waits for no manager that is away: the report is for people, and the timeline has what it says.
        """
        self._send("POST", route("tables", table_id, "runs"), json=dict(report), conflict=LakeError)

    def find_backpressure(self, table: str = "") -> dict[str, Any]:
        """Return `pressure` (ok, slow, stop) of the budgets that bound a table's services, or of all, with `text`."""
        return self._call("GET", "/reports/backpressure", params={"table": table} if table else {})

    def claim_due_sinks(self, run_id: str, *, is_split: bool = False) -> list[dict[str, Any]]:
        """Claim the sinks of replication that should run now for a DAG run, and return them.

        With `is_split` only those that a driver of many streams does not take.
        """
        return list(self._call("POST", "/sinks/claim", json={"run_id": run_id, "is_split": is_split})["sinks"])

    def begin_due_sinks(self, run_id: str, running: Sequence[str], most: int, snapshots: int) -> list[dict[str, Any]]:
        """Begin runs of at most so many due sinks in a driver of many streams, and return them.

        `running` are the streams that it has already; `snapshots` is how many of the new ones may begin with one.
        """
        body = {"run_id": run_id, "standing": {"running": list(running), "snapshots": snapshots}}
        return list(self._call("POST", "/sinks/claim", json=body, params={"limit": most})["sinks"])

    def find_sink_entry(self, table_id: str, sink: str) -> dict[str, Any]:
        """Return what the tables file has of a sink, for a run by hand; `sink` is empty where it has no such one."""
        return self._call("GET", route("tables", table_id, "sinks", sink, "entry"))

    def list_sinks(self, table_id: str) -> list[dict[str, Any]]:
        """Return a table's sinks with their holds, checkpoints and problems."""
        return list(self._call("GET", route("tables", table_id, "sinks"))["sinks"])

    def find_safepoint(self, table_id: str) -> str | None:
        """Return what cleaning and archiving must not pass; None when nothing is held."""
        instant = self._call("GET", route("tables", table_id, "safepoint"))["instant"]
        return None if instant is None else str(instant)

    def find_policy(self, base_path: str, table_name: str, service: Service) -> dict[str, Any]:
        """Return the policy of a table's service in the tables file; `table_name` is that of `hoodie.properties`.

        Raises ServiceRefusedError when the service must not be run by hand.
        """
        params = {"base_path": base_path, "table_name": table_name, "service": service.value}
        return self._call("GET", "/policy", params=params, conflict=ServiceRefusedError)

    def begin_replication(self, table_id: str, sink: str, ttl_s: float, run_id: str) -> dict[str, Any]:
        """Announce a run; return what the manager knows of the sink.

        Those are `needs_snapshot`, whether it must begin with a snapshot; `request`, the request for a snapshot that it
        fulfils then; and `generation`, the last one that a run reported.

        Raises SinkBusyError while another run has the sink.
        """
        body = {"ttl_s": ttl_s, "run_id": run_id}
        return dict(
            self._call("POST", route("tables", table_id, "sinks", sink, "begin"), json=body, conflict=SinkBusyError)
        )

    def report_progress(self, table_id: str, sink: str, progress: Mapping[str, Any]) -> None:
        """Report a run's progress or end: `run_id`, `checkpoint`, `completed_time`, `problem`, `ended`.

        Raises SinkBusyError when another run has taken over.
        """
        self._call(
            "POST", route("tables", table_id, "sinks", sink, "progress"), json=dict(progress), conflict=SinkBusyError
        )

    def pause_replication(self, table_id: str, sink: str, *, paused: bool) -> None:
        """Pause or resume a sink."""
        self._call("POST", route("tables", table_id, "sinks", sink, "pause"), json={"paused": paused})

    def release_hold(self, table_id: str, sink: str, hold: str, reason: str) -> None:
        """End a hold that has grown beyond its cap; one that has moved from `hold` stays."""
        self._call("POST", route("tables", table_id, "sinks", sink, "release"), json={"hold": hold, "reason": reason})

    def forget_sink(self, table_id: str, sink: str) -> None:
        """Release a sink's hold for good."""
        self._call("DELETE", route("tables", table_id, "sinks", sink))

    def hold_table(self, table: str | PurePath, **wanted: Any) -> AbstractContextManager[ReaderHold]:
        """Hold a table's files for a reader while the block lasts; arguments as of `reader_hold.hudi_hold`."""
        url, token = self._address()
        return hudi_hold(table, manager_url=url, token=token, trust=airflow_trust(), **wanted)

    def add_hold(self, table: str | PurePath, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Hold files of a table (its base path or id) without a process that renews; `wanted` is the route's body.

        Raises HoldRefusedError. The reader may begin when `is_firm` is true.
        """
        table_id = id_of(table)
        path = route("tables", table_id, "holds")
        return self._call("POST", path, json=dict(wanted), conflict=HoldRefusedError) | {"table_id": table_id}

    def list_holds(self, table_id: str) -> list[dict[str, Any]]:
        """Return the readers' holds of a table."""
        return list(self._call("GET", route("tables", table_id, "holds"))["holds"])

    def renew_hold(self, table_id: str, hold_id: str) -> dict[str, Any]:
        """Prolong a hold. Raises HoldLostError."""
        return self._call("POST", route("tables", table_id, "holds", hold_id, "renew"), conflict=HoldLostError)

    def end_hold(self, table_id: str, hold_id: str) -> None:
        """Release a reader's hold."""
        self._call("DELETE", route("tables", table_id, "holds", hold_id))

    def pause(self, seconds: float) -> bool:
        """Wait; return True immediately when the task has to end."""
        return self._given_up.wait(seconds)

    def give_up(self) -> None:
        """Stop waiting for a manager that does not answer: the task has to end."""
        self._given_up.set()

    def _call(self, method: str, path: str, *, conflict: type[LakeError] = LakeError, **request: Any) -> Answer:
        """Send a request, and retry it while the manager does not answer, for `retry_for_s` since its last answer."""
        while True:
            try:
                answer = self._send(method, path, conflict=conflict, **request)
            except ManagerUnreachableError as error:
                self._wait_or_raise(error)
            else:
                self._away_since_s = None
                return answer

    def _wait_or_raise(self, error: ManagerUnreachableError) -> None:
        now_s = boot_s()
        if self._away_since_s is None:
            self._away_since_s = now_s
        rest_s = self._away_since_s + self.retry_for_s - now_s
        if rest_s <= 0 or self._given_up.is_set():
            raise error
        self.log.warning("%s; retrying for %.0f s", error, rest_s)
        self.pause(min(RETRY_AFTER_S, rest_s))

    def _send(self, method: str, path: str, *, conflict: type[LakeError], **request: Any) -> Answer:
        try:
            response = self.get_conn().request(method, path, **request)
        except httpx.HTTPError as error:
            raise ManagerUnreachableError(
                f"the manager at {self.get_conn().base_url} did not answer: {explain(error)}"
            ) from error
        if response.is_success:
            return _body(response)
        detail = _detail(response)
        if response.status_code in (httpx.codes.CONFLICT, httpx.codes.GONE):
            if issubclass(conflict, ExecutorBusyError):
                raise conflict(detail, _holder(response))
            raise conflict(detail)
        if response.status_code >= httpx.codes.INTERNAL_SERVER_ERROR or response.is_redirect:
            raise ManagerUnreachableError(f"{response.url} answered {response.status_code}: {detail}")
        raise ConfigError(f"the manager refused {method} {response.url}: {response.status_code} {detail}")


def address_of(conn_id: str, connection: Connection | None) -> tuple[str, str]:
    """Return the API server's URL and a service token; without a connection, or an empty field of it, by `[lake]`."""
    if connection is None:
        return _default_url(), _default_token(conn_id)
    return _url_of(connection) or _default_url(), connection.password or _default_token(conn_id)


def airflow_trust() -> ManagerTrust:
    """Return which servers Airflow's own client trusts, and the certificate that it shows them."""
    return read_trust(lambda section, name: str(conf.get(section, name, fallback="") or ""), os.environ)


def _executor(table_id: str, service: Service | Standing) -> str:
    return route("tables", table_id, "executors", service.value)


class Answer(dict[str, Any]):
    """An answer's object. What every answer of a route has and this one lacks shows that it is not the manager's.

    A proxy's maintenance page may be JSON with status 200.
    """

    url = ""

    def __missing__(self, name: str) -> Any:
        raise ManagerUnreachableError(
            f"{self.url} answered without {name!r}, so this is not the manager's answer: {str(dict(self))[:200]}"
        )


def _body(response: httpx.Response) -> Answer:
    """Return the answer's object. Raises ManagerUnreachableError for an answer that is not the manager's."""
    if not response.content:
        return Answer()
    try:
        body = response.json()
    except ValueError:
        body = None
    if not isinstance(body, dict):
        kind = response.headers.get("content-type", "no type")
        raise ManagerUnreachableError(
            f"{response.url} answered {response.status_code} with {kind}, which is not the manager's answer: a proxy's "
            "page, or the lake plugin is not loaded in this API server"
        )
    answer = Answer(body)
    answer.url = str(response.url)
    return answer


def _detail(response: httpx.Response) -> str:
    try:
        return str(response.json()["detail"])
    except (ValueError, KeyError, TypeError):
        # Where the app is not mounted, Airflow answers with the UI's page.
        return (
            "no JSON answer: the address is not the manager's (set [lake] manager_url, or the connection's host, to "
            "that of the API server, with its path), or the lake plugin is not loaded in this API server"
        )


def _holder(response: httpx.Response) -> LeaseHolder | None:
    try:
        body = response.json()["holder"]
        return LeaseHolder(str(body["run_id"]), int(body["try_number"]), float(body["rest_s"]))
    except (ValueError, KeyError, TypeError):
        return None


def as_airflow_error(error: Exception) -> AirflowException:
    """Return the error with which Airflow retries the task, or fails it for good where a retry cannot help."""
    return (AirflowException if getattr(error, "retriable", False) else AirflowFailException)(str(error))


def _url_of(connection: Connection) -> str:
    host = connection.host or ""
    if not host or "://" in host:
        return host
    port = f":{connection.port}" if connection.port else ""
    return f"{connection.schema or 'http'}://{host}{port}"


def _default_url() -> str:
    configured = LakeSettings.from_conf(conf).manager_url
    if configured:
        return configured
    execution_api_url = conf.get("core", "execution_api_server_url", fallback="")
    return find_manager_url(str(execution_api_url), str(conf.get("api", "base_url", fallback="")))


def _default_token(conn_id: str) -> str:
    tokens = LakeSettings.from_conf(conf, secrets=["service_tokens"]).service_tokens
    if not tokens:
        raise ConfigError(f"no service token: set the password of connection {conn_id!r}, or [lake] service_tokens")
    return tokens[0]
