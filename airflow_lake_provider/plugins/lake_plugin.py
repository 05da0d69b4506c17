"""The Airflow plugin: mounts the manager's HTTP app in the API server at `/v1/hoodie`."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow import settings as airflow_process
from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails, VariableDetails
from airflow.api_fastapi.core_api.security import GetUserDep  # noqa: TC002 - FastAPI reads the annotation
from airflow.configuration import conf, ensure_secrets_loaded
from airflow.models import DagModel, Variable
from airflow.plugins_manager import AirflowPlugin
from fastapi import HTTPException
from sqlalchemy.pool import QueuePool

from airflow_lake_provider.config.settings import SECRETS, LakeSettings, TimelineServerMode
from airflow_lake_provider.config.tables_source import TablesSource
from airflow_lake_provider.errors import ConfigError, LakeError
from airflow_lake_provider.hooks.open_tables import open_with_connections
from airflow_lake_provider.manager.loop.evaluators import EvaluatorLimits
from airflow_lake_provider.manager.loop.timeline_feed import RegistryFeed, UnannouncedCommits
from airflow_lake_provider.manager.runs.airflow_runs import INDEX_DAG_ID, SERVICE_DAG_ID
from airflow_lake_provider.plugins.airflow_requests import BoundedRequests, RequestBounds, bounds_of
from airflow_lake_provider.plugins.metadata_database import open_session
from airflow_lake_provider.plugins.notices_first import NoticesFirst
from airflow_lake_provider.timeline_server.cache import SharedTimelines
from airflow_lake_provider.timeline_server.schedule import HeartbeatLimits, SharedLimits
from airflow_lake_provider.timeline_server.server import ServerOptions, TimelineServer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow.api_fastapi.auth.managers.base_auth_manager import ResourceMethod
    from airflow.api_fastapi.auth.managers.models.base_user import BaseUser

    from airflow_lake_provider.config.tables_config import TablesConfig
    from airflow_lake_provider.manager.api.services import ManagerServices
    from airflow_lake_provider.manager.db.registry import Registry
    from airflow_lake_provider.timeline_server.client import TimelineClient
    from airflow_lake_provider.ui.answers import Viewer


LOOP_COMMAND = (sys.executable, "-P", "-m", "airflow_lake_provider.plugins.loop_main")
"""Starts the process of the manager's loop; without the working folder among the places of its modules."""


def load_settings() -> LakeSettings:
    """Return a server's settings, secrets included. Raises ConfigError that names the option."""
    return LakeSettings.from_conf(conf, secrets=SECRETS)


def shows_api_description() -> bool:
    """Whether servers show the description of their routes without a token, as Airflow does its own."""
    return conf.getboolean("api", "enable_swagger_ui", fallback=True)


def open_tables(settings: LakeSettings) -> TablesSource:
    """Return the tables' settings. For servers and commands, which may read Airflow's database; not for tasks."""
    return TablesSource.of(settings, read_variable)


def read_variable(name: str) -> str:
    """Return the Variable's text from the first secrets backend that has it; "" when none has. Raises ConfigError.

    Airflow's own look-up treats a failing backend as one without the Variable: a short outage of the database would
    remove all overrides.
    """
    for backend in ensure_secrets_loaded():
        try:
            text = backend.get_variable(key=name)
        except Exception as error:  # a backend may raise anything: the overrides that were read last stay in force
            raise ConfigError(
                f"Variable {name} cannot be read from {type(backend).__name__}: {type(error).__name__}: {error}"
            ) from error
        if text is not None:
            return str(text)
    return ""


class ManagerRole(StrEnum):
    """What a process of the manager does."""

    ALL = "all"
    """Answers requests, watches tables, evaluates them."""
    REQUESTS = "requests"
    """Answers requests; a process of its own does the rest."""
    LOOP = "loop"
    """Watches tables and evaluates them."""


@cache
def open_services() -> ManagerServices:
    """Build this API server's services: settings, registry on Airflow's database, view cache, loop."""
    settings = load_settings()
    return _build_services(
        settings, ManagerRole.REQUESTS if settings.loop_enabled and settings.loop_process else ManagerRole.ALL
    )


def open_loop_services() -> ManagerServices:
    """Build the services of the loop's own process."""
    return _build_services(load_settings(), ManagerRole.LOOP)


