"""The DAG `lake_upgrade` on a whole Airflow: one table refused, one killed, all keep their rows, one goes back."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import httpx
import pytest

from airflow_lake_provider.job_contract import UPGRADE_MARK
from tests.support.whole_airflow import find_spark_submit, rows_of_files, run_to_success, state_of, trigger
from tests.system.conftest import LOCK_OPTIONS, Stand

pytestmark = [
    pytest.mark.system,
    pytest.mark.soak(covered_by="tests/integration/spark/test_upgrade_on_hudi.py"),
]

DAG = "lake_upgrade"


def version_of(table: Path) -> str:
    lines = (table / ".hoodie" / "hoodie.properties").read_text(encoding="utf-8").splitlines()
    return next(line.partition("=")[2] for line in lines if line.startswith("hoodie.table.version="))


def test_fleet_gets_another_version_and_one_table_goes_back(stand: Stand) -> None:
    airflow, writer = stand.airflow, stand.writer
    root = airflow.allowed_roots[0] / "fleet"
    callback = {"url": airflow.callback_url, "token": airflow.callback_token}
    places = {
        name: {"name": name, "type": kind, "version": 6, "commits": 4, "keys": 200, "rows": 40}
        | {"base_path": str(root / name)}
        for name, kind in (("first", "COW"), ("second", "MOR"), ("written", "COW"))
    }

    def write(name: str, commit: int) -> None:
        writer.write(places[name], commit, callback, LOCK_OPTIONS)

    def versions() -> dict[str, str]:
        return {name: version_of(root / name) for name in places}

    def seen(name: str) -> tuple[object, ...]:
        found = writer.read(root / name)
        return found["rows"], found["ids"], found["cents"]

    for name in places:
        write(name, 0)
        write(name, 1)
    airflow.wait_until(lambda: len([r for r in airflow.tables() if r["table_name"] in places]) == 3, 60, "the tables")
    before, read = rows_of_files(root / "first"), {name: seen(name) for name in places}
    beat = root / "written" / ".hoodie" / ".heartbeat" / "29991231000000000"
    beat.parent.mkdir(exist_ok=True)
    beat.touch()

    conf = {"tables": [f"{root}/*"], "from_versions": [6], "version": 9, "canary": str(root / "first")}
    run_to_success(airflow, "fleet_dry", DAG, **conf, dry_run=True)
    assert state_of(airflow, DAG, "fleet_dry", "canary") == "skipped"
    log = json.dumps(airflow.airflow_get(f"/api/v2/dags/{DAG}/dagRuns/fleet_dry/taskInstances/check/logs/1"))
    assert "3 tables: 2 ready, 1 refused" in log
    assert f"{beat.name}: its heartbeat lives" in log

    beat.touch()
    trigger(airflow, "fleet", dag_id=DAG, **conf)
    deadline = time.monotonic() + 240
    while not (root / "first" / UPGRADE_MARK).exists():
        assert time.monotonic() < deadline
        time.sleep(0.005)
    os.kill(find_spark_submit("lake-savepoint-first"), signal.SIGKILL)
    airflow.wait_until(lambda: state_of(airflow, DAG, "fleet", "approve") == "awaiting_input", 300, "the question")
    assert versions() == {"first": "9", "second": "6", "written": "6"}
    asked = f"/api/v2/dags/{DAG}/dagRuns/fleet/taskInstances/approve/-1/hitlDetails"
    body = (airflow.airflow_get(asked) or {})["body"]
    assert "readers see the same" in body
    assert "refused  6 -> 9  written" in body
    time.sleep(5)  # as long as a person takes to read: an answer at once may end the try, and is asked for again
    httpx.patch(airflow.url + asked, json={"chosen_options": ["Approve"]}, timeout=30).raise_for_status()
    airflow.wait_until(lambda: state_of(airflow, DAG, "fleet") in {"success", "failed"}, 300, "the end of the run")
    assert state_of(airflow, DAG, "fleet") == "success"
    assert versions() == {"first": "9", "second": "9", "written": "6"}
    assert rows_of_files(root / "first") == before
    assert {name: seen(name) for name in places} == read

    places["first"]["version"] = 9
    write("first", 2)
    run_to_success(airflow, "fleet_back", DAG, tables=[str(root / "second")], version=6, approval=False)
    assert versions()["second"] == "6"
    assert seen("second") == read["second"]
    write("second", 2)
    shown = (airflow.airflow_get("/lake/api/operations") or {})["rows"]
    assert {row["dag_id"] for row in shown} >= {DAG}
