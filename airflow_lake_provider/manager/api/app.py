"""The manager's HTTP app: how it is built and runs, and its answers about the manager as a whole.

It is mounted at `/v1/hoodie` in Airflow's API server, or served on its own. `GET /health` is open and reports nothing
about tables; `GET /config` names what is wrong with the tables' settings; `GET /reports/...` has what
`airflow lake overview`, `tables`, `backlog`, `runs` and `explain` print.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Literal

from fastapi import APIRouter, Depends, FastAPI, Query
from fastapi.middleware.gzip import GZipMiddleware
from fastapi.responses import PlainTextResponse, Response
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from pydantic import BaseModel, Field
from sqlalchemy.exc import SQLAlchemyError

from airflow_lake_provider import __version__
from airflow_lake_provider.config.access import Right
from airflow_lake_provider.config.tables_config import TablesConfig
from airflow_lake_provider.errors import ConfigError, LakeError
from airflow_lake_provider.http import BEARER, AnswersAlone, BodyGuard, add_error_handlers, describe_bodies, refuse_nul
from airflow_lake_provider.hudi.base_path import require_allowed
from airflow_lake_provider.manager.api import callback, holds, sinks, tables
from airflow_lake_provider.manager.api.services import (  # noqa: TC001 - FastAPI reads the annotations
    ManagerServices,
    Reader,
    Services,
)
from airflow_lake_provider.manager.api.store_threads import Reads
from airflow_lake_provider.manager.db.bill import KEEP_DAYS, BillBy
from airflow_lake_provider.manager.db.search import KEY_TYPES, Sort, count_attention, read_key
from airflow_lake_provider.manager.health.health import MarkKind
from airflow_lake_provider.manager.read_model import (
    BacklogReport,
    BackpressureReport,
    BillReport,
    ExplanationReport,
    HistoryReport,
    OverviewReport,
    ProblemsReport,
    RunsReport,
    TablesReport,
)
from airflow_lake_provider.manager.reports.reports import TableFound, find_table, parse_table_query
from airflow_lake_provider.manager.runs.dag_problems import find_dag_problems
from airflow_lake_provider.timeline_server import routes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

log = logging.getLogger(__name__)

health_router = APIRouter(tags=["health"])
reports_router = APIRouter(prefix="/reports", tags=["reports"])


def create_app(open_services: Callable[[], ManagerServices], *, is_described: bool = True) -> FastAPI:
    """Build the app. `open_services` is called on first use, not here: importing a plugin must cost nothing.

    With `is_described` the app serves the description of its routes, without a token.
    """
    app = FastAPI(
        title="Lake table services",
        version=__version__,
        description="Commit notices of Hudi writers, and the table services that follow from them.",
        lifespan=_run,
        dependencies=[Depends(refuse_nul)],
        openapi_url="/openapi.json" if is_described else None,
        redirect_slashes=False,  # its place would be on the host that the caller names
    )
    app.state.open_services = open_services
    app.state.open_timeline_server = lambda: open_services().timeline_server
    for router in (
        health_router,
        reports_router,
        callback.router,
        callback.service_router,
        tables.router,
        tables.discovery_router,
        tables.instances_router,
        tables.leases_router,
        tables.runs_router,
        tables.work_router,
        tables.policy_router,
        sinks.router,
        holds.router,
        routes.router,
    ):
        app.include_router(router)
    app.add_middleware(GZipMiddleware, minimum_size=1024, compresslevel=1)
    app.add_middleware(
        BodyGuard,
        check_token=lambda given: open_services().tokens.identify_sender(given, where=BEARER, option="service_tokens"),
        own_paths=("/callback",),
    )
    app.add_middleware(AnswersAlone)
    add_error_handlers(app)
    describe_bodies(app)
    return app


@asynccontextmanager
async def _run(app: FastAPI) -> AsyncIterator[None]:
    """Run the manager's loop and the timeline server for as long as the server serves."""
    try:
        services = app.state.open_services()
    except LakeError as error:
        # A wrong [lake] setting must not stop Airflow's API server; every route of the manager answers with the error.
        log.error("the lake manager is not running: %s", error)
        yield
        return
    # The server's start-up leaves a million objects that are never freed; a full collection that walks them all delays
    # every answer by more than half a second (measured).
    gc.freeze()
    await asyncio.to_thread(_log_settings, services)
    jobs = [asyncio.create_task(services.timeline_server.run(), name="lake-timeline-server")]
    if services.settings.loop_enabled:
        jobs.append(asyncio.create_task(services.loop.run(), name="lake-manager-loop"))
    try:
        yield
    finally:
        for job in jobs:
            job.cancel()
        for job in jobs:
            with suppress(asyncio.CancelledError):
                await job


