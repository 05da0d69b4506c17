"""`POST /callback`: Hudi's write-commit callback, the push that works with stock writers."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Request
from fastapi.concurrency import run_in_threadpool

from airflow_lake_provider.http import CALLBACK_KEY_HEADER, parse_body, read_body, require_token
from airflow_lake_provider.hudi.base_path import normalise_base_path, require_allowed
from airflow_lake_provider.manager.api.models import AcceptedAnswer, CommitCallbackBody
from airflow_lake_provider.manager.api.services import ManagerServices, services_of
from airflow_lake_provider.manager.db.registry import Notice, Source

_OPENAPI_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": CommitCallbackBody.model_json_schema(ref_template="#/x-defs/{model}")}
        },
    }
}
_OPENAPI_BODY["requestBody"]["content"]["application/json"]["schema"].pop("$defs", None)
_MOST_HEADER_CHARACTERS = 500


async def check_callback_key(
    services: Annotated[ManagerServices, Depends(services_of)],
    key: Annotated[str | None, Header(alias=CALLBACK_KEY_HEADER)] = None,
) -> None:
    """Refuse a writer without one of the configured keys, before its body is read."""
    require_token(
        key,
        services.settings.callback_tokens,
        where=f"header {CALLBACK_KEY_HEADER}",
        option="callback_tokens",
    )


router = APIRouter(tags=["notices"], dependencies=[Depends(check_callback_key)])


@router.post("/callback", openapi_extra=_OPENAPI_BODY)
async def receive_commit(
    request: Request,
    services: Annotated[ManagerServices, Depends(services_of)],
    database: Annotated[str, Header(alias="X-Lake-Database", description="Database of the table")] = "",
    owner: Annotated[str, Header(alias="X-Lake-Owner", description="Owner of the table")] = "",
) -> AcceptedAnswer:
    """Make the notice durable, then answer 200; the table is looked at within about a second."""
    body = await parse_body(CommitCallbackBody, await read_body(request, services.settings.max_notice_bytes))
    base_path = normalise_base_path(body.basePath)
    require_allowed(base_path, services.settings.allowed_roots)
    stats = body.hoodieWriteStat or []
    notice = Notice(
        base_path=base_path,
        table_name=body.tableName,
        source=Source.COMMIT_CALLBACK,
        instants=(body.commitTime,),
        database=database[:_MOST_HEADER_CHARACTERS],
        owner=owner[:_MOST_HEADER_CHARACTERS],
        files=len(stats),
        written_bytes=sum(stat.totalWriteBytes or 0 for stat in stats),
    )
    mark = await run_in_threadpool(services.loop.mark_dirty, notice)
    return AcceptedAnswer(table_id=mark.table_id)
