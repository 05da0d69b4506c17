"""Build the pages' HTTP app. It is mounted at `/lake` in Airflow's API server: the app of the UI, and its JSON API."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastapi import Depends, FastAPI, Request

from airflow_lake_provider import __version__
from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.ui import api, table_routes
from airflow_lake_provider.ui.api import PAGES_AT_ONCE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fastapi import Response

    from airflow_lake_provider.manager.api.services import ManagerServices


@dataclass(frozen=True, slots=True)
class Viewer:
    """A user that may read the pages, with what else Airflow allows."""

    name: str = ""
    roles: frozenset[str] = frozenset()
    may_forget: bool = False
    may_run: bool = False
    """Whether Airflow lets the user start a run of `lake_table_service`."""
    may_clear: bool = False
    """Whether Airflow lets the user clear a run of it, so that it runs again."""
    may_index: bool = False
    """Whether Airflow lets the user start a run of `lake_reindex`."""
    may_pause: bool = False
    """Whether Airflow lets the user write the Variable that is laid over the tables file."""

    @property
    def names(self) -> frozenset[str]:
        """What the `viewers` of a tokens file may name: the user, and roles as `role:<name>`."""
        return frozenset({self.name} - {""}) | {f"role:{role}" for role in self.roles}


def keep_no_audit(user: str, event: str, details: Mapping[str, str]) -> None:
    """Record nothing: for pages without Airflow."""


def create_pages(
    open_services: Callable[[], ManagerServices],
    check_access: Callable[..., Viewer | None],
    record_action: Callable[[str, str, Mapping[str, str]], None] = keep_no_audit,
) -> FastAPI:
    """Build the app. `check_access` is a dependency of FastAPI that refuses users without access; each route has it.

    `record_action` keeps user, event and details of what the app itself changes; Airflow's routes keep their own.
    """

    # An annotation could not name the argument of this function.
    found: Any = Depends(check_access)

    def keep_viewer(request: Request, viewer: Viewer | None = found) -> None:
        request.state.viewer = viewer or Viewer()

    app = FastAPI(title="Lake", version=__version__, openapi_url=None, dependencies=[Depends(keep_viewer)])
    app.state.open_services = open_services
    app.state.record_action = record_action
    app.state.slots = threading.BoundedSemaphore(PAGES_AT_ONCE)
    for router in (api.router, table_routes.router, api.bundle_router):
        app.include_router(router)
    app.add_exception_handler(LakeError, _answer_error)
    return app


async def _answer_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, LakeError)
    return api.answer_error(error)
