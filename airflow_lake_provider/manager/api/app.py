"""Build the manager's HTTP app. It is mounted at `/v1/hoodie` in Airflow's API server, or served on its own."""

from __future__ import annotations

import asyncio
import gc
import logging
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from fastapi import FastAPI
from fastapi.middleware.gzip import GZipMiddleware

from airflow_lake_provider import __version__
from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.http import BEARER, BodyGuard, add_error_handlers
from airflow_lake_provider.manager.api import callback, health, sinks, tables
from airflow_lake_provider.timeline_server import routes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from airflow_lake_provider.manager.api.services import ManagerServices

log = logging.getLogger(__name__)


def create_app(open_services: Callable[[], ManagerServices]) -> FastAPI:
    """Build the app. `open_services` is called on first use, not here: importing a plugin must cost nothing."""
    app = FastAPI(
        title="Lake table services",
        version=__version__,
        description="Commit notices of Hudi writers, and the table services that follow from them.",
        lifespan=_run,
    )
    app.state.open_services = open_services
    app.state.open_timeline_server = lambda: open_services().timeline_server
    for router in (
        health.router,
        health.reports_router,
        callback.router,
        callback.service_router,
        tables.router,
        tables.discovery_router,
        tables.instances_router,
        tables.leases_router,
        tables.runs_router,
        tables.work_router,
        tables.policy_router,
        sinks.router,
        routes.router,
    ):
        app.include_router(router)
    app.add_middleware(GZipMiddleware, minimum_size=1024, compresslevel=1)
    app.add_middleware(
        BodyGuard,
        check_token=lambda given: open_services().tokens.identify(given, where=BEARER, option="service_tokens"),
        own_paths=("/callback",),
    )
    add_error_handlers(app)
    return app


@asynccontextmanager
async def _run(app: FastAPI) -> AsyncIterator[None]:
    """Run the manager's loop and the timeline server for as long as the server serves."""
    try:
        services = app.state.open_services()
    except LakeError as error:
        # A wrong [lake] setting must not stop Airflow's API server; every route of the manager answers with the error.
        log.error("the lake manager is not running: %s", error)
        yield
        return
    # The server's start-up leaves a million objects that are never freed; a full collection that walks them all delays
    # every answer by more than half a second (measured).
    gc.freeze()
    jobs = [asyncio.create_task(services.timeline_server.run(), name="lake-timeline-server")]
    if services.settings.loop_enabled:
        jobs.append(asyncio.create_task(services.loop.run(), name="lake-manager-loop"))
    try:
        yield
    finally:
        for job in jobs:
            job.cancel()
        for job in jobs:
            with suppress(asyncio.CancelledError):
                await job
