"""What is said of the DAGs that the manager lives by."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from airflow_lake_provider.manager.api.app import create_app
from airflow_lake_provider.manager.api.services import ManagerServices
from airflow_lake_provider.manager.db.registry import Registry
from airflow_lake_provider.manager.db.rows import Notice, Source
from airflow_lake_provider.manager.loop.reconciler import ManagerLoop
from airflow_lake_provider.manager.runs.airflow_runs import DagState, LakeDags
from airflow_lake_provider.manager.runs.dag_problems import AirflowSettings, find_dag_problems, find_settings_problems
from airflow_lake_provider.ui.app import create_pages
from tests.support.paused_dags import ON, paused
from tests.support.tables import HandMadeTable
from tests.unit.manager.conftest import WORKING_DAGS, FakeClock, FakeRunGateway

NOW_MS = 10**12


@pytest.mark.parametrize(
    ("dags", "words"),
    [
        pytest.param(LakeDags(ON, NOW_MS - 60_000), [], id="all-is-well"),
        pytest.param(LakeDags(ON, NOW_MS - 600_000), ["lake_watch swept last 10 min ago, though"], id="stale"),
        pytest.param(LakeDags(ON), ["lake_watch has never swept"], id="never"),
        pytest.param(
            paused("lake_table_service"), ["DAG lake_table_service is paused, so no service runs"], id="paused"
        ),
        pytest.param(paused("lake_watch"), ["DAG lake_watch is paused, so lost notices"], id="watch-paused"),
        pytest.param(
            LakeDags({}, NOW_MS), ["DAG lake_table_service and lake_watch not in Airflow's database"], id="missing"
        ),
        pytest.param(
            LakeDags({**ON, "lake_replication": DagState.PAUSED}, NOW_MS, {"lake_replication": "sinks get nothing"}),
            ["DAG lake_replication is paused, so sinks get nothing: unpause it"],
            id="needed-and-paused",
        ),
        pytest.param(
            LakeDags(ON, NOW_MS, {"lake_warm": "work waits"}),
            ["DAG lake_warm is not in Airflow's database, so work waits"],
            id="needed-and-missing",
        ),
        pytest.param(LakeDags({**ON, "lake_warm": DagState.PAUSED}, NOW_MS), [], id="paused-and-not-needed"),
        pytest.param(
            LakeDags(ON, NOW_MS, settings_problems=find_settings_problems(AirflowSettings(overrides_params=False))),
            ["[core] dag_run_conf_overrides_params = False keeps"],
            id="settings",
        ),
    ],
)
def test_problems_are_said_in_words(dags: LakeDags, words: list[str]) -> None:
    found = find_dag_problems(dags, NOW_MS)
    assert len(found) == len(words)
    assert all(problem.startswith(said) for problem, said in zip(found, words, strict=True))


@pytest.mark.parametrize("state", [DagState.PAUSED, DagState.MISSING])
def test_discovery_is_needed_where_there_are_roots_to_search(state: DagState) -> None:
    states = {**ON, **({"lake_discovery": state} if state is DagState.PAUSED else {})}
    dags = LakeDags(states, NOW_MS)
    (found,) = find_dag_problems(dags, NOW_MS, searches=True)
    assert found.startswith("DAG lake_discovery is ")
    assert "no table below the roots" in found
    assert find_dag_problems(dags, NOW_MS) == ()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, ""),
        ({"schedulers": 0, "triggerers": 0}, ""),
        ({"parallelism": 16}, "[core] parallelism gives 16 slots to 1 scheduler(s)"),
        ({"parallelism": 16, "schedulers": 2}, ""),
        ({"parallelism": 16, "max_active_services": 15}, ""),
        ({"capacity": 10}, "[triggerer] capacity lets 1 triggerer(s) wait for 10 tasks at once"),
        ({"capacity": 10, "triggerers": 2}, ""),
        ({"token_s": 300}, "[execution_api] jwt_expiration_time = 300 is not above"),
        ({"token_s": 3600, "heartbeat_timeout_s": 900}, ""),
        ({"run_id_pattern": "^.+$"}, ""),
        (
            {"run_id_pattern": "^(manual|scheduled)__.+$"},
            "[scheduler] allowed_run_id_pattern = ^(manual|scheduled)__.+$",
        ),
        ({"run_id_pattern": "^[a-z0-9_]+$"}, "[scheduler] allowed_run_id_pattern = "),
        ({"run_id_pattern": ""}, "[scheduler] allowed_run_id_pattern = "),
        ({"run_id_pattern": "("}, "[scheduler] allowed_run_id_pattern = "),
    ],
)
def test_settings_of_airflow_that_stop_services_are_named(settings: dict[str, int | str], said: str) -> None:
    found = find_settings_problems(AirflowSettings(**settings))  # type: ignore[arg-type]
    assert len(found) == bool(said)
    assert all(problem.startswith(said) for problem in found)


def test_while_the_dag_is_paused_no_run_is_made_and_the_decision_says_why(
    lake: Path, registry: Registry, gateway: FakeRunGateway, make_loop: Callable[[], ManagerLoop], clock: FakeClock
) -> None:
    table = HandMadeTable.create(lake / "orders")
    for second in range(1, 5):
        table.commit(second)
    mark = registry.mark_dirty(Notice(str(table.path), "orders", Source.HINT))
    gateway.dags = paused("lake_table_service")
    loop = make_loop()
    loop.drain()
    (due,) = (d for d in json.loads(registry.get(mark.table_id).decisions) if d["verdict"] == "due")
    assert (gateway.runs, due["service"], due["run"]) == ([], "compaction", "waiting")
    assert "DAG lake_table_service is paused, so no service runs: unpause it" in due["run_reason"]
    # Unpaused, the run follows without any notice.
    gateway.dags = WORKING_DAGS
    clock.advance(31)
    loop.drain()
    assert len(gateway.runs) == 1


def test_health_and_the_page_say_what_is_paused(services: ManagerServices, gateway: FakeRunGateway) -> None:
    health = TestClient(create_app(lambda: services))
    page = TestClient(create_pages(lambda: services, lambda: None))
    assert (health.get("/health").json()["problems"], "is paused" in page.get("/api/overview").text) == ([], False)
    gateway.dags = replace(paused("lake_table_service"), swept_ms=services.registry.now_ms() - 700_000)
    said = health.get("/health").json()
    assert (len(said["problems"]), said["last_sweep_s"]) == (2, 700)
    assert "DAG lake_table_service is paused" in page.get("/api/overview").text
    assert "lake_watch swept last 11 min ago" in page.get("/api/overview").text
