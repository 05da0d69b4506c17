"""The whole corridor: a stock Hudi writer's commits become a finished compaction, also when the worker is killed."""

from __future__ import annotations

import json
import os
import signal
import time
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from airflow_lake_provider.config.service_policies import DAYS
from airflow_lake_provider.hudi.archive import load_archive
from airflow_lake_provider.hudi.instant import ArchivedTimeline
from airflow_lake_provider.hudi.properties import load_table_properties
from airflow_lake_provider.planner.table_view import TableViewCache
from airflow_lake_provider.shared.actions import Action
from airflow_lake_provider.storage.table_storage import open_storage
from local_stack.airflow import LocalAirflow
from local_stack.webhook_receiver import WebhookReceiver
from local_stack.writer_process import StandingWriter
from tests.support.tables import HandMadeTable
from tests.support.whole_airflow import find_spark_submit, trigger
from tests.system.conftest import LOCK_OPTIONS, VICTIM, Stand

pytestmark = pytest.mark.system

# The last commits' notices are dropped: what they make due is found by the timeline server's heartbeat.
TABLES: list[dict[str, Any]] = [
    {"name": "orders", "type": "MOR", "version": 9, "commits": 3},
    {"name": "silent", "type": "MOR", "version": 6, "commits": 3, "drop_notices": [2]},
    {
        "name": "served",
        "type": "COW",
        "version": 9,
        "commits": 6,
        "keys": 300,
        # Without it archiving would wait for the metadata table's first compaction.
        "hudi_options": {"hoodie.metadata.enable": "false"},
    },
    {"name": VICTIM, "type": "MOR", "version": 9, "commits": 2, "keys": 40_000},
]
LOCK_PROVIDER = "hoodie.write.lock.provider"
AS_THE_FORM_SENDS_IT: dict[str, Any] = {
    "service": "compaction", "mode": "schedule_and_execute", "instants": [], "hudi_options": {}, "engine": None,
    "spark_conn_id": None, "spark_conf": {}, "conflict": {}, "pool": None, "queue": None, "timeout_s": None,
    "retries": None, "start_within_s": None, "deadline_s": None, "reason": "started by hand", "evidence": {},
}  # fmt: skip


@pytest.fixture(scope="module")
def receiver(stand: Stand) -> WebhookReceiver:
    return stand.receiver


@pytest.fixture(scope="module")
def airflow(stand: Stand) -> LocalAirflow:
    write(stand.airflow, stand.writer)
    return stand.airflow


def write(airflow: LocalAirflow, writer: StandingWriter) -> None:
    """Make all commits, one of each table in turn, by a stock writer with its callback on."""
    headers = {"X-Lake-Database": "shop"}
    callback = {"url": airflow.callback_url, "token": airflow.callback_token, "headers": headers}
    for commit in range(max(table["commits"] for table in TABLES)):
        for table in TABLES:
            if commit < table["commits"]:
                place = {"base_path": str(airflow.allowed_roots[0] / table["name"])}
                writer.write({"keys": 1000, "rows": 100, **table, **place}, commit, callback, LOCK_OPTIONS)


def runs_of(airflow: LocalAirflow, name: str) -> list[dict[str, Any]]:
    return [run for run in airflow.service_runs() if run["conf"]["table_name"] == name]


def is_in_state(airflow: LocalAirflow, name: str, state: str) -> bool:
    return any(run["state"] == state for run in runs_of(airflow, name))


def wait_for_success(airflow: LocalAirflow, name: str, timeout_s: float = 180) -> dict[str, Any]:
    airflow.wait_until(
        lambda: is_in_state(airflow, name, "success"),
        timeout_s,
        f"a successful run for {name}",
    )
    return runs_of(airflow, name)[0]


def compactions(airflow: LocalAirflow, name: str) -> list[str]:
    view = TableViewCache().refresh(str(airflow.allowed_roots[0] / name))
    assert view.timeline.pending(Action.COMPACTION) == ()
    return [time_ for time_, metadata in view.commits.items() if metadata.operation == "COMPACT"]


def test_commits_become_one_finished_compaction(airflow: LocalAirflow) -> None:
    run = wait_for_success(airflow, "orders")
    assert run["conf"]["reason"] == "3 delta commits and no compaction yet (rule: 3)"
    assert len(compactions(airflow, "orders")) == 1
    table = next(table for table in airflow.tables() if table["table_name"] == "orders")
    assert (table["database"], table["notices"] >= 3) == ("shop", True)


