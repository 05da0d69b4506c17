"""`GET /health`: open, says nothing about tables."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends

from airflow_lake_provider import __version__
from airflow_lake_provider.manager.datamodels import HealthAnswer
from airflow_lake_provider.manager.services import ManagerServices, services_of

router = APIRouter(tags=["health"])


@router.get("/health")
def get_health(services: Annotated[ManagerServices, Depends(services_of)]) -> HealthAnswer:
    """Answer that the app is mounted and its tables can be read."""
    services.registry.list_silent(limit=1)
    return HealthAnswer(status="ok", version=__version__, loop=services.settings.loop_enabled)
