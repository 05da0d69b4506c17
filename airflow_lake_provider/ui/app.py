"""The pages' HTTP app, mounted at `/lake` in Airflow's API server: the script of the UI, and the JSON API of the pages.

The routes of the whole lake stand here: its numbers, backlog, tables and runs; those of one table in `table_routes`.
Airflow's session identifies the user.
"""

from __future__ import annotations

import csv
import io
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from airflow_lake_provider import __version__
from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.http import AnswersAlone, describe_bodies, keep_sender, refuse_nul
from airflow_lake_provider.instant_clock import DAY_MS
from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.manager.db.backlog_history import load_backlog_over_time, load_compared
from airflow_lake_provider.manager.db.bill import KEEP_DAYS, BillBy
from airflow_lake_provider.manager.db.operations import RunSearch, read_price
from airflow_lake_provider.manager.db.search import (
    KEY_TYPES,
    MAX_NUMBER,
    Sort,
    TableSearch,
    load_numbers,
    page_of_tables,
)
from airflow_lake_provider.manager.health.health import ATTENTION, MarkKind, TableState
from airflow_lake_provider.manager.reports.places import places_of_readers
from airflow_lake_provider.manager.runs.airflow_runs import RunState
from airflow_lake_provider.manager.runs.dag_problems import find_dag_problems
from airflow_lake_provider.request_bounds import Sender
from airflow_lake_provider.shared.plain_text import escape_cell
from airflow_lake_provider.ui import bulk_routes, table_routes
from airflow_lake_provider.ui.answers import (
    HEADERS,
    MAX_PAGES,
    MAX_PAGES_OF_ONE,
    PAGES_AT_ONCE,
    PAGES_AT_ONCE_OF_ONE,
    LakeBacklog,
    LakeBacklogHistory,
    LakeBacklogMoment,
    Memory,
    Seen,
    Services,
    Viewer,
    answer_bytes,
    load_backlog,
    load_tables,
    page_place,
    parse_key,
    policy_of_row,
    print_key,
    row_of,
    show,
    to_response,
)
from airflow_lake_provider.ui.models import (
    LakeBill,
    LakeBillLine,
    LakeDatabase,
    LakeHour,
    LakeMarked,
    LakeOperation,
    LakeOperations,
    LakeOverview,
    LakeOwner,
    LakeSpan,
    LakeState,
    LakeTables,
    LakeUser,
)
from airflow_lake_provider.ui.table_facts import services_of_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from airflow_lake_provider.config.access import Audience
    from airflow_lake_provider.manager.api.services import ManagerServices
    from airflow_lake_provider.manager.db.operations import RecordedRun, RunHour, RunPage
    from airflow_lake_provider.manager.read_model import BillReport
    from airflow_lake_provider.ui.answers import PageMemory

MAX_ROWS = 200
MAX_CSV_ROWS = 10_000

router = APIRouter(prefix="/api", tags=["pages"])


class TablesQuery(BaseModel):
    """Which tables, in which order."""

    q: str = Field("", max_length=500, description="Part of a name, a database or a path")
    state: list[TableState] = Field(default_factory=list, description="One or more; without it all")
    database: str = Field("", max_length=500)
    owner: str = Field("", max_length=500, description="As the commit callback names it")
    mark: MarkKind | None = Field(None, description="Only tables that have it")
    sort: Sort = Sort.WORST
    reverse: bool = Field(default=False, description="The order turned around")
    after: str = Field("", max_length=2000, description="`next` of the page before; empty: the first page")
    limit: int = Field(100, ge=1, le=MAX_ROWS)


class RunsQuery(BaseModel):
    """Which runs."""

    table_id: str = Field("", max_length=200)
    run_id: str = Field("", max_length=250, description="Only this one")
    service: Service | None = None
    state: RunState | None = Field(None, description="Airflow's state of the run")
    q: str = Field("", max_length=500, description="Part of the table's name, database or path")
    owner: str = Field("", max_length=500, description="The table's")
    since_ms: int | None = Field(None, ge=0, le=MAX_NUMBER, description="Created then or later")
    until_ms: int | None = Field(None, ge=0, le=MAX_NUMBER, description="Created before")


