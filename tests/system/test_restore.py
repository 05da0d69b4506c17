"""The DAG `lake_restore` on a whole Airflow: approved, killed, and then the savepoint's rows are back."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import httpx
import pytest

from tests.support.whole_airflow import find_spark_submit, rows_of_files, run_to_success, state_of, trigger
from tests.system.conftest import LOCK_OPTIONS, Stand

pytestmark = [
    pytest.mark.system,
    pytest.mark.soak(covered_by="tests/integration/spark/test_restore_on_hudi.py"),
]

DAG = "lake_restore"


def timeline_of(table: Path) -> list[str]:
    return sorted(path.name for path in (table / ".hoodie" / "timeline").iterdir() if path.is_file())


def wait_for_file(folder: Path, pattern: str) -> None:
    deadline = time.monotonic() + 240
    while not list(folder.glob(pattern)):
        assert time.monotonic() < deadline, pattern
        time.sleep(0.005)


def properties_of(table: Path) -> str:
    return (table / ".hoodie" / "hoodie.properties").read_text(encoding="utf-8")


def test_person_approves_and_the_rows_of_the_savepoint_are_back(stand: Stand) -> None:
    airflow, writer = stand.airflow, stand.writer
    table = airflow.allowed_roots[0] / "rewound"
    callback = {"url": airflow.callback_url, "token": airflow.callback_token}
    written = {"name": "rewound", "type": "COW", "version": 9, "commits": 4, "keys": 300, "rows": 50}
    place = {**written, "base_path": str(table)}

    def write(commit: int) -> None:
        writer.write(place, commit, callback, LOCK_OPTIONS)

    write(0)
    write(1)
    before = rows_of_files(table)
    run_to_success(airflow, "saved", "lake_table_service", base_path=str(table), service="savepoint")
    (savepoint,) = [name.partition("_")[0] for name in timeline_of(table) if name.endswith(".savepoint")]
    write(2)
    run_to_success(airflow, "indexed", "lake_reindex", base_path=str(table), indexes=["record_index"])
    assert "record_index" in properties_of(table)
    changed, was = rows_of_files(table), timeline_of(table)
    assert changed != before

    run_to_success(airflow, "dry", DAG, base_path=str(table), savepoint=savepoint, dry_run=True)
    assert state_of(airflow, DAG, "dry", "restore") == "skipped"
    log = json.dumps(airflow.airflow_get(f"/api/v2/dags/{DAG}/dagRuns/dry/taskInstances/check/logs/1"))
    assert "nothing forbids it; it takes back 1 writes" in log

    trigger(airflow, "back", dag_id=DAG, base_path=str(table), savepoint=savepoint)
    airflow.wait_until(lambda: state_of(airflow, DAG, "back", "approve") == "awaiting_input", 90, "the question")
    assert (timeline_of(table), rows_of_files(table)) == (was, changed)
    asked = f"/api/v2/dags/{DAG}/dagRuns/back/taskInstances/approve/-1/hitlDetails"
    assert "record_index: built at" in (airflow.airflow_get(asked) or {})["body"]
    time.sleep(5)  # as long as a person takes to read: an answer at once may end the try, and is asked for again
    httpx.patch(airflow.url + asked, json={"chosen_options": ["Approve"]}, timeout=30).raise_for_status()
    wait_for_file(table / ".hoodie" / "timeline", "*.restore.requested")
    os.kill(find_spark_submit("lake-savepoint-rewound"), signal.SIGKILL)
    airflow.wait_until(lambda: state_of(airflow, DAG, "back") in {"success", "failed"}, 600, "the restore's end")

    log = json.dumps(airflow.airflow_get(f"/api/v2/dags/{DAG}/dagRuns/back/taskInstances/restore/logs/2"))
    assert state_of(airflow, DAG, "back") == "success", log[-3000:]
    assert "equal" in log
    assert rows_of_files(table) == before
    assert writer.read(table)["rows"] == len(before)
    assert "record_index" in properties_of(table)
    table_id = next(row["table_id"] for row in airflow.tables() if row["table_name"] == "rewound")
    shown = (airflow.airflow_get("/lake/api/operations", table_id=table_id) or {})["rows"]
    services = [row["service"] for row in shown if row["dag_id"] == DAG or row["run_id"] == "back"]
    assert sorted(services) == ["indexing", "indexing", "savepoint"]
    write(2)
    assert rows_of_files(table) == changed
