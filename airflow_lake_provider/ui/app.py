"""Build the pages' HTTP app. It is mounted at `/lake` in Airflow's API server, and shown in its UI's menu."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined

from airflow_lake_provider import __version__
from airflow_lake_provider.doctor.evidence import find_zone_trouble
from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.hudi.job_zone import zone_of_jobs
from airflow_lake_provider.manager.api.services import ManagerServices, services_of
from airflow_lake_provider.manager.db.registry import PAGE_SIZE, Search, Show, search_tables
from airflow_lake_provider.manager.db.sinks import Sinks
from airflow_lake_provider.manager.instances import distance, load_instances, moment, next_look_ms
from airflow_lake_provider.manager.scheduling import find_net_problems
from airflow_lake_provider.manager.sink_state import problem_of, state_of
from airflow_lake_provider.planner.rules import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import RowMapping

    from airflow_lake_provider.manager.instances import Instance
    from airflow_lake_provider.planner.table_view import TableView

# --- The list of tables: one line each, from the registry alone, so that ten thousand tables cost one query


@dataclass(frozen=True, slots=True)
class TableLine:
    """One table as the list shows it. `due` and `blocked` are services with their reasons."""

    table_id: str
    name: str
    database: str
    base_path: str
    due: tuple[tuple[str, str], ...]
    blocked: tuple[tuple[str, str], ...]
    looked: str
    next_look: str
    problem: str


def to_line(row: RowMapping, now_ms: int) -> TableLine:
    """Return the line of a registry's row."""
    decisions = json.loads(row["decisions"])
    by_verdict = {
        verdict: tuple((d["service"], d["reason"]) for d in decisions if d["verdict"] == verdict.value)
        for verdict in (Verdict.DUE, Verdict.BLOCKED)
    }
    next_ms = next_look_ms(row, now_ms)
    return TableLine(
        table_id=row["table_id"],
        name=row["table_name"],
        database=row["database_name"],
        base_path=row["base_path"],
        due=by_verdict[Verdict.DUE],
        blocked=by_verdict[Verdict.BLOCKED],
        looked=distance(row["looked_ms"], now_ms),
        next_look="now" if next_ms == now_ms else distance(next_ms, now_ms),
        problem=row["problem"],
    )


# --- One table's page: what each service was decided to be and why, instances, sinks, the newest instants

MOST_ENDED = 20
MOST_INSTANTS = 25


@dataclass(frozen=True, slots=True)
class ServiceLine:
    """One service as the last look decided it."""

    service: str
    verdict: str
    reason: str
    found: tuple[tuple[str, str], ...]
    run: str


@dataclass(frozen=True, slots=True)
class InstanceLine:
    """One instance of a service; `until` is its deadline."""

    service: str
    state: str
    owner: str
    since: str
    until: str
    is_overdue: bool
    tries: int
    reason: str
    run_id: str


@dataclass(frozen=True, slots=True)
class SinkLine:
    """One sink of replication."""

    sink: str
    state: str
    hold: str
    renewed: str
    problem: str


@dataclass(frozen=True, slots=True)
class InstantLine:
    """One instant of the timeline."""

    requested_time: str
    action: str
    state: str
    completed_time: str
    operation: str


@dataclass(frozen=True, slots=True)
class TablePage:
    """All that the page shows. `timeline_problem` says why there are no instants."""

    table: TableLine
    owner: str
    notices: int
    last_notice: str
    services: tuple[ServiceLine, ...]
    instances: tuple[InstanceLine, ...]
    sinks: tuple[SinkLine, ...]
    instants: tuple[InstantLine, ...]
    timeline_problem: str
    time_zones: tuple[tuple[str, str], ...] = ()
    """What is wrong with the time zones of instants, each with what to do."""


def load_page(services: ManagerServices, table_id: str) -> TablePage:
    """Read what the page shows. Raises TableUnknownError; a table that cannot be read has a page all the same."""
    registry = services.registry
    row, now_ms = registry.get(table_id), registry.now_ms()
    found = load_instances(registry, services.instance_door, services.views, table_id, MOST_ENDED)
    instants, time_zones, problem = _load_timeline(services, row, now_ms)
    return TablePage(
        table=to_line(row, now_ms),
        owner=row["owner"],
        notices=row["notices"],
        last_notice=distance(row["last_notice_ms"], now_ms),
        services=tuple(_service(decision) for decision in json.loads(row["decisions"])),
        instances=tuple(_instance(instance, now_ms) for instance in found),
        sinks=tuple(_sink(sink, now_ms) for sink in Sinks(registry).list_sinks(table_id)),
        instants=instants,
        timeline_problem=problem,
        time_zones=time_zones,
    )


def _service(decision: dict[str, Any]) -> ServiceLine:
    evidence = {key: value for key, value in decision.get("evidence", {}).items() if value not in {None, ""}}
    run = f"{decision['run']}: {decision['run_reason']}" if "run" in decision else ""
    return ServiceLine(
        decision["service"],
        decision["verdict"].replace("_", " "),
        decision["reason"],
        tuple((key, str(value)) for key, value in evidence.items()),
        run,
    )