class RunsPageQuery(RunsQuery):
    """Which page of them."""

    after: str = Field("", max_length=2000, description="`next` of the page before; empty: the first page")
    limit: int = Field(100, ge=1, le=MAX_ROWS)


@router.get("/overview", response_model=LakeOverview)
def get_overview(request: Request, services: Services, memory: Memory, seen: Seen) -> Response:
    """Return tables by state, the backlog, and the runs of the last day by hour."""
    registry = services.registry
    now_ms = services.registry.now_ms()
    numbers = memory.numbers(seen, lambda: load_numbers(registry, seen))

    def count() -> list[RunHour]:
        with registry.transaction() as session:
            return list(services.instance_gateway.count_runs(session, now_ms - DAY_MS, seen))

    problem = services.tables.problem
    backlog = memory.backlog(seen, lambda: load_backlog(services, seen))
    compared = memory.compared(seen, lambda: load_compared(registry, now_ms))
    answer = LakeOverview(
        tables=sum(numbers.by_state.values()),
        states=[
            LakeState(state=state, tables=tables, needs_attention=state in ATTENTION)
            for state, tables in numbers.by_state.items()
        ],
        marked=[LakeMarked(mark=mark, tables=tables) for mark, tables in numbers.marked.items()],
        databases=[LakeDatabase(database=name, tables=tables) for name, tables in numbers.databases],
        owners=[LakeOwner(owner=name, tables=tables) for name, tables in numbers.owners],
        backlog_bytes=numbers.log_bytes,
        oldest_dirty_ms=numbers.oldest_dirty_ms,
        oldest_due_ms=numbers.oldest_due_ms,
        holes=numbers.holes,
        hours=[LakeHour.model_validate(one) for one in memory.hours(seen, count)],
        days=[LakeSpan.model_validate(one) for one in compared.days],
        weeks=[LakeSpan.model_validate(one) for one in compared.weeks],
        problems=[
            *([problem] if problem else []),
            *find_dag_problems(services.loop.find_lake_dags(), now_ms, searches=services.tables.searches),
            *services.find_problems(seen.covers, names=not seen.is_limited),
            *backlog.problems,
        ],
    )
    return to_response(request, answer)


@router.get("/backlog", response_model=LakeBacklog)
def get_backlog(request: Request, services: Services, memory: Memory, seen: Seen) -> Response:
    """Return what waits, in ranked order, what observed tables would run, and the budgets.

    A user from whom some tables are hidden sees the rows of the others, with their ranks among all, and no budget.
    """
    return to_response(request, memory.backlog(seen, lambda: load_backlog(services, seen)))


@router.get("/backlog/history", response_model=LakeBacklogHistory)
def get_backlog_history(
    request: Request,
    services: Services,
    seen: Seen,
    days: Annotated[int, Query(ge=1, le=7, description="So many days until now")] = 1,
) -> Response:
    """Return the backlog at each quarter of an hour; nothing where some tables are hidden."""
    since_ms = services.registry.now_ms() - days * DAY_MS
    found = [] if seen.is_limited else load_backlog_over_time(services.registry, since_ms)
    rows = [
        LakeBacklogMoment(
            time_ms=one.time_ms, log_bytes=one.log_bytes, waiting=one.waiting, core_hours=one.core_ms / 3_600_000
        )
        for one in found
    ]
    return to_response(request, LakeBacklogHistory(rows=rows, is_limited=seen.is_limited))


class BillQuery(BaseModel):
    """Which bill."""

    by: BillBy = Field(BillBy.TABLE, description="What a line is about")
    days: int = Field(30, ge=1, le=KEEP_DAYS, description="Days, UTC, today among them")


@router.get("/bill", response_model=LakeBill)
def get_bill(
    request: Request, services: Services, memory: Memory, seen: Seen, query: Annotated[BillQuery, Query()]
) -> Response:
    """Return what services cost and brought, next to the prediction, the most expensive first."""
    return to_response(request, LakeBill.model_validate(_bill(services, memory, seen, query)))


