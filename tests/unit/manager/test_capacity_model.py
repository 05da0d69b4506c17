"""The capacity model of docs/deployment.md: its rows follow from its constants, the constants from recorded figures."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from airflow_lake_provider.config.tables_config import TablesConfig
from airflow_lake_provider.config.tables_file import parse_tables_file
from airflow_lake_provider.manager.db.registry import Registry
from airflow_lake_provider.manager.loop.reconciler import ManagerLoop
from airflow_lake_provider.manager.scheduling.whatif import PastDecision, replay
from airflow_lake_provider.timeline_server.server import TimelineServer
from benchmarks.scale import COMMITS
from tests.support.fleet import Fleet
from tests.unit.manager.conftest import FakeClock

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
RECORDED: dict[str, Any] = json.loads((ROOT / "benchmarks" / "results" / "scale.json").read_text(encoding="utf-8"))

COMMIT_EVERY_S, COMMITS_A_RUN, SERVICES, SPARK_S, RUN_S = 600, 5, 2, 1.5, 15
"""What the page assumes of a table, and of its two services."""
HEALTHY_SHARE = 0.9
"""One of the ten stores hangs in the second window, whose figures are of the others."""


def cells(begin: str) -> list[str]:
    (line,) = re.findall(rf"^\| {re.escape(begin)} \|(.*)\|$", PAGE, re.MULTILINE)
    return [cell.strip() for cell in line.split("|")]


def number(text: str) -> float:
    found = re.search(r"[\d.,]+", text)
    assert found is not None, text
    return float(found[0].replace(",", ""))


def costs_of_the_scheduler(fleet: dict[str, Any]) -> tuple[float, float]:
    """Return CPU seconds of a run, and those a minute at rest, from windows with many and with few runs a minute."""
    runs_a_minute, cpu_s = [], []
    for window, share in ((fleet["calm"], 1.0), (fleet["hanging"], HEALTHY_SHARE)):
        runs_a_minute.append(window["runs"] / (window["commits"] / (fleet["commits_per_min"] * share)))
        cpu_s.append(window["scheduler_cpu_s_per_min"])
    run_s = (cpu_s[0] - cpu_s[1]) / (runs_a_minute[0] - runs_a_minute[1])
    return run_s, cpu_s[0] - run_s * runs_a_minute[0]


@pytest.mark.parametrize("tables", [1_000, 10_000, 100_000])
def test_row_of_the_table_follows_from_the_constants(tables: int) -> None:
    commits_s = tables / COMMIT_EVERY_S
    runs_s = commits_s / COMMITS_A_RUN * SERVICES
    figures = RECORDED["result"]
    measured = figures["1000" if tables == 1_000 else "10000"]
    calm = figures["fleet"]["calm"]
    idle_s = figures["fleet"]["api_idle_cpu_s_per_min"]
    of_commit_s = (calm["api_cpu_s_per_min"] - idle_s) / figures["fleet"]["commits_per_min"]
    run_cpu_s, scheduler_idle_s = costs_of_the_scheduler(figures["fleet"])
    expected = (
        commits_s,
        commits_s * measured["cycle_cpu_s"] / measured["commits"],
        commits_s * of_commit_s + idle_s / 60,
        runs_s * run_cpu_s + scheduler_idle_s / 60,
        runs_s * RUN_S,
        commits_s * measured["commit_database_ms"] / 1000,
        commits_s * measured["commit_rows"],
        runs_s / SERVICES * SPARK_S,
        runs_s * 86_400,
    )
    found = [number(cell) for cell in cells(f"{tables:,}")]
    assert len(found) == len(expected) + 1, "a column that this test does not know"
    requests_s = found.pop(7)
    assert found == pytest.approx(list(expected), rel=0.12, abs=0.02)
    assert requests_s == pytest.approx(commits_s * CALLS_OF_COMMIT + tables * 10 / 3600, rel=0.12)


CALLS_OF_COMMIT = number(cells("calls of the store for a commit")[0])


def test_calls_of_the_store_for_a_commit_are_those_of_the_page(
    registry: Registry,
    engine: Engine,
    clock: FakeClock,
    lake: Path,
    make_loop: Callable[[], ManagerLoop],
    tables: TablesConfig,
    timeline_server: TimelineServer,
) -> None:
    fleet = Fleet(registry, engine, clock, lake, make_loop(), tables)
    fleet.grow(6)
    calls = timeline_server.timelines.calls
    before = calls.lists + calls.opens + calls.stats
    for step in range(COMMITS_A_RUN):
        fleet.commit(fleet.paths[step], COMMITS)
    found = (calls.lists + calls.opens + calls.stats - before) / COMMITS_A_RUN
    assert found == pytest.approx(CALLS_OF_COMMIT, abs=1.0)


@pytest.mark.parametrize("tables", [10_000, 100_000])
def test_simulated_fleet_keeps_up_with_the_cores_of_its_row_and_not_with_two_thirds(tables: int) -> None:
    """Six hundred tables that become due at random moments, replayed by the planner's own simulation."""
    cores, rng, items = math.ceil(number(cells(f"{tables:,}")[8])), random.Random(tables), 600
    span_ms = round(items / (tables / COMMIT_EVERY_S / COMMITS_A_RUN) * 1000)
    due = sorted(rng.randrange(span_ms) for _ in range(items))
    decisions = [
        PastDecision(f"t{at}", f"/lake/t{at}", f"t{at}", "", "compaction", due_ms, 0, SPARK_S, 1, 0, 1.0)
        for at, due_ms in enumerate(due)
    ]

    def started(slots: int) -> float:
        budget = parse_tables_file(f"budgets: {{all: {{slots: {slots}}}}}", "tables.yaml")
        return replay(decisions, budget, span_ms).started / items

    assert started(math.ceil(1.1 * cores)) >= 0.97
    assert started(cores * 2 // 3) <= 0.75
