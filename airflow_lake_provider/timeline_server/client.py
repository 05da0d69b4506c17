"""HTTP clients of the timeline server, blocking and asynchronous, with the same answers and errors.

An error of the table (`TableNotFoundError`, `StorageError`...) is raised as the server's own class. Every other failure
raises TimelineServerUnavailableError: readers then read the file system.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import httpx

from airflow_lake_provider import errors
from airflow_lake_provider.config.manager_trust import NO_SETTINGS, ManagerTrust, explain, ssl_context
from airflow_lake_provider.errors import (
    LakeError,
    MalformedRequestError,
    PathNotAllowedError,
    TablesRefusedError,
    TimelineServerUnavailableError,
)
from airflow_lake_provider.timeline_server.wire import (
    MAX_WAIT_S,
    LatestInstants,
    latest_from_dict,
    planned_from_dict,
    snapshot_from_dict,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_lake_provider.shared.actions import Action
    from airflow_lake_provider.timeline_server.snapshot import Freshness, PlannedSnapshot, TimelineSnapshot

# Errors that a server reports about a table, as opposed to the request or itself.
_TABLE_ERRORS = (
    "TableNotFoundError",
    "UnsupportedTableError",
    "DamagedFileError",
    "StorageError",
    "StorageOptionError",
)

_ASKED_AT_ONCE = 100
"""Tables of one question, whose timelines the server packs out in its event loop."""


@dataclass(frozen=True, slots=True)
class TimelineEndpoint:
    """Where the timeline server is: its URL up to and without `/timeline`, a service token, how long to wait."""

    url: str
    token: str
    trust: ManagerTrust = NO_SETTINGS
    connect_timeout_s: float = 2.0
    read_timeout_s: float = 30.0

    def client_options(self) -> dict[str, Any]:
        """Return the options of both kinds of httpx client."""
        return {
            "base_url": self.url.rstrip("/") + "/timeline",
            "headers": {"Authorization": f"Bearer {self.token}"},
            "timeout": httpx.Timeout(self.read_timeout_s, connect=self.connect_timeout_s),
            # A proxy for the internet must not see internal requests.
            "trust_env": False,
            "verify": ssl_context(self.url, self.trust),
        }


class TimelineClient:
    """Calls the server; remembers versions, so that an unchanged timeline is not sent again."""

    def __init__(self, endpoint: TimelineEndpoint) -> None:
        self._client = httpx.Client(**endpoint.client_options())
        # A sensor keeps its views to its own end, and has no place to close them.
        weakref.finalize(self, self._client.close)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def get_view(self, base_path: str, freshness: Freshness | None, known: TimelineSnapshot | None) -> TimelineSnapshot:
        """Return the table's timeline; `known` itself, with a newer `as_of_ms`, when nothing changed."""
        headers = {} if known is None else {"If-None-Match": f'"{known.version}"'}
        response = self._send("GET", "/view", params=view_params(base_path, freshness), headers=headers)
        return read_view(response, known)

    def get_plans(self, base_path: str, freshness: Freshness | None) -> PlannedSnapshot:
        """Return the table's timeline with its pending plans."""
        params = view_params(base_path, freshness) | {"plans": "true"}
        return planned_from_dict(read_json(self._send("GET", "/view", params=params)))

    def get_latest(
        self, base_path: str, freshness: Freshness | None = None, actions: Sequence[Action] = ()
    ) -> LatestInstants:
        """Return the table's newest instants, of these actions or of all; see the route."""
        params = view_params(base_path, freshness) | {"actions": [action.value for action in actions]}
        return latest_from_dict(read_json(self._send("GET", "/latest", params=params)))

    def get_archive(
        self, base_path: str, after: str, until: str, completed_after: str = "", version: str = ""
    ) -> dict[str, Any]:
        """Return the shape of an ArchiveAnswer; see the route for `completed_after` and `version`."""
        params = {"base_path": base_path, "after": after, "until": until}
        if completed_after:
            params |= {"completed_after": completed_after, "version": version}
        return read_json(self._send("GET", "/archive", params=params))

    def list_known(self, base_paths: Sequence[str]) -> list[dict[str, Any]]:
        """Return the shapes of ChangedTable of what the server has in memory; it reads no storage for that."""
        found: list[dict[str, Any]] = []
        for begin in range(0, len(base_paths), _ASKED_AT_ONCE):
            asked = base_paths[begin : begin + _ASKED_AT_ONCE]
            tables = [{"base_path": base_path, "poll_interval_s": None} for base_path in asked]
            answer = read_json(self._send("POST", "/changes", json={"tables": tables}))
            if not isinstance(changed := answer.get("changed"), list):
                raise TimelineServerUnavailableError("the timeline server's answer to a poll has the wrong shape")
            found += changed
        return found

    def _send(self, method: str, path: str, **request: Any) -> httpx.Response:
        try:
            return self._client.request(method, path, **request)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise _unavailable(str(self._client.base_url), error) from error


