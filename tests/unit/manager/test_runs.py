from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_lake_provider.job_contract import Mode, Service
from airflow_lake_provider.manager.db.typed_rows import ExecutorRow
from airflow_lake_provider.manager.runs.airflow_runs import RunState, ServiceRun
from airflow_lake_provider.manager.runs.run_ids import ManagerRun, is_run_of, parse_run_id, run_id_of
from airflow_lake_provider.manager.scheduling.scheduling import (
    GIVEN_UP_PAUSE_MS,
    StartVerdict,
    decide_start,
    find_runs_of,
    wait_for_executor,
    wait_for_others,
)
from airflow_lake_provider.planner.rules import Decision, Verdict
from tests.unit.manager.conftest import FakeRunGateway

DUE = Decision(Service.COMPACTION, Verdict.DUE, "5 delta commits", key_instant="100")
PLAN = Decision(Service.COMPACTION, Verdict.DUE, "a plan", Mode.EXECUTE, key_instant="100", plan_instants=("100",))
ID = "orders-0123456789abcdef"
NOW_MS = 1_000_000


def run(instant: str, state: RunState, *, attempt: int = 1, ended_ms: int | None = None) -> ServiceRun:
    return ServiceRun(run_id_of(ID, Service.COMPACTION, instant, attempt), state, ended_ms)


@pytest.mark.parametrize(
    ("decision", "runs", "verdict", "of"),
    [
        pytest.param(DUE, [], StartVerdict.START, ("100", 1), id="first"),
        pytest.param(
            DUE, [run("99", RunState.SUCCESS)], StartVerdict.START, ("100", 1), id="earlier-instant-succeeded"
        ),
        pytest.param(
            DUE, [run("99", RunState.RUNNING)], StartVerdict.ALREADY_ACTIVE, ("99", 1), id="other-instant-runs"
        ),
        pytest.param(DUE, [run("100", RunState.QUEUED)], StartVerdict.ALREADY_ACTIVE, ("100", 1), id="same-is-queued"),
        pytest.param(DUE, [run("100", RunState.SUCCESS)], StartVerdict.ALREADY_RAN, ("100", 1), id="nothing-was-to-do"),
        pytest.param(
            PLAN, [run("100", RunState.SUCCESS, ended_ms=0)], StartVerdict.START, ("100", 2), id="plan-still-pending"
        ),
        pytest.param(
            DUE,
            [run("100", RunState.FAILED, ended_ms=NOW_MS - 59_000)],
            StartVerdict.BACKING_OFF,
            ("100", 1),
            id="too-soon",
        ),
        pytest.param(
            DUE, [run("100", RunState.FAILED, ended_ms=NOW_MS - 60_000)], StartVerdict.START, ("100", 2), id="second"
        ),
        pytest.param(
            DUE,
            [run("100", RunState.FAILED), run("100", RunState.FAILED, attempt=2, ended_ms=NOW_MS - 119_000)],
            StartVerdict.BACKING_OFF,
            ("100", 2),
            id="backoff-doubles",
        ),
        pytest.param(
            DUE,
            [run("100", RunState.FAILED, attempt=3, ended_ms=NOW_MS), run("100", RunState.FAILED)],
            StartVerdict.ABANDONED,
            ("100", 3),
            id="maximum",
        ),
    ],
)
def test_decide_start(decision: Decision, runs: list[ServiceRun], verdict: StartVerdict, of: tuple[str, int]) -> None:
    start = decide_start(ID, decision, runs, now_ms=NOW_MS, max_attempts=3, backoff_s=60)
    assert start.verdict is verdict
    assert start.run_id == run_id_of(ID, Service.COMPACTION, *of)
    assert start.reason


