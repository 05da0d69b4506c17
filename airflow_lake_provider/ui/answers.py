"""How each route of `/lake/api` answers: which user asks, what the process remembers, pages, slots, ETags, the backlog.

Every answer has an ETag: a page that asks again with `If-None-Match` gets 304 while nothing has changed.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

from cachetools import LRUCache, TTLCache
from fastapi import Depends, Request, Response

from airflow_lake_provider.config.access import Audience
from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.config.tables_config import TablesConfig
from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.http import NOT_SHARED
from airflow_lake_provider.manager.api.services import ManagerServices, services_of
from airflow_lake_provider.manager.db.backlog_history import Compared
from airflow_lake_provider.manager.db.operations import NO_RUNS, OBSERVED, NewestRuns, load_newest_runs
from airflow_lake_provider.manager.db.search import read_key
from airflow_lake_provider.manager.health.health import TableState, parse_health
from airflow_lake_provider.manager.read_model import ExpectedBenefit, QuotedPrice
from airflow_lake_provider.manager.reports.help_places import help_address, help_place
from airflow_lake_provider.manager.scheduling.budgets import MAX_SHOWN, SHOWN, list_waiting, load_scopes
from airflow_lake_provider.manager.supervision.instances import next_evaluation_ms
from airflow_lake_provider.planner.ranking import Pressure
from airflow_lake_provider.shared.plain_text import plain
from airflow_lake_provider.ui.models import LakeLastRun, LakeRow
from airflow_lake_provider.ui.table_facts import LakeMark, LakeProblem, Wire, headline, instants_of, sizes_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
    from datetime import tzinfo

    from airflow_lake_provider.manager.db.bill import BillBy
    from airflow_lake_provider.manager.db.operations import RunHour
    from airflow_lake_provider.manager.db.registry import Registry
    from airflow_lake_provider.manager.db.search import LakeNumbers
    from airflow_lake_provider.manager.db.typed_rows import ListedTable, TableRow
    from airflow_lake_provider.manager.health.health import Problem
    from airflow_lake_provider.manager.read_model import BillReport, ReportedBudget, WaitingService
    from airflow_lake_provider.planner.table_view import TableView
    from airflow_lake_provider.request_bounds import Places
    from airflow_lake_provider.ui.table_facts import LakeInstant, LakeService, LakeSize

PAGES_AT_ONCE = 8
PAGES_AT_ONCE_OF_ONE = 4
"""Of one user: the pages of a store that does not answer leave the others' pages alone."""

MAX_PAGES = 24
"""Of all kinds at the same time: of the 40 threads that all routes of the API server share, the others stay free while
Airflow's database does not answer."""
MAX_PAGES_OF_ONE = 12

# --- The user that asks


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
        """What the `viewers` of a tokens file may name: the user, and roles as `role:<name>`.

        A user who is called like a role is none of its members.
        """
        own = {self.name} if self.name and not self.name.startswith("role:") else set()
        return frozenset(own) | {f"role:{role}" for role in self.roles}


Services = Annotated[ManagerServices, Depends(services_of)]


def audience_of(request: Request, services: Services) -> Audience:
    """Return which tables the user may see; the app's access check has found the user."""
    return services.tokens.find_audience(request.state.viewer.names)


Seen = Annotated[Audience, Depends(audience_of)]


# --- What one process remembers


