"""The timeline server's endpoints (RFC-50), with a token that may read."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Header, Query, Request, Response
from fastapi.middleware.gzip import GZipMiddleware
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from airflow_lake_provider import __version__
from airflow_lake_provider.config.access import Grant, Right
from airflow_lake_provider.http import (
    BEARER,
    MAX_LIST_BYTES,
    MOUNT_PATH,
    AnswersAlone,
    BodyGuard,
    add_error_handlers,
    describe_bodies,
    json_body,
    token_of_bearer,
)
from airflow_lake_provider.hudi.base_path import normalise_base_path
from airflow_lake_provider.shared.actions import COMPLETED_WRITE_ACTIONS, Action
from airflow_lake_provider.timeline_server import routes as server_routes
from airflow_lake_provider.timeline_server.archive_tail import ArchiveQuery
from airflow_lake_provider.timeline_server.server import TimelineServer
from airflow_lake_provider.timeline_server.snapshot import NOW, Freshness
from airflow_lake_provider.timeline_server.views import MemoryTimelineView
from airflow_lake_provider.timeline_server.wire import (
    ArchiveAnswer,
    ArchivedInstantAnswer,
    LatestAnswer,
    PollAnswer,
    PollBody,
    ProblemAnswer,
    TimelineAnswer,
    TimelineHealthAnswer,
    encode_answer,
    encode_list,
    latest_to_dict,
    plans_to_dict,
    snapshot_to_dict,
    with_field,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping

    from prometheus_client.core import Metric

    from airflow_lake_provider.hudi.instant import ArchivedTimeline
    from airflow_lake_provider.timeline_server.cache import SharedTimelines
    from airflow_lake_provider.timeline_server.snapshot import TimelineSnapshot
    from airflow_lake_provider.timeline_server.wire import WatchedTable

# --- The timeline server as an app of its own, with the same endpoints at the same place as in Airflow's API server


def create_timeline_app(open_timeline_server: Callable[[], TimelineServer], *, is_described: bool = True) -> FastAPI:
    """Build the app. The server is opened when it starts; a wrong setting ends the process with its message.

    With `is_described` the app serves the description of its routes, without a token.
    """
    app = FastAPI(
        title="Lake timeline server",
        version=__version__,
        description="Complete timelines of many Hudi tables from memory (RFC-50).",
        lifespan=_run,
        openapi_url=f"{MOUNT_PATH}/openapi.json" if is_described else None,
        docs_url=f"{MOUNT_PATH}/docs",
        redoc_url=None,
        redirect_slashes=False,  # its place would be on the host that the caller names
    )
    app.state.open_timeline_server = open_timeline_server
    app.include_router(server_routes.router, prefix=MOUNT_PATH)
    app.add_middleware(GZipMiddleware, minimum_size=1024, compresslevel=1)
    app.add_middleware(
        BodyGuard,
        check_token=lambda given: open_timeline_server().tokens.identify_sender(
            given, where=BEARER, option="service_tokens"
        ),
    )
    app.add_middleware(AnswersAlone)
    add_error_handlers(app)
    describe_bodies(app)
    return app


@asynccontextmanager
async def _run(app: FastAPI) -> AsyncIterator[None]:
    server: TimelineServer = app.state.open_timeline_server()
    job = asyncio.create_task(server.run(), name="lake-timeline-server")
    try:
        yield
    finally:
        job.cancel()
        with suppress(asyncio.CancelledError):
            await job


# --- Answer a long poll over many tables. It never waits for storage: a later poll returns what is not known yet

CHECK_CALLER_AFTER_S = 5.0
"""How soon a poll that waits finds out that its caller has gone."""
WATCH_TTL_MS = 300_000
"""How long a named table counts as watched; callers name their tables again well before."""
MAX_CHANGES = 1000
"""So many entries of the log one answer reports: a burst of 10,000 changes in one would take megabytes at once."""


async def answer_poll(
    server: TimelineServer, reader: Grant, body: PollBody, has_gone: Callable[[], Awaitable[bool]]
) -> bytes:
    """Return a PollAnswer as JSON. Timelines are unpacked and encoded off the event loop: some are large.

    What a caller asked for ends with the caller, unless another poll asks for the same.
    """
    timelines = server.timelines
    now_ms = timelines.now_ms()
    until_ms = now_ms + WATCH_TTL_MS
    watched = [table for table in body.tables if table.poll_interval_s is not None]
    floor_s = server.poll_limits.find_floor_s(reader.name, (table.base_path for table in watched), now_ms, until_ms)
    found = timelines.log.find_after(body.cursor, 0)
    # The cursor is read before the tables are compared: the next poll returns what changes meanwhile.
    cursor = body.cursor if found is not None else timelines.log.cursor
    differing: list[WatchedTable] = []
    async for part in server.poll_limits.in_turns(body.tables):
        for table in part:
            if table.poll_interval_s is not None:
                _watch(timelines, table, floor_s, until_ms)
        differing += [table for table in part if _differs(timelines, table)]
    changed: dict[str, bytes] = {}
    if differing:
        changed = await server.encode(lambda: _encode_states(server, differing))
    server.wake()
    is_unknown = bool(body.cursor) and found is None
    if not changed and not is_unknown and await _wait(timelines, cursor, body.wait_s, has_gone):
        for table in watched:
            timelines.end_watch(table.base_path, until_ms)
    found = timelines.log.find_after(cursor, MAX_CHANGES)
    if found is None:  # the log passed the cursor during the wait: the caller compares versions
        return _encode_poll(timelines.log.cursor, changed, is_resync=True)
    cursor, paths = found
    # The log holds the changes of all tables.
    others = (path for path in paths if path not in changed and reader.covers(path))
    changed |= {path: encode_answer(_state_of(timelines, path)) for path in others}
    return _encode_poll(cursor, changed, is_resync=is_unknown)


async def _wait(
    timelines: SharedTimelines, cursor: str, wait_s: float, has_gone: Callable[[], Awaitable[bool]]
) -> bool:
    """Wait for a change; return whether the caller has gone meanwhile."""
    left_s = wait_s
    while left_s > 0:
        await timelines.log.wait(cursor, min(left_s, CHECK_CALLER_AFTER_S))
        if await has_gone():
            return True
        found = timelines.log.find_after(cursor, 1)
        if found is None or found[1]:
            return False
        left_s -= CHECK_CALLER_AFTER_S
    return False


def _watch(timelines: SharedTimelines, table: WatchedTable, floor_s: float, until_ms: int) -> None:
    assert table.poll_interval_s is not None
    unannounced_s = table.unannounced_interval_s
    timelines.watch(
        table.base_path,
        max(table.poll_interval_s, floor_s),
        until_ms,
        None if unannounced_s is None else max(unannounced_s, floor_s),
    )


def _differs(timelines: SharedTimelines, table: WatchedTable) -> bool:
    """Return whether the caller has another version, or none of a table that cannot be read."""
    cached = timelines.memory.get(table.base_path)
    if cached.error is not None:
        return not table.version
    # The last refresh's result is enough, even when a hint waits: the log gets the result of its refresh.
    return not (cached.shown and cached.version == table.version)


def _encode_states(server: TimelineServer, tables: Iterable[WatchedTable]) -> dict[str, bytes]:
    return {table.base_path: state for table in tables if (state := _encode_state(server, table)) is not None}


def _encode_state(server: TimelineServer, table: WatchedTable) -> bytes | None:
    """Return the table as a ChangedTable; None when its next refresh has to answer."""
    timelines = server.timelines
    if timelines.memory.get(table.base_path).error is not None:
        return encode_answer(_state_of(timelines, table.base_path))
    known = timelines.find_shown(table.base_path)
    if known is None:
        timelines.await_refresh(table.base_path, table.version)
        return None
    state = _state_of(timelines, table.base_path) | {"version": known.version}
    del state["timeline"]
    return with_field(encode_answer(state), "timeline", encode_answer(timeline_answer(server, known)))


def _encode_poll(cursor: str, changed: Mapping[str, bytes], *, is_resync: bool) -> bytes:
    answer = encode_answer({"cursor": cursor, "resync": is_resync})
    return with_field(answer, "changed", encode_list(changed.values()))


def _state_of(timelines: SharedTimelines, base_path: str) -> dict[str, Any]:
    cached = timelines.memory.find(base_path)
    error = cached.error if cached is not None else None
    return {
        "base_path": base_path,
        "version": cached.version if cached is not None else "",
        "timeline": None,
        "error": type(error).__name__ if error is not None else "",
        "detail": str(error) if error is not None else "",
    }


# --- The timeline server's metrics in Prometheus' text format. No label: the number of table names is unbounded

_COUNTERS = {
    "hints": "Hints received",
    "hints_shown_already": "Hints that needed no refresh, because the timeline showed their instants",
    "changes": "Changes of timelines",
    "loads": "Timelines that were loaded for the first time",
    "unannounced_commits": "Commits without a notice",
    "failed_refreshes": "Refreshes that failed",
    "is_gate_unreliable": "Folders whose modification time did not change with their children",
    "refreshes_list": "Refreshes that listed immediately",
    "refreshes_gate": "Refreshes that read the folder's time first",
    "refreshes_full": "Refreshes that also checked the properties",
    "refreshes_full_list": "Refreshes that listed immediately and checked the properties",
    "refreshes_verify": "Sampled listings that check the folder's time",
}


def render_metrics(timelines: SharedTimelines) -> tuple[bytes, str]:
    """Return body and content type."""
    registry = CollectorRegistry()
    registry.register(_Timelines(timelines))
    return generate_latest(registry), CONTENT_TYPE_PLAIN_0_0_4


class _Timelines(Collector):
    def __init__(self, timelines: SharedTimelines) -> None:
        self._timelines = timelines

    def collect(self) -> Iterable[Metric]:
        """Read the numbers once."""
        timelines = self._timelines
        counts = self._timelines.stats.read()
        for name, text in _COUNTERS.items():
            yield CounterMetricFamily(f"lake_timeline_{name}", text, value=counts.get(name, 0))
        calls = CounterMetricFamily("lake_storage_calls", "Calls of the storage by kind", labels=["kind"])
        for kind, count in (
            ("list", timelines.calls.lists),
            ("open", timelines.calls.opens),
            ("stat", timelines.calls.stats),
        ):
            calls.add_metric([kind], count)
        yield calls
        yield CounterMetricFamily(
            "lake_timeline_evictions", "Timelines evicted from memory", value=timelines.memory.evictions
        )
        yield GaugeMetricFamily("lake_timeline_tables", "Tables that are known", value=len(timelines.memory))
        yield GaugeMetricFamily("lake_timeline_kept", "Timelines in memory", value=timelines.memory.kept)
        yield GaugeMetricFamily(
            "lake_timeline_kept_bytes", "Size of the timelines in memory", value=timelines.memory.kept_bytes()
        )
        yield GaugeMetricFamily(
            "lake_timeline_unreadable", "Tables whose last refresh failed", value=timelines.unreadable()
        )


AS_OF_HEADER = "Lake-As-Of-Ms"
JSON = "application/json"


async def server_of(request: Request) -> TimelineServer:
    """Return the server of the app that answers; it is opened on first use."""
    server: TimelineServer = request.app.state.open_timeline_server()
    return server


Server = Annotated[TimelineServer, Depends(server_of)]


async def check_reader(
    server: Server, authorization: Annotated[str | None, Header(alias="Authorization")] = None
) -> Grant:
    """Refuse a caller without a token that may read."""
    given = token_of_bearer(authorization)
    return server.tokens.authorise(given, Right.READ, where="header Authorization", option="service_tokens")


Reader = Annotated[Grant, Depends(check_reader)]


async def allowed_path(
    server: Server,
    reader: Reader,
    base_path: Annotated[str, Query(min_length=1, max_length=2000, description="The table")],
) -> str:
    """Return the table's normalised path; refuse a path outside the token's roots and the allowed ones."""
    path = normalise_base_path(base_path)
    reader.require_path(path)
    server.require_allowed(path)
    return path


Table = Annotated[str, Depends(allowed_path)]
Age = Annotated[float | None, Query(ge=0, description="Oldest acceptable answer, seconds")]
UnannouncedAge = Annotated[
    float | None, Query(ge=0, description="The same, for tables whose writers do not announce their commits")
]

router = APIRouter(prefix="/timeline", tags=["timeline server"], dependencies=[Depends(check_reader)])


@router.get("/view", response_model=TimelineAnswer, responses={304: {"description": "The version is still current"}})
async def get_view(  # noqa: PLR0913 - the query's parameters
    server: Server,
    reader: Reader,
    table: Table,
    max_age_s: Age = None,
    unannounced_max_age_s: UnannouncedAge = None,
    plans: Annotated[bool, Query(description="Also what pending services will rewrite or build")] = False,  # noqa: FBT002
    if_none_match: Annotated[str | None, Header()] = None,
) -> Response:
    """Return a table's complete timeline; its version is the ETag, also of its plans."""
    freshness = Freshness(max_age_s, unannounced_max_age_s)
    timelines = server.timelines
    if plans:
        _count_read(server, reader)
        planned = await server.read(lambda: MemoryTimelineView(table, timelines).plans(freshness), table)
        answer = await server.encode(
            lambda: encode_answer(timeline_answer(server, planned.snapshot) | plans_to_dict(planned))
        )
        headers = _view_headers(planned.snapshot.version, planned.snapshot.as_of_ms)
        return Response(answer, headers=headers, media_type=JSON)
    if timelines.is_current(table, freshness):
        cached = timelines.memory.get(table)
        version = cached.version
        as_of_ms = cached.as_of_ms
        if _is_named(version, if_none_match):
            return Response(status_code=304, headers=_view_headers(version, as_of_ms))
    snapshot = await _read_snapshot(server, reader, table, freshness)
    headers = _view_headers(snapshot.version, snapshot.as_of_ms)
    if _is_named(snapshot.version, if_none_match):
        return Response(status_code=304, headers=headers)
    body = await server.encode(lambda: encode_answer(timeline_answer(server, snapshot)))
    return Response(body, headers=headers, media_type=JSON)


