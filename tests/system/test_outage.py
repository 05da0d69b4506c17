"""An API server that is away for longer than Airflow's own patience: the job that runs meanwhile is not ended."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from local_stack.airflow import LocalAirflow
from tests.support.tables import HandMadeTable
from tests.system import pretend_spark_submit
from tests.system.conftest import make_airflow
from tests.system.crashes.driver_watch import kill_all, members_of_session
from tests.system.writers import send_notice

pytestmark = pytest.mark.system

AWAY_S = 45.0
"""With Airflow's defaults a task is ended after 37 s; a lease of 60 s ended its job after 23 to 38 s."""
WORK_S = 30.0
"""The job ends while no server can be notified: its task has to wait for the server as well."""


@pytest.fixture
def airflow() -> Iterator[LocalAirflow]:
    airflow = make_airflow("outage")
    programs = airflow.home / "pretend"
    pretend_spark_submit.install(programs, airflow.home / "journal.jsonl")
    airflow.settings |= {
        "PATH": f"{programs}{os.pathsep}{airflow.env()['PATH']}",
        "PRETEND_WORK_S": str(WORK_S),
    }
    try:
        airflow.start(("api-server", "scheduler", "dag-processor"))
        airflow.wait_for_dags()
        yield airflow
    finally:
        airflow.stop()


@pytest.mark.soak(covered_by="tests/system/test_production_shape.py")
def test_job_outlasts_an_api_server_that_is_away_and_its_first_try_succeeds(airflow: LocalAirflow) -> None:
    table = HandMadeTable.create(airflow.allowed_roots[0] / "served-through")
    instant = [table.commit(second) for second in (1, 2, 3)][-1]
    assert send_notice(airflow, table.path, instant).status_code == 200
    journal = airflow.home / "journal.jsonl"
    airflow.wait_until(lambda: reported(journal, "begin") == 1, 60, "the driver at work")
    airflow.servers["api-server"].kill()
    time.sleep(AWAY_S)
    assert reported(journal, "completed") == 1
    airflow.start_component("api-server")
    airflow.wait_for_manager()
    airflow.wait_until(lambda: run_of(airflow).get("state") == "success", 60, "the run's success")
    assert reported(journal, "begin") == 1
    assert [task["try_number"] for task in tasks_of(airflow)] == [1]


@pytest.mark.soak(covered_by="tests/system/test_production_shape.py")
def test_table_goes_on_soon_after_the_machine_of_a_finished_job_was_killed(airflow: LocalAirflow) -> None:
    """Airflow itself misses the task after `task_instance_heartbeat_timeout`, here the 900 s that we recommend."""
    airflow.stop()
    airflow.settings |= {
        "PRETEND_WORK_S": "1",
        "PRETEND_LINGER_S": "600",
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "900",
    }
    airflow.start(("api-server", "scheduler", "dag-processor"))
    airflow.wait_for_manager()
    table = HandMadeTable.create(airflow.allowed_roots[0] / "served-by-a-machine-that-dies")
    timeline = table.path / ".hoodie" / "timeline"
    (timeline / f"{pretend_spark_submit.PLAN}.compaction.requested").write_bytes(b"{}")
    instant = [table.commit(second) for second in (1, 2, 3)][-1]
    assert send_notice(airflow, table.path, instant).status_code == 200
    journal = airflow.home / "journal.jsonl"
    airflow.wait_until(lambda: reported(journal, "completed") == 1, 60, "the plan's completion")
    kill_all(members_of_session(airflow.servers["scheduler"].process.pid))
    airflow.servers["scheduler"].process.wait()
    killed_s = time.monotonic()
    airflow.start_component("scheduler")
    airflow.wait_until(lambda: run_of(airflow).get("state") == "success", 150, "the end of the run")
    print(f"the run ended {time.monotonic() - killed_s:.0f} s after the kill")
    assert "the manager ended the run as successful" in (run_of(airflow).get("note") or "")
    assert reported(journal, "begin") == 1


def reported(journal: Path, what: str) -> int:
    lines = journal.read_text(encoding="utf-8").splitlines() if journal.exists() else []
    return [json.loads(line)["what"] for line in lines].count(what)


def run_of(airflow: LocalAirflow) -> dict[str, Any]:
    runs = airflow.service_runs()
    return dict(runs[0]) if runs else {}


def tasks_of(airflow: LocalAirflow) -> list[dict[str, Any]]:
    run_id = run_of(airflow)["dag_run_id"]
    found = airflow.airflow_get(f"/api/v2/dags/lake_table_service/dagRuns/{run_id}/taskInstances")
    return [] if found is None else [task for task in found["task_instances"] if task["state"] == "success"]
