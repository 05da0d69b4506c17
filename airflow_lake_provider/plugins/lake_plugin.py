"""The Airflow plugin: mounts the manager's HTTP app in the API server at `/v1/hoodie`."""

from __future__ import annotations

from datetime import UTC, datetime
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
    from airflow_lake_provider.manager.executors import Executors
    from airflow_lake_provider.manager.loop import ManagerLoop
    from airflow_lake_provider.manager.services import ManagerServices
    from airflow_lake_provider.manager.tables_source import TablesSource
    from airflow_lake_provider.manager.timelines_door import ServerDoor
    from airflow_lake_provider.plugins.airflow_runs import AirflowRunDoor
    from airflow_lake_provider.plugins.airflow_settings import load_settings
    from airflow_lake_provider.plugins.process_timelines import build_timeline_server
    from airflow_lake_provider.view.view_cache import TableViewCache

    settings, registry = load_settings(), open_registry()
    load_tables = TablesSource(settings.tables_file).load
    timeline_server = build_timeline_server(settings, registry, load_tables)
    loop = ManagerLoop(
        settings=settings,
        registry=registry,
        timelines=ServerDoor(timeline_server),
        views=TableViewCache(timeline_server.timelines),
        door=AirflowRunDoor(),
        load_tables=load_tables,
        metrics=AirflowMetrics(),
    )
    executors = Executors(registry, settings.executor_lease_s)
    return ManagerServices(settings, registry, executors, loop, timeline_server)


@cache
def open_registry() -> Registry:
    """Build the registry on Airflow's database."""
    from airflow_lake_provider.manager.registry import Registry

    return Registry(_open_session, lambda: datetime.now(UTC))


@cache
def open_timeline_server() -> TimelineServer:
    """Build the timeline server of a process of its own."""
    from airflow_lake_provider.manager.tables_source import TablesSource
    from airflow_lake_provider.plugins.airflow_settings import load_settings
    from airflow_lake_provider.plugins.process_timelines import build_timeline_server

    settings = load_settings()
    return build_timeline_server(settings, open_registry(), TablesSource(settings.tables_file).load, is_alone=True)


@cache
def _fastapi_apps() -> list[dict[str, Any]]:
    from airflow_lake_provider.app_path import MOUNT_PATH
    from airflow_lake_provider.manager.app import create_app

    return [{"app": create_app(open_services), "url_prefix": MOUNT_PATH, "name": "Lake table services"}]


class LakePlugin(AirflowPlugin):
    """Registered by the entry point `airflow.plugins`; provider info's own `plugins` key is not loaded by default."""

    name = "lake"

    @property
    def fastapi_apps(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The apps to mount: built when a server asks, so that all other processes pay nothing for them."""
        return _fastapi_apps()
