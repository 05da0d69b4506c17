"""What both HTTP apps share: the answers to errors, and where requests carry tokens."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, TypeVar

from fastapi import Depends, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from sqlalchemy.exc import SQLAlchemyError
from starlette.datastructures import Headers, MutableHeaders

from airflow_lake_provider.errors import (
    BodyTooLargeError,
    BodyTooSlowError,
    LakeError,
    MalformedRequestError,
    TooManyBodiesError,
)
from airflow_lake_provider.request_bounds import Held, Places, Sender

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from fastapi import FastAPI
    from starlette.routing import BaseRoute
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger(__name__)


def add_error_handlers(app: FastAPI) -> None:
    """Answer errors as `{"detail": sentence, "error": class}`; a LakeError sets the status, and adds its facts."""
    app.add_exception_handler(LakeError, _answer_lake_error)
    app.add_exception_handler(RequestValidationError, _answer_validation_error)
    app.add_exception_handler(SQLAlchemyError, _answer_database_error)
    app.add_exception_handler(Exception, _answer_unexpected_error)


async def _answer_lake_error(_: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, LakeError):
        raise error
    if error.http_status >= 500:
        log.error("%s: %s", type(error).__name__, error)
    content = {"detail": str(error), "error": type(error).__name__} | error.facts
    return JSONResponse(content, status_code=error.http_status, headers=error.headers)


async def _answer_validation_error(_: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, RequestValidationError):
        raise error
    shown = [f"{'.'.join(str(part) for part in detail['loc'])}: {detail['msg']}" for detail in error.errors()[:5]]
    return _answer(422, "; ".join(shown), "MalformedRequestError")


async def _answer_database_error(_: Request, error: Exception) -> JSONResponse:
    log.error("the metadata database did not answer: %s", error)
    return _answer(503, "the metadata database did not answer; nothing was recorded, try again", "DatabaseError")


async def _answer_unexpected_error(_: Request, error: Exception) -> JSONResponse:
    log.error("unexpected error", exc_info=error)
    return _answer(500, "unexpected error; see the API server's log", "UnexpectedError")


def _answer(status: int, detail: str, error: str) -> JSONResponse:
    return JSONResponse({"detail": detail, "error": error}, status_code=status)


# --- Characters that a database does not keep

_NUL = "no part of a request may contain a NUL character"


def has_escaped_nul(content: bytes) -> bool:
    """Whether a JSON text names the NUL character. By searches for whole texts, which 64 MiB do not make slow."""
    # Of a row of backslashes each two are one character.
    return rb"\u0000" in content and rb"\u0000" in content.replace(rb"\\", b"--")


async def refuse_nul(request: Request) -> None:
    """Refuse a path or a parameter with a NUL character, which PostgreSQL takes for a failure of the program."""
    if "\0" in request.scope["path"] or b"%00" in request.scope["query_string"]:
        raise MalformedRequestError(_NUL)


# --- Where the apps are mounted; in this module, so that clients need not import the server

MOUNT_PATH = "/v1/hoodie"
PAGES_PATH = "/lake"


# --- Tokens of machines. A mounted app gets no authentication from Airflow, so every router requires a token

CALLBACK_KEY_HEADER = "HUDI-CALLBACK-KEY"
BEARER = "header Authorization"


def token_of_bearer(header: str | None) -> str | None:
    """Return the token of an `Authorization: Bearer` header, or None."""
    scheme, _, token = (header or "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def token_of_extra_params(extra_params: str) -> str | None:
    """Return `token` of RFC-43's `extra_params` (`k=v;k=v`), or None."""
    for part in extra_params.split(";"):
        key, _, value = part.partition("=")
        if key.strip() == "token":
            return value.strip()
    return None


# --- Answers in a page of another site

_ALONE = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Content-Security-Policy": "frame-ancestors 'none'",
}

NOT_SHARED = "private, no-cache"
"""`Cache-Control`: a browser may keep an answer, and asks each time whether it is still right; a proxy keeps none."""


class AnswersAlone:
    """Middleware: no answer is shown in a frame, taken for another type, or given to another caller by a cache.

    Airflow sets none of these headers.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Add the headers to an answer."""

        async def send_alone(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_ALONE)
                headers.setdefault("Cache-Control", NOT_SHARED)
            await send(message)

        await self._app(scope, receive, send_alone if scope["type"] == "http" else send)