def _count_read(server: TimelineServer, reader: Grant) -> None:
    """Count a read of a table's storage. Tasks are exempt: they decide by what the table is now."""
    if Right.OPERATE not in reader.rights:
        server.poll_limits.take_read(reader.name, server.timelines.now_ms())


async def _read_snapshot(server: TimelineServer, reader: Grant, table: str, freshness: Freshness) -> TimelineSnapshot:
    """Return the table's timeline from memory, unpacked off the event loop, or from its storage."""
    timelines = server.timelines
    if timelines.is_current(table, freshness):
        known = await server.encode(lambda: timelines.find_current(table, freshness))
        if known is not None:
            return known
    _count_read(server, reader)
    return await server.read(lambda: timelines.snapshot(table, freshness), table)


def _view_headers(version: str, as_of_ms: int) -> dict[str, str]:
    return {"ETag": f'"{version}"', "Cache-Control": "no-cache", AS_OF_HEADER: str(as_of_ms)}


def _is_named(version: str, if_none_match: str | None) -> bool:
    return if_none_match is not None and version in if_none_match.replace("W/", "").replace('"', "").split(", ")


@router.get("/latest")
async def get_latest(
    server: Server,
    reader: Reader,
    table: Table,
    actions: Annotated[
        list[Action] | None, Query(description="Only instants of these actions; repeat it for several, without it: all")
    ] = None,
    max_age_s: Age = None,
    unannounced_max_age_s: UnannouncedAge = None,
) -> LatestAnswer:
    """Return a table's newest instants, in a few hundred bytes.

    No writer announces a plan, a clean or a write in flight: a caller that asks for those gives `max_age_s`.
    """
    snapshot = await _read_snapshot(server, reader, table, Freshness(max_age_s, unannounced_max_age_s))
    stale_ms = max(0, server.timelines.now_ms() - snapshot.as_of_ms)
    return LatestAnswer.model_validate(latest_to_dict(snapshot, actions or ()) | {"stale_ms": stale_ms})


