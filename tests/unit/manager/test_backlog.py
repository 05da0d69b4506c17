"""What is due over all tables waits in one ranked order for the budgets, which are never exceeded; all is recorded."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, event, select, update
from sqlalchemy.orm import Session

from airflow_lake_provider.config.access import Audience
from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.config.tables_config import Limits, TablesConfig
from airflow_lake_provider.config.tables_file import parse_tables_file
from airflow_lake_provider.config.tables_source import TablesSource
from airflow_lake_provider.instant_clock import HOUR_MS
from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.manager.api.app import create_app
from airflow_lake_provider.manager.api.services import ManagerServices
from airflow_lake_provider.manager.db.operations import (
    MAX_RECORDED,
    NEWEST_OF_SERVICE,
    OBSERVED,
    RunReport,
    find_thinned,
    load_own,
    parse_quote,
    record_run,
    report_run,
)
from airflow_lake_provider.manager.db.registry import Registry
from airflow_lake_provider.manager.db.rows import EvaluationResult, Notice, Source, TableLease
from airflow_lake_provider.manager.db.schema import lake_run, lake_table, lake_waiting
from airflow_lake_provider.manager.loop.reconciler import ManagerLoop
from airflow_lake_provider.manager.runs.airflow_runs import RunState
from airflow_lake_provider.manager.scheduling import backlog as backlog_module
from airflow_lake_provider.manager.scheduling import budgets as budgets_module
from airflow_lake_provider.manager.scheduling.budgets import correct, list_waiting, load_scopes, load_spent
from airflow_lake_provider.manager.scheduling.run_scheduler import RunScheduler
from airflow_lake_provider.manager.scheduling.scheduling import StartVerdict
from airflow_lake_provider.manager.supervision.instances import Instance
from airflow_lake_provider.manager.supervision.monitoring import DeadlineSweep
from airflow_lake_provider.manager.supervision.notifications import NoNotifier
from airflow_lake_provider.metrics import NoMetrics
from airflow_lake_provider.planner.price import GIB, MIB
from airflow_lake_provider.planner.ranking import MAX_DELAY_MS, Pressure
from airflow_lake_provider.planner.rules import Decision, Verdict
from airflow_lake_provider.timeline_server.server import ServerOptions, TimelineServer
from tests.support.tables import HandMadeTable
from tests.unit.manager.conftest import SERVICE_TOKEN, FakeClock, FakeInstanceGateway, FakeRunGateway

SPARK = TablePolicy(queue="spark")
ONE_SLOT = TablesConfig(limits=Limits(queues={"spark": 1}))


def compaction(log_bytes: int, base_bytes: int = 100 * MIB) -> Decision:
    evidence = {
        "log_bytes": log_bytes, "log_files": 10, "merged_groups": 5, "merged_base_bytes": base_bytes,
        "unsized_file_groups": 0,
    }  # fmt: skip
    return Decision(Service.COMPACTION, Verdict.DUE, "due", key_instant="20261121120001000", evidence=evidence)


POOR, RICH = compaction(1 * MIB), compaction(1 * GIB)


def budgets(text: str) -> TablesConfig:
    return parse_tables_file(f"budgets: {text}", "tables.yaml")


@pytest.fixture
def leases(registry: Registry) -> dict[str, TableLease]:
    found = {}
    for name in "abcdef":
        registry.mark_dirty(Notice(f"/lake/{name}", name, Source.COMMIT_CALLBACK, owner="ada"))
        (found[name],) = registry.acquire(1, 3600)
    return found


def rows(registry: Registry, scope: str = "") -> list[tuple[str, str]]:
    waiting = lake_waiting.c
    with registry.transaction() as session:
        query = select(waiting.table_id, waiting.service).where(waiting.scope == scope).order_by(waiting.rank_ms)
        return [(row.table_id[0], row.service) for row in session.execute(query)]


def count_charged(registry: Registry, scope: str) -> int:
    """Return how many runs a budget is charged with: a day is the last 24 hours that began, each as a whole."""
    day_ago_ms = registry.now_ms() - 24 * HOUR_MS
    with registry.transaction() as session:
        runs = session.execute(select(lake_run.c.created_ms, lake_run.c.scopes)).all()
    counted = [run.scopes for run in runs if run.created_ms - run.created_ms % HOUR_MS > day_ago_ms]
    return sum(f"{scope}\n" in f"{scopes}\n" for scopes in counted)


def test_place_that_becomes_free_goes_to_what_ranks_first_not_to_what_asks_first(
    registry: Registry, gateway: FakeRunGateway, leases: dict[str, TableLease]
) -> None:
    scheduler = RunScheduler(registry, gateway, lambda: ONE_SLOT)
    first = scheduler.start(leases["a"], SPARK, POOR)
    assert first.verdict is StartVerdict.START
    assert [scheduler.start(leases[n], SPARK, d).verdict for n, d in (("b", POOR), ("c", RICH), ("d", POOR))] == [
        StartVerdict.WAITING
    ] * 3
    assert [name for name, _ in rows(registry)] == ["c", "b", "d"]
    gateway.end(first.run_id, RunState.SUCCESS, registry.now_ms())
    waits = scheduler.start(leases["b"], SPARK, POOR)
    assert waits.verdict is StartVerdict.WAITING
    assert waits.reason.endswith("one service ranks before it, the first that keeps it waiting is a compaction")
    assert scheduler.preview(leases["b"].table_id, SPARK, [POOR])[0].verdict is StartVerdict.WAITING
    assert scheduler.start(leases["c"], SPARK, RICH).verdict is StartVerdict.START
    assert [name for name, _ in rows(registry)] == ["b", "d"]


def test_weight_of_a_table_brings_it_before_larger_ones_and_its_reason_says_so(
    registry: Registry, gateway: FakeRunGateway, leases: dict[str, TableLease]
) -> None:
    scheduler = RunScheduler(registry, gateway, lambda: ONE_SLOT)
    heavy = SPARK.replace(weight=100.0)
    assert scheduler.start(leases["a"], SPARK, POOR).verdict is StartVerdict.START
    archive = scheduler.start(leases["b"], SPARK.replace(weight=0.1), RICH)
    dashboard = scheduler.start(leases["c"], heavy, POOR)
    assert [name for name, _ in rows(registry)] == ["c", "b"]
    assert dashboard.reason.endswith("; what it brings counts 100 times (the table's weight)")
    assert dashboard.price is not None
    assert (dashboard.price["weight"], dict(archive.price or {})["weight"]) == (100.0, 0.1)


def test_poor_candidate_that_has_waited_for_three_days_comes_before_new_rich_ones(
    registry: Registry, gateway: FakeRunGateway, leases: dict[str, TableLease], clock: FakeClock
) -> None:
    scheduler = RunScheduler(registry, gateway, lambda: ONE_SLOT)
    started = scheduler.start(leases["a"], SPARK, POOR)
    scheduler.start(leases["b"], SPARK, POOR)
    clock.advance(MAX_DELAY_MS / 1000)
    scheduler.backlog.touch(leases["b"].table_id)
    scheduler.start(leases["c"], SPARK, RICH)
    gateway.end(started.run_id, RunState.SUCCESS, registry.now_ms())
    assert [name for name, _ in rows(registry)] == ["b", "c"]
    assert scheduler.start(leases["c"], SPARK, RICH).verdict is StartVerdict.WAITING
    assert scheduler.start(leases["b"], SPARK, POOR).verdict is StartVerdict.START


def test_core_hours_are_charged_as_predicted_and_corrected_by_what_the_job_took(
    registry: Registry, gateway: FakeRunGateway, leases: dict[str, TableLease], clock: FakeClock
) -> None:
    tables = budgets("{queues: {spark: {core_hours_per_day: 0.02}}}")  # 72 core seconds
    scheduler = RunScheduler(registry, gateway, lambda: tables)
    first = scheduler.start(leases["a"], SPARK, POOR)
    assert first.price is not None
    predicted_s = first.price["seconds"][0]
    assert 15 < predicted_s < 30
    starts = [scheduler.start(leases[name], SPARK, POOR) for name in "bcde"]
    assert [s.verdict for s in starts[:2]] == [StartVerdict.START] * 2
    assert {s.verdict for s in starts[2:]} == {StartVerdict.WAITING}
    assert "waits for core hours of queue spark: it needs" in starts[2].reason
    (state,) = load_scopes(registry, tables)
    assert state.spent_core_ms == pytest.approx(3 * predicted_s * 1000, rel=0.01)
    # The first one took a tenth of what was predicted, so there is room again.
    with registry.transaction() as session:
        report = RunReport(1, "completed", round(predicted_s * 100))
        found = report_run(session, leases["a"].table_id, first.run_id, "compaction", report, registry.now_ms())
        correct(session, found)
        correct(session, report_run(session, leases["a"].table_id, first.run_id, "compaction", report, 0))
    (state,) = load_scopes(registry, tables)
    assert state.spent_core_ms == pytest.approx(2.1 * predicted_s * 1000, rel=0.01)
    assert scheduler.start(leases["d"], SPARK, POOR).verdict is StartVerdict.START
    assert scheduler.start(leases["e"], SPARK, POOR).verdict is StartVerdict.WAITING
    clock.advance(86_400)
    assert scheduler.start(leases["e"], SPARK, POOR).verdict is StartVerdict.START


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_no_budget_is_exceeded_whatever_asks_in_whatever_order(seed: int) -> None:
    from sqlalchemy import create_engine
    from sqlalchemy.orm import sessionmaker

    from airflow_lake_provider.manager.db.database import ProcessClock
    from airflow_lake_provider.manager.db.schema import metadata

    engine = create_engine("sqlite://")
    metadata.create_all(engine)
    clock, gateway, rng = FakeClock(), FakeRunGateway(), random.Random(seed)
    registry = Registry(sessionmaker(engine), ProcessClock(clock))
    tables = budgets(
        "{all: {core_hours_per_day: 0.05}, queues: {q0: {slots: 2}}, labels: {gold: {slots: 1, core_hours_per_day: "
        "0.03}}, owners: {ada: {slots: 3}}}"
    )
    scheduler = RunScheduler(registry, gateway, lambda: tables)
    found: dict[str, tuple[TableLease, TablePolicy, Decision]] = {}
    for number in range(8):
        owner = rng.choice(["ada", "bob"])
        registry.mark_dirty(Notice(f"/lake/t{number}", f"t{number}", Source.COMMIT_CALLBACK, owner=owner))
        (lease,) = registry.acquire(1, 10**6)
        policy = TablePolicy(queue=rng.choice(["q0", "q1"]), label=rng.choice(["gold", "lead"]))
        found[lease.table_id] = (lease, policy, compaction(rng.randrange(1, 2000) * MIB, rng.randrange(500) * MIB))
    for step in range(40):
        lease, policy, decision = found[rng.choice(sorted(found))]
        fresh = Decision(
            decision.service, decision.verdict, "due", key_instant=f"2026112112{step:07}", evidence=decision.evidence
        )
        scheduler.start(lease, policy, fresh)
        active = {run.run_id for run in gateway.runs if run.active}
        with registry.transaction() as session:
            charged = {
                row.run_id: row.scopes or "" for row in session.execute(select(lake_run)) if row.run_id in active
            }
        for scope, most in (("queue:q0", 2), ("label:gold", 1), ("owner:ada", 3)):
            assert sum(f"{scope}\n" in scopes for scopes in charged.values()) <= most
        for state in load_scopes(registry, tables):
            if state.limit.core_ms is not None and state.spent_core_ms > state.limit.core_ms:
                # One above the whole budget was tried, alone, because its price was never proven.
                assert count_charged(registry, state.limit.scope) == 1
        if active and rng.random() < 0.5:
            gateway.end(rng.choice(sorted(active)), RunState.SUCCESS, registry.now_ms())
        clock.advance(rng.choice([60, 1800, 7200]))
    assert gateway.runs
    engine.dispose()


def test_candidate_above_its_whole_budget_is_named_and_keeps_none_waiting(
    registry: Registry, gateway: FakeRunGateway, leases: dict[str, TableLease], clock: FakeClock
) -> None:
    tables = budgets("{labels: {gold: {core_hours_per_day: 0.01}}}")
    scheduler = RunScheduler(registry, gateway, lambda: tables)
    gold = TablePolicy(label="gold")
    assert scheduler.start(leases["b"], gold, POOR).verdict is StartVerdict.START
    costly = scheduler.start(leases["a"], gold, compaction(1 * GIB, 100 * GIB))
    assert costly.never_starts
    assert costly.reason.startswith("never starts: it needs 1.4")
    assert costly.reason.endswith("or it is tried when nothing of the budget is spent")
    assert rows(registry, "label:gold") == []
    assert [row.expected_ms for row in list_waiting(registry, tables)] == [None]
    clock.advance(MAX_DELAY_MS / 1000)
    gateway.end(gateway.runs[0].run_id, RunState.SUCCESS, registry.now_ms())
    assert scheduler.start(leases["c"], gold, POOR).verdict is StartVerdict.START


@pytest.mark.parametrize("job_s", [1, 5_000])
def test_idle_budget_tries_what_is_above_it_until_runs_have_proven_the_price(
    registry: Registry, gateway: FakeRunGateway, leases: dict[str, TableLease], clock: FakeClock, job_s: int
) -> None:
    tables = budgets("{all: {core_hours_per_day: 0.01}}")
    scheduler = RunScheduler(registry, gateway, lambda: tables)
    lease = leases["a"]
    giant = compaction(1 * GIB, 100 * GIB)
    for number in range(3):
        due = replace(giant, key_instant=f"2026112112000{number}000")
        run = scheduler.start(lease, TablePolicy(), due)
        assert run.verdict is StartVerdict.START
        assert scheduler.start(leases["b"], TablePolicy(), POOR).verdict is StartVerdict.WAITING, "the day is spent"
        gateway.end(run.run_id, RunState.SUCCESS, registry.now_ms())
        with registry.transaction() as session:
            report = RunReport(1, "completed", job_s * 1000, 15, 101 * GIB, 5, 100 * GIB)
            report_run(session, lease.table_id, run.run_id, "compaction", report, registry.now_ms())
        clock.advance(2 * 86_400)
    last = scheduler.start(lease, TablePolicy(), replace(giant, key_instant="20261122120001000"))
    is_cheap = job_s == 1
    assert (last.verdict is StartVerdict.START, last.never_starts) == (is_cheap, not is_cheap)
    assert is_cheap or last.reason.endswith("more than a day's whole budget: raise it")


@pytest.mark.parametrize("standing", ["blocked", "unreadable", "not due"])
def test_service_that_waits_keeps_its_age_while_it_is_no_candidate(
    registry: Registry, gateway: FakeRunGateway, leases: dict[str, TableLease], clock: FakeClock, standing: str
) -> None:
    scheduler = RunScheduler(registry, gateway, lambda: ONE_SLOT)
    lease = leases["b"]
    scheduler.start(leases["a"], SPARK, POOR)
    scheduler.start(lease, SPARK, POOR)
    with registry.transaction() as session:
        since_ms = scheduler.backlog.find_since(session, lease.table_id, "compaction")
    clock.advance(1800)
    if standing == "unreadable":
        failed = EvaluationResult(next_evaluation_ms=0, retry_ms=0, failed=True, problem="the store is silent")
        registry.release(lease, failed)
    else:
        kept_by = {"compaction": "blocked: a writer is at work"} if standing == "blocked" else {}
        for _ in range(2):
            with registry.transaction() as session:
                scheduler.backlog.keep(session, lease.table_id, [], [], {}, kept_by)
    assert rows(registry, "queue:spark") == [], "it keeps no other one waiting"
    shown = [row.why for row in list_waiting(registry, ONE_SLOT)]
    assert (
        shown
        == {
            "blocked": ["blocked: a writer is at work"],
            "unreadable": ["the table cannot be read: the store is silent"],
            "not due": [],
        }[standing]
    )
    if standing == "unreadable":
        registry.mark_dirty(Notice("/lake/b", "b", Source.COMMIT_CALLBACK))
        (lease,) = registry.acquire(1, 3600)
    scheduler.start(lease, SPARK, POOR)
    with registry.transaction() as session:
        scheduler.backlog.keep(session, lease.table_id, ["compaction"], [], {})
    assert [row.since_ms for row in list_waiting(registry, ONE_SLOT)] == [since_ms]
    assert [name for name, _ in rows(registry, "queue:spark")] == ["b"]
    (state,) = load_scopes(registry, ONE_SLOT)
    assert state.load.arrived_core_ms == 2 * first_core_ms(registry, "b"), "it arrived once"


def first_core_ms(registry: Registry, name: str) -> int:
    with registry.transaction() as session:
        query = select(lake_waiting.c.core_ms).where(lake_waiting.c.table_id.startswith(f"{name}-"))
        return int(session.scalars(query).first() or 0)


def test_age_of_what_is_not_due_any_more_ends_after_a_day(
    registry: Registry, gateway: FakeRunGateway, leases: dict[str, TableLease], clock: FakeClock
) -> None:
    scheduler = RunScheduler(registry, gateway, lambda: ONE_SLOT)
    table_id = leases["b"].table_id
    scheduler.start(leases["a"], SPARK, POOR)
    scheduler.start(leases["b"], SPARK, POOR)
    for hours, is_kept in ((0, True), (23, True), (2, False)):
        clock.advance(hours * 3600)
        with registry.transaction() as session:
            scheduler.backlog.keep(session, table_id, [], [], {})
        with registry.transaction() as session:
            assert (scheduler.backlog.find_since(session, table_id, "compaction") is not None) is is_kept


def test_service_that_brought_little_pauses_where_there_is_a_budget_and_only_there(
    registry: Registry, gateway: FakeRunGateway, leases: dict[str, TableLease]
) -> None:
    lease = leases["a"]
    unbounded = RunScheduler(registry, gateway, TablesConfig)
    run = unbounded.start(lease, TablePolicy(), POOR)
    gateway.end(run.run_id, RunState.SUCCESS, registry.now_ms())
    with registry.transaction() as session:
        report = RunReport(1, "completed", 20_000, files_in=0, files_out=0)
        report_run(session, lease.table_id, run.run_id, "compaction", report, registry.now_ms())
    again = Decision(Service.COMPACTION, Verdict.DUE, "due", key_instant="20261121130000000", evidence=POOR.evidence)
    tight = RunScheduler(registry, gateway, lambda: budgets("{all: {core_hours_per_day: 100}}"))
    assert tight.start(lease, TablePolicy(), again).reason == "waits 900 s: its last runs brought little"
    assert unbounded.start(lease, TablePolicy(), again).verdict is StartVerdict.START


def test_airflow_creates_the_run_before_the_manager_records_it(
    registry: Registry, leases: dict[str, TableLease]
) -> None:
    # SQLite has one writer: recorded first, the run kept every notice waiting while Airflow read its DAG (10 s at p50).
    recorded: list[int] = []

    class Gateway(FakeRunGateway):
        def create_run(self, session: Session, run_id: str, conf: dict[str, Any], note: str) -> None:
            recorded.append(len(session.execute(select(lake_run)).all()))
            super().create_run(session, run_id, conf, note)

    start = RunScheduler(registry, Gateway(), lambda: ONE_SLOT).start(leases["a"], SPARK, RICH)
    assert (start.verdict, recorded) == (StartVerdict.START, [0])


def test_record_of_a_run_has_its_reason_wait_price_and_outcome_and_prices_the_next_one(
    registry: Registry, gateway: FakeRunGateway, leases: dict[str, TableLease], clock: FakeClock
) -> None:
    lease, scheduler = leases["a"], RunScheduler(registry, gateway, lambda: ONE_SLOT)
    blocking = scheduler.start(leases["b"], SPARK, RICH)
    due_ms = registry.now_ms()
    scheduler.start(lease, SPARK, RICH)
    clock.advance(120)
    gateway.end(blocking.run_id, RunState.SUCCESS, registry.now_ms())
    run = scheduler.start(lease, SPARK, RICH)
    with registry.transaction() as session:
        report = RunReport(1, "completed", 61_000, 15, 1124 * MIB, 5, 900 * MIB)
        report_run(session, lease.table_id, run.run_id, "compaction", report, registry.now_ms())
        row = session.execute(select(lake_run).where(lake_run.c.run_id == run.run_id)).mappings().one()
        (operation,) = load_own(session, lease.table_id, "compaction")
    quote = parse_quote(row["quote"])
    assert quote is not None
    assert (row["caused_by"], row["due_ms"], row["created_ms"] - row["due_ms"]) == ("commit_callback", due_ms, 120_000)
    assert (quote.reason, dict(quote.evidence)) == ("due", dict(RICH.evidence))
    assert quote.price["basis"] == "the documented prior"
    assert (operation.seconds, operation.bytes, operation.files, operation.expected_files) == (61, 900 * MIB, 15, 15)
    assert operation.work.bytes == 1124 * MIB
    for number in range(3):
        gateway.end(run.run_id, RunState.SUCCESS, registry.now_ms())
        key = f"202611211{number}0000000"
        more = Decision(Service.COMPACTION, Verdict.DUE, "due", key_instant=key, evidence=RICH.evidence)
        run = scheduler.start(lease, SPARK, more)
        with registry.transaction() as session:
            report_run(session, lease.table_id, run.run_id, "compaction", report, registry.now_ms())
    gateway.end(run.run_id, RunState.SUCCESS, registry.now_ms())
    last = Decision(Service.COMPACTION, Verdict.DUE, "due", key_instant="20261121190000000", evidence=RICH.evidence)
    price = scheduler.start(lease, SPARK, last).price
    assert price is not None
    assert (price["seconds"][0], price["basis"]) == (61, "the table's last 4 runs of it")


def test_table_that_cannot_be_read_no_longer_stands_before_others(
    registry: Registry, gateway: FakeRunGateway, leases: dict[str, TableLease]
) -> None:
    scheduler = RunScheduler(registry, gateway, lambda: ONE_SLOT)
    scheduler.start(leases["a"], SPARK, POOR)
    scheduler.start(leases["b"], SPARK, RICH)
    scheduler.start(leases["c"], SPARK, POOR)
    registry.release(leases["b"], EvaluationResult(next_evaluation_ms=0, failed=True, problem="the store is silent"))
    assert [name for name, _ in rows(registry, "queue:spark")] == ["c"]
    assert [name for name, _ in rows(registry)] == ["b", "c"], "it keeps its age"
    registry.forget(leases["c"].table_id)
    registry.forget(leases["b"].table_id)
    assert rows(registry) == rows(registry, "queue:spark") == []


def test_backlog_that_outgrows_its_budget_is_named_with_the_budget_that_would_hold_it(
    registry: Registry, gateway: FakeRunGateway, leases: dict[str, TableLease]
) -> None:
    tables = budgets("{all: {core_hours_per_day: 0.012}}")
    scheduler = RunScheduler(registry, gateway, lambda: tables)
    scheduler.start(leases["a"], TablePolicy(), POOR)
    assert [state.pressure for state in load_scopes(registry, tables)] == [Pressure.OK]
    for name in "bcdef":
        scheduler.start(leases[name], TablePolicy(), POOR)
    (state,) = load_scopes(registry, tables)
    shown = state.report()
    assert (state.pressure, shown.waiting) == (Pressure.STOP, 4)
    assert shown.needed_core_hours_per_day == pytest.approx(6 * 21 / 3600, rel=0.1)
    assert "raise it to 0.03 core hours a day, or relax the rules" in state.explain()
    listed = list_waiting(registry, tables)
    assert [row.rank for row in listed] == [1, 2, 3, 4]
    assert all((row.expected_ms or 0) > registry.now_ms() for row in listed)
    assert [row.expected_ms for row in listed] == sorted(row.expected_ms or 0 for row in listed)


def test_rows_of_an_audience_have_their_ranks_among_all(
    registry: Registry, gateway: FakeRunGateway, leases: dict[str, TableLease], monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = RunScheduler(registry, gateway, lambda: ONE_SLOT)
    for lease in leases.values():
        scheduler.start(lease, SPARK, POOR)
    monkeypatch.setattr(budgets_module, "MAX_SHOWN", 2)
    everything = list_waiting(registry, ONE_SLOT)
    assert [(row.table, row.rank, row.ahead) for row in everything] == [("b", 1, 0), ("c", 2, 1)]
    assert (everything[0].expected_ms or 0) < (everything[1].expected_ms or 0)
    assert list_waiting(registry, ONE_SLOT, audience=Audience(only=("/lake/nothing",))) == []
    found = list_waiting(registry, ONE_SLOT, audience=Audience(hidden=("/lake/b", "/lake/c")))
    assert [(row.table, row.rank, row.ahead) for row in found] == [("d", 3, 2), ("e", 4, 3)]
    assert (found[0].expected_ms or 0) < (found[1].expected_ms or 0)


# --- What people and DAGs are shown


def test_observed_table_shows_what_would_run_at_what_price_and_starts_nothing(
    registry: Registry, make_loop: Callable[[], ManagerLoop], gateway: FakeRunGateway, lake: Path
) -> None:
    table = HandMadeTable.create(lake / "orders")
    for second in (1, 2, 3):
        table.commit(second)
    for _ in range(2):  # the same decision again is the same record
        registry.mark_dirty(Notice(str(table.path), "orders", Source.DISCOVERY))
        make_loop().drain()
    (row,) = list_waiting(registry, TablesConfig(), OBSERVED)
    assert row.price is not None
    assert (row.service, row.price.basis) == ("compaction", "the documented prior")
    assert row.due_because == "3 delta commits and no compaction yet (rule: 3)"
    with registry.transaction() as session:
        (record,) = session.execute(select(lake_run)).mappings().all()
    assert (record["outcome"], record["caused_by"], gateway.runs) == ("observed", "observe", [])
    registry.mark_dirty(Notice(str(table.path), "orders", Source.COMMIT_CALLBACK))
    make_loop().drain()
    assert len(gateway.runs) == 1
    assert list_waiting(registry, TablesConfig(), OBSERVED) == []


@pytest.fixture
def pressed(
    services: ManagerServices,
    registry: Registry,
    gateway: FakeRunGateway,
    leases: dict[str, TableLease],
    tmp_path: Path,
) -> TestClient:
    """A manager whose budget of all tables holds two runs of six, and that of label lead none of them."""
    file = tmp_path / "tables.yaml"
    file.write_text("budgets: {all: {core_hours_per_day: 0.012}, labels: {lead: {slots: 1}}}")
    tables = TablesSource(str(file))
    scheduler = RunScheduler(registry, gateway, tables.load)
    for lease in leases.values():
        scheduler.start(lease, TablePolicy(), POOR)
    changed = replace(services, tables=tables)
    return TestClient(create_app(lambda: changed), raise_server_exceptions=False)


BEARER = {"Authorization": f"Bearer {SERVICE_TOKEN}"}


def test_backlog_is_answered_with_rank_price_what_stands_before_expected_start_and_why(pressed: TestClient) -> None:
    found = pressed.get("/reports/backlog", headers=BEARER).json()
    assert [row["rank"] for row in found["waiting"]] == [1, 2, 3, 4]
    first = found["waiting"][0]
    assert first["why"].startswith("waits for core hours of all tables: it needs 0.01, and 0.00 are left")
    assert [row["why"].endswith("; one service ranks before it") for row in found["waiting"]][:2] == [False, True]
    assert first["price"]["seconds"][1] < first["price"]["seconds"][0] < first["price"]["seconds"][2]
    assert first["expected_ms"] > first["since_ms"]
    assert {row["scope"]: row["pressure"] for row in found["budgets"]} == {"all:": "stop", "label:lead": "ok"}
    assert pressed.get("/reports/backlog").status_code == 401


def test_writers_are_asked_to_stop_by_the_budgets_of_their_table(
    pressed: TestClient, leases: dict[str, TableLease]
) -> None:
    found = pressed.get("/reports/backpressure", headers=BEARER).json()
    assert found["pressure"] == "stop"
    assert "core hours a day, or relax the rules" in found["text"]
    table = leases["a"].base_path
    assert pressed.get("/reports/backpressure", params={"table": table}, headers=BEARER).json() == found
    unknown = pressed.get("/reports/backpressure", params={"table": "nothing"}, headers=BEARER)
    assert unknown.json()["error"] == "TableUnknownError"


def test_team_is_shown_its_own_backlog_and_no_others_name_or_figures(
    services: ManagerServices,
    registry: Registry,
    gateway: FakeRunGateway,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file, tokens = tmp_path / "tables.yaml", tmp_path / "tokens.yaml"
    file.write_text("budgets: {all: {slots: 1, core_hours_per_day: 0.1}}")
    digest = hashlib.sha256(b"reader-of-shop").hexdigest()
    tokens.write_text(f"tokens: [{{name: shop, roots: [/lake/shop], rights: [read], sha256: ['{digest}']}}]")
    tables = TablesSource(str(file))
    scheduler = RunScheduler(registry, gateway, tables.load)
    names = ["bank/running", *(f"bank/secret{n}" for n in range(4)), "shop/orders"]
    for name in names:
        registry.mark_dirty(Notice(f"/lake/{name}", name.partition("/")[2], Source.COMMIT_CALLBACK))
        (lease,) = registry.acquire(1, 3600)
        start = scheduler.start(lease, TablePolicy(), POOR if name == "shop/orders" else RICH)
        if name == "bank/running":
            running = start.run_id
    gateway.end(running, RunState.SUCCESS, registry.now_ms())
    scheduler.start(lease, TablePolicy(), POOR)
    # Its row is not among the first ones of all tables.
    monkeypatch.setattr(budgets_module, "MAX_SHOWN", 2)
    settings = services.settings.replace(tokens_file=str(tokens))
    options = ServerOptions(settings.allowed_roots, settings.service_tokens, tokens_file=str(tokens))
    server = TimelineServer(services.timeline_server.timelines, options)
    changed = replace(services, tables=tables, settings=settings, timeline_server=server)
    client = TestClient(create_app(lambda: changed), raise_server_exceptions=False)
    headers = {"Authorization": "Bearer reader-of-shop"}
    backlog = client.get("/reports/backlog", headers=headers)
    pressure = client.get("/reports/backpressure", params={"table": "/lake/shop/orders"}, headers=headers)
    assert [(row["table"], row["rank"]) for row in backlog.json()["waiting"]] == [("orders", 5)]
    assert "4 services rank before it, the first that keeps it waiting is a compaction" in backlog.text
    assert (backlog.json()["budgets"], pressure.json()["budgets"]) == ([], [])
    assert pressure.json()["pressure"] == "slow"
    assert pressure.json()["text"] == "more waits for the budget of all tables than it bears"
    for answer in (backlog, pressure):
        assert "secret" not in answer.text
        assert "bank" not in answer.text
    assert "secret" in client.get("/reports/backlog", headers=BEARER).text
    assert client.get("/reports/backpressure", headers=headers).status_code == 403
    other = {"table": "/lake/bank/secret1"}
    assert client.get("/reports/backpressure", params=other, headers=headers).status_code in {403, 404}


class Inbox(NoNotifier):
    def __init__(self) -> None:
        self.messages: list[tuple[str, Instance]] = []

    def stuck(self, base_path: str, instance: Instance, on_notified: Callable[[], None]) -> None:
        self.messages.append((base_path, instance))
        on_notified()


class Gauges(NoMetrics):
    def __init__(self) -> None:
        self.of: dict[str, float] = {}

    def gauge(self, name: str, value: float) -> None:
        self.of[name] = value


def test_people_are_notified_once_a_day_of_a_budget_that_the_backlog_outgrows(
    registry: Registry, gateway: FakeRunGateway, leases: dict[str, TableLease], clock: FakeClock
) -> None:
    tables = budgets("{all: {core_hours_per_day: 0.012}}")
    inbox, gauges = Inbox(), Gauges()
    sweep = DeadlineSweep(registry, FakeInstanceGateway(), gauges, inbox, lambda: tables)
    sweep.sweep()
    assert (inbox.messages, gauges.of["lake.backlog.pressure"]) == ([], 0)
    scheduler = RunScheduler(registry, gateway, lambda: tables)
    for lease in leases.values():
        scheduler.start(lease, TablePolicy(), POOR)
    sweep.sweep()
    sweep.sweep()
    ((where, instance),) = inbox.messages
    assert (where, instance.service) == ("all tables", "backlog")
    assert instance.reason.endswith("core hours a day, or relax the rules")
    assert (gauges.of["lake.backlog.pressure"], gauges.of["lake.backlog.waiting"]) == (2, 4)
    clock.advance(86_400)
    sweep.sweep()
    assert sum(instance.service == "backlog" for _, instance in inbox.messages) == 2


# --- Thinning


@given(services=st.lists(st.sampled_from(["compaction", "clean", "archive"]), max_size=1500))
def test_records_of_a_table_are_bounded_and_thinning_twice_changes_nothing(services: list[str]) -> None:
    numbers: dict[str, int] = {}
    records = []
    for at, service in enumerate(services):
        numbers[service] = numbers.get(service, 0) + 1
        records.append((f"run-{at}", service, numbers[service]))
    records.reverse()
    gone = set(find_thinned(records))
    kept = [record for record in records if record[0] not in gone]
    assert kept[:MAX_RECORDED] == records[:MAX_RECORDED]
    assert len(kept) <= MAX_RECORDED + 3 * (NEWEST_OF_SERVICE + 3 * 15 + 3)
    for service in numbers:
        mine = [record for record in records if record[1] == service]
        assert [record for record in kept if record[1] == service][:NEWEST_OF_SERVICE] == mine[:NEWEST_OF_SERVICE]
    assert find_thinned(kept) == []


def test_rows_of_a_busy_table_stay_bounded_in_the_database(registry: Registry) -> None:
    with registry.transaction() as session:
        for number in range(700):
            record_run(session, "t", f"t.compaction.{number}", "compaction", number)
            if number % 100 == 0:
                record_run(session, "t", f"t.clean.{number}", "clean", number)
        kept = session.execute(select(lake_run.c.service, lake_run.c.created_ms)).all()
    assert len(kept) <= MAX_RECORDED + NEWEST_OF_SERVICE + 3 * 15 + 20
    assert sum(service == "clean" for service, _ in kept) == 7, "what runs rarely is not displaced"
    assert min(at for service, at in kept if service == "compaction") < 100, "and a sample of the oldest stays"


# --- No query grows with the history or with what waits


def explained(engine: Engine, work: Any) -> list[tuple[str, str]]:
    """Return each statement of some work with SQLite's plan for it."""
    sent: list[tuple[str, Any]] = []
    listener = lambda _c, _cursor, statement, parameters, *_: sent.append((statement, parameters))  # noqa: E731
    event.listen(engine, "before_cursor_execute", listener)
    work()
    event.remove(engine, "before_cursor_execute", listener)
    plans = []
    with engine.connect() as connection:
        for statement, parameters in sent:
            if statement.lstrip().upper().startswith(("SELECT", "UPDATE", "DELETE")):
                found = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters).all()
                plans.append((statement, " | ".join(str(row[3]) for row in found)))
    return plans


