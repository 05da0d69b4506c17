"""The timeline server as an app of its own, with the same endpoints at the same place as in Airflow's API server."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from fastapi import FastAPI
from fastapi.middleware.gzip import GZipMiddleware

from airflow_lake_provider import __version__
from airflow_lake_provider.app_path import MOUNT_PATH
from airflow_lake_provider.http_app import add_error_handlers
from airflow_lake_provider.view import server_routes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from airflow_lake_provider.view.timeline_server import TimelineServer


def create_timeline_app(open_timeline_server: Callable[[], TimelineServer]) -> FastAPI:
    """Build the app. The server is opened when it starts; a wrong setting ends the process with its message."""
    app = FastAPI(
        title="Lake timeline server",
        version=__version__,
        description="Complete timelines of many Hudi tables from memory (RFC-50).",
        lifespan=_run,
        openapi_url=f"{MOUNT_PATH}/openapi.json",
        docs_url=f"{MOUNT_PATH}/docs",
        redoc_url=None,
    )
    app.state.open_timeline_server = open_timeline_server
    app.include_router(server_routes.router, prefix=MOUNT_PATH)
    app.add_middleware(GZipMiddleware, minimum_size=1024, compresslevel=1)
    add_error_handlers(app)
    return app


@asynccontextmanager
async def _run(app: FastAPI) -> AsyncIterator[None]:
    server: TimelineServer = app.state.open_timeline_server()
    job = asyncio.create_task(server.run(), name="lake-timeline-server")
    try:
        yield
    finally:
        job.cancel()
        with suppress(asyncio.CancelledError):
            await job