class PageMemory:
    """What the routes of one process keep for seconds, so that many open pages cost what one costs."""

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self._lock = threading.Lock()
        self._numbers: TTLCache[Audience, Any] = TTLCache(64, 5_000, timer=clock_ms)
        self._hours: TTLCache[Audience, Any] = TTLCache(64, 30_000, timer=clock_ms)
        self._compared: TTLCache[Audience, Any] = TTLCache(4, 60_000, timer=clock_ms)
        self._backlogs: TTLCache[Audience, Any] = TTLCache(64, 10_000, timer=clock_ms)
        self._bills: TTLCache[tuple[Audience, BillBy, int], BillReport] = TTLCache(64, 60_000, timer=clock_ms)
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

    def compared(self, audience: Audience, load: Callable[[], Compared]) -> Compared:
        """Return two days and two weeks of all tables, at most a minute old; none to whom sees only some tables."""
        found: Compared = Compared() if audience.is_limited else self._keep(self._compared, audience, load)
        return found

    def backlog(self, audience: Audience, load: Callable[[], LakeBacklog]) -> LakeBacklog:
        """Return what waits of an audience's tables, at most 10 s old."""
        found: LakeBacklog = self._keep(self._backlogs, audience, load)
        return found

    def bill(self, key: tuple[Audience, BillBy, int], load: Callable[[], BillReport]) -> BillReport:
        """Return an audience's bill by one thing for some days, at most a minute old."""
        found: BillReport = self._keep(self._bills, key, load)
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

    def _keep(self, kept: TTLCache[Any, Any], key: Any, load: Callable[[], Any]) -> Any:
        # With the lock held, so that of many open pages one asks the database.
        with self._lock:
            if key not in kept:
                kept[key] = load()
            return kept[key]

    def timeline(self, view: TableView, zone: tzinfo) -> tuple[list[LakeInstant], list[LakeSize]]:
        """Return instants and sizes of a view; computed once for each version of its timeline."""
        with self._lock:
            known = self._views.get(view.base_path)
        version = f"{view.version} {zone}"
        if known is None or known[0] != version:
            known = (version, instants_of(view, zone), sizes_of(view, zone))
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


# --- The row of one table


def load_tables(services: ManagerServices) -> TablesConfig | None:
    """Return the tables' settings; None while they are wrong, which stops decisions and not the page that shows it."""
    try:
        return services.tables.load()
    except LakeError:
        return None


def policy_of_row(tables: TablesConfig | None, row: TableRow) -> TablePolicy:
    """Return the policy of a table's row; the built-in one while the settings are wrong."""
    return TablePolicy() if tables is None else tables.policy_for(row.base_path, row.table_name)


def _problem(one: Problem, docs_url: str) -> LakeProblem:
    return LakeProblem(**asdict(one), help=help_address(help_place(one), docs_url))


def row_of(listed: ListedTable, now_ms: int, services: list[LakeService], newest: NewestRuns, docs_url: str) -> LakeRow:
    """Return a table as lists show it."""
    row = listed.table
    summary = listed.summary
    next_ms = next_evaluation_ms(row, now_ms)
    health = parse_health(row.health)
    return LakeRow(
        table_id=row.table_id,
        name=row.table_name,
        database=row.database_name,
        owner=row.owner,
        base_path=row.base_path,
        state=TableState(summary.state),
        since_ms=health.since_ms or None,
        headline=headline(health, services),
        problems=[_problem(one, docs_url) for one in health.problems],
        marks=[LakeMark.model_validate(one) for one in health.marks],
        log_bytes=summary.log_bytes,
        base_bytes=summary.base_bytes,
        files=summary.files,
        file_bytes=summary.file_bytes,
        last_commit_ms=row.last_commit_ms,
        last_notice_ms=row.last_notice_ms,
        evaluated_ms=row.evaluated_ms,
        # "Now" moves with the clock, and would make every answer a new one.
        next_evaluation_ms=None if next_ms == now_ms else next_ms,
        services=[one for one in services if one.is_active or one.state is not TableState.HEALTHY],
        last_run=LakeLastRun.model_validate(newest) if newest.service else None,
        rewritten=list(newest.rewritten),
    )


# --- Keys of pages, ETags, slots


def print_key(key: tuple[Any, ...]) -> str:
    """Return a row's place in an order as the `next` of a page; `parse_key` is the inverse."""
    return base64.urlsafe_b64encode(json.dumps(key).encode()).decode() if key else ""


