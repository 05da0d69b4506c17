"""Build the pages' HTTP app. It is mounted at `/lake` in Airflow's API server, and shown in its UI's menu."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined

from airflow_lake_provider import __version__
from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.manager.net import find_net_problems
from airflow_lake_provider.manager.services import ManagerServices, services_of
from airflow_lake_provider.manager.table_search import PAGE_SIZE, Search, Show, search_tables
from airflow_lake_provider.pages.table_lines import to_line
from airflow_lake_provider.pages.table_page import load_page

if TYPE_CHECKING:
    from collections.abc import Callable

Services = Annotated[ManagerServices, Depends(services_of)]

MOST_PAGES = 10_000
# What a table is called comes from its writers. It is escaped, and no script but our own would run anyway.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; form-action 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_ASSETS = {"lake.css": "text/css", "lake.js": "text/javascript"}

router = APIRouter()


def create_pages(open_services: Callable[[], ManagerServices], check_access: Callable[..., object]) -> FastAPI:
    """Build the app. `check_access` is a dependency of FastAPI that refuses who may not look; each route has it."""
    app = FastAPI(title="Lake tables", version=__version__, openapi_url=None, dependencies=[Depends(check_access)])
    app.state.open_services = open_services
    app.state.templates = Environment(
        loader=PackageLoader("airflow_lake_provider.pages"), autoescape=True, undefined=StrictUndefined
    )
    app.include_router(router)
    app.add_exception_handler(LakeError, _answer_error)
    return app


@router.get("/")
def show_tables(
    request: Request,
    services: Services,
    text: Annotated[str, Query(alias="q", max_length=500)] = "",
    show: Show = Show.ALL,
    page: Annotated[int, Query(ge=1, le=MOST_PAGES)] = 1,
) -> HTMLResponse:
    """Show the tables that match, by name."""
    search = Search(text, show, page)
    found, now_ms = search_tables(services.registry, search), services.registry.now_ms()
    return _render(
        request,
        "tables.html",
        lines=[to_line(row, now_ms) for row in found.rows],
        found=found,
        search=search,
        shows=list(Show),
        first=(page - 1) * PAGE_SIZE + 1,
        settings_problem=services.tables.problem,
        net_problems=find_net_problems(services.loop.find_net(), now_ms),
    )


@router.get("/table")
def show_table(
    request: Request, services: Services, table_id: Annotated[str, Query(alias="id", max_length=200)]
) -> HTMLResponse:
    """Show one table."""
    return _render(request, "table.html", page=load_page(services, table_id))


@router.get("/assets/{name}")
def get_asset(request: Request, name: str) -> Response:
    """Return the style or the script of the pages."""
    if name not in _ASSETS:
        return Response(status_code=404)
    text = request.app.state.templates.get_template(name).render()
    return Response(text, media_type=_ASSETS[name], headers={"X-Content-Type-Options": "nosniff"})


async def _answer_error(request: Request, error: Exception) -> HTMLResponse:
    if not isinstance(error, LakeError):
        raise error
    return _render(request, "error.html", status_code=error.http_status, message=str(error))


def _render(request: Request, template: str, *, status_code: int = 200, **values: object) -> HTMLResponse:
    text = request.app.state.templates.get_template(template).render(**values)
    return HTMLResponse(text, status_code=status_code, headers=HEADERS)