def _log_settings(services: ManagerServices) -> None:
    """Log which settings of Airflow keep the lake from working; of the DAGs, `/health` speaks, once they are there."""
    with suppress(SQLAlchemyError):
        for problem in services.loop.find_lake_dags().settings_problems:
            log.warning("%s", problem)


# --- Health, and the tables' settings


class ConfigState(StrEnum):
    """Which settings of the tables are in force."""

    OK = "ok"
    LAST_GOOD = "last_good"
    NONE = "none"


class HealthAnswer(BaseModel):
    """The app is mounted and its database answers."""

    status: str = Field(description="ok; failing: no table is decided, `problems` says why")
    version: str
    loop: bool
    tables_config: ConfigState = Field(
        description="ok; last_good: the tables' settings are wrong, the previous ones hold; none: nothing is decided"
    )
    last_sweep_s: int | None = Field(description="Seconds since lake_watch last succeeded; null: never")
    need_attention: int = Field(description="How many tables are in a state that a person has to act on")
    problems: list[str] = Field(
        description="What is wrong with the tables' settings, the DAGs that run and watch services, this process's "
        "loop, or a store"
    )


class ConfigAnswer(BaseModel):
    """The tables' settings, and what is wrong with them."""

    tables_config: ConfigState
    problem: str = Field(description="What is wrong, with file and line; empty when nothing is")
    entries: int = Field(description="Entries of the tables file in force")
    overrides: int = Field(description="Entries of the Variable in force")


_CONFIG_PROBLEMS = {
    ConfigState.NONE: "the tables' settings are wrong, so no table is decided: GET /config names file and error",
    ConfigState.LAST_GOOD: "the tables' settings are wrong, the last valid ones stay in force: GET /config names file "
    "and error",
}
"""Without the error itself: `/health` needs no token."""


@health_router.get("/health")
def get_health(services: Services) -> HealthAnswer:
    """Answer that the app is mounted and reads its tables, and what is wrong with the DAGs."""
    services.registry.list_silent(limit=1)
    state, _ = _config_state(services)
    dags = services.loop.find_lake_dags()
    now_ms = services.registry.now_ms()
    return HealthAnswer(
        status="failing" if state is ConfigState.NONE else "ok",
        version=__version__,
        loop=services.settings.loop_enabled,
        tables_config=state,
        last_sweep_s=dags.sweep_age_s(now_ms),
        need_attention=count_attention(services.registry),
        problems=[
            *((_CONFIG_PROBLEMS[state],) if state in _CONFIG_PROBLEMS else ()),
            *services.find_problems(lambda _path: False, names=False),
            *_find_token_problems(services),
            *find_dag_problems(dags, now_ms, searches=services.tables.searches),
        ],
    )


@health_router.get("/config")
def get_config(services: Services, reader: Reader) -> ConfigAnswer:
    """Return whether the tables file and the Variable are in force, or what is wrong."""
    reader.require_all_roots("the tables' settings")
    state, tables = _config_state(services)
    return ConfigAnswer(
        tables_config=state,
        problem="; ".join(filter(None, (services.tables.problem, services.tokens.problem))),
        entries=len(tables.entries),
        overrides=len(tables.overrides),
    )


def _find_token_problems(services: ManagerServices) -> tuple[str, ...]:
    # Not the problem itself: this route is open.
    if not services.tokens.problem:
        return ()
    return ("the tokens file is wrong, and the last good tokens stay valid; GET /config names the problem",)


def _config_state(services: ManagerServices) -> tuple[ConfigState, TablesConfig]:
    try:
        tables = services.tables.load()
    except ConfigError:
        return ConfigState.NONE, TablesConfig()
    return ConfigState.LAST_GOOD if services.tables.problem else ConfigState.OK, tables


@health_router.get("/metrics", response_class=PlainTextResponse)
def get_metrics(services: Services, reader: Reader) -> Response:
    """Return the lake's metrics for Prometheus: totals, each owner, the 50 worst tables and sinks by name.

    Each API server answers the same. A token with roots gets its tables, and no figure of all tables.
    """
    return Response(services.metrics.render(reader), media_type=CONTENT_TYPE_PLAIN_0_0_4)


# --- Reports: the documents that commands print. Times are ms since the epoch


Named = Annotated[str, Query(min_length=1, max_length=1000, description="Base path, id, name, or database.name")]


@reports_router.get("/overview")
def report_overview(services: Services, reader: Reader) -> OverviewReport:
    """Return tables by state, the backlog, the services of the last day, and what stops them."""
    reader.require_all_roots("an overview")
    return services.reports.overview()


