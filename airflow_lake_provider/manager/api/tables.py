"""Routes for Airflow's own tasks (bearer token): what is registered, hints, the sweep."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Depends, Header, Query

from airflow_lake_provider.errors import LeaseHolder, PathNotAllowedError
from airflow_lake_provider.http import require_bearer
from airflow_lake_provider.hudi.base_path import normalise_base_path, require_allowed
from airflow_lake_provider.job_contract import Service  # noqa: TC001 - FastAPI reads the annotation
from airflow_lake_provider.manager.api.models import (
    DiscoveredAnswer,
    DiscoveredBody,
    ExecutorBody,
    HintsAnswer,
    HintsBody,
    InstanceAnswer,
    InstancesAnswer,
    LeaseAnswer,
    LeaseBody,
    PolicyAnswer,
    RootAnswer,
    RootsAnswer,
    SweepAnswer,
    TableAnswer,
    TablesAnswer,
)
from airflow_lake_provider.manager.api.services import ManagerServices, services_of
from airflow_lake_provider.manager.db.registry import Notice, Source, is_identified
from airflow_lake_provider.manager.instances import load_instances
from airflow_lake_provider.planner.decide import service_options

if TYPE_CHECKING:
    from sqlalchemy import RowMapping

Services = Annotated[ManagerServices, Depends(services_of)]


async def check_service_token(
    services: Services, authorization: Annotated[str | None, Header(alias="Authorization")] = None
) -> None:
    """Refuse a caller without one of the configured service tokens."""
    require_bearer(authorization, services.settings.service_tokens)


router = APIRouter(tags=["tables"], dependencies=[Depends(check_service_token)])


@router.get("/tables")
def list_tables(
    services: Services,
    after: Annotated[str, Query(description="Table id, exclusive")] = "",
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
) -> TablesAnswer:
    """List the registry."""
    return TablesAnswer(tables=[_to_answer(row) for row in services.registry.list_tables(limit, after)])


@router.get("/tables/silent")
def list_silent_tables(services: Services, limit: Annotated[int, Query(ge=1, le=10_000)] = 1000) -> TablesAnswer:
    """List the tables that were silent past their heartbeat, longest overdue first."""
    return TablesAnswer(tables=[_to_answer(row) for row in services.registry.list_silent(limit)])


@router.get("/tables/{table_id}")
def get_table(services: Services, table_id: str) -> TableAnswer:
    """Return one table with what the last look decided, and why."""
    return _to_answer(services.registry.get(table_id))


@router.post("/hints")
def receive_hints(services: Services, body: HintsBody) -> HintsAnswer:
    """Mark tables to be looked at, and postpone those that a sensor found unchanged."""
    notices = []
    for hint in body.hints:
        base_path = normalise_base_path(hint.base_path)
        require_allowed(base_path, services.settings.allowed_roots)
        notices.append(Notice(base_path, hint.table_name, Source.HINT, tuple(hint.instants)))
    for notice in notices:
        services.loop.mark_dirty(notice)
    services.loop.postpone(body.quiet_table_ids)
    return HintsAnswer(marked=len(notices), postponed=len(body.quiet_table_ids))


@router.post("/sweep")
def sweep(services: Services) -> SweepAnswer:
    """Register the configured tables, look at every dirty one now, whoever left it; then deadlines and repairs."""
    services.loop.register_configured_tables()
    looked = services.loop.drain()
    swept = services.deadlines.sweep()
    repaired = services.repairs.run()
    return SweepAnswer(looked=looked, ended=swept.ended, overdue=swept.overdue, repaired=repaired)


def _to_answer(row: RowMapping) -> TableAnswer:
    return TableAnswer(
        table_id=row["table_id"],
        base_path=row["base_path"],
        table_name=row["table_name"],
        database=row["database_name"],
        owner=row["owner"],
        identified=is_identified(row),
        dirty=row["dirty_since_ms"] is not None,
        notices=row["notices"],
        last_notice_ms=row["last_notice_ms"],
        last_notice_source=row["last_notice_source"],
        last_notice_instant=row["last_notice_instant"],
        looked_ms=row["looked_ms"],
        look_failures=row["look_failures"],
        next_look_ms=row["next_look_ms"],
        retry_ms=row["retry_ms"],
        completed_time=row["completed_time"],
        decisions=json.loads(row["decisions"]),
        problem=row["problem"],
    )


# --- `GET /policy`: what the tables file says of one service of one table, for a run that the manager did not create

policy_router = APIRouter(tags=["policy"], dependencies=[Depends(check_service_token)])


@policy_router.get("/policy")
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


# --- `GET /tables/{id}/instances` (bearer token): a table's services, what state each is in, and who acts next

instances_router = APIRouter(tags=["instances"], dependencies=[Depends(check_service_token)])


@instances_router.get("/tables/{table_id}/instances")
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


# --- Routes for running tasks (bearer token): the lease of the one executor of a table's service


leases_router = APIRouter(
    prefix="/tables/{table_id}/executors/{service}",
    tags=["executors"],
    dependencies=[Depends(check_service_token)],
)


@leases_router.post("")
def acquire(services: Services, table_id: str, service: Service, body: ExecutorBody) -> LeaseAnswer:
    """Take the lease, of a holder that has ended as well; 409 names who holds it."""
    ended = None if body.ended is None else LeaseHolder(body.ended.run_id, body.ended.try_number)
    lease = services.executors.acquire(table_id, service, body.run_id, body.try_number, ended)
    return LeaseAnswer(token=lease.token, lease_s=services.settings.executor_lease_s)


@leases_router.post("/renew")
def renew(services: Services, table_id: str, service: Service, body: LeaseBody) -> LeaseAnswer:
    """Prolong the lease; 409 when it has passed to another executor."""
    services.executors.renew(table_id, service, body.token)
    return LeaseAnswer(token=body.token, lease_s=services.settings.executor_lease_s)


@leases_router.post("/release", status_code=204)
def release(services: Services, table_id: str, service: Service, body: LeaseBody) -> None:
    """Give the lease back."""
    services.executors.release(table_id, service, body.token)


# --- Routes for `lake_discovery` (bearer token): which roots to search, and the tables that were found there

discovery_router = APIRouter(prefix="/discovery", tags=["discovery"], dependencies=[Depends(check_service_token)])


@discovery_router.get("/roots")
def list_roots(services: Services) -> RootsAnswer:
    """List the roots of the `discover` entries; one outside the allowed roots comes with its problem."""
    discoveries = services.tables.load().discoveries
    return RootsAnswer(
        roots=[
            RootAnswer(root=found.root, depth=found.depth, problem=_find_problem(services, found.root))
            for found in discoveries
        ]
    )


@discovery_router.post("/tables")
def receive_tables(services: Services, body: DiscoveredBody) -> DiscoveredAnswer:
    """Register the tables that are not known yet; one outside the allowed roots refuses them all."""
    notices = []
    for table in body.tables:
        base_path = normalise_base_path(table.base_path)
        require_allowed(base_path, services.settings.allowed_roots)
        notices.append(Notice(base_path, table.table_name, Source.DISCOVERY))
    registered = sum(services.registry.register(notice) for notice in notices)
    if registered:
        services.loop.wake()
    return DiscoveredAnswer(registered=registered, known=len(notices) - registered)


def _find_problem(services: Services, root: str) -> str:
    try:
        require_allowed(root, services.settings.allowed_roots)
    except PathNotAllowedError as error:
        return str(error)
    return ""
