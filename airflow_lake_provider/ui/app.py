"""Build the pages' HTTP app. It is mounted at `/lake` in Airflow's API server, and shown in its UI's menu."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import secrets
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import parse_qsl

from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from jinja2 import Environment, PackageLoader, StrictUndefined

from airflow_lake_provider import __version__
from airflow_lake_provider.doctor.evidence import find_zone_trouble
from airflow_lake_provider.errors import BodyTooLargeError, ForbiddenError, LakeError
from airflow_lake_provider.hudi.job_zone import zone_of_jobs
from airflow_lake_provider.manager.api.services import ManagerServices, services_of
from airflow_lake_provider.manager.db.search import PAGE_SIZE, Search, Show, search_tables
from airflow_lake_provider.manager.db.sinks import Sinks
from airflow_lake_provider.manager.instances import distance, load_instances, moment, next_evaluation_ms
from airflow_lake_provider.manager.scheduling import find_net_problems
from airflow_lake_provider.manager.sink_state import problem_of, state_of
from airflow_lake_provider.manager.writers import WriterChecks
from airflow_lake_provider.planner.rules import Verdict
from airflow_lake_provider.ui import api
from airflow_lake_provider.ui.api import PAGES_AT_ONCE, storage_place

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import RowMapping

    from airflow_lake_provider.manager.instances import Instance
    from airflow_lake_provider.planner.conformance import Row
    from airflow_lake_provider.planner.table_view import TableView

log = logging.getLogger(__name__)

# --- The list of tables: one line each, from the registry alone, so that ten thousand tables cost one query


@dataclass(frozen=True, slots=True)
class TableLine:
    """One table in the list. `due` and `blocked` are services with their reasons."""

    table_id: str
    name: str
    database: str
    base_path: str
    due: tuple[tuple[str, str], ...]
    blocked: tuple[tuple[str, str], ...]
    evaluated: str
    next_evaluation: str
    problem: str


def to_line(row: RowMapping, now_ms: int) -> TableLine:
    """Return the line of a registry's row."""
    decisions = json.loads(row["decisions"])
    by_verdict = {
        verdict: tuple((d["service"], d["reason"]) for d in decisions if d["verdict"] == verdict.value)
        for verdict in (Verdict.DUE, Verdict.BLOCKED)
    }
    next_ms = next_evaluation_ms(row, now_ms)
    return TableLine(
        table_id=row["table_id"],
        name=row["table_name"],
        database=row["database_name"],
        base_path=row["base_path"],
        due=by_verdict[Verdict.DUE],
        blocked=by_verdict[Verdict.BLOCKED],
        evaluated=distance(row["evaluated_ms"], now_ms),
        next_evaluation="now" if next_ms == now_ms else distance(next_ms, now_ms),
        problem=row["problem"],
    )


# --- One table's page: each service's decision and its reason, instances, sinks, the newest instants

MOST_ENDED = 20
MOST_INSTANTS = 25


@dataclass(frozen=True, slots=True)
class ServiceLine:
    """One service in the last evaluation."""

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
    """The content of the page. `timeline_problem` is the reason why there are no instants."""

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
    writers: tuple[Row, ...] = ()
    """What the table requires of its writers, and whether they meet it."""


def load_page(services: ManagerServices, table_id: str) -> TablePage:
    """Read the page's content. Raises TableUnknownError; a table that cannot be read still has a page."""
    registry = services.registry
    row, now_ms = registry.get(table_id), registry.now_ms()
    found = load_instances(registry, services.instance_gateway, services.views, table_id, MOST_ENDED)
    instants, time_zones, writers, problem = _load_timeline(services, row, now_ms)
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
        writers=writers,
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
) -> tuple[tuple[InstantLine, ...], tuple[tuple[str, str], ...], tuple[Row, ...], str]:
    policy = services.tables.load().policy_for(row["base_path"], row["table_name"])
    checks = WriterChecks(services.registry, services.views, services.instance_gateway)
    try:
        view = services.views.refresh(row["base_path"])
        stamps = services.views.load_stamps(view)
        writers = checks.check(row, view, policy, now_ms)
    except LakeError as error:
        return (), (), (), str(error)
    table_zone = view.properties.time_zone
    zone = zone_of_jobs(table_zone, policy.spark_conf)
    trouble = () if zone is None else find_zone_trouble(stamps, zone, table_zone, now_ms)
    return _instants(view), tuple((one.message, one.repair) for one in trouble), writers.rows, ""


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


# --- The person at the page, as Airflow's session identifies the user


@dataclass(frozen=True, slots=True)
class Viewer:
    """A user that may read the pages, with what else Airflow allows."""

    name: str = ""
    roles: frozenset[str] = frozenset()
    may_forget: bool = False
    may_run: bool = False
    """Whether Airflow lets the user start a run of `lake_table_service`."""
    may_clear: bool = False
    """Whether Airflow lets the user clear a run of it, so that it runs again."""
    may_index: bool = False
    """Whether Airflow lets the user start a run of `lake_reindex`."""
    may_pause: bool = False
    """Whether Airflow lets the user write the Variable that is laid over the tables file."""

    @property
    def names(self) -> frozenset[str]:
        """What the `viewers` of a tokens file may name: the user, and roles as `role:<name>`."""
        return frozenset({self.name} - {""}) | {f"role:{role}" for role in self.roles}


