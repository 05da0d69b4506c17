"""Notices pass none of Airflow's middlewares, everything else passes all, and another plugin's are never left out."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient
from starlette.types import ASGIApp, Receive, Scope, Send

from airflow_lake_provider.plugins.notices_first import NoticesFirst, find_foreign

NOTICES = [("POST", "/v1/hoodie/callback"), ("GET", "/v1/hoodie/service/compact")]
OTHERS = [
    ("GET", "/v1/hoodie/health"),
    ("POST", "/v1/hoodie/callback/more"),
    ("POST", "/v1/hoodie/callback2"),
    ("POST", "/v1/hoodie/tables"),
    ("GET", "/api/v2/dags"),
    ("POST", "/callback"),
]
passed: list[str] = []


class OfAirflow:
    """A middleware of Airflow's."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            passed.append(scope["path"])
        await self._app(scope, receive, send)


OfAirflow.__module__ = "airflow.api_fastapi.common.http_access_log"


class OfAnotherPlugin(OfAirflow):
    """One that a site wants every request to pass."""


OfAnotherPlugin.__module__ = "site_plugins.addresses"


async def answer(request: Any) -> PlainTextResponse:
    """Return where the app believes to be mounted, and the path below."""
    return PlainTextResponse(f"{request.scope['root_path']} {request.scope['path']}")


def make_server(*others: Any, root_path: str = "") -> FastAPI:
    # In Airflow's order: a plugin's middlewares first, which makes them the innermost.
    manager = Starlette(routes=[Route("/{path:path}", answer, methods=["GET", "POST"])])
    root = FastAPI(root_path=root_path)
    root.mount("/v1/hoodie", manager)
    root.mount("/", Starlette(routes=[Route("/{path:path}", answer, methods=["GET", "POST"])]))
    for middleware in (NoticesFirst, *others, OfAirflow):
        root.add_middleware(middleware)
    root.add_middleware(GZipMiddleware)
    return root


@pytest.fixture(autouse=True)
def _passed_none() -> Iterator[None]:
    passed.clear()
    yield
    passed.clear()


@pytest.mark.parametrize(("method", "path"), NOTICES)
@pytest.mark.parametrize("prefix", ["", "/airflow"])
def test_notice_passes_no_middleware_of_airflows(method: str, path: str, prefix: str) -> None:
    with TestClient(make_server(root_path=prefix)) as client:
        answered = client.request(method, prefix + path)
    assert answered.text == f"{prefix}/v1/hoodie {prefix}{path}"
    assert passed == []


@pytest.mark.parametrize(("method", "path"), OTHERS)
def test_other_request_passes_all(method: str, path: str) -> None:
    with TestClient(make_server()) as client:
        client.request(method, path)
    assert passed == [path]


def test_notice_passes_everything_where_another_plugin_has_a_middleware() -> None:
    with TestClient(make_server(OfAnotherPlugin)) as client:
        assert client.post("/v1/hoodie/callback").status_code == 200
    assert passed == ["/v1/hoodie/callback"] * 2


def test_notice_is_answered_at_the_same_place_without_a_start() -> None:
    answered = TestClient(make_server()).post("/v1/hoodie/callback")
    assert answered.text == "/v1/hoodie /v1/hoodie/callback"
    assert passed == ["/v1/hoodie/callback"]


def test_every_kind_of_middleware_has_an_origin() -> None:
    root = FastAPI()
    root.add_middleware(partial(OfAirflow))
    assert find_foreign(root.user_middleware).startswith("functools.")