def test_every_query_of_a_start_uses_an_index(
    registry: Registry, gateway: FakeRunGateway, leases: dict[str, TableLease], engine: Engine
) -> None:
    tables = budgets("{all: {core_hours_per_day: 50, slots: 9}, owners: {ada: {slots: 3}}, labels: {x: {slots: 1}}}")
    scheduler, policy = RunScheduler(registry, gateway, lambda: tables), TablePolicy(label="x")

    def work() -> None:
        for name, decision in (("a", POOR), ("b", RICH), ("c", POOR)):
            scheduler.start(leases[name], policy, decision)
        with registry.transaction() as session:
            scheduler.backlog.keep(session, leases["b"].table_id, ["compaction"], [], {})
        list_waiting(registry, tables)
        load_scopes(registry, tables)

    plans = explained(engine, work)
    assert len(plans) > 30
    # The limits are as many as the tables file names.
    scans = [(s, plan) for s, plan in plans if "SCAN lake" in plan and "lake_limit" not in plan]
    assert [scan for scan in scans if "USING" not in scan[1]] == []


def test_turn_reads_no_more_candidates_than_its_bound(
    registry: Registry, gateway: FakeRunGateway, leases: dict[str, TableLease], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog_module, "MAX_AHEAD", 3)
    tables = budgets("{all: {core_hours_per_day: 1000}}")
    scheduler = RunScheduler(registry, gateway, lambda: tables)
    key: dict[str, Any] = {"scope": "all:", "service": "clean", "short_of": "", "reason": "", "quote": ""}
    now_ms = registry.now_ms()
    numbers: dict[str, Any] = {"rank_ms": now_ms - 1, "since_ms": 0, "seen_ms": now_ms, "core_ms": 1, "bytes": 0}
    with registry.transaction() as session:
        for number in range(5):
            session.execute(lake_waiting.insert().values(**key, **numbers, table_id=f"t{number}"))
    waits = scheduler.start(leases["a"], TablePolicy(), POOR)
    assert waits.verdict is StartVerdict.WAITING
    assert "waits for places of all tables" in waits.reason


