"""Routes for Airflow's own tasks (bearer token): what is registered, hints, the sweep."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Depends, Header, Query

from airflow_lake_provider.http_app import require_bearer
from airflow_lake_provider.manager.datamodels import (
    HintsAnswer,
    HintsBody,
    SweepAnswer,
    TableAnswer,
    TablesAnswer,
)
from airflow_lake_provider.manager.notice import Notice, Source
from airflow_lake_provider.manager.services import ManagerServices, services_of
from airflow_lake_provider.manager.table_name import is_identified
from airflow_lake_provider.table_id import normalise_base_path, require_allowed

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
