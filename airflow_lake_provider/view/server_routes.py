"""The timeline server's endpoints (RFC-50), with the service token of Airflow's own tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.responses import JSONResponse

from airflow_lake_provider import __version__
from airflow_lake_provider.http_app import require_bearer
from airflow_lake_provider.table_id import normalise_base_path
from airflow_lake_provider.view.archive_tail import ArchiveQuestion
from airflow_lake_provider.view.changes import COMMIT_ACTIONS
from airflow_lake_provider.view.freshness import NOW, Freshness
from airflow_lake_provider.view.memory_view import MemoryTimelineView
from airflow_lake_provider.view.server_metrics import render_metrics
from airflow_lake_provider.view.timeline_poll import answer_poll
from airflow_lake_provider.view.timeline_server import FedTable, TimelineServer
from airflow_lake_provider.view.wire import (
    ArchiveAnswer,
    ArchivedInstantAnswer,
    ChangesAnswer,
    PollAnswer,
    PollBody,
    ProblemAnswer,
    TimelineAnswer,
    TimelineHealthAnswer,
    TimelineHintsAnswer,
    TimelineHintsBody,
    changes_to_dict,
    snapshot_to_dict,
)

if TYPE_CHECKING:
    from airflow_lake_provider.timeline.archived_timeline import ArchivedTimeline
    from airflow_lake_provider.view.snapshot import TimelineSnapshot

AS_OF_HEADER = "Lake-As-Of-Ms"


async def server_of(request: Request) -> TimelineServer:
    """Return the server of the app that answers; it is opened on first use."""
    server: TimelineServer = request.app.state.open_timeline_server()
    return server


Server = Annotated[TimelineServer, Depends(server_of)]


async def check_token(
    server: Server, authorization: Annotated[str | None, Header(alias="Authorization")] = None
) -> None:
    """Refuse a caller without one of the configured service tokens."""
    require_bearer(authorization, server.options.service_tokens)


async def allowed_path(
    server: Server, base_path: Annotated[str, Query(min_length=1, max_length=2000, description="The table")]
) -> str:
    """Return the table's path in its one spelling; refuse what lies outside the allowed roots."""
    path = normalise_base_path(base_path)
    server.require_allowed(path)
    return path


Table = Annotated[str, Depends(allowed_path)]
Age = Annotated[float | None, Query(ge=0, description="Oldest answer that will do, seconds")]
UnannouncedAge = Annotated[
    float | None, Query(ge=0, description="The same, for tables whose writers do not announce their commits")
]

router = APIRouter(prefix="/timeline", tags=["timeline server"], dependencies=[Depends(check_token)])


@router.get("/view", response_model=TimelineAnswer, responses={304: {"description": "The version is still current"}})
async def get_view(
    server: Server,
    table: Table,
    max_age_s: Age = None,
    unannounced_max_age_s: UnannouncedAge = None,
    if_none_match: Annotated[str | None, Header()] = None,
) -> Response:
    """Return a table's complete timeline; its version is the ETag."""
    freshness = Freshness(max_age_s, unannounced_max_age_s)
    snapshot = server.timelines.find_current(table, freshness)
    if snapshot is None:
        snapshot = await server.read(lambda: server.timelines.snapshot(table, freshness))
    headers = {"ETag": f'"{snapshot.version}"', "Cache-Control": "no-cache", AS_OF_HEADER: str(snapshot.as_of_ms)}
    if if_none_match is not None and snapshot.version in if_none_match.replace("W/", "").replace('"', "").split(", "):
        return Response(status_code=304, headers=headers)
    return JSONResponse(timeline_answer(server, snapshot), headers=headers)


@router.get("/changes", response_model=ChangesAnswer)
async def get_changes(
    server: Server,
    table: Table,
    since: Annotated[str, Query(max_length=64, description="A version of this table")],
    max_age_s: Age = None,
) -> Response:
    """Return what changed in one table since a version."""
    changes = await server.read(lambda: server.timelines.changes_since(table, since, Freshness(max_age_s)))
    return JSONResponse(changes_to_dict(changes))


@router.post("/changes", response_model=PollAnswer)
async def poll_changes(server: Server, body: PollBody) -> Response:
    """Long poll over many tables: answers as soon as one of them changed, at the latest after `wait_s`.

    Named tables are watched for some minutes; a caller that still waits names them again.
    """
    for table in body.tables:
        table.base_path = normalise_base_path(table.base_path)
        server.require_allowed(table.base_path)
    answer = await answer_poll(server, body, lambda snapshot: timeline_answer(server, snapshot))
    return JSONResponse(answer)


@router.post("/hints")
async def receive_hints(server: Server, body: TimelineHintsBody) -> TimelineHintsAnswer:
    """Look at these tables now."""
    hints = []
    for hint in body.hints:
        base_path = normalise_base_path(hint.base_path)
        server.require_allowed(base_path)
        hints.append(FedTable(base_path, instants=tuple(hint.instants)))
    for fed in hints:
        server.hint(fed)
    return TimelineHintsAnswer(hinted=len(hints))


@router.get("/archive")
async def get_archive(
    server: Server,
    table: Table,
    after: Annotated[str, Query(max_length=64, description="Requested time, exclusive")] = "",
    until: Annotated[str, Query(max_length=64, description="Requested time, inclusive")] = "",
    completed_after: Annotated[str, Query(max_length=64, description="A cursor: see below")] = "",
    version: Annotated[str, Query(max_length=64, description="The version of the timeline that the caller has")] = "",
) -> ArchiveAnswer:
    """Return archived instants by requested time.

    With `completed_after`, instead, those that completed after this time; storage is asked only if something was
    archived since it was asked last. What is neither in the answer nor in the timeline of `version` has not happened.
    """

    def read() -> ArchivedTimeline:
        view = MemoryTimelineView(table, server.timelines)
        if not completed_after:
            return view.archived(after=after, until=until)
        snapshot = view.snapshot()
        if snapshot.version != version:  # the caller may have a newer one, from another server
            snapshot = view.snapshot(NOW)
        return view.archived_after(ArchiveQuestion(snapshot, completed_after, COMMIT_ACTIONS))

    archive = await server.read(read)
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
async def get_health(server: Server) -> TimelineHealthAnswer:
    """Say that the server answers, and how much it knows."""
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
async def get_metrics(server: Server) -> Response:
    """Return counters and gauges in Prometheus' text format."""
    body, content_type = render_metrics(server.timelines)
    return Response(body, media_type=content_type)


def timeline_answer(server: TimelineServer, snapshot: TimelineSnapshot) -> dict[str, Any]:
    """Return the shape of a TimelineAnswer."""
    timelines = server.timelines
    slot = timelines.memory.find(snapshot.base_path)
    return snapshot_to_dict(snapshot) | {
        "stale_ms": max(0, timelines.now_ms() - snapshot.as_of_ms),
        "next_look_ms": timelines.due.due_ms(snapshot.base_path) if server.options.is_watching else None,
        "is_announced": slot is not None and slot.is_announced,
    }