@router.get("/bill.csv", response_class=Response)
def export_bill(services: Services, memory: Memory, seen: Seen, query: Annotated[BillQuery, Query()]) -> Response:
    """Return the same as CSV."""
    names = list(LakeBillLine.model_fields)
    lines = _bill(services, memory, seen, query).lines
    rows = ([escape_cell(getattr(line, name)) for name in names] for line in lines)
    return _csv_file("lake-bill.csv", [names, *rows])


def _bill(services: ManagerServices, memory: PageMemory, seen: Audience, query: BillQuery) -> BillReport:
    return memory.bill((seen, query.by, query.days), lambda: services.reports.bill(query.by, query.days, seen))


@router.get("/tables", response_model=LakeTables)
def list_lake_tables(
    request: Request, services: Services, memory: Memory, seen: Seen, query: Annotated[TablesQuery, Query()]
) -> Response:
    """List the tables that match, the worst first."""
    key = parse_key(query.after, KEY_TYPES[query.sort])
    states = tuple(query.state)
    search = TableSearch(
        text=query.q,
        states=states,
        database=query.database,
        sort=query.sort,
        after=key,
        limit=query.limit,
        audience=seen,
        owner=query.owner,
        mark=query.mark,
        is_reverse=query.reverse,
    )
    found = page_of_tables(services.registry, search)
    now_ms = services.registry.now_ms()
    tables = load_tables(services)
    newest = memory.newest_runs(services.registry, [listed.table.table_id for listed in found.rows])
    docs_url = services.settings.docs_url
    rows = []
    for listed in found.rows:
        row = listed.table
        decided = services_of_row(row.decisions, policy_of_row(tables, row), now_ms)
        rows.append(row_of(listed, now_ms, decided, newest[row.table_id], docs_url))
    return to_response(request, LakeTables(rows=rows, total=found.total, next=print_key(found.after)))


@router.get("/me", response_model=LakeUser)
def get_user(request: Request, services: Services) -> Response:
    """Return the user, with what Airflow allows."""
    viewer = request.state.viewer
    rights = {name: getattr(viewer, name) for name in LakeUser.model_fields if name.startswith("may_")}
    return to_response(request, LakeUser(name=viewer.name, variable=services.settings.tables_variable, **rights))


@router.get("/operations", response_model=LakeOperations)
def list_operations(
    request: Request, services: Services, seen: Seen, query: Annotated[RunsPageQuery, Query()]
) -> Response:
    """List the newest hundred runs of each table, newest first."""
    page = _page_of_runs(services, _search(query, seen, _run_key(query.after), query.limit))
    rows = [_operation(run) for run in page.rows]
    return to_response(request, LakeOperations(rows=rows, next=print_key(page.before or ())))


@router.get("/operations.csv", response_class=Response)
def export_operations(services: Services, seen: Seen, query: Annotated[RunsQuery, Query()]) -> Response:
    """Return the same as CSV, at most 10,000 runs."""
    names = [name for name in LakeOperation.model_fields if name != "phases"]
    moments = [name for name in names if name.endswith("_ms")]
    lines = [[*names, *(f"{name.removesuffix('_ms')}_at" for name in moments)]]
    for run in _all_runs(services, _search(query, seen, None, MAX_ROWS)):
        row = _operation(run)
        cells = [escape_cell(getattr(row, name)) for name in names]
        lines.append([*cells, *(_iso(getattr(row, name)) for name in moments)])
    return _csv_file("lake-operations.csv", lines)


def _csv_file(name: str, lines: Iterable[Sequence[Any]]) -> Response:
    text = io.StringIO()
    csv.writer(text).writerows(lines)
    headers = {"Content-Disposition": f'attachment; filename="{name}"', **HEADERS}
    return Response(text.getvalue(), media_type="text/csv; charset=utf-8", headers=headers)


def _iso(time_ms: int | None) -> str:
    return "" if time_ms is None else datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")


