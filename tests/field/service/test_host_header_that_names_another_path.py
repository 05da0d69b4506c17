"""A path in the `Host` header chose which checks a web service made, and its routes answered without a login.

Report: https://github.com/stac-utils/stac-fastapi-pgstac/issues/385
Report: https://github.com/blakeblackshear/frigate/issues/24217
Verdict: right
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn
from fastapi import FastAPI, HTTPException

from airflow_lake_provider.manager.api.app import create_app
from airflow_lake_provider.ui.app import create_pages
from local_stack.processes import free_port
from tests.support.lake_pages import RecordedRuns, create_services

OPEN = ("v1/hoodie/health", "lake/app/lake.js", "v1/hoodie/openapi.json")
GUARDED = ("/v1/hoodie/tables", "/v1/hoodie/metrics", "/v1/hoodie/reports/overview", "/lake/api/tables", "/lake/api/me")


def refuse() -> None:
    raise HTTPException(401, "no session")


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    folder: Path = tmp_path_factory.mktemp("lake")
    services = create_services(folder, RecordedRuns())
    airflow = FastAPI()
    airflow.mount("/v1/hoodie", create_app(lambda: services))
    airflow.mount("/lake", create_pages(lambda: services, refuse))
    number = free_port()
    settings = uvicorn.Config(airflow, host="127.0.0.1", port=number, lifespan="off", log_level="warning")
    server = uvicorn.Server(settings)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    try:
        yield number
    finally:
        server.should_exit = True
        thread.join(10)


def ask(port: int, method: str, path: str, host: str) -> int:
    """Return the status of a request with this line as its host; 0: the connection was closed."""
    with socket.create_connection(("127.0.0.1", port), 10) as connection:
        head = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        connection.sendall(head.encode("latin-1"))
        first = connection.makefile("rb").readline().split()
    return int(first[1]) if len(first) > 1 else 0


@pytest.mark.parametrize("form", ["lake/{0}?x=", "lake/{0}#", "x@lake/{0}?", "lake:80/{0}?"])
@pytest.mark.parametrize("named", OPEN)
def test_host_changes_neither_route_nor_check(port: int, form: str, named: str) -> None:
    host = form.format(named)
    for path in GUARDED:
        assert ask(port, "GET", path, host) in {400, 401}, path
    assert ask(port, "DELETE", "/v1/hoodie/tables/x", host) in {400, 401}
    assert ask(port, "POST", "/v1/hoodie/sweep", host) in {400, 401}
