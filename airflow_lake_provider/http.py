"""What both HTTP apps share: the answers to errors, and where requests carry tokens."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, TypeVar

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ValidationError
from sqlalchemy.exc import SQLAlchemyError
from starlette.datastructures import Headers

from airflow_lake_provider.errors import BodyTooLargeError, BodyTooSlowError, LakeError, MalformedRequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from fastapi import FastAPI
    from starlette.types import ASGIApp, Receive, Scope, Send

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


# --- Bodies, which FastAPI reads as a whole before it asks a route for the token

MOST_BODY_BYTES = 16 * 1024 * 1024
"""Ten thousand hints, or tables of a long poll, are a few."""


_WITHOUT_BODY = frozenset({"GET", "HEAD", "OPTIONS"})


class BodyGuard:
    """Middleware that leaves the body of a request without a known token unread, and refuses one that is too large.

    Without it, a caller without any token could fill the memory of Airflow's API server. `check_token` raises LakeError
    for an unknown bearer token; `own_paths` are routes that check another one themselves before they read.
    """

    def __init__(
        self, app: ASGIApp, check_token: Callable[[str | None], object], own_paths: Collection[str] = ()
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
                    self._require_allowed(Headers(scope=scope))
            except LakeError as error:
                answer = await _answer_lake_error(Request(scope), error)
                await answer(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _require_allowed(self, headers: Headers) -> None:
        self._check_token(token_of_bearer(headers.get("authorization")))
        size = headers.get("content-length", "0")
        if "transfer-encoding" in headers or not _is_number(size) or int(size) > MOST_BODY_BYTES:
            raise BodyTooLargeError(f"the body must announce its length, and have at most {MOST_BODY_BYTES} bytes")


def _is_number(text: str) -> bool:
    # Other scripts have digits that int() refuses, and so it does more of them than any limit has.
    return text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS


_MOST_DIGITS = 18


# --- Read and parse a request's body within a limit

PARSE_IN_THREAD_BYTES = 256 * 1024
_MOST_ERRORS = 5

_Model = TypeVar("_Model", bound=BaseModel)


BODY_TIMEOUT_S = 30.0
"""For a body to arrive: a sender that stops in between would hold its place indefinitely."""


def announced_bytes(request: Request, limit_bytes: int) -> int:
    """Return the body's announced length, the limit when there is none; raise BodyTooLargeError."""
    announced = request.headers.get("content-length", "")
    if not (announced.isascii() and announced.isdigit()):
        return limit_bytes
    if not _is_number(announced) or int(announced) > limit_bytes:
        raise _too_large(limit_bytes)
    return int(announced)


async def read_body(request: Request, limit_bytes: int, timeout_s: float = BODY_TIMEOUT_S) -> bytes:
    """Return the body, or raise BodyTooLargeError, and BodyTooSlowError after `timeout_s`."""
    announced_bytes(request, limit_bytes)
    try:
        async with asyncio.timeout(timeout_s):
            return await _read_body(request, limit_bytes)
    except TimeoutError as error:
        raise BodyTooSlowError(f"the body did not arrive within {timeout_s:.0f} s") from error


async def _read_body(request: Request, limit_bytes: int) -> bytes:
    chunks: list[bytes] = []
    size_bytes = 0
    async for chunk in request.stream():
        size_bytes += len(chunk)
        if size_bytes > limit_bytes:
            raise _too_large(limit_bytes)
        chunks.append(chunk)
    return b"".join(chunks)


async def parse_body(model: type[_Model], body: bytes) -> _Model:
    """Validate JSON against a wire type; raise MalformedRequestError that names what is wrong and where."""
    try:
        if len(body) > PARSE_IN_THREAD_BYTES:  # 10 MB take a tenth of a second: not in the event loop
            return await asyncio.to_thread(model.model_validate_json, body)
        return model.model_validate_json(body)
    except ValidationError as error:
        raise MalformedRequestError(_describe(error)) from error


def _too_large(limit_bytes: int) -> BodyTooLargeError:
    return BodyTooLargeError(f"the body is larger than {limit_bytes} bytes ([lake] max_notice_bytes)")


def _describe(error: ValidationError) -> str:
    details = error.errors(include_url=False, include_context=False, include_input=False)
    shown = [
        f"{'.'.join(str(part) for part in detail['loc']) or 'body'}: {detail['msg']}"
        for detail in details[:_MOST_ERRORS]
    ]
    more = f" (and {len(details) - _MOST_ERRORS} more)" if len(details) > _MOST_ERRORS else ""
    return "; ".join(shown) + more
