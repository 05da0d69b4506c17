"""The HTTP app through its whole stack: routing, auth, parsing, errors (no route function is called directly)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from airflow_lake_provider.config.settings import LakeSettings
from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.hudi.base_path import table_id_of
from airflow_lake_provider.manager.api.app import create_app
from airflow_lake_provider.manager.api.services import ManagerServices
from airflow_lake_provider.manager.db.registry import Registry
from tests.support.tables import HandMadeTable
from tests.unit.manager.conftest import CALLBACK_TOKEN, SERVICE_TOKEN, FakeRunGateway, serve

KEY = {"HUDI-CALLBACK-KEY": CALLBACK_TOKEN}
BEARER = {"Authorization": f"Bearer {SERVICE_TOKEN}"}


@pytest.fixture
def client(services: ManagerServices) -> httpx.Client:
    # Without the context manager the lifespan, and with it the loop, does not run: each test drains when it wants.
    return TestClient(serve(lambda: services), raise_server_exceptions=False)


def body(base_path: str, **changes: Any) -> dict[str, Any]:
    """Return the body as Hudi 1.2 sends it (recorded), but for the statistics' many other fields."""
    return {
        "commitTime": "20261121024807033",
        "tableName": "orders",
        "basePath": base_path,
        "hoodieWriteStat": [{"fileId": "a", "path": "p/a.parquet", "totalWriteBytes": 435000, "runtimeStats": {}}],
        "commitActionType": {"empty": False, "present": True},
        "extraMetadata": {"empty": False, "present": True},
    } | changes


def test_callback_of_a_writer_marks_its_table_before_it_answers(
    client: httpx.Client, registry: Registry, lake: Path
) -> None:
    headers = KEY | {"X-Lake-Database": "sales", "X-Lake-Owner": "shop"}
    response = client.post("/callback", json=body(f"file:{lake}/orders/"), headers=headers)
    assert response.status_code == 200
    row = registry.get(response.json()["table_id"])
    assert row.dirty_since_ms is not None
    assert (row.base_path, row.table_name) == (f"{lake}/orders", "orders")
    assert (row.database_name, row.owner, row.last_notice_instant) == ("sales", "shop", "20261121024807033")


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        pytest.param({}, "no token in header HUDI-CALLBACK-KEY", id="none"),
        pytest.param({"HUDI-CALLBACK-KEY": "wrong"}, "not one of [lake] callback_tokens", id="wrong"),
        pytest.param({"HUDI-CALLBACK-KEY": "hudi_write_commit_http_callback"}, "not one of", id="hudis-default"),
        pytest.param(BEARER, "no token in header HUDI-CALLBACK-KEY", id="service-token-elsewhere"),
    ],
)
def test_callback_without_the_token_is_401(
    client: httpx.Client, lake: Path, headers: dict[str, str], words: str
) -> None:
    response = client.post("/callback", json=body(f"{lake}/orders"), headers=headers)
    assert response.status_code == 401
    assert words in response.json()["detail"]


@pytest.mark.parametrize(
    "path",
    [
        pytest.param("/etc", id="elsewhere"),
        pytest.param("{lake}-evil/orders", id="same-prefix"),
        pytest.param("{lake}/../orders", id="dot-dot"),
        pytest.param("{lake}/./orders", id="dot"),
        pytest.param("s3://bucket{lake}/orders", id="other-store"),
    ],
)
def test_callback_for_a_path_outside_the_roots_is_403_and_registers_nothing(
    client: httpx.Client, registry: Registry, lake: Path, path: str
) -> None:
    response = client.post("/callback", json=body(path.format(lake=lake)), headers=KEY)
    assert response.status_code == 403
    assert registry.list_tables() == []


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param(b"", "body:", id="empty"),
        pytest.param(b"{", "body:", id="half-json"),
        pytest.param(b"\xff\xfe", "body:", id="not-utf8"),
        pytest.param(b"[]", "body:", id="list"),
        pytest.param(b"{}", "commitTime: Field required", id="no-fields"),
        pytest.param(json.dumps(body("x", commitTime="../../etc")).encode(), "commitTime:", id="instant"),
        pytest.param(json.dumps(body("x", tableName="")).encode(), "tableName:", id="no-name"),
        pytest.param(
            json.dumps(body("x", tableName="a\nb")).encode(), "control or invisible characters", id="control-characters"
        ),
        pytest.param(json.dumps(body("relative/path")).encode(), "not absolute", id="relative"),
        pytest.param(json.dumps(body("/a\x00b")).encode(), "NUL character", id="nul"),
        pytest.param(b"[" * 100_000, "body:", id="deep"),
    ],
)
def test_callback_with_a_malformed_body_is_422_with_what_is_wrong(
    client: httpx.Client, content: bytes, words: str
) -> None:
    response = client.post("/callback", content=content, headers=KEY)
    assert response.status_code == 422
    assert words in response.json()["detail"]
    assert "Traceback" not in response.text


