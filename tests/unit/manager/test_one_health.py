"""The state of a table: the worst of all that is known, and the same answer in every place that shows one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from airflow_lake_provider.cli.lake_reports import _table_line
from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.config.service_policies import CleanPolicy
from airflow_lake_provider.config.tables_config import TablesConfig
from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.manager.api.services import ManagerServices
from airflow_lake_provider.manager.db.holds import NewHold, ReaderHolds
from airflow_lake_provider.manager.db.registry import Registry
from airflow_lake_provider.manager.db.rows import Notice, Source
from airflow_lake_provider.manager.db.search import find_summary
from airflow_lake_provider.manager.db.sinks import Sinks
from airflow_lake_provider.manager.health.health import (
    ATTENTION,
    BLOCKED_FOR_MS,
    LONG_HOLD_MS,
    RECENT_MS,
    SEVERITY,
    FailedRun,
    FoundBy,
    Health,
    KnownFacts,
    MarkKind,
    OpenFinding,
    PausedService,
    SinkFacts,
    TableMark,
    TableState,
    health_to_text,
    judge,
    own_settings_finding,
    parse_health,
)
from airflow_lake_provider.manager.read_model import ReportedTable
from airflow_lake_provider.manager.supervision.monitoring import DeadlineSweep
from airflow_lake_provider.metrics import NEED_ATTENTION, NoMetrics, tables_in
from airflow_lake_provider.shared.typed_json import read_known
from airflow_lake_provider.ui.app import create_pages
from tests.support.planted_problems import (
    NOTIFIED_BY_OTHERS,
    PLANTED,
    Inbox,
    broken_writers,
    evaluate,
    plant_delay,
    plant_finding,
    plant_sink,
    register,
)
from tests.unit.manager.conftest import SERVICE_TOKEN, FakeClock, FakeInstanceGateway, serve

NOW = 10 * RECENT_MS


# --- The rule


def test_states_are_ordered_the_worst_first_and_keep_the_numbers_that_registries_have() -> None:
    assert list(SEVERITY) == list(TableState)
    assert list(SEVERITY.values()) == sorted(SEVERITY.values(), reverse=True)
    # Of rows that an older release wrote.
    assert [SEVERITY[s] for s in ("unreadable", "failing", "blocked", "waiting", "running", "new", "healthy")] == [
        60, 50, 40, 30, 20, 10, 0,
    ]  # fmt: skip
    assert all(SEVERITY[bad] > SEVERITY[TableState.WAITING] for bad in ATTENTION)


ALL: dict[str, tuple[dict[str, Any], TableState]] = {
    "evaluation": ({"problem": "no answer"}, TableState.UNREADABLE),
    "missing": ({"missing_since_ms": 7}, TableState.UNREADABLE),
    "blocked": ({"decisions": [{"service": "ttl", "verdict": "blocked", "reason": "x, but y"}]}, TableState.BLOCKED),
    "failing": ({"decisions": [{"service": "clean", "verdict": "due", "run": "abandoned"}]}, TableState.FAILING),
    "doctor": ({"found": {FoundBy.DOCTOR: [OpenFinding("rows_differ", "", "differ", "compare")]}}, TableState.STUCK),
    "late": ({"found": {FoundBy.DEADLINE: [OpenFinding("clean", "r1", "late", "look")]}}, TableState.STUCK),
    "settings": (
        {"found": {FoundBy.SETTINGS: own_settings_finding(["lake.x=1 is left out"])}},
        TableState.MISCONFIGURED,
    ),
    "writers": ({"conformance": broken_writers()}, TableState.MISCONFIGURED),
    "sink": ({"sinks": [SinkFacts("s", "Kafka is away")]}, TableState.FAILING),
    "retiring": ({"sinks": [SinkFacts("s", "", "no longer configured")]}, TableState.MISCONFIGURED),
    "run": ({"failed_runs": [FailedRun("ttl", "r1", "no memory", NOW - 5)]}, TableState.FAILING),
}  # fmt: skip


@pytest.mark.parametrize("name", ALL)
def test_each_kind_of_problem_alone_decides_and_names_its_cause(name: str) -> None:
    values, state = ALL[name]
    health = judge(KnownFacts(**values), Health(), NOW)
    assert health.state is state
    assert [problem.state for problem in health.problems] == [state]
    assert health.problems[0].cause
    assert parse_health(health_to_text(health)) == health


def test_the_worst_of_all_decides_and_comes_first() -> None:
    known: dict[str, Any] = {}
    for values, _ in ALL.values():
        for field, value in values.items():
            known[field] = {**known.get(field, {}), **value} if isinstance(value, Mapping) else value
    health = judge(KnownFacts(**known), Health(), NOW)
    assert health.state is TableState.STUCK
    severities = [SEVERITY[problem.state] for problem in health.problems]
    assert severities == sorted(severities, reverse=True)


def test_what_is_still_so_keeps_its_time_and_what_is_new_begins_now() -> None:
    known = KnownFacts(problem="no answer", observed="mode: observe")
    first = judge(known, Health(), 100)
    assert (first.since_ms, first.problems[0].since_ms, first.marks[0].since_ms) == (100, 100, 100)
    again = judge(KnownFacts(problem="no answer, still", observed="mode: observe"), first, 200)
    assert (again.since_ms, again.problems[0].since_ms, again.marks[0].since_ms) == (100, 100, 100)
    well = judge(KnownFacts(), again, 300)
    assert (well.state, well.since_ms, well.marks) == (TableState.HEALTHY, 300, ())
    assert judge(KnownFacts(), well, 400).since_ms == 300
    assert judge(known, well, 500).problems[0].since_ms == 500


def test_failed_run_counts_for_a_day_and_not_while_its_service_has_a_state_of_its_own() -> None:
    failed = [FailedRun("clean", "r1", "no memory", NOW - RECENT_MS)]
    assert judge(KnownFacts(failed_runs=failed), Health(), NOW).state is TableState.HEALTHY
    failed = [FailedRun("clean", "r1", "no memory", NOW - 5)]
    at_work = [{"service": "clean", "verdict": "due", "run": "already_active"}]
    assert judge(KnownFacts(decisions=at_work, failed_runs=failed), Health(), NOW).state is TableState.RUNNING


def test_blocked_service_says_what_is_in_its_way_before_why_it_is_due() -> None:
    decision = {"service": "clean", "verdict": "blocked", "reason": "12 writes (rule: 5), but no lock: set a=b"}
    (problem,) = judge(KnownFacts([decision]), Health(), NOW).problems
    assert problem.cause == "clean is blocked: no lock: set a=b"


def test_pause_and_observation_are_marks_and_no_state() -> None:
    health = judge(KnownFacts(observed="found, not agreed", paused={"clean": PausedService("ann: audit")}), Health(), 9)
    assert health.state is TableState.HEALTHY
    assert health.marks == (
        TableMark(MarkKind.OBSERVED, "", "found, not agreed", 9),
        TableMark(MarkKind.PAUSED, "clean", "ann: audit", 9),
    )


def test_mark_of_a_pause_has_its_end_and_is_gone_from_then_on() -> None:
    paused = KnownFacts(paused={"clean": PausedService("ann", 50)})
    (mark,) = parse_health(health_to_text(judge(paused, Health(), 9))).marks
    assert (mark.since_ms, mark.ends_ms) == (9, 50)
    assert judge(paused, Health(marks=(mark,)), 50).marks == ()


@pytest.mark.parametrize("text", [None, "", "{", "[]", '{"state": "of another release"}', '{"problems": [1]}'])
def test_text_of_another_release_is_a_new_table(text: str | None) -> None:
    assert parse_health(text) == Health()


# --- In every place


class Gauges(NoMetrics):
    def __init__(self) -> None:
        self.values: dict[str, float] = {}

    def gauge(self, name: str, value: float) -> None:
        self.values[name] = value


def test_each_finder_and_each_state_that_needs_a_person_is_planted(registry: Registry) -> None:
    found: set[tuple[FoundBy, TableState]] = set()
    for plant in PLANTED:
        table_id = register(registry)
        plant(registry, table_id)
        DeadlineSweep(registry, FakeInstanceGateway()).sweep()
        found |= {(one.source, one.state) for one in parse_health(registry.get(table_id).health).problems}
        registry.forget(table_id)
    assert {source for source, _ in found} == set(FoundBy)
    assert {state for _, state in found} == set(ATTENTION)


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_people_are_notified_of_each_planted_problem_with_the_same_state_and_cause(
    registry: Registry, clock: FakeClock, plant: Callable[[Registry, str], None]
) -> None:
    inbox = Inbox()
    sweep = DeadlineSweep(registry, FakeInstanceGateway(), notifier=inbox)
    plant(registry, register(registry))
    sweep.sweep()
    clock.advance(2 * BLOCKED_FOR_MS / 1000)
    sweep.sweep()
    state, cause = PLANTED[plant]
    mine = [(one.state, cause in one.reason) for one in inbox.messages if one.state == state]
    assert mine == ([] if plant in NOTIFIED_BY_OTHERS else [(state, True)])


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_every_place_says_the_same_of_each_planted_problem(
    services: ManagerServices, registry: Registry, plant: Callable[[Registry, str], None]
) -> None:
    table_id = register(registry)
    gauges = Gauges()
    sweep = DeadlineSweep(registry, FakeInstanceGateway(), gauges)
    object.__setattr__(services, "instance_gateway", FakeInstanceGateway())
    plant(registry, table_id)
    sweep.sweep()
    state, cause = PLANTED[plant]
    pages = TestClient(create_pages(lambda: services, lambda: None))
    manager = TestClient(serve(lambda: services))
    (row,) = pages.get("/api/tables").json()["rows"]
    of_table = pages.get(f"/api/tables/{table_id}").json()["row"]
    overview = pages.get("/api/overview").json()
    said: dict[str, Any] = {
        "list": row["state"],
        "filter": next(one["state"] for one in pages.get("/api/tables", params={"state": state}).json()["rows"]),
        "table": of_table["state"],
        "worst problem": row["problems"][0]["state"],
        "tiles and card": next(one["state"] for one in overview["states"] if one["tables"]),
        "registry": find_summary(registry, table_id).state,
        "metrics": next(one.value for one in TableState if gauges.values[tables_in(one)]),
    }
    assert set(said.values()) == {state}, said
    assert cause in row["headline"] or cause in row["headline"].lower()
    assert row["problems"] == of_table["problems"]
    assert next(one["needs_attention"] for one in overview["states"] if one["tables"])
    assert gauges.values[NEED_ATTENTION] == 1
    bearer = {"Authorization": f"Bearer {SERVICE_TOKEN}"}
    report = manager.get("/reports/tables", headers=bearer).json()["tables"][0]
    assert (report["state"], report["problem"], report["remedy"]) == (
        state, row["problems"][0]["cause"], row["problems"][0]["remedy"],
    )  # fmt: skip
    line = _table_line(read_known(ReportedTable, report))
    assert (line["state"], cause in line["problem"]) == (state, True)
    found = manager.get("/reports/overview", headers=bearer).json()
    assert (found["states"][state], found["need_attention"]) == (1, 1)
    assert manager.get("/health").json()["need_attention"] == 1


def test_problem_that_is_gone_leaves_every_place(services: ManagerServices, registry: Registry) -> None:
    table_id = register(registry)
    pages = TestClient(create_pages(lambda: services, lambda: None))
    plant_finding(registry, table_id)
    plant_sink(registry, table_id)
    plant_delay(registry, table_id)
    sweep = DeadlineSweep(registry, FakeInstanceGateway())
    sweep.sweep()
    assert {one["source"] for one in _row(pages)["problems"]} == {"doctor", "sink", "deadline"}
    registry.keep_findings(table_id, FoundBy.DOCTOR, [])
    Sinks(registry).forget(table_id, "events")
    evaluate(registry)
    sweep.sweep()
    assert (_row(pages)["state"], _row(pages)["problems"]) == ("healthy", [])


def _row(pages: httpx.Client) -> dict[str, Any]:
    row: dict[str, Any] = pages.get("/api/tables").json()["rows"][0]
    return row


def test_paused_and_observed_tables_are_counted_found_and_marked_with_their_age(
    services: ManagerServices, registry: Registry, clock: FakeClock
) -> None:
    register(registry)
    evaluate(registry, observed="mode: observe", paused={"clean": PausedService("ann: audit")})
    began_ms = registry.now_ms()
    clock.advance(86_400)
    evaluate(registry, observed="mode: observe", paused={"clean": PausedService("ann: audit")})
    object.__setattr__(services, "instance_gateway", FakeInstanceGateway())
    pages = TestClient(create_pages(lambda: services, lambda: None))
    overview = pages.get("/api/overview").json()
    assert {one["mark"]: one["tables"] for one in overview["marked"]} == {
        "paused": 1, "observed": 1, "held": 0, "snoozed": 0,
    }  # fmt: skip
    for mark in ("paused", "observed"):
        (row,) = pages.get("/api/tables", params={"mark": mark}).json()["rows"]
        assert {(one["kind"], one["service"], one["since_ms"]) for one in row["marks"]} == {
            ("observed", "", began_ms), ("paused", "clean", began_ms),
        }  # fmt: skip
    evaluate(registry)
    assert pages.get("/api/tables", params={"mark": "paused"}).json()["rows"] == []


def test_reader_that_has_held_files_for_long_is_a_mark_until_its_hold_ends(
    services: ManagerServices, registry: Registry, clock: FakeClock
) -> None:
    table_id = register(registry)
    began_ms = registry.now_ms()
    until_ms = began_ms + 3 * 86_400_000
    hold_id = ReaderHolds(registry).add(table_id, NewHold("ann", "audit", "1", "", 2 * LONG_HOLD_MS, until_ms))
    evaluate(registry)
    assert parse_health(registry.get(table_id).health).marks == ()
    clock.advance(LONG_HOLD_MS / 1000)
    evaluate(registry)
    (mark,) = parse_health(registry.get(table_id).health).marks
    assert mark == TableMark(MarkKind.HELD, "", "ann (audit)", began_ms, until_ms)
    pages = TestClient(create_pages(lambda: services, lambda: None))
    (row,) = pages.get("/api/tables", params={"mark": "held"}).json()["rows"]
    assert row["state"] == "healthy"
    ReaderHolds(registry).release(table_id, hold_id)
    evaluate(registry)
    assert pages.get("/api/tables", params={"mark": "held"}).json()["rows"] == []


def test_evaluation_finds_marks_in_the_policy(services: ManagerServices, registry: Registry, orders: str) -> None:
    policy = TablePolicy(mode="observe", clean=CleanPolicy(paused="ann: audit"))
    services.loop.evaluation._load_tables = lambda: TablesConfig(defaults=policy)
    registry.mark_dirty(Notice(registry.get(orders).base_path, "orders", Source.HINT))
    services.loop.drain()
    marks = parse_health(registry.get(orders).health).marks
    assert {(mark.kind, mark.service) for mark in marks} == {
        (MarkKind.OBSERVED, ""), (MarkKind.PAUSED, Service.CLEAN.value),
    }  # fmt: skip


def test_pause_of_a_table_is_one_mark_with_its_end_and_starts_nothing(
    services: ManagerServices, registry: Registry, orders: str
) -> None:
    ends = "2099-01-02T03:04:00+00:00"
    policy = TablePolicy(paused="ann: audit", paused_until=ends, clean=CleanPolicy(paused="bob"))
    services.loop.evaluation._load_tables = lambda: TablesConfig(defaults=policy)
    registry.mark_dirty(Notice(registry.get(orders).base_path, "orders", Source.HINT))
    services.loop.drain()
    row = registry.get(orders)
    (mark,) = parse_health(row.health).marks
    ends_ms = datetime.fromisoformat(ends).timestamp() * 1000
    assert (mark.kind, mark.service, mark.why, mark.ends_ms) == (MarkKind.PAUSED, "", "ann: audit", ends_ms)
    found = json.loads(row.decisions)
    assert {(one["verdict"], one["situation"]) for one in found} == {("not_due", "pause")}
    assert all(one["reason"].startswith("paused by ann: audit; ") for one in found)


def test_forgotten_table_takes_its_findings_along(registry: Registry) -> None:
    table_id = register(registry)
    plant_finding(registry, table_id)
    registry.forget(table_id)
    register(registry)
    assert parse_health(registry.get(table_id).health).state is TableState.HEALTHY
