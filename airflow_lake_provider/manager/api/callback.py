"""Notices from writers, both durable, answered immediately and never trusted.

`POST /callback` is Hudi's write-commit callback, the push that works with stock writers. `GET
/service/{compact,cluster,clean}` is what RFC-43's client inside Hudi sends.
"""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import suppress
from enum import StrEnum
from ipaddress import ip_address
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field, field_validator

from airflow_lake_provider.config.access import Grant, Right
from airflow_lake_provider.errors import (
    DamagedFileError,
    LakeError,
    MalformedRequestError,
    TableUnknownError,
    UnauthorisedError,
)
from airflow_lake_provider.http import (
    CALLBACK_KEY_HEADER,
    announced_bytes,
    parse_body,
    read_body,
    token_of_extra_params,
)
from airflow_lake_provider.hudi.base_path import (
    has_hidden_characters,
    normalise_base_path,
    require_allowed,
    table_id_of,
)
from airflow_lake_provider.hudi.decoding_process import MAX_PROCESSES, Decoders, decode_apart
from airflow_lake_provider.manager.api.models import (
    INSTANT_PATTERN,
    BasePath,
    InstantTime,
    TableName,
)
from airflow_lake_provider.manager.api.services import ManagerServices, services_of, services_of_app
from airflow_lake_provider.manager.db.rows import Notice, Source

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from starlette.datastructures import Headers
    from starlette.responses import Response


def refuse_hidden_characters(value: str) -> str:
    """Return the value, or raise ValueError when it holds control or invisible characters."""
    if has_hidden_characters(value):
        raise ValueError("must not contain control or invisible characters")
    return value


class CommitCallbackBody(BaseModel):
    """Body of Hudi's `HoodieWriteCommitHttpCallback` (`HoodieWriteCommitCallbackMessage`).

    The manager reads these three fields and ignores the others: the write statistics (about 1 KB a file) are in the
    commit itself; `commitActionType` and `extraMetadata` arrive without their values, since Hudi serialises its own
    Option as a bean.
    """

    model_config = ConfigDict(extra="ignore")

    commitTime: InstantTime
    tableName: TableName
    basePath: BasePath

    @field_validator("tableName")
    @classmethod
    def _refuse_hidden_characters(cls, value: str) -> str:
        return refuse_hidden_characters(value)


class AcceptedAnswer(BaseModel):
    """The notice is durable; the loop evaluates the table next."""

    table_id: str = Field(description="The table's identifier here")
    accepted: bool = Field(
        default=True, description="False: the request had no token; it marks a registered table and says no more"
    )


_DATABASE_HEADER = "X-Lake-Database"
_OWNER_HEADER = "X-Lake-Owner"


def _describe_header(name: str, description: str) -> dict[str, Any]:
    return {
        "name": name,
        "in": "header",
        "required": False,
        "schema": {"type": "string"},
        "description": description,
    }


# The route reads headers and body by hand, so OpenAPI gets them here: FastAPI takes longer to find three headers than
# all else that a notice needs.
_OPENAPI: dict[str, Any] = {
    "parameters": [
        _describe_header(CALLBACK_KEY_HEADER, "A token that may notify"),
        _describe_header(_DATABASE_HEADER, "Database of the table"),
        _describe_header(_OWNER_HEADER, "Owner of the table"),
    ],
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": CommitCallbackBody.model_json_schema()}},
    },
}
_MAX_HEADER_CHARACTERS = 500
_SIZE_SETTING = "[lake] max_notice_bytes"


async def check_callback_key(request: Request) -> Grant:
    """Refuse a writer without a token that may notify, before its body is read."""
    where = f"header {CALLBACK_KEY_HEADER}"
    key = request.headers.get(CALLBACK_KEY_HEADER)
    return services_of_app(request.app).tokens.authorise(key, Right.NOTIFY, where=where, option="callback_tokens")


class NoticeRoute(APIRoute):
    """Records each notice that the manager refuses: otherwise only the writer's log would name a wrong key or root."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the route's handler, which records an error of the caller before the app answers it."""
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                return await handler(request)
            except LakeError as error:
                if error.http_status < 500:
                    _record(request, error.http_status, str(error))
                raise
            except RequestValidationError as error:
                _record(request, 422, str(error))
                raise

        return handle


def _record(request: Request, status: int, reason: str) -> None:
    services = services_of_app(request.app)
    given = request.headers.get(CALLBACK_KEY_HEADER)
    given = given or token_of_extra_params(request.query_params.get("extra_params", ""))
    try:
        sender = f"token {services.tokens.identify(given, where='', option='')[0].name}"
    except UnauthorisedError:
        sender = _address_of(request)
    services.refusals.record(status, reason, sender)


def _address_of(request: Request) -> str:
    """Return the sender's address. Of a server that believes every proxy it is any text of the sender's choice."""
    host, _, _ = ("" if request.client is None else request.client.host).partition("%")
    try:
        return str(ip_address(host))
    except ValueError:
        return "an unknown address"


