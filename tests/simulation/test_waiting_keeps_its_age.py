"""No due service overtakes one that became due more than 72 hours before it, whatever evaluations find in between.

Each table is evaluated every 55 minutes: its service is due, blocked or not due for a while, or the table unreadable,
at random. The real scheduler and backlog decide, on a database; the judge keeps its own record of what became due when.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import sessionmaker

from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.config.tables_file import parse_tables_file
from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.manager.db.database import ProcessClock
from airflow_lake_provider.manager.db.registry import Registry
from airflow_lake_provider.manager.db.rows import EvaluationResult, Notice, Source, TableLease
from airflow_lake_provider.manager.db.schema import metadata
from airflow_lake_provider.manager.runs.airflow_runs import RunState
from airflow_lake_provider.manager.scheduling.run_scheduler import RunScheduler
from airflow_lake_provider.manager.scheduling.scheduling import StartVerdict
from airflow_lake_provider.planner.rules import Decision, Verdict
from tests.unit.manager.conftest import FakeClock, FakeRunGateway

MIB = 1 << 20
HOUR_MS = 3_600_000
STEP_S = 3300
STANDINGS = ("due", "blocked", "unreadable", "not due")


@dataclass
class Table:
    name: str
    lease: TableLease
    log_bytes: int
    due_ms: int | None = None
    """Since when its service has been due, by the judge's own record."""
    standing: str = ""
    runs: int = 0

    def decision(self) -> Decision:
        evidence = {
            "log_bytes": self.log_bytes, "log_files": 10, "merged_groups": 5, "merged_base_bytes": 100 * MIB,
            "unsized_file_groups": 0,
        }  # fmt: skip
        key = f"2026112112{self.runs:07d}"
        return Decision(Service.COMPACTION, Verdict.DUE, "due", key_instant=key, evidence=evidence)


def simulate(tables: int, days: int, seed: int, weights: tuple[int, int, int, int]) -> tuple[int, int]:
    """Return how many runs were started, and how many tables had one; every start is judged."""
    rng = random.Random(seed)
    engine = create_engine("sqlite://")
    metadata.create_all(engine)
    clock = FakeClock()
    gateway = FakeRunGateway()
    registry = Registry(sessionmaker(engine), ProcessClock(clock))
    settings = parse_tables_file("budgets: {all: {slots: 1}}", "tables.yaml")
    scheduler = RunScheduler(registry, gateway, lambda: settings)
    fleet = []
    for number in range(tables):
        registry.mark_dirty(Notice(f"/lake/t{number}", f"t{number}", Source.COMMIT_CALLBACK))
        (lease,) = registry.acquire(1, 10**9)
        # From poor to rich: a rich one is due again after each run, and would always run before the poor.
        size_bytes = MIB if number == 0 else rng.choice([20, 400, 4000, 4000]) * MIB
        fleet.append(Table(f"t{number}", lease, size_bytes))
    running = ""
    for _ in range(days * 86_400 // STEP_S):
        clock.advance(STEP_S)
        if running:
            gateway.end(running, RunState.SUCCESS, registry.now_ms())
            running = ""
        for table in rng.sample(fleet, len(fleet)):
            table.standing = rng.choices(STANDINGS, weights)[0]
            if table.standing == "due" and table.due_ms is None:
                table.due_ms = registry.now_ms()
            started = evaluate(table, registry, scheduler)
            if not started:
                continue
            running = started
            assert table.due_ms is not None
            kept_waiting = [
                other for other in fleet
                if other is not table and other.due_ms is not None and other.standing == "due"
                and other.due_ms < table.due_ms - 72 * HOUR_MS
            ]  # fmt: skip
            assert not kept_waiting, f"{table} overtook {kept_waiting}"
            table.due_ms = None
            table.runs += 1
    engine.dispose()
    return sum(table.runs for table in fleet), sum(table.runs > 0 for table in fleet)


def evaluate(table: Table, registry: Registry, scheduler: RunScheduler) -> str:
    """Do what an evaluation does with its decision; return the id of the run that it started, or nothing."""
    table_id = table.lease.table_id
    if table.standing == "unreadable":
        failed = EvaluationResult(next_evaluation_ms=0, retry_ms=0, problem="the store is silent", failed=True)
        registry.release(table.lease, failed)
        (table.lease,) = registry.acquire(1, 10**9)
        return ""
    if table.standing != "due":
        kept_by = {"compaction": "blocked: a writer is at work"} if table.standing == "blocked" else {}
        with registry.transaction() as session:
            scheduler.backlog.keep(session, table_id, [], [], {}, kept_by)
        return ""
    start = scheduler.start(table.lease, TablePolicy(), table.decision())
    is_started = start.verdict is StartVerdict.START
    with registry.transaction() as session:
        scheduler.backlog.keep(session, table_id, [] if is_started else ["compaction"], [], {})
    return start.run_id if is_started else ""


def test_what_waits_keeps_its_place_whatever_evaluations_find() -> None:
    runs, served = simulate(tables=9, days=6, seed=1, weights=(17, 1, 1, 1))
    assert runs > 100
    assert served == 9


@pytest.mark.soak
@pytest.mark.parametrize("weights", [(1, 0, 0, 0), (17, 1, 1, 1), (4, 2, 1, 3)])
def test_few_tables_for_ten_days(weights: tuple[int, int, int, int]) -> None:
    runs, served = simulate(tables=20, days=10, seed=sum(weights), weights=weights)
    assert runs > 200
    assert served == 20


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3))
def test_two_hundred_tables_for_thirty_days(seed: int) -> None:
    runs, served = simulate(tables=200, days=30, seed=seed, weights=(4, 2, 1, 3))
    assert runs > 1_000
    assert served == 200
