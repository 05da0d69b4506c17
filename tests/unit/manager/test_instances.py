"""Each instance has a state, an owner that acts next, a deadline and a reason; past its deadline something happens."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.manager.db.notification_log import KEEP_MS, NOTIFY_WITHIN_MS, NotificationLog
from airflow_lake_provider.manager.db.registry import Registry
from airflow_lake_provider.manager.db.rows import EvaluationResult, Notice, Source
from airflow_lake_provider.manager.db.typed_rows import TableRow
from airflow_lake_provider.manager.health.health import TableState
from airflow_lake_provider.manager.runs.airflow_runs import RunFacts, RunState, TaskTry
from airflow_lake_provider.manager.runs.run_ids import run_id_of
from airflow_lake_provider.manager.supervision.instances import (
    EVALUATE_WITHIN_MS,
    KILL_WITHIN_MS,
    READABLE_WITHIN_MS,
    Instance,
    InstanceState,
    Plans,
    instance_of_run,
    instances_of,
)
from airflow_lake_provider.manager.supervision.monitoring import DeadlineSweep
from airflow_lake_provider.manager.supervision.notifications import NoNotifier
from airflow_lake_provider.metrics import (
    BACKLOG_CORE_HOURS,
    BACKLOG_PRESSURE,
    BACKLOG_WAITING,
    DEADLINES,
    HOLES,
    NEED_ATTENTION,
    OVERDUE,
    STUCK,
    tables_in,
)
from airflow_lake_provider.planner.rules import Urgency
from tests.unit.manager.conftest import FakeClock, FakeInstanceGateway

PLAN = "20261121120005000"
RUN_ID = run_id_of("orders-1", Service.COMPACTION, PLAN)
T = 1_000_000_000
PARAMS = {
    "base_path": "/lake/orders", "service": "compaction", "instants": [PLAN],
    "timeout_s": 3600, "start_within_s": 600, "deadline_s": 7200,
}  # fmt: skip
NO_TABLES = {NEED_ATTENTION: 0, **{tables_in(state): 0 for state in TableState}}
NOTHING_WAITS = {BACKLOG_WAITING: 0, BACKLOG_CORE_HOURS: 0.0, BACKLOG_PRESSURE: 0, **NO_TABLES}
RUN = RunFacts(RUN_ID, RunState.RUNNING, T, params=PARAMS)
FAILED = replace(RUN, state=RunState.FAILED, ended_ms=T + 9)
PENDING = Plans(pending=frozenset({PLAN}))
COMPLETED = Plans(completed=frozenset({PLAN}))


def decision(run: str, **more: Any) -> dict[str, Any]:
    return {
        "service": "compaction",
        "verdict": "due",
        "reason": "3 delta commits",
        "run": run,
        "run_reason": run,
    } | more


@pytest.mark.parametrize(
    ("run", "plans", "state", "owner", "deadline_ms"),
    [
        pytest.param(
            replace(RUN, state=RunState.QUEUED), PENDING, "scheduled", "Airflow's scheduler", T + 600_000, id="queued"
        ),
        pytest.param(
            replace(RUN, task=TaskTry("queued")), PENDING, "scheduled", "Airflow's scheduler", T + 600_000, id="waits"
        ),
        pytest.param(
            replace(RUN, task=TaskTry("running", 1, 4, "w1", T + 5)), PENDING, "running", "worker on w1",
            T + 5 + 3_600_000 + KILL_WITHIN_MS, id="runs",
        ),
        pytest.param(
            replace(RUN, task=TaskTry("running", 3, 4, "w1", T + 7_000_000)), PENDING, "running", "worker on w1",
            T + 7_200_000, id="a-late-try-has-until-the-runs-deadline",
        ),
        pytest.param(
            replace(RUN, task=TaskTry("up_for_retry", 1, 4, next_try_ms=T + 60_000)), PENDING, "retrying",
            "Airflow's scheduler", T + 660_000, id="between-two-tries",
        ),
        pytest.param(
            replace(RUN, task=TaskTry("scheduled", 1, 4)), PENDING, "scheduled", "Airflow's scheduler", T + 600_000,
            id="airflow-counts-the-first-try-before-it-begins",
        ),
        pytest.param(
            replace(RUN, task=TaskTry("queued", 2, 4)), PENDING, "retrying", "Airflow's scheduler", T + 600_000,
            id="next-try-waits-for-a-slot",
        ),
        pytest.param(
            replace(RUN, task=TaskTry("up_for_reschedule", 1, 4, next_try_ms=T + 500_000)), PENDING, "retrying",
            "Airflow's scheduler", T + 600_000, id="waits-for-infrastructure-since-it-was-created",
        ),
        pytest.param(replace(RUN, state=RunState.SUCCESS), COMPLETED, "done", "", None, id="succeeded"),
        pytest.param(replace(RUN, state=RunState.SUCCESS), PENDING, "failed", "manager", None, id="plan-still-pending"),
        pytest.param(FAILED, COMPLETED, "done", "", None, id="failed-but-the-timeline-says-completed"),
        pytest.param(FAILED, PENDING, "failed", "", None, id="failed"),
    ],
)  # fmt: skip
def test_instance_of_a_run(run: RunFacts, plans: Plans, state: str, owner: str, deadline_ms: int | None) -> None:
    found = instance_of_run(run, plans)
    assert (found.state.value, found.owner, found.deadline_ms) == (state, owner, deadline_ms)
    assert (found.service, found.run_id, found.plans, bool(found.reason)) == ("compaction", RUN_ID, (PLAN,), True)


@pytest.mark.parametrize(
    ("run", "state", "owner", "deadline_ms"),
    [
        pytest.param("backing_off", "retrying", "manager", T + 50 + EVALUATE_WITHIN_MS, id="another-run-comes"),
        pytest.param("abandoned", "abandoned", "a person", None, id="given-up"),
        pytest.param("start", "failed", "", None, id="of-an-earlier-state"),
    ],
)
def test_failed_run_is_notified_by_what_the_manager_decided_of_it(
    run: str, state: str, owner: str, deadline_ms: int | None
) -> None:
    decided = decision(run, run_id=RUN_ID if run != "start" else run_id_of("orders-1", Service.COMPACTION, "2"))
    found = instance_of_run(FAILED, PENDING, [decided], retry_ms=T + 50)
    assert (found.state.value, found.owner, found.deadline_ms) == (state, owner, deadline_ms)


def row(**values: Any) -> TableRow:
    known = {"registered_ms": T, "evaluated_ms": T, "last_notice_source": "commit_callback"}
    return TableRow("orders-1", "/lake/orders", "orders", **known | values)


def test_what_waits_for_a_window_or_another_service_is_requested() -> None:
    decisions = json.dumps([decision("waiting", run_id="", evidence={"pending_plans": PLAN})])
    (found,) = instances_of(row(decisions=decisions, retry_ms=T + 30_000), (), PENDING)
    assert (found.state, found.owner, found.plans) == (InstanceState.REQUESTED, "manager", (PLAN,))
    assert found.deadline_ms == T + 30_000 + EVALUATE_WITHIN_MS
    assert found.reason == "3 delta commits; waiting"


def test_a_mark_is_a_request_for_an_evaluation() -> None:
    (found,) = instances_of(row(dirty_since_ms=T), (), PENDING)
    assert (found.service, found.state, found.deadline_ms) == ("evaluation", "requested", T + EVALUATE_WITHIN_MS)
    (found,) = instances_of(
        row(dirty_since_ms=T, evaluation_failures=3, retry_ms=T + 9, problem="no such host"), (), PENDING
    )
    assert (found.since_ms, found.deadline_ms) == (T, T + READABLE_WITHIN_MS)
    assert "3 failed, the last with: no such host" in found.reason


def test_second_run_for_a_state_says_so_and_limits_fall_back_to_the_defaults() -> None:
    run = RunFacts(
        run_id_of("orders-1", Service.COMPACTION, PLAN, 2),
        RunState.RUNNING,
        T,
        params={"service": "clean", "timeout_s": "many"},
    )
    found = instance_of_run(run, Plans())
    assert found.reason.endswith("(run 2 for this state of the table)")
    assert run.limit_ms("timeout_s") == 43_200_000


@dataclass
class Heard(NoNotifier):
    deadlines: list[Instance] = field(default_factory=list)
    stucks: list[Instance] = field(default_factory=list)
    counts: dict[str, float] = field(default_factory=dict)
    answers: bool = True

    def deadline(self, base_path: str, instance: Instance) -> None:
        assert base_path == "/lake/orders"
        self.deadlines.append(instance)

    def stuck(self, base_path: str, instance: Instance, on_notified: Callable[[], None]) -> None:
        self.stucks.append(instance)
        if self.answers:
            on_notified()

    def incr(self, name: str, count: int = 1) -> None:
        self.counts[name] = self.counts.get(name, 0) + count

    def gauge(self, name: str, value: float) -> None:
        self.counts[name] = value

    def timing(self, name: str, duration_ms: float) -> None:
        raise AssertionError(name)


def test_sweep_ends_a_run_past_its_deadline_and_says_why(registry: Registry) -> None:
    late = replace(RUN, created_ms=registry.now_ms() - 7_201_000, task=TaskTry("running", 2, 4, "w1", T))
    fine = replace(RUN, run_id=run_id_of("orders-1", Service.CLEAN, "1"), created_ms=registry.now_ms())
    gateway, heard = FakeInstanceGateway([late, fine]), Heard()
    sweep = DeadlineSweep(registry, gateway, heard, heard)
    assert sweep.sweep().ended == 1
    assert set(gateway.ended) == {RUN_ID}
    assert "not done 7200 s after it was created (deadline_s); try 2 of 5 runs on w1" in gateway.ended[RUN_ID]
    assert [instance.state for instance in heard.deadlines] == [InstanceState.FAILED]
    assert heard.counts == {DEADLINES: 1, OVERDUE: 0, HOLES: 0, **NOTHING_WAITS}
    assert sweep.sweep().ended == 0


def test_sweep_notifies_of_what_is_stuck_once_for_each_state(registry: Registry) -> None:
    waiting = replace(RUN, state=RunState.QUEUED, created_ms=registry.now_ms() - 601_000)
    gateway, heard = FakeInstanceGateway([waiting]), Heard()
    sweep = DeadlineSweep(registry, gateway, heard, heard)
    assert (sweep.sweep().overdue, sweep.sweep().overdue) == (1, 1)
    assert [instance.state for instance in heard.stucks] == [InstanceState.SCHEDULED]
    assert heard.counts == {STUCK: 1, OVERDUE: 1, HOLES: 0, **NOTHING_WAITS}
    hung_ms = registry.now_ms() - 3_600_000 - KILL_WITHIN_MS - 1
    gateway.runs = [replace(waiting, created_ms=hung_ms, task=TaskTry("running", 1, 4, "w1", hung_ms))]
    sweep.sweep()
    assert [instance.state for instance in heard.stucks] == [InstanceState.SCHEDULED, InstanceState.RUNNING]


def test_sweep_of_another_server_or_after_a_restart_does_not_notify_again(registry: Registry) -> None:
    waiting = replace(RUN, state=RunState.QUEUED, created_ms=registry.now_ms() - 601_000)
    gateway, heard = FakeInstanceGateway([waiting]), Heard()
    assert [DeadlineSweep(registry, gateway, heard, heard).sweep().overdue for _ in range(3)] == [1, 1, 1]
    assert (len(heard.stucks), heard.counts[STUCK]) == (1, 1)


def test_sweep_notifies_again_when_the_server_that_notified_died_over_it(registry: Registry, clock: FakeClock) -> None:
    waiting = replace(RUN, state=RunState.QUEUED, created_ms=registry.now_ms() - 601_000)
    gateway, dies, heard = FakeInstanceGateway([waiting]), Heard(answers=False), Heard()
    DeadlineSweep(registry, gateway, dies, dies).sweep()
    sweep = DeadlineSweep(registry, gateway, heard, heard)
    sweep.sweep()
    assert (len(dies.stucks), len(heard.stucks)) == (1, 0), "it may still be notifying"
    clock.advance(NOTIFY_WITHIN_MS / 1000)
    sweep.sweep()
    sweep.sweep()
    assert len(heard.stucks) == 1


def test_sweep_forgets_what_was_notified_long_ago(registry: Registry, clock: FakeClock) -> None:
    reports = NotificationLog(registry)
    assert (reports.begin("a"), reports.begin("a")) == (True, False)
    reports.end("a")
    clock.advance(KEEP_MS / 1000)
    reports.forget_old()
    assert not reports.begin("a")
    clock.advance(NOTIFY_WITHIN_MS / 1000 + 1)
    reports.forget_old()
    assert reports.begin("a")


def test_sweep_notifies_of_a_mark_that_no_server_evaluates(registry: Registry, clock: FakeClock) -> None:
    registry.mark_dirty(Notice("/lake/orders", "orders", Source.COMMIT_CALLBACK))
    heard = Heard()
    sweep = DeadlineSweep(registry, FakeInstanceGateway(), heard, heard)
    assert sweep.sweep().overdue == 0
    clock.advance(EVALUATE_WITHIN_MS / 1000 + 1)
    assert sweep.sweep().overdue == 1
    lease = registry.acquire(1, 60)[0]
    registry.release(lease, EvaluationResult(next_evaluation_ms=registry.now_ms() + 1))
    assert sweep.sweep().overdue == 0


def test_sweep_lets_a_run_that_waits_for_long_come_before_urgent_ones(registry: Registry, clock: FakeClock) -> None:
    now_ms = registry.now_ms()
    old, young = now_ms - 301_000, now_ms - 299_000
    gateway = FakeInstanceGateway(
        [
            replace(RUN, run_id=run_id_of("t-1", Service.TTL, "1"), state=RunState.QUEUED, created_ms=old),
            replace(RUN, run_id=run_id_of("t-2", Service.TTL, "1"), state=RunState.QUEUED, created_ms=young),
            replace(
                RUN,
                run_id=run_id_of("t-3", Service.TTL, "1"),
                created_ms=old,
                task=TaskTry("running", 1, started_ms=now_ms),
            ),
        ]
    )
    DeadlineSweep(registry, gateway).sweep()
    assert gateway.raised == {run_id_of("t-1", Service.TTL, "1"): Urgency.AGED}