def _build_services(settings: LakeSettings, role: ManagerRole) -> ManagerServices:
    from airflow_lake_provider.hooks.open_tables import AirflowMetrics, open_with_connections
    from airflow_lake_provider.manager.api.services import ManagerServices, RefusedNotices
    from airflow_lake_provider.manager.db.leases import Executors
    from airflow_lake_provider.manager.loop.evaluation import AdmissionController
    from airflow_lake_provider.manager.loop.event_emitter import CommitEvents
    from airflow_lake_provider.manager.loop.loop_process import LoopProcess
    from airflow_lake_provider.manager.loop.reconciler import ManagerLoop
    from airflow_lake_provider.manager.loop.timeline_feed import TimelineServerGateway
    from airflow_lake_provider.manager.supervision.monitoring import DeadlineSweep
    from airflow_lake_provider.manager.supervision.repair_round import RepairRound
    from airflow_lake_provider.manager.supervision.vanished import VanishedExecutors
    from airflow_lake_provider.manager.supervision.writers_and_sinks import WriterChecks
    from airflow_lake_provider.notifications.dispatch import BackgroundNotifier, configured_notifiers
    from airflow_lake_provider.planner.table_view import CommitFile, TableViewCache
    from airflow_lake_provider.plugins.asset_events import AirflowAssetGateway
    from airflow_lake_provider.plugins.dag_runs import AirflowApplicationGateway, AirflowRunGateway
    from airflow_lake_provider.plugins.lake_plugin import build_timeline_server
    from airflow_lake_provider.plugins.run_history import AirflowInstanceGateway

    registry = open_registry()
    metrics = AirflowMetrics()
    open_table = open_with_connections(settings.storage_conn_ids)
    tables = open_tables(settings)
    timeline_server = build_timeline_server(settings, registry, tables.load, role=role)
    notifier = BackgroundNotifier(configured_notifiers(), metrics)
    views = TableViewCache(timeline_server.timelines)
    instance_gateway = AirflowInstanceGateway()
    timelines_file = timeline_server.options.snapshot_path
    if timelines_file is not None and role is not ManagerRole.REQUESTS:
        timeline_server.kept_file = CommitFile(timelines_file.with_suffix(".commits"), views.memory)
    limits = _evaluator_limits()
    executors = Executors(registry, settings.executor_lease_s)
    loop = ManagerLoop(
        settings=settings,
        registry=registry,
        timelines=TimelineServerGateway(timeline_server, _watching_client(settings)),
        views=views,
        gateway=AirflowRunGateway(),
        load_tables=tables.load,
        metrics=metrics,
        admit=AdmissionController(open_table).admit,
        limits=limits,
        vanished=VanishedExecutors(registry, executors, instance_gateway, views),
        writers=WriterChecks(registry, views, instance_gateway),
        events=CommitEvents(registry, AirflowAssetGateway(), metrics),
        process=LoopProcess(LOOP_COMMAND, settings.loop_interval_s) if role is ManagerRole.REQUESTS else None,
        shares_interpreter=role is ManagerRole.ALL,
    )
    return ManagerServices(
        settings=settings,
        registry=registry,
        executors=executors,
        loop=loop,
        timeline_server=timeline_server,
        tables=tables,
        views=views,
        instance_gateway=instance_gateway,
        deadlines=DeadlineSweep(registry, instance_gateway, metrics, notifier, tables.load, settings.digest_hour),
        repairs=RepairRound(registry, tables.load, open_table, metrics, views, limits.per_store),
        refusals=RefusedNotices(metrics),
        applications=AirflowApplicationGateway(),
    )


def _watching_client(settings: LakeSettings) -> TimelineClient | None:
    """Return a client of the timeline server that watches the tables for the API servers; None when there is none."""
    from airflow_lake_provider.hooks.lake import airflow_trust
    from airflow_lake_provider.http import MOUNT_PATH
    from airflow_lake_provider.timeline_server.client import TimelineClient, TimelineEndpoint

    if settings.timeline_server is TimelineServerMode.OFF or not settings.timeline_server_url:
        return None
    # Both are started with the same tokens. A request of `lake_watch` waits for the answer.
    token = next(iter(settings.service_tokens), "")
    url = settings.timeline_server_url.rstrip("/") + MOUNT_PATH
    return TimelineClient(TimelineEndpoint(url, token, airflow_trust(), read_timeout_s=_ANSWERS_WITHIN_S))