# --- Bodies, which FastAPI would read as a whole before it asks a route for the token

MIB = 1024 * 1024
MAX_BODY_BYTES = MIB
"""Limit of a body whose route sets no other one."""
MAX_LIST_BYTES = 4 * MIB
"""Limit where a body lists tables: ten thousand hints are about two."""
MAX_ANY_BODY_BYTES = 16 * MIB
"""Limit of every body, whatever its route reads."""


_WITHOUT_BODY = frozenset({"GET", "HEAD", "OPTIONS"})


class BodyGuard:
    """Middleware that leaves the body of a request without a known token unread, and refuses one that is too large.

    Without it, a caller without any token could fill the memory of Airflow's API server. `check_token` returns whose a
    bearer token is, and raises LakeError for an unknown one; `own_paths` are routes that check another one themselves
    before they read.
    """

    def __init__(
        self, app: ASGIApp, check_token: Callable[[str | None], Sender], own_paths: Collection[str] = ()
    ) -> None:
        self._app = app
        self._check_token = check_token
        self._own_paths = own_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a refused request, pass on all others."""
        if scope["type"] == "http" and scope["method"] not in _WITHOUT_BODY:
            path = scope["path"].removeprefix(scope.get("root_path", ""))
            try:
                if path not in self._own_paths:
                    keep_sender(Request(scope), self._require_allowed(Headers(scope=scope)))
            except LakeError as error:
                answer = await _answer_lake_error(Request(scope), error)
                await answer(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _require_allowed(self, headers: Headers) -> Sender:
        sender = self._check_token(token_of_bearer(headers.get("authorization")))
        size = headers.get("content-length", "0")
        if "transfer-encoding" in headers or not _is_number(size) or int(size) > MAX_ANY_BODY_BYTES:
            raise BodyTooLargeError(f"the body must announce its length, and have at most {MAX_ANY_BODY_BYTES} bytes")
        return sender


def _is_number(text: str) -> bool:
    # Other scripts have digits that int() refuses, and so it does more of them than any limit has.
    return text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS


_MAX_DIGITS = 18


# --- Read and parse a request's body within a limit

PARSE_IN_THREAD_BYTES = 256 * 1024
_MAX_ERRORS = 5

_Model = TypeVar("_Model", bound=BaseModel)


BODY_TIMEOUT_S = 30.0
"""For a body to arrive: a sender that stops in between would hold its place indefinitely."""


def announced_bytes(request: Request, limit_bytes: int, setting: str = "") -> int:
    """Return the body's announced length, the limit when there is none; raise BodyTooLargeError."""
    announced = request.headers.get("content-length", "")
    if not (announced.isascii() and announced.isdigit()):
        return limit_bytes
    if not _is_number(announced) or int(announced) > limit_bytes:
        raise _too_large(limit_bytes, setting)
    return int(announced)


async def read_body(
    request: Request, limit_bytes: int, timeout_s: float = BODY_TIMEOUT_S, *, setting: str = ""
) -> bytes:
    """Return the body, or raise BodyTooLargeError that names the setting of the limit, and BodyTooSlowError."""
    announced_bytes(request, limit_bytes, setting)
    try:
        async with asyncio.timeout(timeout_s):
            return await _read_body(request, limit_bytes, setting)
    except TimeoutError as error:
        raise BodyTooSlowError(f"the body did not arrive within {timeout_s:.0f} s") from error


async def _read_body(request: Request, limit_bytes: int, setting: str) -> bytes:
    chunks: list[bytes] = []
    size_bytes = 0
    async for chunk in request.stream():
        size_bytes += len(chunk)
        if size_bytes > limit_bytes:
            raise _too_large(limit_bytes, setting)
        chunks.append(chunk)
    return b"".join(chunks)


async def parse_body(model: type[_Model], body: bytes) -> _Model:
    """Validate JSON against a wire type; raise MalformedRequestError that names what is wrong and where."""
    if len(body) > PARSE_IN_THREAD_BYTES:  # 10 MB take a tenth of a second: not in the event loop
        return await asyncio.to_thread(_parse, model, body)
    return _parse(model, body)


