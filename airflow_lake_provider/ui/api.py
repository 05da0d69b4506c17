"""`/lake/api`: what the pages read, as JSON: the lake, its tables, its runs. Airflow's session identifies the user.

Every answer has an ETag: a page that asks again with `If-None-Match` gets 304 while nothing has changed.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import threading
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cachetools import LRUCache, TTLCache
from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from airflow_lake_provider.config.access import Audience
from airflow_lake_provider.errors import LakeError, MalformedRequestError, PagesBusyError
from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.manager.api.services import ManagerServices, services_of
from airflow_lake_provider.manager.db.operations import NO_RUNS, NewestRuns, RunSearch, load_newest_runs
from airflow_lake_provider.manager.db.search import (
    ATTENTION,
    KEY_TYPES,
    Sort,
    TableSearch,
    TableState,
    load_backlog_over_time,
    load_numbers,
    page_of_tables,
)
from airflow_lake_provider.manager.instances import next_evaluation_ms
from airflow_lake_provider.manager.scheduling import RunState, find_net_problems
from airflow_lake_provider.ui.backlog_facts import LakeBacklog, LakeBacklogHistory, LakeBacklogMoment, load_backlog
from airflow_lake_provider.ui.table_facts import (
    LakeInstant,
    LakeService,
    LakeSize,
    Wire,
    headline,
    instants_of,
    services_of_row,
    sizes_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from airflow_lake_provider.config.policies import TablePolicy
    from airflow_lake_provider.config.tables_config import TablesConfig
    from airflow_lake_provider.manager.db.operations import RecordedRun, RunHour, RunPage
    from airflow_lake_provider.manager.db.registry import Registry
    from airflow_lake_provider.manager.db.search import LakeNumbers
    from airflow_lake_provider.planner.table_view import TableView

DAY_MS = 86_400_000
MOST_ROWS = 200
MOST_CSV_ROWS = 10_000
PAGES_AT_ONCE = 8

Services = Annotated[ManagerServices, Depends(services_of)]


def audience_of(request: Request, services: Services) -> Audience:
    """Return which tables the user may see; the app's access check has found the user."""
    return services.tokens.find_audience(request.state.viewer.names)


Seen = Annotated[Audience, Depends(audience_of)]


class TablesQuery(BaseModel):
    """Which tables, in which order."""

    q: str = Field("", max_length=500, description="Part of a name, a database or a path")
    state: list[TableState] = Field(default_factory=list, description="One or more; without it all")
    database: str = Field("", max_length=500)
    owner: str = Field("", max_length=500, description="As the commit callback names it")
    sort: Sort = Sort.WORST
    after: str = Field("", max_length=2000, description="`next` of the page before; empty: the first page")
    limit: int = Field(100, ge=1, le=MOST_ROWS)


class RunsQuery(BaseModel):
    """Which runs."""

    table_id: str = Field("", max_length=200)
    run_id: str = Field("", max_length=250, description="Only this one")
    service: Service | None = None
    state: RunState | None = Field(None, description="Airflow's state of the run")


class RunsPageQuery(RunsQuery):
    """Which page of them."""

    after: str = Field("", max_length=2000, description="`next` of the page before; empty: the first page")
    limit: int = Field(100, ge=1, le=MOST_ROWS)


router = APIRouter(prefix="/api", tags=["pages"])

# --- Answers


class LakeState(Wire):
    """How many tables have a state."""

    state: TableState
    tables: int
    needs_attention: bool
    """Whether a person has to act on it."""


class LakeDatabase(Wire):
    """How many tables a database has."""

    database: str
    tables: int


class LakeOwner(Wire):
    """How many tables an owner has."""

    owner: str
    tables: int


class LakeHour(Wire):
    """The runs of one service that were created within an hour and have one state now."""

    hour_ms: int
    service: str
    state: str
    """Airflow's: `queued`, `running`, `success` or `failed`."""
    runs: int
    run_s: float
    """How long their tasks ran, in seconds."""
    job_s: float
    """How long their Spark jobs ran, in seconds."""
    files_in: int
    """Files that they replaced or deleted, as far as reported."""
    bytes_out: int
    """Bytes that they wrote, as far as reported."""