@router.post("/changes", response_model=PollAnswer)
async def poll_changes(
    request: Request, server: Server, reader: Reader, body: Annotated[PollBody, json_body(PollBody, MAX_LIST_BYTES)]
) -> Response:
    """Wait until one of many tables changes, at most `wait_s`.

    The server watches named tables for some minutes; a caller that still waits names them again. It reads the tables
    that one token watches at most once a second each, and 200 of them a second.
    """
    with server.poll_limits.enter(reader.name, len(body.tables), is_of_team=reader.roots is not None):
        async for part in server.poll_limits.in_turns(body.tables):
            for table in part:
                table.base_path = normalise_base_path(table.base_path)
                reader.require_path(table.base_path)
                server.require_allowed(table.base_path)
        answer = await answer_poll(server, reader, body, request.is_disconnected)
    return Response(answer, media_type=JSON)


@router.get("/archive")
async def get_archive(  # noqa: PLR0913 - the query's parameters
    server: Server,
    reader: Reader,
    table: Table,
    after: Annotated[str, Query(max_length=64, description="Requested time, exclusive")] = "",
    until: Annotated[str, Query(max_length=64, description="Requested time, inclusive")] = "",
    completed_after: Annotated[str, Query(max_length=64, description="A cursor: see below")] = "",
    version: Annotated[str, Query(max_length=64, description="The version of the timeline that the caller has")] = "",
) -> ArchiveAnswer:
    """Return archived instants by requested time.

    With `completed_after`, instead, those that completed after this time; reads storage only if something was archived
    since the last reading. What is neither in the answer nor in the timeline of `version` has not happened.
    """

    def read() -> ArchivedTimeline:
        view = MemoryTimelineView(table, server.timelines)
        if not completed_after:
            return view.archived(after=after, until=until)
        snapshot = view.snapshot()
        if snapshot.version != version:  # the caller may have a newer one, from another server
            snapshot = view.snapshot(NOW)
        return view.archived_after(ArchiveQuery(snapshot, completed_after, COMPLETED_WRITE_ACTIONS))

    _count_read(server, reader)
    archive = await server.read(read, table)
    return ArchiveAnswer(
        base_path=table,
        instants=[
            ArchivedInstantAnswer(
                requested_time=instant.requested_time,
                action=instant.action.value,
                completed_time=instant.completed_time,
                file_name=instant.file_name,
            )
            for instant in archive.instants
        ],
        problems=[ProblemAnswer(file_name=p.file_name, reason=p.reason) for p in archive.problems],
    )


