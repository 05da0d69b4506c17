"""Routes for `lake_discovery` (bearer token): which roots to search, and the tables that were found there."""

from __future__ import annotations

from fastapi import APIRouter, Depends

from airflow_lake_provider.errors import PathNotAllowedError
from airflow_lake_provider.manager.datamodels_discovery import (
    DiscoveredAnswer,
    DiscoveredBody,
    RootAnswer,
    RootsAnswer,
)
from airflow_lake_provider.manager.notice import Notice, Source
from airflow_lake_provider.manager.routes.tables import Services, check_service_token
from airflow_lake_provider.table_id import normalise_base_path, require_allowed

router = APIRouter(prefix="/discovery", tags=["discovery"], dependencies=[Depends(check_service_token)])


@router.get("/roots")
def list_roots(services: Services) -> RootsAnswer:
    """List the roots of the `discover` entries; one outside the allowed roots comes with its problem."""
    discoveries = services.tables.load().discoveries
    return RootsAnswer(
        roots=[
            RootAnswer(root=found.root, depth=found.depth, problem=_find_problem(services, found.root))
            for found in discoveries
        ]
    )


@router.post("/tables")
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