def operation(airflow: LocalAirflow, name: str, run_id: str) -> dict[str, Any]:
    """Return what the pages show of a run."""
    table_id = next(table["table_id"] for table in airflow.tables() if table["table_name"] == name)
    answer = airflow.airflow_get("/lake/api/operations", table_id=table_id)
    assert answer is not None
    (found,) = [row for row in answer["rows"] if row["run_id"] == run_id]
    return dict(found)


def test_pages_show_what_a_run_read_and_wrote(airflow: LocalAirflow) -> None:
    run_id = wait_for_success(airflow, "orders")["dag_run_id"]
    shown = operation(airflow, "orders", run_id)
    (instant,) = compactions(airflow, "orders")
    written = list((airflow.allowed_roots[0] / "orders").rglob(f"*_{instant}.parquet"))
    assert shown["outcome"] == "completed"
    assert (shown["files_out"], shown["bytes_out"]) == (len(written), sum(one.stat().st_size for one in written))
    assert shown["files_in"] > shown["files_out"]
    assert shown["bytes_in"] > 0
    assert 0 < shown["job_s"] <= (shown["ended_ms"] - shown["started_ms"]) / 1000


def test_service_says_in_openlineage_which_table_it_read_and_wrote(airflow: LocalAirflow) -> None:
    """The task's own events, as Airflow's OpenLineage provider emits them before and after the run."""
    run_id = wait_for_success(airflow, "orders")["dag_run_id"]

    def ended() -> bool:
        return any(event["eventType"] == "COMPLETE" for event in lineage_of(airflow, run_id))

    airflow.wait_until(ended, 60, "the event of the completed task")
    events = {event["eventType"]: event for event in lineage_of(airflow, run_id)}
    begun, completed = events["START"], events["COMPLETE"]
    table = ("file", str(airflow.allowed_roots[0] / "orders"))
    for event in (begun, completed):
        for dataset in (*event["inputs"], *event["outputs"]):
            assert (dataset["namespace"], dataset["name"]) == table
            assert dataset["facets"]["symlinks"]["identifiers"][0]["name"] == "orders"
        assert (event["job"]["namespace"], len(event["inputs"]), len(event["outputs"])) == ("lake-airflow", 1, 1)
    assert "outcome" not in begun["run"]["facets"]["hudi_tableService"]
    said = completed["run"]["facets"]["hudi_tableService"]
    (instant,) = compactions(airflow, "orders")
    assert (said["service"], said["outcome"], said["completedInstants"]) == ("compaction", "completed", [instant])
    (written,) = completed["outputs"]
    assert written["facets"]["version"]["datasetVersion"] == instant
    assert written["outputFacets"]["outputStatistics"]["rowCount"] == 1000
    assert completed["inputs"][0]["inputFacets"]["inputStatistics"]["size"] > 0


def test_dropped_notice_is_repaired_by_the_heartbeat(airflow: LocalAirflow) -> None:
    """Only with the commit that was not announced is the compaction due."""
    wait_for_success(airflow, "silent", timeout_s=240)
    assert len(compactions(airflow, "silent")) == 1


def test_clustering_clean_and_archive_come_in_their_order(airflow: LocalAirflow) -> None:
    """One table, three services, each by its own rule; archiving only when nothing is left to clean.

    The clustering is the seventh write, so the archive, which six do not make due, follows it.
    """
    path = airflow.allowed_roots[0] / "served"

    def archived() -> ArchivedTimeline:
        storage = open_storage(str(path))
        return load_archive(storage, load_table_properties(storage))

    airflow.wait_until(lambda: bool(archived().instants), 300, "the archive")
    view = TableViewCache().refresh(str(path))
    history = [*archived().instants, *view.timeline.completed()]
    done = {instant.action for instant in history}
    assert {Action.COMMIT, Action.CLEAN, Action.REPLACECOMMIT} <= done
    assert not view.timeline.pending()
    runs = [run for run in airflow.service_runs() if run["conf"]["table_name"] == "served"]
    services = [run["conf"]["service"] for run in runs]
    assert {"clustering", "clean", "archive"} <= set(services)
    assert services.index("clean") < services.index("archive")
    periods = sorted((run["start_date"], run["end_date"]) for run in runs if run["end_date"])
    assert all(first[1] <= second[0] for first, second in pairwise(periods)), "one service of a table at a time"