FORM_VALID_S = 12 * 3600


def sign_form(key: bytes, viewer: Viewer, table_id: str, now_s: float) -> str:
    """Return the proof that a form came from a page of this user: another site's form has none."""
    text = json.dumps([viewer.name, table_id, int(now_s // FORM_VALID_S)])
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def require_own_form(key: bytes, viewer: Viewer, table_id: str, given: str, now_s: float) -> None:
    """Raise ForbiddenError for a form that no page of the last hours sent."""
    valid = [sign_form(key, viewer, table_id, now_s - back_s) for back_s in (0, FORM_VALID_S)]
    # Both, whichever fits: the time shows nothing about them.
    fits = [hmac.compare_digest(one.encode(), given.encode()) for one in valid]
    if not any(fits):
        raise ForbiddenError("this form is old, or comes from another site: open the table's page again")


Services = Annotated[ManagerServices, Depends(services_of)]

MOST_FORM_BYTES = 4096
MOST_PAGES = 10_000
# Writers choose a table's name. The pages escape it, and the browser runs no script but theirs.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; form-action 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_ASSETS = {"lake.css": "text/css", "lake.js": "text/javascript"}

router = APIRouter()


def _viewer_of(request: Request) -> Viewer:
    viewer: Viewer = request.state.viewer
    return viewer


def create_pages(
    open_services: Callable[[], ManagerServices], check_access: Callable[..., Viewer | None], key: bytes | None = None
) -> FastAPI:
    """Build the app.

    `check_access` is a dependency of FastAPI that refuses users without access; each route has it. `key` signs forms: a
    secret that all API servers share.
    """

    # An annotation could not name the argument of this function.
    found: Any = Depends(check_access)

    def keep_viewer(request: Request, viewer: Viewer | None = found) -> None:
        request.state.viewer = viewer or Viewer()

    app = FastAPI(title="Lake tables", version=__version__, openapi_url=None, dependencies=[Depends(keep_viewer)])
    app.state.open_services = open_services
    app.state.key = key if key is not None else secrets.token_bytes(32)
    app.state.places = threading.BoundedSemaphore(PAGES_AT_ONCE)
    app.state.templates = Environment(
        loader=PackageLoader("airflow_lake_provider.ui"), autoescape=True, undefined=StrictUndefined
    )
    app.include_router(router)
    app.include_router(api.router)
    app.include_router(api.bundle_router)
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
    search = Search(text, show, page, services.tokens.find_audience(_viewer_of(request).names))
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
    _require_seen(request, services, table_id)
    with storage_place(request):
        viewer = _viewer_of(request)
        proof = sign_form(request.app.state.key, viewer, table_id, time.time()) if viewer.may_forget else ""
        return _render(request, "table.html", page=load_page(services, table_id), table_id=table_id, proof=proof)


async def _read_form(request: Request) -> dict[str, str]:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_FORM_BYTES:
            raise BodyTooLargeError(f"a form has {MOST_FORM_BYTES} bytes at most")
    return dict(parse_qsl(body.decode("utf-8", "replace")))


@router.post("/forget")
def forget_table(
    request: Request, services: Services, form: Annotated[dict[str, str], Depends(_read_form)]
) -> RedirectResponse:
    """Forget a table, as `DELETE /tables/{id}` does, for a user who may delete the DAG of table services."""
    viewer, table_id = _viewer_of(request), form.get("id", "")
    if not viewer.may_forget:
        raise ForbiddenError("forgetting a table needs Airflow's permission to delete the DAG of table services")
    # Browsers say where a form comes from; old ones do not.
    if request.headers.get("Sec-Fetch-Site", "same-origin") != "same-origin":
        raise ForbiddenError("this form comes from another site")
    require_own_form(request.app.state.key, viewer, table_id, form.get("proof", ""), time.time())
    _require_seen(request, services, table_id)
    services.loop.forget(table_id)
    log.warning("user %s forgot table %s", viewer.name, table_id)
    return RedirectResponse("./", status_code=303, headers=HEADERS)


def _require_seen(request: Request, services: ManagerServices, table_id: str) -> None:
    row = services.registry.get(table_id)
    services.tokens.find_audience(_viewer_of(request).names).require_table(table_id, row["base_path"])


@router.get("/assets/{name}")
def get_asset(request: Request, name: str) -> Response:
    """Return the style or the script of the pages."""
    if name not in _ASSETS:
        return Response(status_code=404)
    text = request.app.state.templates.get_template(name).render()
    return Response(text, media_type=_ASSETS[name], headers={"X-Content-Type-Options": "nosniff"})


async def _answer_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, LakeError):
        raise error
    if request.url.path.removeprefix(request.scope.get("root_path", "")).startswith("/api/"):
        return api.answer_error(error)
    answer = _render(request, "error.html", status_code=error.http_status, message=str(error))
    answer.headers.update(error.headers)
    return answer


def _render(request: Request, template: str, *, status_code: int = 200, **values: object) -> HTMLResponse:
    text = request.app.state.templates.get_template(template).render(**values)
    return HTMLResponse(text, status_code=status_code, headers=HEADERS)
