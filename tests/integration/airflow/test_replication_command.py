"""`airflow lake replication`, as Airflow's command line runs it, and the gauges of a sink."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from airflow_lake_provider.hudi.base_path import table_id_of
from airflow_lake_provider.replication.checkpoint import Checkpoint, to_text
from airflow_lake_provider.replication.job import ReplicationResult
from tests.support.airflow_command import run
from tests.support.fixture_tables import unpack
from tests.support.replicated_writes import writes

pytestmark = pytest.mark.integration


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Path]:
    """A real table with two sinks: one has everything, one lacks a commit (and a clustering, which changes no row)."""
    from airflow_lake_provider.manager.db.rows import Notice, Source
    from airflow_lake_provider.manager.db.sinks import RunProgress, Sinks
    from airflow_lake_provider.plugins.lake_plugin import open_registry

    path = unpack("cow_v9", tmp_path).path
    commits, table_id = writes(path), table_id_of(str(path))
    times = tuple(commit.requested_time for commit in commits)
    registry = open_registry()
    registry.register(Notice(str(path), "orders", Source.CONFIG))
    sinks = Sinks(registry)
    sinks.configure(table_id, {"ahead": 3600, "behind": 3600})
    for name, last, problem in (("ahead", -1, ""), ("behind", -3, "Kafka is away")):
        done = times[: len(times) + 1 + last]
        text = to_text(Checkpoint(f"{table_id}.{name}", 7, 2, commits[last], done=done, hold=times[last]))
        sinks.record_progress(table_id, name, RunProgress("run-1", text, problem=problem, ended=True))
    yield path
    sinks.configure(table_id, {})


def test_replication_says_how_far_each_sink_is_and_what_it_holds(
    table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from airflow_lake_provider.cli import tables

    times = [commit.requested_time for commit in writes(table)]
    code, output = run(capsys, "replication", str(table), "-o", "json")
    assert code == 1, "a sink with a problem is one for the caller"
    ahead, behind = json.loads(output)
    assert (ahead["sink"], ahead["state"], ahead["lag_commits"], ahead["lag_s"]) == ("ahead", "waiting", 0, 0)
    assert (behind["sink"], behind["state"], behind["lag_commits"]) == ("behind", "failing", 1)
    assert (behind["checkpoint"], behind["hold"], behind["problem"]) == (times[-3], times[-3], "Kafka is away")
    assert behind["lag_s"] > 0
    assert behind["hold_age_s"] >= ahead["hold_age_s"] > 0
    assert behind["held_bytes"] >= ahead["held_bytes"] > 0
    assert 0 < behind["hold_ends_in_s"] <= 3600
    assert (ahead["snapshot_rows"], ahead["snapshot_total"]) == (0, None)
    within = tables.SinkLine(
        **{**ahead, "snapshot_rows": 1_200_000, "snapshot_total": 2_500_000, "lag_commits": 3, "lag_s": 61}
    )
    assert "snapshot: 1,200,000 of 2,500,000 rows, after its instant 3 commits, 1 min" in tables._sink_text(within)
    _, text = run(capsys, "replication")
    assert "problem: Kafka is away" in text
    assert f"at {times[-1]}" in text


def test_table_that_cannot_be_read_does_not_hide_the_others(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(table)
    code, output = run(capsys, "replication", str(table), "-o", "json")
    rows = json.loads(output)
    assert code == 1
    assert [row["lag_commits"] for row in rows] == [None, None]
    assert "the table cannot be read" in rows[0]["problem"]


@dataclass
class FakeMetrics:
    gauges: dict[str, float] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)

    def incr(self, name: str, count: int = 1) -> None:
        self.counters[name] = self.counters.get(name, 0) + count

    def gauge(self, name: str, value: float) -> None:
        self.gauges[name] = value

    def timing(self, name: str, duration_ms: float) -> None:
        raise AssertionError(f"{name} is no timing")


@dataclass
class FakeHook:
    sinks: list[dict[str, Any]]
    released: list[tuple[str, ...]] = field(default_factory=list)

    def release_hold(self, *given: str) -> None:
        self.released.append(given)

    def list_sinks(self, table_id: str) -> list[dict[str, Any]]:
        return self.sinks


def test_gauges_of_a_run_and_of_its_sink(tmp_path: Path) -> None:
    from airflow_lake_provider.execution.reporting import report_result, report_sink

    path, metrics = unpack("cow_v9", tmp_path).path, FakeMetrics()
    commits = writes(path)
    checkpoint = Checkpoint("t.s", 1, 1, commits[0], floor=commits[0].completed_time)
    sink = {
        "name": "s",
        "needs_snapshot": False,
        "hold": commits[0].requested_time,
        "checkpoint_text": to_text(checkpoint),
    }
    hook: Any = FakeHook([sink])
    report_sink(metrics, hook, str(path), "s")
    report_result(metrics, ReplicationResult("t.s", ended=True, commits=2, rows=300, bytes=6000, seconds=3.0))
    assert metrics.gauges["lake.replication.lag_commits"] == len(commits) - 2
    assert metrics.gauges["lake.replication.lag"] > 0
    assert metrics.gauges["lake.replication.safepoint_age"] > metrics.gauges["lake.replication.lag"] - 1
    assert metrics.gauges["lake.replication.held_bytes"] > 0
    assert (metrics.gauges["lake.replication.rows_per_s"], metrics.gauges["lake.replication.bytes_per_s"]) == (
        100,
        2000,
    )
    assert metrics.counters == {"lake.replication.commits": 2, "lake.replication.rows": 300}


@pytest.mark.parametrize(
    ("last", "cap", "said"),
    [
        pytest.param(-3, {"seconds": 60.0}, "it lacks commits since", id="age"),
        pytest.param(-3, {"bytes": 1}, "bytes of replaced files, max_held_bytes is 1", id="bytes"),
        pytest.param(-3, {"seconds": 1e12, "bytes": 10**15}, "", id="below"),
        pytest.param(-3, {}, "", id="no-cap"),
        pytest.param(-1, {"seconds": 60.0, "bytes": 1}, "", id="up-to-date"),
    ],
)
def test_hold_beyond_its_cap_is_released_loudly_whatever_progress_the_sink_makes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, last: int, cap: dict[str, Any], said: str
) -> None:
    from airflow_lake_provider.execution.reporting import HoldCap, report_sink
    from airflow_lake_provider.replication.checkpoint import SnapshotProgress

    path = unpack("cow_v9", tmp_path).path
    commits = writes(path)
    done = tuple(commit.requested_time for commit in commits[: len(commits) + 1 + last])
    checkpoint = Checkpoint("t.s", 1, 1, commits[last], done=done, hold=commits[last].requested_time)
    for snapshot in (None, SnapshotProgress(commits[last].requested_time)):
        text = to_text(replace(checkpoint, snapshot=snapshot))
        sink = {"name": "s", "needs_snapshot": False, "hold": checkpoint.hold, "checkpoint_text": text}
        hook: Any = FakeHook([sink])
        report_sink(FakeMetrics(), hook, str(path), "s", HoldCap(**cap))
        if not said or snapshot is not None:
            assert hook.released == []
            continue
        ((table_id, name, hold, reason),) = hook.released
        assert (table_id, name, hold) == (table_id_of(str(path)), "s", checkpoint.hold)
        assert said in reason
        assert f"sink s of {path}: {reason}: its hold is released" in caplog.text


def test_sink_that_cannot_be_measured_fails_nothing(tmp_path: Path) -> None:
    from airflow_lake_provider.execution.reporting import report_sink

    metrics = FakeMetrics()
    sink = {"name": "s", "needs_snapshot": False, "hold": "0", "checkpoint_text": ""}
    hook: Any = FakeHook([sink])
    report_sink(metrics, hook, str(tmp_path / "gone"), "s")
    report_sink(metrics, hook, "not absolute", "s")
    assert metrics.gauges == {}


@pytest.mark.parametrize("is_same", [True, False], ids=["same", "differs"])
def test_verify_starts_a_run_of_the_entry_and_says_what_it_found(
    table: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_same: bool
) -> None:
    from airflow.models.dag import DagModel
    from airflow.models.dagrun import DagRun
    from sqlalchemy import select, update

    from airflow_lake_provider.cli import tables
    from airflow_lake_provider.manager.db.sinks import RunProgress, Sinks
    from airflow_lake_provider.plugins.lake_plugin import open_registry

    entry = {"sink": "file", "name": "ahead", "path": "/replica", "mode": "latest", "key": ["id"]}
    declared = {"tables": [{"base_path": str(table), "replication": [entry]}]}
    monkeypatch.setenv("AIRFLOW_VAR_LAKE_TABLES", json.dumps(declared))
    registry, asked, differs = open_registry(), list[dict[str, Any]](), "1 are missing in the sink"
    mine = DagModel.dag_id == "lake_replication"

    def pause(is_paused: bool) -> None:
        with registry.transaction() as session:
            session.execute(update(DagModel).where(mine).values(is_paused=is_paused))

    def play(_: float) -> None:
        """Be the scheduler and the worker."""
        with registry.transaction() as session:
            dag_run = session.scalars(select(DagRun).where(DagRun.run_id.like("verify\\_\\_%", escape="\\"))).all()[-1]
            asked.append(dag_run.conf)
            dag_run.state = "success" if is_same else "failed"
        if not is_same:
            progress = RunProgress("run-2", problem=differs, ended=True)
            Sinks(registry).record_progress(table_id_of(str(table)), "ahead", progress)

    monkeypatch.setattr(tables.time, "sleep", play)
    pause(True)
    code, output = run(capsys, "replication", "verify", str(table), "ahead")
    assert (code, asked) == (1, [])
    assert "lake_replication is paused" in output
    pause(False)
    try:
        code, output = run(capsys, "replication", "verify", str(table), "ahead")
    finally:
        pause(True)
    assert code == (0 if is_same else 1)
    assert ("has the rows of table" if is_same else differs) in output
    (conf,) = asked
    assert (conf["action"], conf["base_path"], conf["sink"], conf["name"]) == ("verify", str(table), "file", "ahead")
    assert (conf["mode"], conf["key"], conf["options"]) == ("latest", ["id"], {"path": "/replica"})
    assert "no sink 'behind'" in run(capsys, "replication", "verify", str(table), "behind")[1]
    assert "verify TABLE SINK" in run(capsys, "replication", "verify", str(table))[1]