def test_worker_killed_in_the_middle_of_a_compaction_is_replaced_by_one(airflow: LocalAirflow) -> None:
    """Kill -9 of the task: its driver ends itself, and the retry completes the very same plan, once."""
    table = airflow.allowed_roots[0] / VICTIM
    # By hand: lock provider and heartbeat are those that the tables file has for the table.
    trigger(airflow, "kill-me", base_path=str(table), table_name=VICTIM)
    inflight = wait_for_file(table / ".hoodie" / "timeline", "*.compaction.inflight")
    driver = find_spark_submit("lake-compaction-victim")
    os.kill(parent_of(driver), signal.SIGKILL)
    airflow.wait_until(lambda: not Path(f"/proc/{driver}").exists(), 20, "the orphaned driver's end")
    wait_for_success(airflow, VICTIM)
    assert compactions(airflow, VICTIM) == [inflight.name.partition(".")[0]]


def test_run_that_takes_the_lock_away_is_refused_before_spark_starts_and_people_are_notified(
    airflow: LocalAirflow, receiver: WebhookReceiver
) -> None:
    table = airflow.allowed_roots[0] / VICTIM
    trigger(airflow, "no-lock", base_path=str(table), table_name="no-lock", hudi_options={LOCK_PROVIDER: ""})
    airflow.wait_until(lambda: is_in_state(airflow, "no-lock", "failed"), 60, "the refusal")
    log = task_log(airflow, "no-lock")
    why = "hudi_options: a run may not set hoodie.write.lock.provider"
    assert why in log
    assert "Spark-Submit cmd" not in log
    reported = wait_for_post(airflow, receiver, "no-lock")
    assert (reported["kind"], reported["base_path"], reported["service"]) == ("failed", str(table), "compaction")
    assert why in reported["text"]
    events = {event["eventType"]: event for event in lineage_of(airflow, "no-lock")}
    assert events["FAIL"]["outputs"][0]["name"] == str(table)
    assert events["FAIL"]["run"]["facets"]["hudi_tableService"]["outcome"] == "failed"


def test_people_are_notified_of_a_run_that_no_worker_begins_and_of_one_that_missed_its_deadline(
    airflow: LocalAirflow, receiver: WebhookReceiver
) -> None:
    """A pool without slots holds both runs back; lake_watch sweeps each minute."""
    table = str(airflow.allowed_roots[0] / VICTIM)
    pool = {"name": "closed", "slots": 0, "include_deferred": False}
    airflow.change("POST", "/api/v2/pools", pool)
    common = {"base_path": table, "table_name": VICTIM, "pool": "closed", "hudi_options": LOCK_OPTIONS}
    trigger(airflow, "not-begun", **common, start_within_s=1)
    trigger(airflow, "too-late", **common, deadline_s=1)
    stuck = wait_for_post(airflow, receiver, "not-begun")
    assert (stuck["kind"], stuck["state"]) == ("stuck", "stuck")
    assert "is scheduled for longer than allowed" in stuck["reason"]
    assert "see whether Airflow's scheduler runs" in stuck["reason"]
    late = wait_for_post(airflow, receiver, "too-late")
    assert (late["kind"], late["state"], late["base_path"]) == ("deadline", "failed", table)
    assert "deadline_s" in late["text"]
    # No later sweep notifies of both again, and the one that only waits is still there.
    sweep(airflow)
    assert len(posts_of(receiver, "not-begun")) == len(posts_of(receiver, "too-late")) == 1
    states = {run["dag_run_id"]: run["state"] for run in airflow.service_runs()}
    assert (states["not-begun"] in {"queued", "running"}, states["too-late"]) == (True, "failed")
    airflow.change("PATCH", "/api/v2/dags/lake_table_service/dagRuns/not-begun", {"state": "failed"})


