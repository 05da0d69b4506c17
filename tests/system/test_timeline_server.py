"""A timeline server of its own next to a real Airflow: push across processes, and kill -9 while sensors wait."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from local_stack.airflow import LocalAirflow
from local_stack.processes import free_port
from tests.support.tables import HandMadeTable
from tests.support.whole_airflow import trigger
from tests.system.conftest import USERS_DAGS, make_airflow
from tests.system.writers import send_notice

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def airflow() -> Iterator[LocalAirflow]:
    airflow = make_airflow("timeline-server")
    airflow.more_dags = USERS_DAGS
    airflow.settings |= {"AIRFLOW__LAKE__TIMELINE_SERVER_URL": f"http://127.0.0.1:{free_port()}"}
    try:
        # Without a DAG processor: the DAGs are in the database.
        airflow.start(("api-server",))
        airflow.pause("lake_watch")  # nothing but timeline server and triggerer may notice a commit here
        airflow.start(("scheduler", "triggerer"))
        airflow.start_timeline_server()
        yield airflow
    finally:
        airflow.stop()


def make_tables(airflow: LocalAirflow, name: str, count: int) -> list[HandMadeTable]:
    return [HandMadeTable.create(airflow.allowed_roots[0] / f"{name}-{number}") for number in range(count)]


def defer(airflow: LocalAirflow, tables: list[HandMadeTable], dag_id: str = "wait_for_commit") -> None:
    """Start a sensor per table, and wait until all of them wait in the triggerer."""
    for table in tables:
        trigger(airflow, table.path.name, dag_id=dag_id, base_path=str(table.path))
    airflow.wait_until(
        lambda: all(state(airflow, table, dag_id) == "deferred" for table in tables), 120, "the sensors' deferral"
    )


def state(airflow: LocalAirflow, table: HandMadeTable, dag_id: str) -> str:
    answer = airflow.airflow_get(f"/api/v2/dags/{dag_id}/dagRuns/{table.path.name}/taskInstances/wait")
    return str((answer or {}).get("state"))


def wait_for_success(
    airflow: LocalAirflow, commits: dict[str, str], tables: list[HandMadeTable], dag_id: str = "wait_for_commit"
) -> None:
    airflow.wait_until(
        lambda: all(state(airflow, table, dag_id) == "success" for table in tables), 90, "the sensors' end"
    )
    for table in tables:
        path = f"/api/v2/dags/{dag_id}/dagRuns/{table.path.name}/taskInstances/wait"
        found = json.dumps(airflow.airflow_get(f"{path}/xcomEntries/return_value"))
        assert commits[table.path.name] in found


def test_commit_announced_to_the_api_server_wakes_a_sensor_by_way_of_the_timeline_server(airflow: LocalAirflow) -> None:
    """The callback goes to one process, the sensor asks another; the registry is between them. No poll would do."""
    tables = make_tables(airflow, "pushed", 2)
    defer(airflow, tables, "wait_for_push")
    commits = {}
    for table in tables:
        commits[table.path.name] = table.commit(1)
        assert send_notice(airflow, table.path, commits[table.path.name]).status_code == 200
    wait_for_success(airflow, commits, tables, "wait_for_push")


@pytest.mark.soak
def test_sensors_go_on_while_the_timeline_server_is_dead_and_after_it_came_back(airflow: LocalAirflow) -> None:
    tables = make_tables(airflow, "killed", 6)
    defer(airflow, tables)
    commits = {table.path.name: table.commit(1) for table in tables[:2]}
    airflow.servers["timeline-server"].kill()
    commits |= {table.path.name: table.commit(1) for table in tables[2:4]}
    wait_for_success(airflow, commits, tables[:4])
    airflow.start_timeline_server()
    airflow.wait_until(
        lambda: (airflow.timeline_health() or {"kept": 0})["kept"] >= 2, 60, "the triggers' return to the server"
    )
    commits |= {table.path.name: table.commit(1) for table in tables[4:]}
    wait_for_success(airflow, commits, tables)


@pytest.mark.soak(covered_by="tests/integration/airflow/test_sensors.py")
def test_sensors_survive_a_killed_triggerer(airflow: LocalAirflow) -> None:
    tables = make_tables(airflow, "triggerer", 3)
    defer(airflow, tables)
    airflow.servers["triggerer"].kill()
    commits = {table.path.name: table.commit(1) for table in tables}
    airflow.start_component("triggerer")
    wait_for_success(airflow, commits, tables)


@pytest.mark.soak(covered_by="tests/system/test_end_to_end.py")
def test_lost_notice_is_repaired_by_the_watch_dag_while_the_timeline_server_is_dead(airflow: LocalAirflow) -> None:
    """The net below the net: no heartbeat refreshes, no callback came."""
    table = make_tables(airflow, "lost", 1)[0]
    assert send_notice(airflow, table.path, table.commit(1)).status_code == 200
    airflow.wait_until(lambda: row_of(airflow, table).get("evaluated_ms") is not None, 30, "the first evaluation")
    airflow.servers["timeline-server"].kill()
    table.commit(2)
    airflow.pause("lake_watch", is_paused=False)
    airflow.wait_until(lambda: row_of(airflow, table).get("last_notice_source") == "hint", 180, "the watch DAG's hint")
    airflow.wait_until(
        lambda: row_of(airflow, table).get("completed_time", "").endswith("02500"), 30, "the evaluation after it"
    )


def row_of(airflow: LocalAirflow, table: HandMadeTable) -> dict[str, Any]:
    """Return the registry's row; nothing while no server answers."""
    return next((row for row in airflow.tables() if row["base_path"] == str(table.path)), {})