router = APIRouter(tags=["notices"], dependencies=[Depends(check_callback_key)], route_class=NoticeRoute)


@router.post("/callback", openapi_extra=_OPENAPI)
async def receive_commit(request: Request, writer: Annotated[Grant, Depends(check_callback_key)]) -> AcceptedAnswer:
    """Store a notice; the loop evaluates the table within about a second."""
    services = services_of_app(request.app)
    most_bytes = services.settings.max_notice_bytes
    async with services.limits.admit(writer.name, announced_bytes(request, most_bytes, _SIZE_SETTING)):
        content = await read_body(request, most_bytes, setting=_SIZE_SETTING)
        body = await parse_notice(request, content)
        base_path = normalise_base_path(body.basePath)
        writer.require_path(base_path)
        require_allowed(base_path, services.settings.allowed_roots)
        mark = await run_in_threadpool(services.notify, writer.name, _to_notice(base_path, body, request.headers))
    return AcceptedAnswer(table_id=mark.table_id)


LARGE_NOTICE_BYTES = 1024 * 1024
"""A larger notice, of about a thousand files, is read in a process of its own: a parser holds up the whole server."""
_LARGE_NOTICES = Decoders("airflow_lake_provider.manager.api.notice_worker")


async def parse_notice(request: Request, content: bytes) -> CommitCallbackBody:
    """Return what the manager reads of a notice. Raises MalformedRequestError."""
    if len(content) > LARGE_NOTICE_BYTES:
        async with _turn_of_large_ones(request):
            content = await asyncio.to_thread(_read_fields, content)
    return await parse_body(CommitCallbackBody, content)


def _turn_of_large_ones(request: Request) -> asyncio.Semaphore:
    """Return what large notices wait for on the loop, and not in the threads that others need."""
    state = request.app.state
    if not hasattr(state, "large_notices"):
        state.large_notices = asyncio.Semaphore(MAX_PROCESSES)
    turn: asyncio.Semaphore = state.large_notices
    return turn


def _read_fields(content: bytes) -> bytes:
    try:
        return json.dumps(decode_apart(content, "body", _LARGE_NOTICES)).encode()
    except DamagedFileError as error:
        raise MalformedRequestError(str(error)) from error


def text_of_header(headers: Headers, name: str) -> str:
    """Return a header's text, which arrives as Latin-1 whatever it is; "" without it. Raises MalformedRequestError."""
    value = headers.get(name, "")
    with suppress(UnicodeError):
        value = value.encode("latin-1").decode()
    try:
        return refuse_hidden_characters(value)[:_MAX_HEADER_CHARACTERS]
    except ValueError as error:
        raise MalformedRequestError(f"header {name} {error}") from error


def _to_notice(base_path: str, body: CommitCallbackBody, headers: Headers) -> Notice:
    return Notice(
        base_path=base_path,
        table_name=body.tableName,
        source=Source.COMMIT_CALLBACK,
        instants=(body.commitTime,),
        database=text_of_header(headers, _DATABASE_HEADER),
        owner=text_of_header(headers, _OWNER_HEADER),
    )


# --- What RFC-43's client inside Hudi sends (`HoodieTableServiceManagerClient`)
#
# Released clients fail before they send anything; fixed ones call inside the table lock, with no credential, and repeat
# all pending instants each time.

service_router = APIRouter(tags=["notices"], route_class=NoticeRoute)

_INSTANT = re.compile(INSTANT_PATTERN)


class ServicePath(StrEnum):
    """Last part of the client's path."""

    COMPACT = "compact"
    CLUSTER = "cluster"
    CLEAN = "clean"


@service_router.get("/service/{service}", status_code=202)
async def receive_request(
    service: ServicePath,
    request: Request,
    services: Annotated[ManagerServices, Depends(services_of)],
) -> AcceptedAnswer:
    """Note that the table has pending plans.

    Without a token, where the settings allow that, it marks a registered table and stores nothing of the request; the
    answer does not show whether the table is registered.
    """
    token = token_of_extra_params(request.query_params.get("extra_params", ""))
    has_token = token is not None or services.settings.service_manager_needs_token
    writer = None
    if has_token:
        writer = services.tokens.authorise(token, Right.NOTIFY, where="extra_params", option="callback_tokens")
    notice = parse_request(request.query_params)
    if writer is not None:
        writer.require_path(notice.base_path)
    require_allowed(notice.base_path, services.settings.allowed_roots)
    if writer is not None:
        async with services.limits.admit(writer.name):
            mark = await run_in_threadpool(services.notify, writer.name, notice)
        return AcceptedAnswer(table_id=mark.table_id)
    bare = Notice(notice.base_path, "", Source.SERVICE_MANAGER_CLIENT)
    with suppress(TableUnknownError):
        async with services.limits.admit("none"):
            await run_in_threadpool(services.loop.notify, bare, may_register=False)
    return AcceptedAnswer(table_id=table_id_of(bare.base_path), accepted=False)


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
            names[key] = refuse_hidden_characters(query.get(key, ""))[:500]
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
