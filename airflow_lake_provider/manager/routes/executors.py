"""Routes for running tasks (bearer token): the lease of the one executor of a table's service."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends

from airflow_lake_provider.errors import LeaseHolder
from airflow_lake_provider.job_contract import Service  # noqa: TC001 - FastAPI reads the annotation
from airflow_lake_provider.manager.datamodels import ExecutorBody, LeaseAnswer, LeaseBody
from airflow_lake_provider.manager.routes.tables import check_service_token
from airflow_lake_provider.manager.services import ManagerServices, services_of

Services = Annotated[ManagerServices, Depends(services_of)]

router = APIRouter(
    prefix="/tables/{table_id}/executors/{service}",
    tags=["executors"],
    dependencies=[Depends(check_service_token)],
)


@router.post("")
def acquire(services: Services, table_id: str, service: Service, body: ExecutorBody) -> LeaseAnswer:
    """Take the lease, of a holder that has ended as well; 409 names who holds it."""
    ended = None if body.ended is None else LeaseHolder(body.ended.run_id, body.ended.try_number)
    lease = services.executors.acquire(table_id, service, body.run_id, body.try_number, ended)
    return LeaseAnswer(token=lease.token, lease_s=services.settings.executor_lease_s)


@router.post("/renew")
def renew(services: Services, table_id: str, service: Service, body: LeaseBody) -> LeaseAnswer:
    """Prolong the lease; 409 when it has passed to another executor."""
    services.executors.renew(table_id, service, body.token)
    return LeaseAnswer(token=body.token, lease_s=services.settings.executor_lease_s)


@router.post("/release", status_code=204)
def release(services: Services, table_id: str, service: Service, body: LeaseBody) -> None:
    """Give the lease back."""
    services.executors.release(table_id, service, body.token)
