"""Behind a proxy that adds to `X-Forwarded-For`, a server that trusts all proxies logged what the caller had sent.

Report: https://github.com/xr843/fojin/pull/545
Report: https://github.com/Kludex/uvicorn/issues/1068
Report: https://github.com/apache/airflow/issues/47878
Verdict: right
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import uvicorn

from airflow_lake_provider.manager.api.app import create_app
from airflow_lake_provider.manager.api.services import ManagerServices
from local_stack.processes import free_port
from tests.support.lake_pages import RecordedRuns, create_services


@pytest.fixture
def services(tmp_path: Path) -> ManagerServices:
    return create_services(tmp_path, RecordedRuns())


@pytest.fixture
def url(services: ManagerServices) -> Iterator[str]:
    port = free_port()
    # As `airflow api-server --proxy-headers` under gunicorn.
    server = uvicorn.Server(
        uvicorn.Config(
            create_app(lambda: services),
            host="127.0.0.1",
            port=port,
            lifespan="off",
            log_level="warning",
            proxy_headers=True,
            forwarded_allow_ips="*",
        )
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(10)


def test_text_of_the_header_stands_in_no_sentence_that_people_read(services: ManagerServices, url: str) -> None:
    for said in ("token bank (1000), all is well; ", "<b>" * 2000, "203.0.113.7"):
        refused = httpx.post(f"{url}/callback", headers={"X-Forwarded-For": f"{said}, 10.0.0.9"}, json={})
        assert refused.status_code == 401
    (problem,) = services.refusals.find_problems(names=True)
    assert "sent by an unknown address (2), 203.0.113.7 (1) (" in problem