def _operation(run: RecordedRun) -> LakeOperation:
    values = {entry.name: getattr(part, entry.name) for part in (run, run.report) for entry in fields(part)}
    price = None if run.quote is None else read_price(run.quote.price)
    values |= dict.fromkeys(("expected_s", "expected_low_s", "expected_high_s", "expected_bytes", "benefit"))
    if price is not None:
        values |= dict(zip(("expected_s", "expected_low_s", "expected_high_s"), price.seconds, strict=False))
        values |= {"expected_bytes": next(iter(price.bytes), None), "benefit": price.points}
    return LakeOperation.model_validate(values | {"job_s": run.report.job_ms / 1000})


def _search(query: RunsQuery, seen: Audience, before: tuple[int, str] | None, limit: int) -> RunSearch:
    return RunSearch(
        table_id=query.table_id,
        service=query.service or "",
        state=query.state or "",
        before=before,
        limit=limit,
        audience=seen,
        run_id=query.run_id,
        text=query.q,
        owner=query.owner,
        since_ms=query.since_ms,
        until_ms=query.until_ms,
    )


def _run_key(text: str) -> tuple[int, str] | None:
    key = parse_key(text, (int, str))
    return (key[0], key[1]) if key else None


def _all_runs(services: ManagerServices, search: RunSearch) -> Iterator[RecordedRun]:
    left = MAX_CSV_ROWS
    while left > 0:
        page = _page_of_runs(services, search)
        yield from page.rows[:left]
        left -= len(page.rows)
        if page.before is None:
            return
        search = replace(search, before=page.before)


def _page_of_runs(services: ManagerServices, search: RunSearch) -> RunPage:
    with services.registry.transaction() as session:
        return services.instance_gateway.page_of_runs(session, search)


# --- The app that Airflow's UI loads: one script, built of `frontend/`

BUNDLE = Path(__file__).parent / "bundle"
_BUNDLED = {"lake.js": "text/javascript", "lake.svg": "image/svg+xml", "lake-dark.svg": "image/svg+xml"}
bundle_router = APIRouter(prefix="/app", tags=["pages"])


@bundle_router.get("/{name}", response_class=Response)
def get_bundle(request: Request, name: str) -> Response:
    """Return `lake.js`, or the icon."""
    if name not in _BUNDLED:
        return Response(status_code=404)
    return answer_bytes(request, (BUNDLE / name).read_bytes(), _BUNDLED[name])


# --- The app of all these routes


def keep_no_audit(user: str, event: str, details: Mapping[str, str]) -> None:
    """Record nothing: for pages without Airflow."""


def create_pages(
    open_services: Callable[[], ManagerServices],
    check_access: Callable[..., Viewer | None],
    record_action: Callable[[str, str, Mapping[str, str]], None] = keep_no_audit,
) -> FastAPI:
    """Build the app. `check_access` is a dependency of FastAPI that refuses users without access; each route has it.

    `record_action` keeps user, event and details of what the app itself changes; Airflow's routes keep their own.
    """

    # An annotation could not name the argument of this function.
    found: Any = Depends(check_access)

    def keep_viewer(request: Request, viewer: Viewer | None = found) -> None:
        request.state.viewer = viewer or Viewer()
        keep_sender(request, Sender(request.state.viewer.name))

    checks = [Depends(keep_viewer), Depends(refuse_nul)]
    # A redirect would lead to the host that the caller names.
    app = FastAPI(title="Lake", version=__version__, openapi_url=None, dependencies=checks, redirect_slashes=False)
    app.state.open_services = open_services
    app.state.record_action = record_action
    app.state.slots = places_of_readers("pages of tables", "user", PAGES_AT_ONCE, PAGES_AT_ONCE_OF_ONE)
    app.state.pages = places_of_readers("pages", "user", MAX_PAGES, MAX_PAGES_OF_ONE)
    for part in (router, table_routes.router, bulk_routes.router):
        app.include_router(part, dependencies=[Depends(page_place, scope="function")])
    app.include_router(bundle_router)
    app.add_exception_handler(LakeError, _answer_error)
    app.add_middleware(AnswersAlone)
    describe_bodies(app)
    return app


async def _answer_error(_: Request, error: Exception) -> Response:
    """Answer an error as the manager's routes do."""
    assert isinstance(error, LakeError)
    content = {"detail": show(str(error)), "error": type(error).__name__} | error.facts
    return JSONResponse(content, status_code=error.http_status, headers=error.headers)
