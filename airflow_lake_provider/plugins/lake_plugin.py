"""The Airflow plugin: mounts the manager's HTTP app in the API server at `/v1/hoodie`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep  # noqa: TC002 - FastAPI reads the annotation
from airflow.plugins_manager import AirflowPlugin
from fastapi import HTTPException

from airflow_lake_provider.config.settings import TimelineServerMode
from airflow_lake_provider.errors import StorageError
from airflow_lake_provider.hooks.open_tables import open_with_connections
from airflow_lake_provider.manager.scheduling import SERVICE_DAG_ID
from airflow_lake_provider.manager.timeline_feed import RegistryFeed, UnannouncedCommits
from airflow_lake_provider.timeline_server.cache import SharedTimelines
from airflow_lake_provider.timeline_server.schedule import HeartbeatLimits, SharedLimits
from airflow_lake_provider.timeline_server.server import ServerOptions, TimelineServer

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy.orm import Session

    from airflow_lake_provider.config.settings import LakeSettings
    from airflow_lake_provider.config.tables_file import TablesConfig
    from airflow_lake_provider.manager.api.services import ManagerServices
    from airflow_lake_provider.manager.db.registry import Registry


def _open_session() -> Session:
    from airflow import settings as airflow_process

    # Not Airflow's thread-local session: its helpers commit and close that one under the caller.
    maker = airflow_process.NonScopedSession
    if maker is None:
        raise StorageError("Airflow's metadata database is not configured in this process")
    session: Session = maker()
    return session


@cache
def open_services() -> ManagerServices:
    """Build this process's services: settings, registry on Airflow's database, view cache, loop."""
    from airflow_lake_provider.hooks.open_tables import AirflowMetrics, open_with_connections
    from airflow_lake_provider.manager.api.services import ManagerServices
    from airflow_lake_provider.manager.db.leases import Executors
    from airflow_lake_provider.manager.monitoring import DeadlineSweep, RepairRound, StuckTables
    from airflow_lake_provider.manager.reconciler import AdmissionDesk, ManagerLoop
    from airflow_lake_provider.manager.timeline_feed import ServerDoor
    from airflow_lake_provider.notifications.dispatch import BackgroundNotifier, configured_notifiers
    from airflow_lake_provider.planner.table_view import TableViewCache
    from airflow_lake_provider.plugins.dag_runs import AirflowInstanceDoor, AirflowRunDoor
    from airflow_lake_provider.plugins.lake_plugin import build_timeline_server
    from airflow_lake_provider.plugins.tables import load_settings, open_tables

    settings, registry, metrics = load_settings(), open_registry(), AirflowMetrics()
    open_table = open_with_connections(settings.storage_conn_ids)
    tables = open_tables(settings)
    timeline_server = build_timeline_server(settings, registry, tables.load)
    notifier = BackgroundNotifier(configured_notifiers(), metrics)
    views, instance_door = TableViewCache(timeline_server.timelines), AirflowInstanceDoor()
    loop = ManagerLoop(
        settings=settings,
        registry=registry,
        timelines=ServerDoor(timeline_server),
        views=views,
        door=AirflowRunDoor(),
        load_tables=tables.load,
        metrics=metrics,
        admit=AdmissionDesk(open_table).admit,
    )
    return ManagerServices(
        settings=settings,
        registry=registry,
        executors=Executors(registry, settings.executor_lease_s),
        loop=loop,
        timeline_server=timeline_server,
        tables=tables,
        views=views,
        instance_door=instance_door,
        deadlines=DeadlineSweep(registry, instance_door, metrics, notifier, tables.load),
        repairs=RepairRound(registry, tables.load, open_table, metrics, StuckTables(registry, metrics, notifier)),
    )


@cache
def open_registry() -> Registry:
    """Build the registry on Airflow's database."""
    from airflow_lake_provider.manager.db.clock import DatabaseClock
    from airflow_lake_provider.manager.db.registry import Registry

    return Registry(_open_session, DatabaseClock(_open_session))