class LakeOverview(Wire):
    """The whole lake in numbers."""

    tables: int
    states: list[LakeState]
    """The worst first."""
    databases: list[LakeDatabase]
    """The 50 with the most tables."""
    owners: list[LakeOwner]
    """The 50 with the most tables."""
    backlog_bytes: int
    """Bytes in log files that no compaction has merged."""
    oldest_dirty_ms: int | None
    """Since when the table waits that has waited longest for an evaluation."""
    oldest_due_ms: int | None
    """Since when the service has been due that has waited longest and does not run."""
    holes: int
    """Pending writes and plans with completed writes behind them."""
    hours: list[LakeHour]
    """The last 24 hours."""
    problems: list[str]
    """What stops or delays all tables: a paused DAG, a loop that makes no pass, refused notices with their senders
    (not for a user from whom tables are hidden), a budget that the backlog outgrows."""


class LakeLastRun(Wire):
    """The last run of any service of a table whose end was reported, by the manager or by hand."""

    service: str
    outcome: str
    """`completed`, `nothing_to_do` or `failed`."""
    ended_ms: int
    run_id: str


class LakeRow(Wire):
    """One table in a list."""

    table_id: str
    name: str
    database: str
    owner: str
    base_path: str
    state: TableState
    headline: str
    log_bytes: int
    base_bytes: int
    """Of the file groups that have log files; 0 when unknown."""
    last_notice_ms: int | None
    evaluated_ms: int | None
    next_evaluation_ms: int | None
    services: list[LakeService]
    """Those whose policy is on, or that are in a state other than healthy."""
    last_run: LakeLastRun | None
    rewritten: list[int]
    """What its newest runs that rewrote files wrote, in bytes, the oldest first; at most 12."""


class LakeTables(Wire):
    """One page of tables."""

    rows: list[LakeRow]
    total: int
    """On all pages."""
    next: str
    """`after` of the next page; empty on the last one."""


class LakeUser(Wire):
    """The user that asks, with what Airflow allows; the pages offer nothing else, and Airflow checks it again."""

    name: str
    may_run: bool
    """Start a run of `lake_table_service`."""
    may_clear: bool
    """Clear a run of it, so that it is tried again."""
    may_index: bool
    """Start a run of `lake_reindex`."""
    may_pause: bool
    """Write the Variable over the tables file."""
    may_forget: bool
    """Delete the DAG of table services, which forgetting a table needs as well."""
    variable: str
    """The Variable's name; `off` is none."""


class LakeOperation(Wire):
    """One DAG run of a service, by the manager or by hand."""

    run_id: str
    dag_id: str
    table_id: str
    table_name: str
    database: str
    service: str
    state: str
    """Airflow's: `queued`, `running`, `success` or `failed`."""
    by: str
    """`manager`, or the user who started it."""
    reason: str
    created_ms: int
    started_ms: int | None
    ended_ms: int | None
    tries: int
    outcome: str
    """Of its last try, by the timeline: `completed`, `nothing_to_do`, `failed`, `dry_run`; empty: not reported."""
    job_s: float
    """How long its Spark jobs ran, all tries together, in seconds."""
    files_in: int | None
    """Files that it replaced, or deleted; null when unknown."""
    bytes_in: int | None
    files_out: int | None
    bytes_out: int | None
    caused_by: str
    """What made the manager evaluate the table: a notice's source, or `retry`; empty of runs by hand."""
    due_ms: int | None
    """Since when the service was due."""
    expected_s: float | None
    """What its jobs were expected to take when it was created; null of runs by hand."""
    expected_low_s: float | None
    """The interval holds about four of five outcomes."""
    expected_high_s: float | None
    expected_bytes: float | None
    """What it was expected to write."""
    points: float | None
    """What it was expected to bring: a point is 64 MiB of log, 10 files or instants, or 1 GiB of storage."""


class LakeOperations(Wire):
    """One page of runs, newest first. It may be short, or empty, and still have a next one."""

    rows: list[LakeOperation]
    next: str
    """`after` of the next page; empty at the end."""


# --- Routes


