"""`GET /health`: open, reports nothing about tables. `GET /config`: what is wrong with the tables' settings."""

from __future__ import annotations

from fastapi import APIRouter

from airflow_lake_provider import __version__
from airflow_lake_provider.config.tables_file import TablesConfig
from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.manager.api.models import ConfigAnswer, ConfigState, HealthAnswer
from airflow_lake_provider.manager.api.services import (  # noqa: TC001 - FastAPI reads the annotations
    ManagerServices,
    Reader,
    Services,
)
from airflow_lake_provider.manager.scheduling import find_net_problems

router = APIRouter(tags=["health"])

_CONFIG_PROBLEMS = {
    ConfigState.NONE: "the tables' settings are wrong, so no table is decided: GET /config names file and error",
    ConfigState.LAST_GOOD: "the tables' settings are wrong, the last valid ones stay in force: GET /config names file "
    "and error",
}
"""Without the error itself: `/health` needs no token."""


@router.get("/health")
def get_health(services: Services) -> HealthAnswer:
    """Answer that the app is mounted and can read its tables, and report what is wrong with the DAGs."""
    services.registry.list_silent(limit=1)
    state, _ = _config_state(services)
    net, now_ms = services.loop.find_net(), services.registry.now_ms()
    return HealthAnswer(
        status="failing" if state is ConfigState.NONE else "ok",
        version=__version__,
        loop=services.settings.loop_enabled,
        tables_config=state,
        last_sweep_s=net.sweep_age_s(now_ms),
        problems=[
            *((_CONFIG_PROBLEMS[state],) if state in _CONFIG_PROBLEMS else ()),
            *services.loop.find_problems(),
            *services.refusals.find_problems(),
            *_find_token_problems(services),
            *find_net_problems(net, now_ms),
        ],
    )


@router.get("/config")
def get_config(services: Services, reader: Reader) -> ConfigAnswer:
    """Report whether the tables file and the Variable over it are in force, and what is wrong if not."""
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