def test_days_costs_are_a_sum_of_few_rows(
    registry: Registry, gateway: FakeRunGateway, leases: dict[str, TableLease], clock: FakeClock
) -> None:
    tables = budgets("{all: {core_hours_per_day: 1000}}")
    scheduler = RunScheduler(registry, gateway, lambda: tables)
    for hour in range(80):
        key = f"20261121{hour:09}"
        decision = Decision(Service.COMPACTION, Verdict.DUE, "due", key_instant=key, evidence=POOR.evidence)
        run = scheduler.start(leases["a"], TablePolicy(), decision)
        gateway.end(run.run_id, RunState.SUCCESS, registry.now_ms())
        clock.advance(3600)
    with registry.transaction() as session:
        assert len(load_spent(session, ("all:",), registry.now_ms())) <= 24
        assert _count(session) <= 3 * 24 + 2


def _count(session: Session) -> int:
    from airflow_lake_provider.manager.db.schema import lake_spent

    return len(session.execute(select(lake_spent.c.hour_ms)).all())


def test_candidates_behind_one_that_started_are_evaluated_soon(
    registry: Registry, gateway: FakeRunGateway, leases: dict[str, TableLease], clock: FakeClock
) -> None:
    scheduler = RunScheduler(registry, gateway, lambda: ONE_SLOT)
    run = scheduler.start(leases["a"], SPARK, POOR)
    for name in "bc":
        scheduler.start(leases[name], SPARK, RICH)
    late_ms = registry.now_ms() + 300_000
    with registry.transaction() as session:
        session.execute(update(lake_table).values(retry_ms=late_ms))
    gateway.end(run.run_id, RunState.SUCCESS, registry.now_ms())
    scheduler.start(leases["b"], SPARK, RICH)
    assert _retries(registry, leases, "cd") == [registry.now_ms() + 1000, late_ms]


def _retries(registry: Registry, leases: dict[str, TableLease], names: Sequence[str]) -> list[int | None]:
    found = [registry.find(leases[name].table_id) for name in names]
    return [row.retry_ms for row in found if row is not None]


def test_quote_of_another_release_is_none() -> None:
    assert parse_quote(None) is None
    assert parse_quote('{"work": {"bytes": 1}, "new": 1}') is None
    assert parse_quote(json.dumps([1])) is None
    assert HOUR_MS == 3_600_000