class PageMemory:
    """What the routes of one process keep for seconds, so that many open pages cost what one costs."""

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self._lock = threading.Lock()
        self._numbers: TTLCache[Audience, Any] = TTLCache(64, 5_000, timer=clock_ms)
        self._hours: TTLCache[Audience, Any] = TTLCache(64, 30_000, timer=clock_ms)
        self._backlogs: TTLCache[Audience, Any] = TTLCache(64, 10_000, timer=clock_ms)
        self._newest: TTLCache[str, NewestRuns] = TTLCache(2_000, 10_000, timer=clock_ms)
        self._views: LRUCache[str, tuple[str, list[LakeInstant], list[LakeSize]]] = LRUCache(64)

    def numbers(self, audience: Audience, load: Callable[[], LakeNumbers]) -> LakeNumbers:
        """Return the numbers of all tables of an audience, at most 5 s old."""
        found: LakeNumbers = self._keep(self._numbers, audience, load)
        return found

    def hours(self, audience: Audience, load: Callable[[], list[RunHour]]) -> list[RunHour]:
        """Return the runs of an audience's tables by hour, at most 30 s old."""
        found: list[RunHour] = self._keep(self._hours, audience, load)
        return found

    def backlog(self, audience: Audience, load: Callable[[], LakeBacklog]) -> LakeBacklog:
        """Return what waits of an audience's tables, at most 10 s old."""
        found: LakeBacklog = self._keep(self._backlogs, audience, load)
        return found

    def newest_runs(self, registry: Registry, table_ids: Sequence[str]) -> Mapping[str, NewestRuns]:
        """Return the newest runs of some tables, at most 10 s old, one query for those that are not known."""
        with self._lock:
            found = {one: self._newest[one] for one in table_ids if one in self._newest}
        missing = [one for one in table_ids if one not in found]
        if missing:
            with registry.transaction() as session:
                loaded = load_newest_runs(session, missing)
            found |= {one: loaded.get(one, NO_RUNS) for one in missing}
            with self._lock:
                self._newest.update({one: found[one] for one in missing})
        return found

    def _keep(self, kept: TTLCache[Audience, Any], audience: Audience, load: Callable[[], Any]) -> Any:
        # With the lock held, so that of many open pages one asks the database.
        with self._lock:
            if audience not in kept:
                kept[audience] = load()
            return kept[audience]

    def timeline(self, view: TableView) -> tuple[list[LakeInstant], list[LakeSize]]:
        """Return instants and sizes of a view; computed once for each version of its timeline."""
        with self._lock:
            known = self._views.get(view.base_path)
        if known is None or known[0] != view.version:
            known = (view.version, instants_of(view), sizes_of(view))
            with self._lock:
                self._views[view.base_path] = known
        return known[1], known[2]


def memory_of(request: Request, services: Services) -> PageMemory:
    """Return the process's memory of pages."""
    state = request.app.state
    if not hasattr(state, "page_memory"):
        state.page_memory = PageMemory(services.registry.now_ms)
    memory: PageMemory = state.page_memory
    return memory


Memory = Annotated[PageMemory, Depends(memory_of)]


@router.get("/overview", response_model=LakeOverview)
def get_overview(request: Request, services: Services, memory: Memory, seen: Seen) -> Response:
    """Return the whole lake in numbers: tables by state, backlog, the runs of the last day by hour."""
    registry, now_ms = services.registry, services.registry.now_ms()
    numbers = memory.numbers(seen, lambda: load_numbers(registry, seen))

    def count() -> list[RunHour]:
        with registry.transaction() as session:
            return list(services.instance_gateway.count_runs(session, now_ms - DAY_MS, seen))

    problem, backlog = services.tables.problem, memory.backlog(seen, lambda: load_backlog(services, seen))
    answer = LakeOverview(
        tables=sum(numbers.by_state.values()),
        states=[
            LakeState(state=state, tables=tables, needs_attention=state in ATTENTION)
            for state, tables in numbers.by_state.items()
        ],
        databases=[LakeDatabase(database=name, tables=tables) for name, tables in numbers.databases],
        owners=[LakeOwner(owner=name, tables=tables) for name, tables in numbers.owners],
        backlog_bytes=numbers.log_bytes,
        oldest_dirty_ms=numbers.oldest_dirty_ms,
        oldest_due_ms=numbers.oldest_due_ms,
        holes=numbers.holes,
        hours=[LakeHour.model_validate(one) for one in memory.hours(seen, count)],
        problems=[
            *([problem] if problem else []),
            *find_net_problems(services.loop.find_net(), now_ms),
            *services.find_problems(seen.covers, names=not seen.is_limited),
            *backlog.problems,
        ],
    )
    return to_response(request, answer)