def parse_key(text: str, types: tuple[type, ...]) -> tuple[Any, ...]:
    """Return the place after which a page begins; nothing for the first page. Raises MalformedRequestError."""
    if not text:
        return ()
    try:
        printed = base64.urlsafe_b64decode(text)
    except ValueError:
        printed = b""
    return read_key(printed, types)


@contextmanager
def storage_slot(request: Request) -> Iterator[None]:
    """Hold one of the slots of requests that read storage, in threads that all routes of the API server share.

    Raises PagesBusyError when all are taken, or those of one user.
    """
    slots: Places = request.app.state.slots
    with slots.hold(request.state.viewer.name):
        yield


async def page_place(request: Request) -> AsyncIterator[None]:
    """Hold one of the places of all pages until the answer is there. Raises PagesBusyError when all are taken."""
    places: Places = request.app.state.pages
    with places.hold(request.state.viewer.name):
        yield


HEADERS = {"Cache-Control": NOT_SHARED}


def to_response(request: Request, answer: Wire) -> Response:
    """Return an answer with its ETag, or 304 where the caller has it."""
    text = answer.model_dump_json()
    # Most answers are ASCII, and large ones need no search then.
    shown = text if text.isascii() else _TURNING.sub(_escape, text)
    return answer_bytes(request, shown.encode(), "application/json")


_TURNING = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""What turns around the text next to it, in a name or a file's name that a writer chose."""


def show(text: str) -> str:
    """Return a text of an answer that is made without `to_response`."""
    return _TURNING.sub(lambda found: plain(found[0]), text)


def _escape(found: re.Match[str]) -> str:
    """Return a character as JSON of its visible name."""
    return json.dumps(plain(found[0]))[1:-1]


def answer_bytes(request: Request, body: bytes, media_type: str) -> Response:
    """Return a body with its ETag, or 304 where the caller has it."""
    etag = f'"{hashlib.blake2b(body, digest_size=16).hexdigest()}"'
    headers = {"ETag": etag, **HEADERS}
    # A proxy that packs an answer makes its tag a weak one.
    known = {tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")}
    if etag in known:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=media_type, headers=headers)


# --- What the backlog's page shows: what waits in its order with its price, the budgets, and the backlog over time

MINUTE_MS = 60_000


class LakeBenefit(Wire):
    """What a service is expected to bring."""

    log_bytes: float = 0.0
    """Bytes of log files that a reader no longer merges."""
    files: float = 0.0
    """Files that a reader no longer opens, or that no longer occupy storage."""
    instants: float = 0.0
    """Instants that leave the active timeline, or that nothing waits for any more."""
    freed_bytes: float = 0.0


class LakeWaiting(Wire):
    """A service of a table that is due and waits; or that would run, of a table that is only observed."""

    rank: int
    """Its place among those of all tables."""
    table_id: str
    table: str
    database: str
    service: str
    urgency: str
    """How urgent it is: `unblocks`, `growing`, `overdue`, `usual` or `mass`; empty: not known."""
    since_ms: int
    """Since when it has been due."""
    expected_ms: int | None
    """About when it starts, to the minute; null: not known, or never by this budget."""
    ahead: int
    """How many that rank before it wait for the same budget."""
    short_of: str
    """The budget that had no room for it, such as `all tables` or `queue spark`; empty: none."""
    why: str
    """Why it has not started."""
    due_because: str
    seconds: float | None
    """What its Spark jobs are expected to take; null when not known."""
    seconds_low: float | None
    """The interval holds about four of five outcomes."""
    seconds_high: float | None
    bytes: float | None
    """What it is expected to write."""
    bytes_low: float | None
    bytes_high: float | None
    benefit: LakeBenefit | None
    """What it is expected to bring; null when not known."""
    basis: str
    """What the prediction rests on."""