@pytest.mark.parametrize("decision", [pytest.param(DUE, id="no-plan"), pytest.param(PLAN, id="plan")])
def test_what_was_given_up_is_tried_again_after_hours_without_a_new_write(decision: Decision) -> None:
    runs = [run("100", RunState.FAILED, attempt=7, ended_ms=NOW_MS)]
    ripe_ms = NOW_MS + GIVEN_UP_PAUSE_MS
    given_up = decide_start(ID, decision, runs, now_ms=ripe_ms - 1, max_attempts=3, backoff_s=60)
    assert (given_up.verdict, given_up.evaluate_again_ms) == (StartVerdict.ABANDONED, ripe_ms)
    assert "given up until 1970-01-01 06:16 UTC" in given_up.reason
    again = decide_start(ID, decision, runs, now_ms=ripe_ms, max_attempts=3, backoff_s=60)
    assert (again.verdict, again.run_id) == (StartVerdict.START, run_id_of(ID, Service.COMPACTION, "100", 8))


def test_void_runs_are_no_attempts_and_their_pause_grows_up_to_hours() -> None:
    void = [replace(run("100", RunState.FAILED, attempt=n, ended_ms=NOW_MS), is_void=True) for n in range(1, 30)]
    soon = decide_start(ID, PLAN, void[:4], now_ms=NOW_MS, max_attempts=3, backoff_s=60)
    assert (soon.verdict, soon.evaluate_again_ms) == (StartVerdict.BACKING_OFF, NOW_MS + 480_000)
    assert "ended without a verdict" in soon.reason
    late = decide_start(ID, PLAN, void, now_ms=NOW_MS, max_attempts=3, backoff_s=60)
    assert (late.verdict, late.evaluate_again_ms) == (StartVerdict.BACKING_OFF, NOW_MS + GIVEN_UP_PAUSE_MS)
    # Two void runs and two failed ones: the third failure is the last.
    failed = [run("100", RunState.FAILED, attempt=n, ended_ms=0) for n in (3, 4)]
    again = decide_start(ID, DUE, [*void[:2], *failed], now_ms=NOW_MS, max_attempts=3, backoff_s=60)
    assert (again.verdict, again.run_id) == (StartVerdict.START, run_id_of(ID, Service.COMPACTION, "100", 5))
    third = run("100", RunState.FAILED, attempt=5, ended_ms=NOW_MS)
    given_up = decide_start(ID, DUE, [*void[:2], *failed, third], now_ms=NOW_MS, max_attempts=3, backoff_s=60)
    assert given_up.verdict is StartVerdict.ABANDONED
    assert given_up.reason.startswith("3 runs for instant 100")


def test_service_that_a_run_by_hand_executes_gets_no_second_run() -> None:
    lease = ExecutorRow(ID, "compaction", "token", "by-hand", 2, NOW_MS, NOW_MS + 5000)
    waiting = wait_for_executor(PLAN, ID, [lease], NOW_MS)
    assert waiting is not None
    assert (waiting.verdict, waiting.run_id, waiting.evaluate_again_ms) == (
        StartVerdict.WAITING,
        "by-hand",
        NOW_MS + 5000,
    )
    assert "by-hand (try 2)" in waiting.reason
    assert wait_for_executor(PLAN, ID, [replace(lease, service="clean")], NOW_MS) is None
    for service, does in (("restore", "restores the table"), ("upgrade", "changes the table's version")):
        assert does in str(wait_for_executor(PLAN, ID, [replace(lease, service=service)], NOW_MS))
    # Airflow reports the provider's own runs.
    own = replace(lease, run_id=run_id_of(ID, Service.COMPACTION, "100"))
    assert wait_for_executor(PLAN, ID, [own], NOW_MS) is None


def test_run_ids_parse_back_and_others_do_not() -> None:
    assert run_id_of("or-ders-1a", Service.CLEAN, "100") == "or-ders.clean.100.1a", "what people search for is first"
    assert run_id_of("or-ders-1a", Service.CLEAN, "100", 2) == "or-ders.clean.100.r2.1a"
    for attempt in (1, 7):
        run_id = run_id_of(ID, Service.COMPACTION, "100", attempt)
        assert parse_run_id(run_id) == ManagerRun(ID, "compaction", "100", attempt)
        assert is_run_of(run_id, ID)
        assert is_run_of(run_id, ID, Service.CLEAN, Service.COMPACTION)
        assert not is_run_of(run_id, ID, Service.CLEAN)
        assert not is_run_of(run_id, f"{ID}1")
    assert parse_run_id("manual__2026-11-21T05:00:00+00:00") is None


