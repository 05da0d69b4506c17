"""What both HTTP apps share: how errors are answered, and the token of Airflow's own tasks."""

from __future__ import annotations

import asyncio
import hmac
import logging
from typing import TYPE_CHECKING, TypeVar

from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ValidationError
from sqlalchemy.exc import SQLAlchemyError

from airflow_lake_provider.errors import BodyTooLargeError, LakeError, MalformedRequestError, UnauthorisedError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fastapi import FastAPI, Request

log = logging.getLogger(__name__)


def add_error_handlers(app: FastAPI) -> None:
    """Answer errors as `{"detail": sentence, "error": class}`; a LakeError says with which status, and its facts."""
    app.add_exception_handler(LakeError, _answer_lake_error)
    app.add_exception_handler(RequestValidationError, _answer_validation_error)
    app.add_exception_handler(SQLAlchemyError, _answer_database_error)
    app.add_exception_handler(Exception, _answer_unexpected_error)


def require_token(given: str | None, accepted: Iterable[str], *, where: str, option: str) -> None:
    """Raise UnauthorisedError unless `given` is one of the accepted tokens; compares in constant time."""
    tokens = tuple(accepted)
    if not tokens:
        raise UnauthorisedError(f"no token is configured on the server: set [lake] {option}")
    if not given:
        raise UnauthorisedError(f"no token in {where}")
    matches = [hmac.compare_digest(given.encode(), token.encode()) for token in tokens]
    if not any(matches):
        raise UnauthorisedError(f"the token in {where} is not one of [lake] {option}")


def require_bearer(header: str | None, accepted: Iterable[str]) -> None:
    """Raise UnauthorisedError unless an `Authorization: Bearer` header carries one of the service tokens."""
    scheme, _, token = (header or "").partition(" ")
    given = token.strip() if scheme.lower() == "bearer" else None
    require_token(given, accepted, where="header Authorization", option="service_tokens")


async def _answer_lake_error(_: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, LakeError):
        raise error
    if error.http_status >= 500:
        log.error("%s: %s", type(error).__name__, error)
    content = {"detail": str(error), "error": type(error).__name__} | error.facts
    return JSONResponse(content, status_code=error.http_status)


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


# --- Where the apps are mounted; apart, so that clients need not import the server

MOUNT_PATH = "/v1/hoodie"
PAGES_PATH = "/lake"


# --- Tokens of machines. A mounted app gets no authentication from Airflow, so every router here requires one

CALLBACK_KEY_HEADER = "HUDI-CALLBACK-KEY"


def token_of_extra_params(extra_params: str) -> str | None:
    """Return `token` of RFC-43's `extra_params` (`k=v;k=v`), or None."""
    for part in extra_params.split(";"):
        key, _, value = part.partition("=")
        if key.strip() == "token":
            return value.strip()
    return None


# --- Read and parse a request's body within a limit

PARSE_IN_THREAD_BYTES = 256 * 1024
_MOST_ERRORS = 5

_Model = TypeVar("_Model", bound=BaseModel)


async def read_body(request: Request, limit_bytes: int) -> bytes:
    """Return the body, or raise BodyTooLargeError: before the first byte when the length is announced."""
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > limit_bytes:
        raise _too_large(limit_bytes)
    chunks: list[bytes] = []
    size_bytes = 0
    async for chunk in request.stream():
        size_bytes += len(chunk)
        if size_bytes > limit_bytes:
            raise _too_large(limit_bytes)
        chunks.append(chunk)
    return b"".join(chunks)


async def parse_body(model: type[_Model], body: bytes) -> _Model:
    """Validate JSON against a wire type; raise MalformedRequestError that says what is wrong and where."""
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