class LakeBudget(Wire):
    """A budget of 24 hours: what it has, what is used, waits and arrived, and what would hold the backlog."""

    name: str
    slots: int | None
    core_hours_per_day: float | None
    bytes_per_day: int | None
    spent_core_hours: float
    spent_bytes: int
    waiting: int
    """Services that wait for it."""
    waiting_core_hours: float
    waiting_bytes: int
    arrived_core_hours: float
    """What became due in the last 24 hours."""
    arrived_bytes: int
    pressure: Pressure
    """`ok`; `slow`: the backlog takes more than a quarter of a day's budget; `stop`: more than a whole day's."""
    needed_slots: int | None
    """The budget that would hold the backlog."""
    needed_core_hours_per_day: float | None
    needed_bytes_per_day: int | None
    text: str
    """The same in a sentence; empty while nothing waits too long."""


class LakeBacklog(Wire):
    """What is due and waits, in the order in which it starts."""

    waiting: list[LakeWaiting]
    observed: list[LakeWaiting]
    """What would run on tables that are only observed."""
    budgets: list[LakeBudget]
    problems: list[str]
    """A sentence for each budget that the backlog outgrows."""
    most: int
    """How many rows each list has at most."""
    is_limited: bool
    """Some tables are hidden from the user: so are the budgets, whose figures count all tables."""


class LakeBacklogMoment(Wire):
    """The backlog of all tables at one moment."""

    time_ms: int
    log_bytes: int
    """In log files that no compaction had merged."""
    waiting: int
    """Services that waited for a budget."""
    core_hours: float
    """What these were expected to cost."""


class LakeBacklogHistory(Wire):
    """The backlog over time, the oldest first."""

    rows: list[LakeBacklogMoment]
    is_limited: bool
    """Some tables are hidden from the user: so are figures over all tables."""


def load_backlog(services: ManagerServices, seen: Audience) -> LakeBacklog:
    """Return the backlog as an audience may see it; without budgets while the tables' settings are wrong."""
    registry = services.registry
    try:
        tables = services.tables.load()
    except LakeError:
        tables = TablesConfig()
    waiting = list_waiting(registry, tables, SHOWN, seen)
    states = load_scopes(registry, tables)
    pressed = [state for state in states if state.pressure is not Pressure.OK]
    if seen.is_limited:
        # Of the budgets only the names that its own rows have.
        mine = {row.short_of for row in waiting}
        problems = [state.name() for state in pressed if state.limit.scope in mine]
    else:
        problems = [state.explain() for state in pressed]
    return LakeBacklog(
        waiting=[_waiting(row) for row in waiting],
        observed=[_waiting(row) for row in list_waiting(registry, tables, OBSERVED, seen)],
        budgets=[] if seen.is_limited else [_budget(state.report()) for state in states],
        problems=problems,
        most=MAX_SHOWN,
        is_limited=seen.is_limited,
    )


def _waiting(row: WaitingService) -> LakeWaiting:
    price = row.price or QuotedPrice()
    names = ("rank", "table_id", "table", "database", "service", "since_ms", "ahead", "why", "due_because")
    return LakeWaiting(
        **{name: getattr(row, name) for name in names},
        urgency=row.urgency,
        # A time to the second moves with the clock, and would make every answer a new one.
        expected_ms=None if row.expected_ms is None else -(-row.expected_ms // MINUTE_MS) * MINUTE_MS,
        short_of=_shown_scope(row.short_of),
        **dict(zip(("seconds", "seconds_low", "seconds_high"), price.seconds or (None,) * 3, strict=True)),
        **dict(zip(("bytes", "bytes_low", "bytes_high"), price.bytes or (None,) * 3, strict=True)),
        benefit=LakeBenefit.model_validate(price.benefit) if price.benefit != ExpectedBenefit() else None,
        basis=price.basis,
    )


def _shown_scope(scope: str) -> str:
    kind, _, name = scope.partition(":")
    return "all tables" if kind == "all" else "" if scope == OBSERVED else f"{kind} {name}".strip()


def _budget(shown: ReportedBudget) -> LakeBudget:
    parts = asdict(shown)
    return LakeBudget(**{name: parts[name] for name in LakeBudget.model_fields if name != "name"}, name=shown.shown)