def test_callback_with_a_large_body_is_accepted_up_to_the_limit(
    client: httpx.Client, settings: LakeSettings, lake: Path
) -> None:
    stats = [{"fileId": "f" * 500, "totalWriteBytes": 1}] * 1500
    assert client.post("/callback", json=body(f"{lake}/orders", hoodieWriteStat=stats), headers=KEY).status_code == 200
    response = client.post("/callback", content=b" " * (settings.max_notice_bytes + 1), headers=KEY)
    assert response.status_code == 413
    assert "max_notice_bytes" in response.json()["detail"]


def test_callback_with_a_body_of_unknown_length_is_cut_off_at_the_limit(client: httpx.Client) -> None:
    sent = 0

    def chunks() -> Iterator[bytes]:
        nonlocal sent
        for _ in range(1000):
            sent += 1
            yield b" " * 100_000

    response = client.post("/callback", content=chunks(), headers=KEY)
    assert response.status_code == 413


@pytest.mark.parametrize(
    "name", ["with space", "日本語", "; rm -rf $(HOME)", "$(touch x)", "a'b\"c", "{{ params }}", "%2e%2e", "[1]*?"]
)
def test_callback_for_a_hostile_name_keeps_it_apart_and_out_of_ids(
    client: httpx.Client, services: ManagerServices, registry: Registry, gateway: FakeRunGateway, lake: Path, name: str
) -> None:
    table = HandMadeTable.create(lake / name)
    for second in (1, 2, 3):
        table.commit(second)
    response = client.post("/callback", json=body(str(table.path), tableName=name), headers=KEY)
    assert response.status_code == 200
    services.loop.drain()
    assert [row.base_path for row in registry.list_tables()] == [str(table.path)]
    assert gateway.confs[0]["base_path"] == str(table.path)
    assert all(character.isalnum() or character in "-_." for character in gateway.runs[0].run_id)


@pytest.mark.parametrize("service", ["compact", "cluster", "clean"])
def test_service_manager_request_as_recorded_marks_the_table(
    client: httpx.Client, registry: Registry, lake: Path, service: str
) -> None:
    table = HandMadeTable.create(lake / "orders")
    query = (
        f"execution_engine=spark&extra_params=token%3D{CALLBACK_TOKEN}&db_name&resource=spark%3A4g%2C4g&parallelism=100"
        f"&action=REQUEST&table_name=t&queue=default&instant=20261121024807033,20261121024907033&username=default&basepath={table.path}"
    )
    response = client.get(f"/service/{service}?{query}")
    assert response.status_code == 202
    row = registry.get(table_id_of(str(table.path)))
    assert row.dirty_since_ms is not None
    assert row.last_notice_instant == "20261121024907033"


@pytest.mark.parametrize(
    ("query", "status", "words"),
    [
        pytest.param("basepath={lake}/orders&table_name=t&instant=", 202, "", id="no-instant"),
        pytest.param("basepath={lake}/orders&table_name=t&instant=;ls", 422, "not an instant time", id="bad-instant"),
        pytest.param("basepath={lake}/orders&table_name=t&action=CANCEL", 422, "allowed: REQUEST", id="action"),
        pytest.param("table_name=t", 422, "'basepath' is missing", id="no-path"),
        pytest.param("basepath={lake}/orders", 422, "'table_name' is missing", id="no-name"),
        pytest.param("basepath=/etc&table_name=t", 403, "allowed_roots", id="outside"),
    ],
)
@pytest.mark.parametrize("needs_token", [True, False])
def test_service_manager_request_with_the_token_is_checked(
    services: ManagerServices, lake: Path, query: str, status: int, words: str, needs_token: bool
) -> None:
    HandMadeTable.create(lake / "orders")
    settings = services.settings.replace(service_manager_needs_token=needs_token)
    client = TestClient(create_app(lambda: replace(services, settings=settings)), raise_server_exceptions=False)
    asked = f"/service/compact?{query.format(lake=lake)}&extra_params=a=1;token={CALLBACK_TOKEN}"
    response = client.get(asked)
    assert response.status_code == status
    assert words in response.text
    assert client.get(asked.replace(CALLBACK_TOKEN, "wrong")).status_code == 401