def _parse(model: type[_Model], body: bytes) -> _Model:
    if has_escaped_nul(body):
        raise MalformedRequestError(_NUL)
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise MalformedRequestError(_describe(error)) from error


def _too_large(limit_bytes: int, setting: str) -> BodyTooLargeError:
    return BodyTooLargeError(f"the body is larger than {limit_bytes} bytes{f' ({setting})' if setting else ''}")


def _describe(error: ValidationError) -> str:
    details = error.errors(include_url=False, include_context=False, include_input=False)
    shown = [
        f"{'.'.join(str(part) for part in detail['loc']) or 'body'}: {detail['msg']}"
        for detail in details[:_MAX_ERRORS]
    ]
    more = f" (and {len(details) - _MAX_ERRORS} more)" if len(details) > _MAX_ERRORS else ""
    return "; ".join(shown) + more


# --- The body of a route as a dependency. FastAPI resolves dependencies in their order, so that those before it have
# refused a caller without the right when the first byte is read


def json_body(model: type[BaseModel], limit_bytes: int = MAX_BODY_BYTES) -> Any:
    """Return the dependency that reads and validates a JSON body. It comes after those that check the caller."""

    async def read(request: Request) -> BaseModel:
        sent = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        # A page of another site can send a form or a text with the user's cookie, but no JSON.
        if sent != "application/json":
            raise MalformedRequestError(f"the body must be sent as application/json, not as {sent[:50]!r}")
        sender = _sender_of(request)
        left_free = PLACES_OF_ALL_TABLES if sender.is_of_team else 0
        with _places(request.app).hold(sender.name, left_free=left_free):
            body = await read_body(request, limit_bytes)
        return await parse_body(model, body)

    read.__dict__["model"] = model
    return Depends(read)


def describe_bodies(app: FastAPI) -> None:
    """Add the bodies of all routes to the app's OpenAPI description, which does not see dependencies that read them."""
    plain = app.openapi

    def describe() -> dict[str, Any]:
        if app.openapi_schema is None:
            _add_bodies(plain(), app.routes)
        return plain()

    app.openapi = describe  # type: ignore[method-assign]


def _add_bodies(document: dict[str, Any], routes: Iterable[BaseRoute]) -> None:
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for route in routes:
        for model in _body_models(route):
            assert isinstance(route, APIRoute)
            schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas.update(schema.pop("$defs", {}))
            schemas[model.__name__] = schema
            body = {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}
            for method in route.methods:
                operation = document["paths"][route.path_format][method.lower()]
                operation["requestBody"] = {"required": True, "content": {"application/json": body}}
    document["components"]["schemas"] = dict(sorted(schemas.items()))


def _body_models(route: BaseRoute) -> list[type[BaseModel]]:
    if not isinstance(route, APIRoute):
        return []
    calls = (one.call for one in route.dependant.dependencies)
    return [call.__dict__["model"] for call in calls if "model" in getattr(call, "__dict__", {})]


# --- How many bodies may be on their way at the same time

MAX_BODIES = 200
MAX_BODIES_OF_ONE = 100
"""A sender that stops in the middle of many bodies leaves places for the others."""
PLACES_OF_ALL_TABLES = 50
"""Places that no team's senders have, however many tokens it has: for tasks, which renew their leases."""


def _make_places() -> Places:
    def refuse(held: Held) -> LakeError:
        return TooManyBodiesError(f"{held.of_one} bodies of this sender are on their way already")

    return Places(MAX_BODIES, MAX_BODIES_OF_ONE, refuse)


def _places(app: FastAPI) -> Places:
    if not hasattr(app.state, "body_places"):
        app.state.body_places = _make_places()
    places: Places = app.state.body_places
    return places


def keep_sender(request: Request, sender: Sender) -> None:
    """Keep the sender that a request's check has found: headers and cookies have many spellings of one caller."""
    request.state.sender = sender


def _sender_of(request: Request) -> Sender:
    """Return the sender of a request; all that no check has named share the places of one."""
    found: Sender = getattr(request.state, "sender", Sender())
    return found
