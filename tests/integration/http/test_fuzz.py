"""Every route of the manager's app, the timeline server's among them, under generated requests: never a 5xx.

The requests come out of the app's own OpenAPI description, valid ones and broken ones. They carry good tokens, or none
of the code behind the guards would be reached; that each route refuses without is tested elsewhere.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
import schemathesis
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from sqlalchemy import create_engine
from sqlalchemy.orm import sessionmaker

from airflow_lake_provider.config.settings import LakeSettings
from airflow_lake_provider.config.tables_config import TablesConfig
from airflow_lake_provider.config.tables_source import TablesSource
from airflow_lake_provider.manager.api.app import create_app
from airflow_lake_provider.manager.api.services import ManagerServices
from airflow_lake_provider.manager.db.database import DatabaseClock
from airflow_lake_provider.manager.db.leases import Executors
from airflow_lake_provider.manager.db.registry import Registry
from airflow_lake_provider.manager.db.schema import metadata
from airflow_lake_provider.manager.loop.reconciler import ManagerLoop
from airflow_lake_provider.manager.loop.timeline_feed import TimelineServerGateway
from airflow_lake_provider.manager.supervision.monitoring import DeadlineSweep
from airflow_lake_provider.manager.supervision.repair_round import RepairRound
from airflow_lake_provider.planner.table_view import TableViewCache
from airflow_lake_provider.storage.table_storage import open_storage
from airflow_lake_provider.timeline_server.cache import SharedTimelines
from airflow_lake_provider.timeline_server.server import ServerOptions, TimelineServer
from tests.support.tables import HandMadeTable
from tests.unit.manager.conftest import FakeInstanceGateway, FakeRunGateway

pytestmark = pytest.mark.integration

EXAMPLES = int(os.environ.get("LAKE_EXAMPLES", "6"))
SECRET = "fuzzed-secret"
_SENT = frozenset({"method", "url", "params", "headers", "json", "data", "content"})
TOKENS = {"HUDI-CALLBACK-KEY": SECRET, "Authorization": f"Bearer {SECRET}"}


def build_services(folder: Path) -> ManagerServices:
    lake = folder / "lake"
    HandMadeTable.create(lake / "orders").commit(1)
    engine = create_engine(f"sqlite:///{folder}/airflow.db", connect_args={"check_same_thread": False})
    metadata.create_all(engine)
    options = LakeSettings(
        callback_tokens=(SECRET,),
        service_tokens=(SECRET,),
        # The root of everything, so that made-up paths get as far as the storage.
        allowed_roots=("/x", str(lake)),
        max_notice_bytes=100_000,
        loop_enabled=False,
    )
    registry = Registry(sessionmaker(engine), DatabaseClock(sessionmaker(engine)))
    server = TimelineServer(SharedTimelines(), ServerOptions(options.allowed_roots, (SECRET,)))
    gateway, views = TimelineServerGateway(server), TableViewCache(server.timelines)
    loop = ManagerLoop(options, registry, gateway, views, FakeRunGateway(), TablesConfig)
    instances = FakeInstanceGateway()
    return ManagerServices(
        options,
        registry,
        Executors(registry, 60),
        loop,
        server,
        TablesSource(""),
        views,
        instances,
        DeadlineSweep(registry, instances),
        RepairRound(registry, TablesConfig, open_storage),
    )


_SERVICES: list[ManagerServices] = []
APP = create_app(lambda: _SERVICES[0])
SCHEMA = schemathesis.openapi.from_dict(APP.openapi())
OPERATIONS = [found.ok() for found in SCHEMA.get_all_operations()]


@pytest.fixture(scope="session")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    _SERVICES.append(build_services(tmp_path_factory.mktemp("fuzz")))
    with TestClient(APP, raise_server_exceptions=False, follow_redirects=False) as client:
        yield client


@pytest.mark.parametrize("operation", OPERATIONS, ids=[operation.label for operation in OPERATIONS])
@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: str(mode.value))
def test_no_request_makes_a_route_fail(client: TestClient, operation: Any, mode: GenerationMode) -> None:
    @settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=mode))
    def send(case: schemathesis.Case) -> None:
        if isinstance(case.body, dict) and isinstance(case.body.get("wait_s"), (int, float)):
            case.body["wait_s"] = min(case.body["wait_s"], 0)  # a fuzzer has no patience for a long poll
        request = case.as_transport_kwargs(base_url="http://testserver", headers=TOKENS)
        if isinstance(request.get("data"), (bytes, str)):
            request["content"] = request.pop("data")
        try:
            response = client.request(**{key: value for key, value in request.items() if key in _SENT})
        except (httpx2.InvalidURL, UnicodeEncodeError, ValueError):
            return  # no client can send that
        assert response.status_code < 500, f"{case.method} {case.formatted_path}: {response.text}"

    # A route without input has no broken requests.
    with suppress(Unsatisfiable):
        send()


def test_description_names_every_route() -> None:
    paths = set(SCHEMA.raw_schema["paths"])
    assert paths >= {"/callback", "/hints", "/tables", "/timeline/view", "/timeline/changes", "/service/{service}"}
