"""`airflow lake replication`, as Airflow's command line runs it, and the gauges of a sink."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from airflow_lake_provider.hudi.base_path import table_id_of
from airflow_lake_provider.replication.checkpoint import Checkpoint, to_text
from airflow_lake_provider.replication.job import ReplicationResult
from tests.integration.airflow.test_commands import run
from tests.integration.airflow.test_replication_doors import writes
from tests.support.fixture_tables import unpack

pytestmark = pytest.mark.integration


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Path]:
    """A real table with two sinks: one has everything, one lacks a commit (and a clustering, which changes no row)."""
    from airflow_lake_provider.manager.db.marks import Notice, Source
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
    times = [commit.requested_time for commit in writes(table)]
    code, output = run(capsys, "replication", str(table), "-o", "json")
    assert code == 1, "a sink with a problem is one for whoever called"
    ahead, behind = json.loads(output)
    assert (ahead["sink"], ahead["state"], ahead["lag_commits"], ahead["lag_s"]) == ("ahead", "waiting", 0, 0)
    assert (behind["sink"], behind["state"], behind["lag_commits"]) == ("behind", "failing", 1)
    assert (behind["checkpoint"], behind["hold"], behind["problem"]) == (times[-3], times[-3], "Kafka is away")
    assert behind["lag_s"] > 0
    assert behind["hold_age_s"] >= ahead["hold_age_s"] > 0
    assert behind["held_bytes"] >= ahead["held_bytes"] > 0
    assert 0 < behind["hold_ends_in_s"] <= 3600
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


def test_sink_that_cannot_be_measured_fails_nothing(tmp_path: Path) -> None:
    from airflow_lake_provider.execution.reporting import report_sink

    metrics = FakeMetrics()
    sink = {"name": "s", "needs_snapshot": False, "hold": "0", "checkpoint_text": ""}
    hook: Any = FakeHook([sink])
    report_sink(metrics, hook, str(tmp_path / "gone"), "s")
    report_sink(metrics, hook, "not absolute", "s")
    assert metrics.gauges == {}