@router.get("/backlog", response_model=LakeBacklog)
def get_backlog(request: Request, services: Services, memory: Memory, seen: Seen) -> Response:
    """Return what is due and waits, in its ranked order, what observed tables would run, and the budgets.

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
    """Return the backlog of all tables at each quarter of an hour; nothing where some tables are hidden."""
    since_ms = services.registry.now_ms() - days * DAY_MS
    found = [] if seen.is_limited else load_backlog_over_time(services.registry, since_ms)
    rows = [LakeBacklogMoment(**asdict(one) | {"core_hours": one.core_ms / 3_600_000}) for one in found]
    return to_response(request, LakeBacklogHistory(rows=rows, is_limited=seen.is_limited))


@router.get("/tables", response_model=LakeTables)
def list_lake_tables(
    request: Request, services: Services, memory: Memory, seen: Seen, query: Annotated[TablesQuery, Query()]
) -> Response:
    """List the tables that match, the worst first."""
    key = _parse_key(query.after, KEY_TYPES[query.sort])
    search = TableSearch(query.q, tuple(query.state), query.database, query.sort, key, query.limit, seen, query.owner)
    found = page_of_tables(services.registry, search)
    now_ms, tables = services.registry.now_ms(), load_tables(services)
    newest = memory.newest_runs(services.registry, [row["table_id"] for row in found.rows])
    rows = [
        row_of(row, now_ms, services_of_row(row["decisions"], policy_of_row(tables, row)), newest[row["table_id"]])
        for row in found.rows
    ]
    return to_response(request, LakeTables(rows=rows, total=found.total, next=_print_key(found.after)))


@router.get("/me", response_model=LakeUser)
def get_user(request: Request, services: Services) -> Response:
    """Return the user that asks, with what Airflow allows."""
    viewer = request.state.viewer
    rights = {name: getattr(viewer, name) for name in LakeUser.model_fields if name.startswith("may_")}
    return to_response(request, LakeUser(name=viewer.name, variable=services.settings.tables_variable, **rights))


@router.get("/operations", response_model=LakeOperations)
def list_operations(
    request: Request, services: Services, seen: Seen, query: Annotated[RunsPageQuery, Query()]
) -> Response:
    """List the runs of services, newest first: the newest hundred of each table, by the manager or by hand."""
    page = _page_of_runs(services, _search(query, seen, _run_key(query.after), query.limit))
    rows = [_operation(run) for run in page.rows]
    return to_response(request, LakeOperations(rows=rows, next=_print_key(page.before or ())))


@router.get("/operations.csv", response_class=Response)
def export_operations(services: Services, seen: Seen, query: Annotated[RunsQuery, Query()]) -> Response:
    """Return the same runs as CSV, at most 10,000."""
    text = io.StringIO()
    names = list(LakeOperation.model_fields)
    writer = csv.writer(text)
    writer.writerow(names)
    for run in _all_runs(services, _search(query, seen, None, MOST_ROWS)):
        row = _operation(run)
        writer.writerow([_cell(getattr(row, name)) for name in names])
    headers = {"Content-Disposition": 'attachment; filename="lake-operations.csv"', **HEADERS}
    return Response(text.getvalue(), media_type="text/csv; charset=utf-8", headers=headers)


def _operation(run: RecordedRun) -> LakeOperation:
    values = {entry.name: getattr(part, entry.name) for part in (run, run.report) for entry in fields(part)}
    price = {} if run.quote is None else run.quote.price
    expected_s, low_s, high_s = price.get("seconds") or (None, None, None)
    expected = {"expected_s": expected_s, "expected_low_s": low_s, "expected_high_s": high_s}
    size_bytes = (price.get("bytes") or [None])[0]
    expected |= {"expected_bytes": size_bytes, "points": price.get("points")}
    return LakeOperation.model_validate(values | expected | {"job_s": run.report.job_ms / 1000})


def _search(query: RunsQuery, seen: Audience, before: tuple[int, str] | None, limit: int) -> RunSearch:
    return RunSearch(query.table_id, query.service or "", query.state or "", before, limit, seen, query.run_id)


def _all_runs(services: ManagerServices, search: RunSearch) -> Iterator[RecordedRun]:
    left = MOST_CSV_ROWS
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


def _cell(value: Any) -> Any:
    # A spreadsheet takes a text that begins like this for a formula.
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value


# --- The app that Airflow's UI loads: one script, built of `frontend/`

BUNDLE = Path(__file__).parent / "bundle"
_BUNDLED = {"lake.js": "text/javascript", "lake.svg": "image/svg+xml", "lake-dark.svg": "image/svg+xml"}
bundle_router = APIRouter(prefix="/app", tags=["pages"])


@bundle_router.get("/{name}", response_class=Response)
def get_bundle(request: Request, name: str) -> Response:
    """Return a file of the app: `lake.js`, or its icon."""
    if name not in _BUNDLED:
        return Response(status_code=404)
    return answer_bytes(request, (BUNDLE / name).read_bytes(), _BUNDLED[name])


def answer_error(error: LakeError) -> Response:
    """Answer an error as the manager's routes do."""
    content = {"detail": str(error), "error": type(error).__name__} | error.facts
    return JSONResponse(content, status_code=error.http_status, headers=error.headers)