def _evaluator_limits() -> EvaluatorLimits:
    from airflow.settings import engine

    # SQLite has one writer at a time: more threads would only wait for its lock.
    is_sqlite = engine is not None and engine.dialect.name == "sqlite"
    return EvaluatorLimits(per_store=1, waiting=0) if is_sqlite else EvaluatorLimits()


@cache
def open_registry() -> Registry:
    """Build the registry on Airflow's database."""
    from airflow_lake_provider.manager.db.database import DatabaseClock
    from airflow_lake_provider.manager.db.registry import Registry

    return Registry(open_session, DatabaseClock(open_session))


@cache
def open_timeline_server() -> TimelineServer:
    """Build the timeline server of a process of its own."""
    from airflow_lake_provider.plugins.lake_plugin import build_timeline_server

    settings = load_settings()
    return build_timeline_server(settings, open_registry(), open_tables(settings).load, is_alone=True)


@cache
def _fastapi_apps() -> list[dict[str, Any]]:
    from airflow_lake_provider.http import MOUNT_PATH, PAGES_PATH
    from airflow_lake_provider.manager.api.app import create_app
    from airflow_lake_provider.plugins.lake_plugin import check_may_read, record_action, shows_api_description
    from airflow_lake_provider.ui.app import create_pages

    pages = create_pages(open_services, check_may_read, record_action)
    manager = create_app(open_services, is_described=shows_api_description())
    return [
        {"app": manager, "url_prefix": MOUNT_PATH, "name": "Lake table services"},
        {"app": pages, "url_prefix": PAGES_PATH, "name": "Lake"},
    ]


def read_request_bounds() -> RequestBounds:
    """Return how many of Airflow's own requests this server works on at a time."""
    engine = airflow_process.engine
    try:
        is_wanted = load_settings().bound_airflow_requests
    except LakeError:
        is_wanted = True  # a wrong [lake] setting stops the manager, which says so, and nothing of Airflow
    if engine is None or not is_wanted:
        return RequestBounds(all=None, writing=None)
    size = engine.pool.size() if isinstance(engine.pool, QueuePool) else None
    overflow = conf.getint("database", "sql_alchemy_max_overflow", fallback=10)
    return bounds_of(size, overflow, is_sqlite=engine.dialect.name == "sqlite")


class LakePlugin(AirflowPlugin):
    """Registered by the entry point `airflow.plugins`; provider info's own `plugins` key is not loaded by default."""

    name = "lake"
    # Its script finds React, the router and the theme in Airflow's page. Addresses are relative: below whatever path
    # Airflow itself is served.
    react_apps = [  # noqa: RUF012 - as the base class has it
        {
            "name": "Lake",
            "bundle_url": "lake/app/lake.js",
            "destination": "nav",
            "url_route": "lake",
            "nav_top_level": True,
            "icon": "lake/app/lake.svg",
            "icon_dark_mode": "lake/app/lake-dark.svg",
        },
        *(
            {"name": name, "bundle_url": "lake/app/lake.js", "destination": place, "url_route": f"lake_{place}"}
            for name, place in (("Lake card", "dashboard"), ("Lake run", "dag_run"), ("Lake task", "task_instance"))
        ),
    ]

    fastapi_root_middlewares = [  # noqa: RUF012 - as the base class has it
        {
            "name": "Lake: bounded requests",
            "middleware": BoundedRequests,
            "args": [],
            "kwargs": {"read_bounds": read_request_bounds},
        },
        {"name": "Lake: notices first", "middleware": NoticesFirst, "args": [], "kwargs": {}},
    ]

    @property
    def fastapi_apps(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The apps to mount: built when a server requests them, so that other processes do not pay for them."""
        return _fastapi_apps()


# --- Access to the pages: users that may read the DAG whose runs the pages show


def check_may_read(user: GetUserDep) -> Viewer:
    """Refuse a user who may not read the DAG of table services; Airflow's own session identifies the user."""
    from airflow_lake_provider.ui.answers import Viewer

    if not _may(user, "GET", SERVICE_DAG_ID):
        raise HTTPException(403, f"reading the DAG {SERVICE_DAG_ID} is not allowed to you")
    run = DagAccessEntity.RUN
    # What Airflow's own routes require, to which the pages send the user's actions.
    return Viewer(
        user.get_name(),
        find_roles(user),
        may_forget=_may(user, "DELETE", SERVICE_DAG_ID),
        may_run=_may(user, "POST", SERVICE_DAG_ID, run),
        may_clear=_may(user, "PUT", SERVICE_DAG_ID, run),
        may_index=_may(user, "POST", INDEX_DAG_ID, run),
        may_pause=_may_change_variable(user, open_services().settings.tables_variable),
    )


def _may(user: BaseUser, method: ResourceMethod, dag_id: str, entity: DagAccessEntity | None = None) -> bool:
    """Ask Airflow as its own routes do: with the team of the DAG's bundle, which decides in a multi-team Airflow."""
    if conf.getboolean("core", "multi_team") and DagModel.get_dagmodel(dag_id) is None:
        return False  # its team is not known, and without one every team has it
    details = DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id))
    manager = get_auth_manager()
    return bool(manager.is_authorized_dag(method=method, access_entity=entity, details=details, user=user))


