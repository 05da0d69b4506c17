"""The Airflow plugin: mounts the manager's HTTP app in the API server at `/v1/hoodie`."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from airflow.plugins_manager import AirflowPlugin

from airflow_lake_provider.errors import StorageError

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from airflow_lake_provider.manager.registry import Registry
    from airflow_lake_provider.manager.services import ManagerServices
    from airflow_lake_provider.view.timeline_server import TimelineServer


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
    from airflow_lake_provider.hooks.metrics import AirflowMetrics
    from airflow_lake_provider.hooks.open_tables import open_with_connections
    from airflow_lake_provider.manager.admission_desk import AdmissionDesk
    from airflow_lake_provider.manager.deadlines import DeadlineSweep
    from airflow_lake_provider.manager.executors import Executors
    from airflow_lake_provider.manager.loop import ManagerLoop
    from airflow_lake_provider.manager.repair_round import RepairRound
    from airflow_lake_provider.manager.services import ManagerServices
    from airflow_lake_provider.manager.stuck_tables import StuckTables
    from airflow_lake_provider.manager.timelines_door import ServerDoor
    from airflow_lake_provider.notifications.dispatch import BackgroundNotifier, configured_notifiers
    from airflow_lake_provider.plugins.airflow_instances import AirflowInstanceDoor
    from airflow_lake_provider.plugins.airflow_runs import AirflowRunDoor
    from airflow_lake_provider.plugins.airflow_settings import load_settings
    from airflow_lake_provider.plugins.process_timelines import build_timeline_server
    from airflow_lake_provider.plugins.tables import open_tables
    from airflow_lake_provider.view.view_cache import TableViewCache

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
    from airflow_lake_provider.manager.clock import DatabaseClock
    from airflow_lake_provider.manager.registry import Registry

    return Registry(_open_session, DatabaseClock(_open_session))


@cache
def open_timeline_server() -> TimelineServer:
    """Build the timeline server of a process of its own."""
    from airflow_lake_provider.plugins.airflow_settings import load_settings
    from airflow_lake_provider.plugins.process_timelines import build_timeline_server
    from airflow_lake_provider.plugins.tables import open_tables

    settings = load_settings()
    return build_timeline_server(settings, open_registry(), open_tables(settings).load, is_alone=True)


@cache
def _fastapi_apps() -> list[dict[str, Any]]:
    from airflow_lake_provider.app_path import MOUNT_PATH, PAGES_PATH
    from airflow_lake_provider.manager.app import create_app
    from airflow_lake_provider.pages.app import create_pages
    from airflow_lake_provider.plugins.airflow_access import check_may_read

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
