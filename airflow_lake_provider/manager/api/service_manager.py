"""`GET /service/{compact,cluster,clean}`: what RFC-43's client inside Hudi sends (`HoodieTableServiceManagerClient`).

Released clients fail before they send anything; fixed ones call inside the table lock, with no credential, and repeat
all pending instants each time. So the call is a notice like any other: durable, answered at once, never believed.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.concurrency import run_in_threadpool

from airflow_lake_provider.errors import MalformedRequestError
from airflow_lake_provider.http import require_token, token_of_extra_params
from airflow_lake_provider.hudi.base_path import normalise_base_path, require_allowed
from airflow_lake_provider.manager.api.models import (
    INSTANT_PATTERN,
    AcceptedAnswer,
    refuse_control_characters,
)
from airflow_lake_provider.manager.api.services import ManagerServices, services_of
from airflow_lake_provider.manager.db.registry import Notice, Source

if TYPE_CHECKING:
    from collections.abc import Mapping

router = APIRouter(tags=["notices"])

_INSTANT = re.compile(INSTANT_PATTERN)


class ServicePath(StrEnum):
    """Last part of the client's path."""

    COMPACT = "compact"
    CLUSTER = "cluster"
    CLEAN = "clean"


@router.get("/service/{service}", status_code=202)
async def receive_request(
    service: ServicePath,
    request: Request,
    services: Annotated[ManagerServices, Depends(services_of)],
) -> AcceptedAnswer:
    """Note that the table has pending plans; answers 202.

    Without a token, where that is allowed, it asks for a look at a registered table: nothing that it says is kept.
    """
    token = token_of_extra_params(request.query_params.get("extra_params", ""))
    has_token = token is not None or services.settings.service_manager_needs_token
    if has_token:
        require_token(token, services.settings.callback_tokens, where="extra_params", option="callback_tokens")
    notice = parse_request(request.query_params)
    require_allowed(notice.base_path, services.settings.allowed_roots)
    if not has_token:
        notice = Notice(notice.base_path, "", Source.SERVICE_MANAGER_CLIENT)
    mark = await run_in_threadpool(services.loop.mark_dirty, notice, may_register=has_token)
    return AcceptedAnswer(table_id=mark.table_id)


def parse_request(query: Mapping[str, str]) -> Notice:
    """Build the notice from the client's parameters; raise MalformedRequestError that names the parameter."""
    action = query.get("action", "REQUEST")
    if action != "REQUEST":
        raise MalformedRequestError(f"action is {action!r}, allowed: REQUEST")
    for required in ("basepath", "table_name"):
        if not query.get(required):
            raise MalformedRequestError(f"parameter {required!r} is missing or empty")
    instants = tuple(part.strip() for part in query.get("instant", "").split(",") if part.strip())
    for instant in instants:
        if not _INSTANT.match(instant):
            raise MalformedRequestError(f"instant {instant!r} is not an instant time")
    names = {}
    for key in ("table_name", "db_name", "username"):
        try:
            names[key] = refuse_control_characters(query.get(key, ""))[:500]
        except ValueError as error:
            raise MalformedRequestError(f"parameter {key!r} {error}") from error
    return Notice(
        base_path=normalise_base_path(query["basepath"]),
        table_name=names["table_name"],
        source=Source.SERVICE_MANAGER_CLIENT,
        instants=tuple(sorted(instants)),
        database=names["db_name"],
        owner=names["username"],
    )