@pytest.mark.parametrize(
    "run_id",
    [
        "orders.compaction.100.1a\n",
        "orders.compaction.100.r0.1a",
        "orders.compaction.100.r1.1a",
        "orders.compaction.100.r02.1a",
        "orders.compaction.\u0662.1a",
    ],
)
def test_id_that_is_written_in_another_way_is_not_the_managers(run_id: str) -> None:
    """Airflow lets a user choose a run's id, also one that ends with a new line."""
    assert parse_run_id(run_id) is None


def test_service_waits_while_another_one_of_its_table_runs() -> None:
    clean = Decision(Service.CLEAN, Verdict.DUE, "due", key_instant="1")
    own = ServiceRun(run_id_of("orders-1", Service.CLEAN, "1"), RunState.RUNNING)
    other = ServiceRun(run_id_of("orders-1", Service.COMPACTION, "1"), RunState.QUEUED)
    ended = ServiceRun(run_id_of("orders-1", Service.CLUSTERING, "1"), RunState.FAILED, 5)
    assert wait_for_others(clean, "orders-1", [own, ended], 1, now_ms=0) is None
    waiting = wait_for_others(clean, "orders-1", [own, other], 1, now_ms=0)
    assert waiting is not None
    assert waiting.verdict is StartVerdict.WAITING
    assert waiting.run_id == run_id_of("orders-1", Service.COMPACTION, "1")
    assert waiting.reason.startswith("waits for compaction, which runs: ")
    by_hand = replace(other, run_id="manual__1")
    both = wait_for_others(clean, "orders-1", [other, by_hand], 2, now_ms=0)
    assert both is not None
    assert both.reason == "waits for compaction and manual__1, which run: a table runs at most 2 services at a time"
    assert wait_for_others(clean, "orders-1", [own, other], 2, now_ms=0) is None


@pytest.mark.parametrize(
    "attempts", [[], [1], [1, 2, 3], list(range(1, 9)), list(range(1, 30)), [4, 5, 6, 7, 8, 9, 10]]
)
def test_every_attempt_for_an_instant_is_found_by_its_id_and_nothing_by_a_search(attempts: list[int]) -> None:
    """The next attempt's id must be free, also where old runs were deleted (`airflow db clean`)."""
    decision = Decision(Service.CLEAN, Verdict.DUE, "why", key_instant="20261121120001000", plan_instants=())
    gateway = FakeRunGateway()
    mine = [run_id_of("orders-1", Service.CLEAN, decision.key_instant, attempt) for attempt in attempts]
    others = [
        run_id_of("orders-1", Service.CLEAN, "20261121120001001"),
        run_id_of("orders-10", Service.CLEAN, "20261121120001000"),
        run_id_of("orders-1", Service.COMPACTION, "1"),
    ]
    gateway.runs = [ServiceRun(run_id, RunState.FAILED, 1) for run_id in (*mine, *others)]
    active = ServiceRun(run_id_of("orders-1", Service.CLEAN, "20261121120009000"), RunState.RUNNING)
    gateway.runs.append(active)
    other = ServiceRun(run_id_of("orders-1", Service.COMPACTION, "20261121120009000"), RunState.RUNNING)
    found = find_runs_of(gateway, None, "orders-1", decision, [active, other])  # type: ignore[arg-type]
    assert {run.run_id for run in found} == {*mine, active.run_id}
    assert not set(mine) & {run_id_of("orders-1", Service.CLEAN, decision.key_instant, max(attempts, default=0) + 1)}
