"""The manager's real app on a database: `python -m tests.integration.engines.manager_process URL PORT ROOT LEASE_S`.

Airflow's side is a fake without runs, and the loop is off: tasks, applications and triggers are all that comes.
"""

from __future__ import annotations

import sys

import uvicorn
from fastapi import FastAPI
from sqlalchemy import create_engine
from sqlalchemy.orm import sessionmaker

from airflow_lake_provider.config.settings import LakeSettings
from airflow_lake_provider.config.tables_config import TablesConfig
from airflow_lake_provider.config.tables_source import TablesSource
from airflow_lake_provider.manager.api.app import create_app
from airflow_lake_provider.manager.api.services import ManagerServices
from airflow_lake_provider.manager.db.database import DatabaseClock
from airflow_lake_provider.manager.db.leases import Executors
from airflow_lake_provider.manager.db.registry import Registry
from airflow_lake_provider.manager.loop.reconciler import ManagerLoop
from airflow_lake_provider.manager.loop.timeline_feed import TimelineServerGateway
from airflow_lake_provider.manager.supervision.monitoring import DeadlineSweep
from airflow_lake_provider.manager.supervision.repair_round import RepairRound
from airflow_lake_provider.planner.table_view import TableViewCache
from airflow_lake_provider.storage.table_storage import open_storage
from airflow_lake_provider.timeline_server.cache import SharedTimelines
from airflow_lake_provider.timeline_server.server import ServerOptions, TimelineServer
from tests.unit.manager.conftest import SERVICE_TOKEN, FakeInstanceGateway, FakeRunGateway


def open_services(url: str, root: str, lease_s: float) -> ManagerServices:
    """Return the services of a manager whose database may be killed: connections are tried first, as by Airflow."""
    make = sessionmaker(create_engine(url, pool_pre_ping=True))
    registry = Registry(make, DatabaseClock(make))
    settings = LakeSettings(service_tokens=(SERVICE_TOKEN,), allowed_roots=(root,), loop_enabled=False)
    server = TimelineServer(
        SharedTimelines(now_ms=registry.now_ms), ServerOptions(settings.allowed_roots, settings.service_tokens)
    )
    views, instances = TableViewCache(server.timelines), FakeInstanceGateway()
    loop = ManagerLoop(
        settings, registry, TimelineServerGateway(server), views, FakeRunGateway(), lambda: TablesConfig()
    )
    return ManagerServices(
        settings,
        registry,
        Executors(registry, lease_s),
        loop,
        server,
        TablesSource(""),
        views,
        instances,
        DeadlineSweep(registry, instances),
        RepairRound(registry, TablesConfig, open_storage),
    )


def main(url: str, port: str, root: str, lease_s: str) -> None:
    services = open_services(url, root, float(lease_s))
    app = FastAPI()
    app.mount("/v1/hoodie", create_app(lambda: services))
    uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="warning")


if __name__ == "__main__":
    main(*sys.argv[1:5])
