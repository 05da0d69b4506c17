"""One slot for all services: a table that is far behind gets it before those that were due sooner."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from local_stack.airflow import LocalAirflow
from tests.support.tables import HandMadeTable
from tests.system import pretend_spark_submit
from tests.system.conftest import make_airflow
from tests.system.writers import send_notice

pytestmark = [pytest.mark.system, pytest.mark.soak(covered_by="tests/integration/airflow/test_service_runs.py")]


@pytest.fixture
def airflow() -> Iterator[LocalAirflow]:
    """An Airflow whose scheduler does not run yet."""
    airflow = make_airflow("priority")
    programs = airflow.home / "pretend"
    pretend_spark_submit.install(programs, airflow.home / "journal.jsonl")
    airflow.settings |= {
        "PATH": f"{programs}{os.pathsep}{airflow.env()['PATH']}",
        "PRETEND_WORK_S": "1",
        "AIRFLOW__LAKE__MAX_ACTIVE_SERVICES": "1",
    }
    try:
        airflow.start(("api-server", "dag-processor"))
        airflow.wait_for_dags()
        yield airflow
    finally:
        airflow.stop()


def test_urgent_run_that_was_created_last_gets_the_only_slot_first(airflow: LocalAirflow) -> None:
    names = ["usual_1", "usual_2", "usual_3", "behind"]
    for number, name in enumerate(names, 1):
        table = HandMadeTable.create(airflow.allowed_roots[0] / name, name=name)
        commits = 6 if name == "behind" else 3
        instant = [table.commit(second) for second in range(1, commits + 1)][-1]
        assert send_notice(airflow, table.path, instant).status_code == 200
        airflow.wait_until(lambda: len(airflow.service_runs()) == number, 60, f"the run of {name}")  # noqa: B023
    airflow.start_component("scheduler")
    journal = airflow.home / "journal.jsonl"
    airflow.wait_until(lambda: len(began(journal)) == len(names), 180, "the begin of all jobs")
    assert began(journal)[0] == "behind"
    assert sorted(began(journal)) == sorted(names)


def began(journal: Path) -> list[str]:
    lines = journal.read_text(encoding="utf-8").splitlines() if journal.exists() else []
    entries = [json.loads(line) for line in lines]
    return [entry["table"] for entry in entries if entry["what"] == "begin"]