def test_service_manager_request_for_an_unknown_service_is_422(client: httpx.Client) -> None:
    asked = f"basepath=/x&table_name=t&extra_params=token={CALLBACK_TOKEN}"
    assert client.get(f"/service/explode?{asked}").status_code == 422


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/tables"), ("GET", "/tables/silent"), ("GET", "/tables/x"), ("POST", "/hints"), ("POST", "/sweep")]
    + [("POST", f"/tables/x/executors/compaction{end}") for end in ("", "/renew", "/release")],
)
@pytest.mark.parametrize("headers", [{}, KEY, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic x"}])
def test_task_routes_without_the_service_token_are_401(
    client: httpx.Client, method: str, path: str, headers: dict[str, str]
) -> None:
    response = client.request(method, path, headers=headers, json={"run_id": "r", "try_number": 1, "token": "t"})
    assert response.status_code == 401


def test_hints_mark_tables_and_sweep_has_them_evaluated(
    client: httpx.Client, services: ManagerServices, gateway: FakeRunGateway, lake: Path
) -> None:
    table = HandMadeTable.create(lake / "orders")
    for second in (1, 2, 3):
        table.commit(second)
    hint = {"base_path": str(table.path), "table_name": "orders", "instants": []}
    assert client.post("/hints", json={"hints": [hint]}, headers=BEARER).json() == {"marked": 1, "postponed": 0}
    assert client.post("/sweep", headers=BEARER).json() == {
        "waiting": 1,
        "ended": 0,
        "overdue": 0,
        "repaired": 0,
    }
    assert services.loop.wait_until_idle(10)
    shown = client.get("/tables", headers=BEARER).json()["tables"][0]
    assert shown["decisions"][0]["run_id"] == gateway.runs[0].run_id
    assert client.get(f"/tables/{shown['table_id']}", headers=BEARER).json() == shown
    outside = {"hints": [{"base_path": "/etc", "table_name": "x"}]}
    assert client.post("/hints", json=outside, headers=BEARER).status_code == 403


def test_executor_lease_is_held_by_one(client: httpx.Client) -> None:
    path = "/tables/t-1/executors/compaction"
    first = client.post(path, json={"run_id": "r1", "try_number": 1}, headers=BEARER)
    assert first.json()["lease_s"] == 900
    second = client.post(path, json={"run_id": "r2", "try_number": 1}, headers=BEARER)
    assert second.status_code == 409
    assert "run r1 executes" in second.json()["detail"]
    token = {"token": first.json()["token"]}
    assert client.post(f"{path}/renew", json=token, headers=BEARER).status_code == 200
    assert client.post(f"{path}/release", json=token, headers=BEARER).status_code == 204
    assert client.post(f"{path}/renew", json=token, headers=BEARER).status_code == 409
    assert client.post(path, json={"run_id": "r2", "try_number": 1}, headers=BEARER).status_code == 200


def test_lease_of_a_holder_that_has_ended_passes_on_and_no_other(client: httpx.Client) -> None:
    path = "/tables/t-1/executors/compaction"
    first = client.post(path, json={"run_id": "r1", "try_number": 1}, headers=BEARER).json()
    busy = client.post(path, json={"run_id": "r1", "try_number": 2}, headers=BEARER)
    holder = busy.json()["holder"]
    assert (holder["run_id"], holder["try_number"]) == ("r1", 1)
    assert 0 < holder["rest_s"] <= 900
    for ended in ({"run_id": "r1", "try_number": 0}, {"run_id": "r2", "try_number": 1}):
        body = {"run_id": "r1", "try_number": 2, "ended": ended}
        assert client.post(path, json=body, headers=BEARER).status_code == 409
    body = {"run_id": "r1", "try_number": 2, "ended": {"run_id": "r1", "try_number": 1}}
    second = client.post(path, json=body, headers=BEARER)
    assert second.status_code == 200
    # A third one that saw the same holder end comes too late, and the old token holds nothing any more.
    body["try_number"] = 3
    assert client.post(path, json=body, headers=BEARER).json()["holder"]["try_number"] == 2
    assert client.post(f"{path}/renew", json={"token": first["token"]}, headers=BEARER).status_code == 409
    assert client.post(f"{path}/renew", json={"token": second.json()["token"]}, headers=BEARER).status_code == 200


def test_health_is_open_and_unknown_paths_are_json_404(client: httpx.Client) -> None:
    assert client.get("/health").json()["status"] == "ok"
    missing = client.get("/nothing")
    assert missing.status_code == 404
    assert missing.headers["content-type"] == "application/json"


def test_database_failure_is_503_without_a_trace(client: httpx.Client, engine: Any, lake: Path) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE lake_table")
    response = client.post("/callback", json=body(f"{lake}/orders"), headers=KEY)
    assert response.status_code == 503
    assert "nothing was recorded" in response.json()["detail"]
    assert "lake_table" not in response.text


def test_wrong_settings_do_not_take_the_server_down() -> None:
    def refuse() -> ManagerServices:
        raise ConfigError("[lake] callback_tokens holds Hudi's public default key")

    with TestClient(create_app(refuse), raise_server_exceptions=False) as client:
        response = client.post("/callback", json={}, headers=KEY)
    assert response.status_code == 500
    assert "public default key" in response.json()["detail"]


def test_loop_runs_with_the_server_and_is_woken_by_a_notice(
    services: ManagerServices, gateway: FakeRunGateway, lake: Path
) -> None:
    table = HandMadeTable.create(lake / "orders")
    for second in (1, 2, 3):
        table.commit(second)
    with TestClient(create_app(lambda: services)) as client:
        client.post("/callback", json=body(str(table.path)), headers=KEY)
        for _ in range(200):
            if gateway.runs:
                break
            client.get("/health")
    assert len(gateway.runs) == 1


def test_openapi_describes_every_route(client: httpx.Client) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    assert {"/callback", "/service/{service}", "/hints", "/sweep", "/tables", "/health"} <= set(paths)
    assert "commitTime" in json.dumps(paths["/callback"]["post"]["requestBody"])


def test_each_reference_of_the_openapi_document_leads_somewhere() -> None:
    document = create_app(lambda: None).openapi()  # type: ignore[arg-type, return-value]
    for reference in re.findall(r'"\$ref": "#/([^"]+)"', json.dumps(document)):
        found = document
        for part in reference.split("/"):
            found = found[part]


def test_refused_notices_are_counted_logged_once_a_minute_and_named_by_health(
    client: httpx.Client, services: ManagerServices, lake: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = {"HUDI-CALLBACK-KEY": "x"}
    for _ in range(5):
        assert client.post("/callback", json=body(f"{lake}/orders"), headers=wrong).status_code == 401
    assert client.post("/callback", json=body("/elsewhere/orders"), headers=KEY).status_code == 403
    assert client.post("/callback", content=b"no json", headers=KEY).status_code == 422
    assert client.get("/service/compact?basepath=/elsewhere&table_name=t").status_code == 401
    assert client.post("/callback", json=body(f"{lake}/orders"), headers=KEY).status_code == 200
    problems = [problem for problem in client.get("/health").json()["problems"] if "refused" in problem]
    assert [problem.split(" in the last")[0] for problem in problems] == [
        "6 notices were refused with 401", "1 notices were refused with 403", "1 notices were refused with 422"
    ]  # fmt: skip
    # Health needs no token.
    assert not any(secret in str(problems) for secret in ("elsewhere", "testclient", "token callback"))
    reported = client.get("/reports/problems", headers=BEARER).json()["problems"]
    assert [problem.partition("sent by ")[2].split(" (")[0] for problem in reported if "refused" in problem] == [
        "an unknown address", "token callback_tokens.2", "token callback_tokens.2"
    ]  # fmt: skip
    assert "sent by an unknown address (6)" in str(reported)
    assert client.get("/reports/problems").status_code == 401
    logged = [record.getMessage() for record in caplog.records if "refused a notice" in record.getMessage()]
    assert [message.split(":")[0] for message in logged] == [
        f"the manager refused a notice of {sender} with {status}"
        for sender, status in (
            ("an unknown address", 401),
            ("token callback_tokens.2", 403),
            ("token callback_tokens.2", 422),
        )
    ]
    assert "/elsewhere/orders" in logged[1]


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("fe80::1%eth0", "fe80::1"),
        ("token bank (1000), all others", "an unknown address"),
        ("fe80::1%token bank", "fe80::1"),
        ("A" * 6000, "an unknown address"),
    ],
)
def test_sender_of_a_refused_notice_is_an_address_whatever_a_proxy_says(
    services: ManagerServices, said: str, shown: str
) -> None:
    # A server that believes every proxy takes the text of X-Forwarded-For for the address.
    anyone = TestClient(serve(lambda: services), client=(said, 4000))
    assert anyone.post("/callback", json={}).status_code == 401
    (problem,) = services.refusals.find_problems(names=True)
    assert f"sent by {shown} (1) (" in problem