def _instance(instance: Instance, now_ms: int) -> InstanceLine:
    return InstanceLine(
        service=instance.service,
        state=instance.state.value,
        owner=instance.owner,
        since=moment(instance.since_ms),
        until=moment(instance.deadline_ms),
        is_overdue=instance.is_overdue(now_ms),
        tries=instance.tries,
        reason=instance.reason,
        run_id=instance.run_id,
    )


def _sink(row: RowMapping, now_ms: int) -> SinkLine:
    checkpoint = json.loads(row["checkpoint"]) if row["checkpoint"] else {}
    return SinkLine(
        sink=row["sink"],
        state=state_of(row, checkpoint, now_ms),
        hold="" if row["needs_snapshot"] else row["hold"],
        renewed=distance(row["renewed_ms"], now_ms),
        problem=problem_of(row),
    )


def _load_timeline(
    services: ManagerServices, row: RowMapping, now_ms: int
) -> tuple[tuple[InstantLine, ...], tuple[tuple[str, str], ...], str]:
    try:
        view = services.views.refresh(row["base_path"])
        stamps = services.views.load_stamps(view)
    except LakeError as error:
        return (), (), str(error)
    policy, table_zone = (
        services.tables.load().policy_for(row["base_path"], row["table_name"]),
        view.properties.time_zone,
    )
    zone = zone_of_jobs(table_zone, policy.spark_conf)
    trouble = () if zone is None else find_zone_trouble(stamps, zone, table_zone, now_ms)
    return _instants(view), tuple((one.says, one.repair) for one in trouble), ""


def _instants(view: TableView) -> tuple[InstantLine, ...]:
    newest = sorted(view.timeline.instants, key=lambda instant: instant.sort_key, reverse=True)[:MOST_INSTANTS]
    lines = []
    for instant in newest:
        commit = view.commits.get(instant.requested_time)
        lines.append(
            InstantLine(
                instant.requested_time,
                instant.action.value,
                instant.state.value,
                instant.completed_time or "",
                "" if commit is None else commit.operation,
            )
        )
    return tuple(lines)


Services = Annotated[ManagerServices, Depends(services_of)]

MOST_PAGES = 10_000
# What a table is called comes from its writers. It is escaped, and no script but our own would run anyway.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; form-action 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_ASSETS = {"lake.css": "text/css", "lake.js": "text/javascript"}

router = APIRouter()


def create_pages(open_services: Callable[[], ManagerServices], check_access: Callable[..., object]) -> FastAPI:
    """Build the app. `check_access` is a dependency of FastAPI that refuses who may not look; each route has it."""
    app = FastAPI(title="Lake tables", version=__version__, openapi_url=None, dependencies=[Depends(check_access)])
    app.state.open_services = open_services
    app.state.templates = Environment(
        loader=PackageLoader("airflow_lake_provider.ui"), autoescape=True, undefined=StrictUndefined
    )
    app.include_router(router)
    app.add_exception_handler(LakeError, _answer_error)
    return app


@router.get("/")
def show_tables(
    request: Request,
    services: Services,
    text: Annotated[str, Query(alias="q", max_length=500)] = "",
    show: Show = Show.ALL,
    page: Annotated[int, Query(ge=1, le=MOST_PAGES)] = 1,
) -> HTMLResponse:
    """Show the tables that match, by name."""
    search = Search(text, show, page)
    found, now_ms = search_tables(services.registry, search), services.registry.now_ms()
    return _render(
        request,
        "tables.html",
        lines=[to_line(row, now_ms) for row in found.rows],
        found=found,
        search=search,
        shows=list(Show),
        first=(page - 1) * PAGE_SIZE + 1,
        settings_problem=services.tables.problem,
        net_problems=find_net_problems(services.loop.find_net(), now_ms),
    )


@router.get("/table")
def show_table(
    request: Request, services: Services, table_id: Annotated[str, Query(alias="id", max_length=200)]
) -> HTMLResponse:
    """Show one table."""
    return _render(request, "table.html", page=load_page(services, table_id))


@router.get("/assets/{name}")
def get_asset(request: Request, name: str) -> Response:
    """Return the style or the script of the pages."""
    if name not in _ASSETS:
        return Response(status_code=404)
    text = request.app.state.templates.get_template(name).render()
    return Response(text, media_type=_ASSETS[name], headers={"X-Content-Type-Options": "nosniff"})


async def _answer_error(request: Request, error: Exception) -> HTMLResponse:
    if not isinstance(error, LakeError):
        raise error
    return _render(request, "error.html", status_code=error.http_status, message=str(error))


def _render(request: Request, template: str, *, status_code: int = 200, **values: object) -> HTMLResponse:
    text = request.app.state.templates.get_template(template).render(**values)
    return HTMLResponse(text, status_code=status_code, headers=HEADERS)