@cache
def open_timeline_server() -> TimelineServer:
    """Build the timeline server of a process of its own."""
    from airflow_lake_provider.plugins.lake_plugin import build_timeline_server
    from airflow_lake_provider.plugins.tables import load_settings, open_tables

    settings = load_settings()
    return build_timeline_server(settings, open_registry(), open_tables(settings).load, is_alone=True)


@cache
def _fastapi_apps() -> list[dict[str, Any]]:
    from airflow_lake_provider.http import MOUNT_PATH, PAGES_PATH
    from airflow_lake_provider.manager.api.app import create_app
    from airflow_lake_provider.plugins.lake_plugin import check_may_read
    from airflow_lake_provider.ui.app import create_pages

    pages = create_pages(open_services, check_may_read)
    return [
        {"app": create_app(open_services), "url_prefix": MOUNT_PATH, "name": "Lake table services"},
        {"app": pages, "url_prefix": PAGES_PATH, "name": "Lake tables"},
    ]


class LakePlugin(AirflowPlugin):
    """Registered by the entry point `airflow.plugins`; provider info's own `plugins` key is not loaded by default."""

    name = "lake"
    # Relative: below whatever path Airflow itself is served.
    external_views = [  # noqa: RUF012 - as the base class has it
        {"name": "Lake tables", "href": "lake/", "destination": "nav", "category": "browse", "url_route": "lake_tables"}
    ]

    @property
    def fastapi_apps(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The apps to mount: built when a server asks, so that all other processes pay nothing for them."""
        return _fastapi_apps()


# --- Who may see the pages: whoever may read the DAG whose runs they tell of


def check_may_read(user: GetUserDep) -> None:
    """Refuse a user who may not read the DAG of table services; Airflow's own session tells who it is."""
    if not get_auth_manager().is_authorized_dag(method="GET", details=DagDetails(id=SERVICE_DAG_ID), user=user):
        raise HTTPException(403, f"reading the DAG {SERVICE_DAG_ID} is not allowed to you")


# --- The timelines of one server process, from Airflow's configuration: in the API server, or a timeline server alone

_LEAST_PAUSE_S = 60.0


def build_timeline_server(
    settings: LakeSettings, registry: Registry, load_tables: Callable[[], TablesConfig], *, is_alone: bool = False
) -> TimelineServer:
    """Build the process's timeline server. `is_alone`: it is a process of its own, not part of an API server."""
    limits = SharedLimits(
        max_tables=settings.max_tables_in_memory,
        heartbeat=HeartbeatLimits(
            least_s=min(_LEAST_PAUSE_S, settings.heartbeat_timeout_s),
            most_s=settings.heartbeat_timeout_s,
            most_announced_s=max(settings.heartbeat_max_s, settings.heartbeat_timeout_s),
        ),
    )
    timelines = SharedTimelines(limits, open_with_connections(settings.storage_conn_ids))
    unannounced = UnannouncedCommits(registry)
    timelines.on_unannounced = unannounced.tell
    timelines.on_loaded = unannounced.compare
    options = ServerOptions(
        allowed_roots=settings.allowed_roots,
        service_tokens=settings.service_tokens,
        look_threads=settings.timeline_look_threads,
        verify_interval_s=settings.timeline_verify_interval_s,
        snapshot_path=_snapshot_path(settings, is_alone=is_alone),
        # With a timeline server of its own, the API servers leave the watching to it.
        is_watching=settings.timeline_server is not TimelineServerMode.OFF
        and (is_alone or not settings.timeline_server_url),
    )
    return TimelineServer(timelines, options, RegistryFeed(registry, load_tables, unannounced))


def _snapshot_path(settings: LakeSettings, *, is_alone: bool) -> Path | None:
    if settings.timeline_snapshot_file.lower() == "off" or settings.timeline_server is TimelineServerMode.OFF:
        return None
    if settings.timeline_snapshot_file:
        return Path(settings.timeline_snapshot_file)
    from airflow.configuration import AIRFLOW_HOME

    name = "timeline-server" if is_alone else "api-server"
    return Path(AIRFLOW_HOME) / "lake" / f"{name}.timelines"