def test_dry_run_says_what_it_would_do_and_does_nothing(airflow: LocalAirflow) -> None:
    table = airflow.allowed_roots[0] / VICTIM
    before = sorted(path.name for path in (table / ".hoodie" / "timeline").iterdir())
    trigger(airflow, "dry", **AS_THE_FORM_SENDS_IT, base_path=str(table), table_name="dry", dry_run=True)
    airflow.wait_until(lambda: is_in_state(airflow, "dry", "success"), 60, "the dry run")
    log = task_log(airflow, "dry")
    assert "dry run: nothing is started" in log
    assert "compaction, mode schedule_and_execute" in log
    assert "spark-submit --name lake-compaction-victim" in log
    assert operation(airflow, VICTIM, "dry")["outcome"] == "dry_run"
    assert sorted(path.name for path in (table / ".hoodie" / "timeline").iterdir()) == before


def test_deferred_sensor_of_a_users_dag_wakes_up_for_a_commit(airflow: LocalAirflow) -> None:
    """Through a real triggerer: the task waits without a worker, and goes on with what the trigger found."""
    table = HandMadeTable.create(airflow.allowed_roots[0] / "watched by a user")
    path = "/api/v2/dags/wait_for_commit/dagRuns/deferred/taskInstances/wait"

    def state() -> str:
        return str((airflow.airflow_get(path) or {}).get("state"))

    trigger(airflow, "deferred", dag_id="wait_for_commit", base_path=str(table.path))
    airflow.wait_until(lambda: state() == "deferred", 60, "the sensor's deferral")
    requested = table.commit(1)
    airflow.wait_until(lambda: state() == "success", 60, "the sensor's end")
    found = airflow.airflow_get(f"{path}/xcomEntries/return_value")
    assert requested in json.dumps(found)


def test_reindex_outside_its_window_waits_without_a_worker(airflow: LocalAirflow) -> None:
    table = HandMadeTable.create(airflow.allowed_roots[0] / "indexed at night")
    table.commit(1)
    day = DAYS[(datetime.now(UTC).weekday() + 3) % 7]
    window = {"days": [day], "begin": "12:00", "end": "13:00", "time_zone": "Europe/Berlin"}
    conf = {"base_path": str(table.path), "hudi_options": LOCK_OPTIONS, "window": window}
    trigger(airflow, "night", dag_id="lake_reindex", **conf)
    path = "/api/v2/dags/lake_reindex/dagRuns/night/taskInstances/build_indexes"

    def waits() -> bool:
        task = airflow.airflow_get(f"{path}/0") or {}
        return task.get("state") == "deferred" and task["trigger"] is not None

    airflow.wait_until(waits, 90, "the build's deferral")
    log = json.dumps(airflow.airflow_get(f"{path}/logs/1", map_index=0, full_content=True))
    assert f"the window ({day} 12:00 to 13:00 Europe/Berlin) is closed: the build begins at" in log
    assert not list((table.path / ".hoodie" / "timeline").glob("*.indexing.*"))


def lineage_of(airflow: LocalAirflow, run_id: str) -> list[dict[str, Any]]:
    """Return the OpenLineage events of a run's task, as they were emitted."""
    path = airflow.home / "lineage.jsonl"
    events = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [
        event
        for event in events
        if event["job"]["name"] == "lake_table_service.run_service"
        and event["run"]["facets"].get("airflow", {}).get("dagRun", {}).get("run_id") == run_id
    ]


def posts_of(receiver: WebhookReceiver, run_id: str) -> list[dict[str, Any]]:
    return [body for _, _, body in list(receiver.posts) if body["run_id"] == run_id]


def wait_for_post(airflow: LocalAirflow, receiver: WebhookReceiver, run_id: str) -> dict[str, Any]:
    airflow.wait_until(lambda: bool(posts_of(receiver, run_id)), 150, f"what is notified of {run_id}")
    return posts_of(receiver, run_id)[0]


def sweep(airflow: LocalAirflow) -> None:
    """What lake_watch does each minute."""
    headers = {"Authorization": f"Bearer {airflow.service_token}"}
    httpx.post(f"{airflow.url}/v1/hoodie/sweep", headers=headers, timeout=60).raise_for_status()


def task_log(airflow: LocalAirflow, run_id: str) -> str:
    path = f"/api/v2/dags/lake_table_service/dagRuns/{run_id}/taskInstances/run_service/logs/1"
    return json.dumps(airflow.airflow_get(path, full_content=True))


def wait_for_file(folder: Path, pattern: str) -> Path:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        for path in folder.glob(pattern):
            return path
        time.sleep(0.05)
    raise AssertionError(f"no {pattern} in {folder}")


def parent_of(pid: int) -> int:
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    return int(stat.rpartition(")")[2].split()[1])