def _may_change_variable(user: BaseUser, key: str) -> bool:
    if key == "off":
        return False
    details = VariableDetails(key=key, team_name=Variable.get_team_name(key))
    manager = get_auth_manager()
    return all(manager.is_authorized_variable(method=one, details=details, user=user) for one in _CHANGES)


def record_action(user: str, event: str, details: Mapping[str, str]) -> None:
    """Write what a user changed by the provider's own route into Airflow's audit log."""
    from airflow.models.log import Log

    with open_session() as session, session.begin():
        session.add(Log(event=event, owner=user, owner_display_name=user, extra=json.dumps(dict(details))))


_CHANGES: tuple[ResourceMethod, ...] = ("GET", "POST", "PUT")


def find_roles(user: object) -> frozenset[str]:
    """Return the names of a user's roles, as the auth managers of FAB and `simple` keep them; none of others."""
    roles = getattr(user, "roles", None) or [getattr(user, "role", None)]
    return frozenset(str(getattr(role, "name", role)) for role in roles if role)


# --- The timelines of one server process, from Airflow's configuration: in the API server, or a timeline server alone

_MIN_PAUSE_S = 60.0
_ANSWERS_WITHIN_S = 5.0


def build_timeline_server(
    settings: LakeSettings,
    registry: Registry,
    load_tables: Callable[[], TablesConfig],
    *,
    is_alone: bool = False,
    role: ManagerRole = ManagerRole.ALL,
) -> TimelineServer:
    """Build the process's timeline server. `is_alone`: it is a process of its own, not part of a manager."""
    limits = SharedLimits(
        max_tables=settings.max_tables_in_memory,
        heartbeat=HeartbeatLimits(
            least_s=min(_MIN_PAUSE_S, settings.heartbeat_timeout_s),
            most_s=settings.heartbeat_timeout_s,
            most_announced_s=max(settings.heartbeat_max_s, settings.heartbeat_timeout_s),
        ),
    )
    timelines = SharedTimelines(limits, open_with_connections(settings.storage_conn_ids))
    unannounced = UnannouncedCommits(registry)
    timelines.on_unannounced = unannounced.mark
    timelines.on_loaded = unannounced.compare
    options = ServerOptions(
        allowed_roots=settings.allowed_roots,
        service_tokens=settings.service_tokens,
        tokens_file=settings.tokens_file,
        refresh_threads=settings.timeline_refresh_threads,
        verify_interval_s=settings.timeline_verify_interval_s,
        snapshot_path=_snapshot_path(settings, is_alone=is_alone, is_for_readers=role is ManagerRole.REQUESTS),
        # With a timeline server of its own, the API servers do not watch tables.
        is_watching=settings.timeline_server is not TimelineServerMode.OFF
        and (is_alone or not settings.timeline_server_url),
        is_for_readers=role is ManagerRole.REQUESTS,
    )
    return TimelineServer(timelines, options, RegistryFeed(registry, load_tables, unannounced))


def _snapshot_path(settings: LakeSettings, *, is_alone: bool, is_for_readers: bool) -> Path | None:
    if settings.timeline_snapshot_file.lower() == "off" or settings.timeline_server is TimelineServerMode.OFF:
        return None
    from airflow.configuration import AIRFLOW_HOME

    name = "timeline-server" if is_alone else "api-server"
    path = Path(settings.timeline_snapshot_file or Path(AIRFLOW_HOME) / "lake" / f"{name}.timelines")
    return path.with_stem(f"{path.stem}-readers") if is_for_readers else path
