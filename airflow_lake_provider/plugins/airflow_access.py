"""Who may see the pages: whoever may read the DAG whose runs they tell of."""

from __future__ import annotations

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep  # noqa: TC002 - FastAPI reads the annotation
from fastapi import HTTPException

from airflow_lake_provider.manager.runs import SERVICE_DAG_ID


def check_may_read(user: GetUserDep) -> None:
    """Refuse a user who may not read the DAG of table services; Airflow's own session tells who it is."""
    if not get_auth_manager().is_authorized_dag(method="GET", details=DagDetails(id=SERVICE_DAG_ID), user=user):
        raise HTTPException(403, f"reading the DAG {SERVICE_DAG_ID} is not allowed to you")
