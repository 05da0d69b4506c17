"""`GET /policy`: what the tables file says of one service of one table, for a run that the manager did not create."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Depends, Query

from airflow_lake_provider.job_contract import Service  # noqa: TC001 - FastAPI reads the annotation
from airflow_lake_provider.manager.datamodels import PolicyAnswer
from airflow_lake_provider.manager.routes.tables import Services, check_service_token
from airflow_lake_provider.planner.service_options import service_options
from airflow_lake_provider.table_id import normalise_base_path

router = APIRouter(tags=["policy"], dependencies=[Depends(check_service_token)])


@router.get("/policy")
def get_policy(
    services: Services,
    base_path: Annotated[str, Query(min_length=1, max_length=1000)],
    table_name: Annotated[str, Query(description="hoodie.table.name", max_length=250)],
    service: Service,
) -> PolicyAnswer:
    """Return what holds for a run of the service: the same that a run of the manager's gets."""
    path = normalise_base_path(base_path)
    policy = services.tables.load().policy_for(path, table_name)
    return PolicyAnswer(
        hudi_options={**policy.hudi_options, **service_options(service, policy)},
        engine=policy.engine,
        spark_conn_id=policy.spark_conn_id,
        spark_conf=dict(policy.spark_conf),
        conflict=asdict(policy.conflict),
        timeout_s=policy.timeout_s,
    )
