"""Build the manager's HTTP app. It is mounted at `/v1/hoodie` in Airflow's API server, or served on its own."""

from __future__ import annotations

import asyncio
import gc
import logging
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy.exc import SQLAlchemyError

from airflow_lake_provider import __version__
from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.manager.routes import callback, executors, health, service_manager, tables

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from airflow_lake_provider.manager.services import ManagerServices

log = logging.getLogger(__name__)


def create_app(open_services: Callable[[], ManagerServices]) -> FastAPI:
    """Build the app. `open_services` is called on first use, not here: importing a plugin must cost nothing."""
    app = FastAPI(
        title="Lake table services",
        version=__version__,
        description="Commit notices of Hudi writers, and what becomes of them.",
        lifespan=_run_loop,
    )
    app.state.open_services = open_services
    for module in (health, callback, service_manager, tables, executors):
        app.include_router(module.router)
    app.add_exception_handler(LakeError, _answer_lake_error)
    app.add_exception_handler(RequestValidationError, _answer_validation_error)
    app.add_exception_handler(SQLAlchemyError, _answer_database_error)
    app.add_exception_handler(Exception, _answer_unexpected_error)
    return app


@asynccontextmanager
async def _run_loop(app: FastAPI) -> AsyncIterator[None]:
    """Run the manager's loop for as long as the server serves."""
    try:
        services = app.state.open_services()
    except LakeError as error:
        # A wrong [lake] setting must not take Airflow's API server down; every route of ours answers with it.
        log.error("the lake manager is not running: %s", error)
        yield
        return
    if not services.settings.loop_enabled:
        yield
        return
    # The server's start-up leaves a million objects that live for ever; a full collection that walks them all holds
    # every answer back for more than half a second (seen).
    gc.freeze()
    task = asyncio.create_task(services.loop.run(), name="lake-manager-loop")
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _answer_lake_error(_: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, LakeError):
        raise error
    if error.http_status >= 500:
        log.error("%s: %s", type(error).__name__, error)
    return _answer(error.http_status, str(error))


async def _answer_validation_error(_: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, RequestValidationError):
        raise error
    shown = [f"{'.'.join(str(part) for part in detail['loc'])}: {detail['msg']}" for detail in error.errors()[:5]]
    return _answer(422, "; ".join(shown))


async def _answer_database_error(_: Request, error: Exception) -> JSONResponse:
    log.error("the metadata database did not answer: %s", error)
    return _answer(503, "the metadata database did not answer; nothing was recorded, try again")


async def _answer_unexpected_error(_: Request, error: Exception) -> JSONResponse:
    log.error("unexpected error", exc_info=error)
    return _answer(500, "unexpected error; see the API server's log")


def _answer(status: int, detail: str) -> JSONResponse:
    return JSONResponse({"detail": detail}, status_code=status)