@router.get("/health")
async def get_health(server: Server, reader: Reader) -> TimelineHealthAnswer:
    """Report how much the server has in memory."""
    reader.require_all_roots("the server's state")
    timelines = server.timelines
    return TimelineHealthAnswer(
        status="healthy",
        version=__version__,
        tables=len(timelines.memory),
        kept=timelines.memory.kept,
        unreadable=timelines.unreadable(),
        hints_waiting=timelines.due.hints,
    )


@router.get("/metrics")
async def get_metrics(server: Server, reader: Reader) -> Response:
    """Return counters and gauges in Prometheus' text format."""
    reader.require_all_roots("the server's state")
    body, content_type = render_metrics(server.timelines)
    return Response(body, media_type=content_type)


def timeline_answer(server: TimelineServer, snapshot: TimelineSnapshot) -> dict[str, Any]:
    """Return the shape of a TimelineAnswer."""
    timelines = server.timelines
    cached = timelines.memory.find(snapshot.base_path)
    return snapshot_to_dict(snapshot) | {
        "stale_ms": max(0, timelines.now_ms() - snapshot.as_of_ms),
        "next_evaluation_ms": timelines.due.due_ms(snapshot.base_path) if server.options.is_watching else None,
        "is_announced": cached is not None and cached.is_announced,
    }