@reports_router.get("/problems")
def report_problems(services: Services, reader: Reader) -> ProblemsReport:
    """Return what stops or delays all tables: paused DAGs, a loop without passes, refused notices.

    Unlike `/health` it says which tokens and addresses sent the refused notices.
    """
    reader.require_all_roots("the problems of all tables")
    return ProblemsReport(tuple(services.reports.find_problems()))


class TablesReportQuery(BaseModel):
    """Which tables, in which order."""

    search: str = Field("", max_length=500, description="Part of a name, a database or a path")
    state: str = Field("", max_length=500, description="One or more, with a comma between two; empty: all")
    database: str = Field("", max_length=500)
    owner: str = Field("", max_length=500)
    mark: MarkKind | Literal[""] = Field("", description="Only tables that have it")
    sort: Sort = Sort.NAME
    reverse: bool = Field(default=False, description="The order turned around")
    after: str = Field("[]", max_length=2000, description="`next` of the page before, as JSON")
    limit: int = Field(1000, ge=1, le=1000)


@reports_router.get("/tables")
def report_tables(services: Services, reader: Reader, query: Annotated[TablesReportQuery, Query()]) -> TablesReport:
    """Return a page of tables with state, backlog and what is due."""
    texts = query.model_dump(mode="json", exclude={"after", "limit"}) | {"reverse": str(query.reverse).lower()}
    search = parse_table_query(texts, read_key(query.after, KEY_TYPES[query.sort]), query.limit)
    page = services.reports.list_tables(replace(search, audience=reader.audience))
    # The settings of all tables are not a team's business.
    is_shown = reader.roots is None and query.after == "[]"
    return replace(page, problems=tuple(services.reports.find_problems())) if is_shown else page


@reports_router.get("/backlog")
def report_backlog(services: Services, reader: Reader) -> BacklogReport:
    """Return the ranked backlog with prices, expected starts and reasons, and the budgets.

    `observed` is what would run, at what price, on tables that are observed. A token with roots sees no budgets.
    """
    return services.reports.backlog(reader.audience)


@reports_router.get("/bill")
def report_bill(
    services: Services,
    reader: Reader,
    by: BillBy = BillBy.TABLE,
    days: Annotated[int, Query(ge=1, le=KEEP_DAYS, description="Days, UTC, today among them")] = 30,
) -> BillReport:
    """Return core seconds, bytes rewritten and files saved, next to the prediction.

    The most expensive 1,000 lines, of the tables that the token may read.
    """
    return services.reports.bill(by, days, reader.audience)


@reports_router.get("/backpressure")
def report_backpressure(
    services: Services,
    reader: Reader,
    table: Annotated[str, Query(max_length=1000, description="A table whose budgets count; empty: all budgets")] = "",
) -> BackpressureReport:
    """Return whether writers should slow down (`ok`, `slow`, `stop`), and budgets that would suffice.

    A token with roots asks for one of its tables, and gets the budgets' names without figures.
    """
    if not table:
        reader.require_all_roots("all budgets")
        return services.reports.backpressure()
    return services.reports.backpressure(_find(services, reader, table).table_id, figures=reader.roots is None)


@reports_router.get("/runs")
async def report_runs(services: Services, reader: Reader, table: Named) -> RunsReport:
    """Return the instances of a table's services, the newest ended ones last."""

    def read() -> RunsReport:
        return services.reports.list_runs(_find(services, reader, table).base_path)

    return await services.store_threads.run(Reads.INSTANCES, reader.name, read)


@reports_router.get("/history")
def report_history(
    services: Services,
    reader: Reader,
    table: Named,
    at_ms: Annotated[int | None, Query(ge=0, description="Only what was so then, ms since the epoch")] = None,
) -> HistoryReport:
    """Return what kept a table's services from running in the last 8 days, and their runs.

    Each line has its `situation`, the same in words (`what`), and its last reason; what goes on has no `until_ms`.
    """
    return services.reports.history(_find(services, reader, table).base_path, at_ms)


@reports_router.get("/explanation")
def report_explanation(services: Services, reader: Reader, table: Named) -> ExplanationReport:
    """Return each service of a table with its rules, findings and blocks, and what would start now.

    It reads the table's store. A table that is not registered must lie within `[lake] allowed_roots`.
    """
    found = _find(services, reader, table)
    require_allowed(found.base_path, services.settings.allowed_roots)
    with services.reports.places.hold(reader.name):
        explanation = services.reports.explain(found.base_path)
    if reader.roots is not None:
        explanation = replace(explanation, settings_problem="")
    # To read a table is not to read what its jobs are run with.
    return explanation if Right.OPERATE in reader.rights else replace(explanation, settings=())


def _find(services: ManagerServices, reader: Reader, table: str) -> TableFound:
    found = find_table(services.registry, table, reader.covers)
    reader.require_path(found.base_path)
    return found
