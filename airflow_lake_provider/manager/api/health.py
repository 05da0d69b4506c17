"""`GET /health`: open, says nothing about tables. `GET /config`: what is wrong with the tables' settings."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends

from airflow_lake_provider import __version__
from airflow_lake_provider.config.tables_file import TablesConfig
from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.manager.api.models import ConfigAnswer, ConfigState, HealthAnswer
from airflow_lake_provider.manager.api.services import ManagerServices, services_of
from airflow_lake_provider.manager.api.tables import check_service_token
from airflow_lake_provider.manager.scheduling import find_net_problems

router = APIRouter(tags=["health"])


@router.get("/health")
def get_health(services: Annotated[ManagerServices, Depends(services_of)]) -> HealthAnswer:
    """Answer that the app is mounted and its tables can be read, and what is wrong with the DAGs."""
    services.registry.list_silent(limit=1)
    state, _ = _config_state(services)
    net, now_ms = services.loop.find_net(), services.registry.now_ms()
    return HealthAnswer(
        status="ok",
        version=__version__,
        loop=services.settings.loop_enabled,
        tables_config=state,
        last_sweep_s=net.sweep_age_s(now_ms),
        problems=list(find_net_problems(net, now_ms)),
    )


@router.get("/config", dependencies=[Depends(check_service_token)])
def get_config(services: Annotated[ManagerServices, Depends(services_of)]) -> ConfigAnswer:
    """Say whether the tables file and the Variable over it are in force as they are, and what is wrong if not."""
    state, tables = _config_state(services)
    return ConfigAnswer(
        tables_config=state,
        problem=services.tables.problem,
        entries=len(tables.entries),
        overrides=len(tables.overrides),
    )


def _config_state(services: ManagerServices) -> tuple[ConfigState, TablesConfig]:
    try:
        tables = services.tables.load()
    except ConfigError:
        return ConfigState.NONE, TablesConfig()
    return ConfigState.LAST_GOOD if services.tables.problem else ConfigState.OK, tables
