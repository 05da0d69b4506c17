"""`GET /tables/{id}/instances` (bearer token): a table's services, what state each is in, and who acts next."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from airflow_lake_provider.manager.datamodels import InstanceAnswer, InstancesAnswer
from airflow_lake_provider.manager.routes.tables import Services, check_service_token
from airflow_lake_provider.manager.table_instances import load_instances

router = APIRouter(tags=["instances"], dependencies=[Depends(check_service_token)])


@router.get("/tables/{table_id}/instances")
def list_instances(
    services: Services,
    table_id: str,
    ended: Annotated[int, Query(ge=0, le=200, description="How many ended instances at most")] = 20,
) -> InstancesAnswer:
    """List what is requested, scheduled, running or retrying, then the newest ended instances."""
    found = load_instances(services.registry, services.instance_door, services.views, table_id, ended)
    now_ms = services.registry.now_ms()
    return InstancesAnswer(
        now_ms=now_ms,
        instances=[
            InstanceAnswer(
                service=instance.service,
                state=instance.state,
                owner=instance.owner,
                reason=instance.reason,
                run_id=instance.run_id,
                plans=list(instance.plans),
                since_ms=instance.since_ms,
                deadline_ms=instance.deadline_ms,
                overdue=instance.is_overdue(now_ms),
                tries=instance.tries,
            )
            for instance in found
        ],
    )
