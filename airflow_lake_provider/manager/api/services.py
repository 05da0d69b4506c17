"""What the routes work with, in one value that the app carries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastapi import Request  # noqa: TC002 - FastAPI reads the annotation when it builds the route

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_lake_provider.config.settings import LakeSettings
    from airflow_lake_provider.config.tables_source import TablesSource
    from airflow_lake_provider.manager.db.leases import Executors
    from airflow_lake_provider.manager.db.registry import Registry
    from airflow_lake_provider.manager.monitoring import DeadlineSweep, InstanceDoor, RepairRound
    from airflow_lake_provider.manager.reconciler import ManagerLoop
    from airflow_lake_provider.planner.table_view import TableViewCache
    from airflow_lake_provider.timeline_server.server import TimelineServer


@dataclass(frozen=True, slots=True)
class ManagerServices:
    """Settings, registry, executors, loop, shared timelines, views and sweep of one process."""

    settings: LakeSettings
    registry: Registry
    executors: Executors
    loop: ManagerLoop
    timeline_server: TimelineServer
    tables: TablesSource
    views: TableViewCache
    instance_door: InstanceDoor
    deadlines: DeadlineSweep
    repairs: RepairRound


async def services_of(request: Request) -> ManagerServices:
    """Return the services of the app that answers this request; they are opened on first use."""
    open_services: Callable[[], ManagerServices] = request.app.state.open_services
    return open_services()