class AsyncTimelineClient:
    """The long poll, for triggers."""

    def __init__(self, endpoint: TimelineEndpoint) -> None:
        self._client = httpx.AsyncClient(**endpoint.client_options())

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def get_view(self, base_path: str, known: TimelineSnapshot | None) -> TimelineSnapshot:
        """Return the table's timeline in the server."""
        headers = {} if known is None else {"If-None-Match": f'"{known.version}"'}
        return read_view(await self._send("GET", "/view", params={"base_path": base_path}, headers=headers), known)

    async def poll(self, cursor: str, tables: Sequence[Mapping[str, Any]], wait_s: float) -> dict[str, Any]:
        """Return the shape of a PollAnswer. Raises TablesRefusedError when the server serves not all of the tables."""
        body = {"cursor": cursor, "tables": list(tables), "wait_s": min(wait_s, MAX_WAIT_S)}
        timeout = httpx.Timeout(wait_s + 15.0, connect=2.0)
        response = await self._send("POST", "/changes", json=body, timeout=timeout)
        if tables and _refuses_tables(response):
            raise TablesRefusedError(f"the timeline server refuses {tables[0]['base_path']!r}: {response.text[:500]}")
        answer = read_json(response)
        if not isinstance(answer.get("changed"), list) or not isinstance(answer.get("cursor"), str):
            raise TimelineServerUnavailableError("the timeline server's answer to a poll has the wrong shape")
        return answer

    async def _send(self, method: str, path: str, **request: Any) -> httpx.Response:
        try:
            return await self._client.request(method, path, **request)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise _unavailable(str(self._client.base_url), error) from error


def _refuses_tables(response: httpx.Response) -> bool:
    """Whether an answer to a poll says that the server does not serve one of the tables, and not that it is away."""
    if response.status_code == MalformedRequestError.http_status:
        return True
    return response.status_code == PathNotAllowedError.http_status and PathNotAllowedError.__name__ in response.text


def view_params(base_path: str, freshness: Freshness | None) -> dict[str, Any]:
    """Return the query of a view."""
    bounds = (
        {}
        if freshness is None
        else {
            "max_age_s": freshness.max_age_s,
            "unannounced_max_age_s": freshness.unannounced_max_age_s,
        }
    )
    return {"base_path": base_path, **{key: value for key, value in bounds.items() if value is not None}}


def read_view(response: httpx.Response, known: TimelineSnapshot | None) -> TimelineSnapshot:
    """Return the snapshot of an answer to `GET /view`."""
    if response.status_code == httpx.codes.NOT_MODIFIED and known is not None:
        as_of = response.headers.get("Lake-As-Of-Ms", "")
        return _with_as_of(known, int(as_of)) if as_of.isdigit() else known
    return snapshot_from_dict(read_json(response))


def read_json(response: httpx.Response) -> dict[str, Any]:
    """Return a successful answer's body; raise the table's error, or TimelineServerUnavailableError."""
    try:
        body = response.json()
    except ValueError as error:
        # Where the app is not mounted, Airflow answers with its page.
        raise TimelineServerUnavailableError(
            f"{response.url} answered {response.status_code} without JSON; is this the timeline server?"
        ) from error
    if not isinstance(body, dict):
        raise TimelineServerUnavailableError(f"{response.url} answered JSON that is not an object")
    if response.is_success:
        return body
    raise error_of(str(body.get("error", "")), str(body.get("detail", body)), response.status_code)


def error_of(name: str, detail: str, status: int = 0) -> LakeError:
    """Return the error that a server reported: the table's, or that the server cannot be used."""
    if name in _TABLE_ERRORS:
        table_error: LakeError = getattr(errors, name)(detail)
        return table_error
    return TimelineServerUnavailableError(f"the timeline server refused: {status or ''} {name} {detail}".strip())


def _with_as_of(known: TimelineSnapshot, as_of_ms: int) -> TimelineSnapshot:
    return replace(known, as_of_ms=as_of_ms)


def _unavailable(url: str, error: Exception) -> TimelineServerUnavailableError:
    return TimelineServerUnavailableError(f"the timeline server at {url} did not answer: {explain(error)}")
