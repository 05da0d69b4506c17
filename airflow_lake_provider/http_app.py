"""What both HTTP apps share: how errors are answered, and the token of Airflow's own tasks."""

from __future__ import annotations

import hmac
import logging
from typing import TYPE_CHECKING

from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy.exc import SQLAlchemyError

from airflow_lake_provider.errors import LakeError, UnauthorisedError

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