# --- Parts of answers


def load_tables(services: ManagerServices) -> TablesConfig | None:
    """Return the tables' settings; None while they are wrong, which stops decisions and not the page that shows it."""
    try:
        return services.tables.load()
    except LakeError:
        return None


def policy_of_row(tables: TablesConfig | None, row: Mapping[Any, Any]) -> TablePolicy:
    """Return the policy of a table's row; the built-in one while the settings are wrong."""
    from airflow_lake_provider.config.policies import TablePolicy as Policy

    return Policy() if tables is None else tables.policy_for(row["base_path"], row["table_name"])


def row_of(row: Mapping[Any, Any], now_ms: int, services: list[LakeService], newest: NewestRuns) -> LakeRow:
    """Return a table as lists show it."""
    next_ms = next_evaluation_ms(row, now_ms)
    return LakeRow(
        table_id=row["table_id"],
        name=row["table_name"],
        database=row["database_name"],
        owner=row["owner"],
        base_path=row["base_path"],
        state=TableState(row["state"]),
        headline=headline(row, services),
        log_bytes=row["log_bytes"],
        base_bytes=row["base_bytes"],
        last_notice_ms=row["last_notice_ms"],
        evaluated_ms=row["evaluated_ms"],
        # "Now" moves with the clock, and would make every answer a new one.
        next_evaluation_ms=None if next_ms == now_ms else next_ms,
        services=[one for one in services if one.is_active or one.state is not TableState.HEALTHY],
        last_run=LakeLastRun.model_validate(newest) if newest.service else None,
        rewritten=list(newest.rewritten),
    )


# --- Keys of pages, ETags, slots


def _print_key(key: tuple[Any, ...]) -> str:
    return base64.urlsafe_b64encode(json.dumps(key).encode()).decode() if key else ""


def _parse_key(text: str, types: tuple[type, ...]) -> tuple[Any, ...]:
    if not text:
        return ()
    try:
        key = json.loads(base64.urlsafe_b64decode(text))
    except ValueError:
        key = None
    is_key = isinstance(key, list) and [type(part) for part in key] == list(types)
    if not is_key:
        raise MalformedRequestError("after: not the `next` of a page in this order; begin again without it")
    return tuple(key)


def _run_key(text: str) -> tuple[int, str] | None:
    key = _parse_key(text, (int, str))
    return (key[0], key[1]) if key else None


@contextmanager
def storage_slot(request: Request) -> Iterator[None]:
    """Hold one of the slots of requests that read storage, in threads that all routes of the API server share.

    Raises PagesBusyError when all are taken.
    """
    slots: threading.BoundedSemaphore = request.app.state.slots
    if not slots.acquire(blocking=False):
        raise PagesBusyError(f"{PAGES_AT_ONCE} pages of tables are being read, maybe from a store that does not answer")
    try:
        yield
    finally:
        slots.release()


HEADERS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "private, no-cache"}
"""`no-cache` lets a browser keep an answer, and makes it ask each time whether that is still right."""


def to_response(request: Request, answer: Wire) -> Response:
    """Return an answer with its ETag, or 304 where the caller has it."""
    return answer_bytes(request, answer.model_dump_json().encode(), "application/json")


def answer_bytes(request: Request, body: bytes, media_type: str) -> Response:
    """Return a body with its ETag, or 304 where the caller has it."""
    etag = f'"{hashlib.blake2b(body, digest_size=16).hexdigest()}"'
    headers = {"ETag": etag, **HEADERS}
    # A proxy that packs an answer makes its tag a weak one.
    known = {tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")}
    if etag in known:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=media_type, headers=headers)
