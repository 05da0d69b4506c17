"""The DAG `lake_erase` on a whole Airflow: checked, approved, killed, and no file of table or Airflow has a key."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet as pq
import pytest

from local_stack.airflow import LocalAirflow
from tests.support.whole_airflow import find_spark_submit, trigger
from tests.system.conftest import LOCK_OPTIONS, Stand

pytestmark = [
    pytest.mark.system,
    pytest.mark.soak(covered_by="tests/integration/spark/test_erasure_on_hudi.py"),
]

DAG = "lake_erase"
ERASED = 7
KEY = f"id:{ERASED},day:2026-01-04"


def ids_of_files(table: Path) -> set[int]:
    """Return the ids in any base file, old or new; without Hudi."""
    return {id for path in table.rglob("*.parquet") for id in pq.ParquetFile(path).read(["id"])["id"].to_pylist()}


def state_of(airflow: LocalAirflow, run_id: str, task: str = "") -> str:
    path = f"/api/v2/dags/{DAG}/dagRuns/{run_id}"
    return str((airflow.airflow_get(f"{path}/taskInstances/{task}" if task else path) or {}).get("state"))


def log_of(airflow: LocalAirflow, run_id: str, task: str, number: int = 1) -> str:
    return json.dumps(airflow.airflow_get(f"/api/v2/dags/{DAG}/dagRuns/{run_id}/taskInstances/{task}/logs/{number}"))


def wait_for_end(airflow: LocalAirflow, run_id: str) -> str:
    airflow.wait_until(lambda: state_of(airflow, run_id) in {"success", "failed"}, 600, f"the end of {run_id}")
    return state_of(airflow, run_id)


def files_with(folder: Path, text: str) -> list[str]:
    found = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return [str(path) for path in found if text.encode() in path.read_bytes()]


def test_key_is_gone_from_every_file_and_was_never_in_airflow(stand: Stand) -> None:
    airflow = stand.airflow
    writer = stand.writer
    root = airflow.allowed_roots[0]
    table = root / "people"
    folder = root / "erasure-1"
    callback = {"url": airflow.callback_url, "token": airflow.callback_token}
    options = {"hoodie.datasource.write.recordkey.field": "id,day"}
    written: dict[str, Any] = {"name": "people", "type": "COW", "version": 9, "commits": 3, "keys": 300, "rows": 50}
    place = {**written, "base_path": str(table), "hudi_options": options}
    for commit in (0, 1):
        writer.write(place, commit, callback, LOCK_OPTIONS)
    folder.mkdir()
    (folder / "keys.jsonl").write_text(json.dumps({"key": KEY}) + "\n", encoding="utf-8")
    conf = {"base_path": str(table), "folder": str(folder)}

    trigger(airflow, "dry", dag_id=DAG, **conf, dry_run=True)
    assert wait_for_end(airflow, "dry") == "success"
    assert state_of(airflow, "dry", "delete") == "skipped"
    log = log_of(airflow, "dry", "check")
    assert "0 of 1 keys are in none of them" in log, log[-3000:]
    assert ERASED in ids_of_files(table)

    trigger(airflow, "erase", dag_id=DAG, **conf)
    airflow.wait_until(lambda: state_of(airflow, "erase", "approve") == "awaiting_input", 240, "the question")
    asked = f"/api/v2/dags/{DAG}/dagRuns/erase/taskInstances/approve/-1/hitlDetails"
    assert "readers see the key" in (airflow.airflow_get(asked) or {})["body"]
    timeline = table / ".hoodie" / "timeline"
    until = time.monotonic() + 300
    while len(list(timeline.glob("*.commit.requested"))) < 3:
        assert time.monotonic() < until, "the deletion's begin"
        # An answer that ends the try, because it comes while the task begins to wait, is asked for again.
        if state_of(airflow, "erase", "approve") == "awaiting_input":
            time.sleep(5)
            httpx.patch(airflow.url + asked, json={"chosen_options": ["Approve"]}, timeout=30)
        time.sleep(0.01)
    os.kill(find_spark_submit("lake-ttl-people"), signal.SIGKILL)

    assert wait_for_end(airflow, "erase") == "success", log_of(airflow, "erase", "prove")[-3000:]
    receipt = json.loads((folder / "receipt.json").read_text(encoding="utf-8"))
    (key,) = receipt["keys"]
    assert key["deleted_at"]
    assert key["gone_at"]
    assert key["kept"] == []
    assert key["hmac"][:16] in log_of(airflow, "erase", "check")
    assert ERASED not in ids_of_files(table)
    assert files_with(table, KEY) == []
    assert writer.read(table)["rows"] == 300 + 5 - 1
    assert files_with(airflow.home, KEY) == []
    assert len(list(timeline.glob("*.commit"))) == 3
    writer.write(place, 2, callback, LOCK_OPTIONS)
    assert ERASED not in ids_of_files(table)
