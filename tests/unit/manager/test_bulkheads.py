"""A store that hangs or fails costs its own tables, and no other's (G4): real threads, real registry."""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, update
from sqlalchemy.orm import sessionmaker

from airflow_lake_provider.config.policies import DoctorPolicy, TablePolicy
from airflow_lake_provider.config.settings import LakeSettings
from airflow_lake_provider.config.tables_config import TablesConfig
from airflow_lake_provider.errors import StorageError
from airflow_lake_provider.manager.db.database import ProcessClock
from airflow_lake_provider.manager.db.registry import FAILED_BEHIND_MS, Registry
from airflow_lake_provider.manager.db.rows import EvaluationResult, FirstLease, Notice, Source, TableLease
from airflow_lake_provider.manager.db.schema import lake_table
from airflow_lake_provider.manager.loop.evaluators import EvaluatorLimits, Evaluators
from airflow_lake_provider.manager.loop.reconciler import ManagerLoop
from airflow_lake_provider.manager.loop.timeline_feed import TimelineServerGateway
from airflow_lake_provider.manager.scheduling.scheduling import StartDecision
from airflow_lake_provider.manager.supervision.repair_round import RepairRound
from airflow_lake_provider.planner.table_view import TableView, TableViewCache
from airflow_lake_provider.timeline_server.server import TimelineServer
from tests.support.fake_metrics import FakeMetrics
from tests.support.tables import HandMadeTable
from tests.unit.manager.conftest import FakeClock, FakeRunGateway, table_of

SHORT_LEASE_S = 0.8
PER_STORE = 3


class HangingViews(TableViewCache):
    """Never answers for `s3a://dead` until it is let go; fails after a while for `s3a://slow`."""

    def __init__(self, server: TimelineServer) -> None:
        super().__init__(server.timelines)
        self.let_go = threading.Event()
        self.hanging: list[str] = []

    def refresh(self, base_path: str, dirty_seq: int | None = None) -> TableView:
        if base_path.startswith("s3a://dead/"):
            self.hanging.append(base_path)
            self.let_go.wait(60)
            raise StorageError("it answers at last")
        if base_path.startswith("s3a://slow/"):
            time.sleep(0.1)
            raise StorageError("no route to host")
        return super().refresh(base_path, dirty_seq)


@pytest.fixture
def views(timeline_server: TimelineServer) -> Iterator[HangingViews]:
    views = HangingViews(timeline_server)
    yield views
    views.let_go.set()


@pytest.fixture
def metrics() -> FakeMetrics:
    return FakeMetrics()


@pytest.fixture
def lease_s() -> float:
    return 600.0


@pytest.fixture
def loop(
    settings: LakeSettings,
    lease_s: float,
    registry: Registry,
    timeline_server: TimelineServer,
    views: HangingViews,
    gateway: FakeRunGateway,
    tables: TablesConfig,
    metrics: FakeMetrics,
) -> Iterator[ManagerLoop]:
    loop = ManagerLoop(
        settings.replace(claim_lease_s=lease_s),
        registry,
        TimelineServerGateway(timeline_server),
        views,
        gateway,
        lambda: tables,
        metrics,
        limits=EvaluatorLimits(PER_STORE, all_stores=8),
    )
    yield loop
    views.let_go.set()
    assert loop.wait_until_idle(10)


def mark(registry: Registry, base_path: str) -> str:
    return registry.mark_dirty(Notice(base_path, "orders", Source.HINT)).table_id


def wait_until(holds: Callable[[], bool], timeout_s: float = 10.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_tables_of_other_stores_are_evaluated_while_a_store_never_answers(
    registry: Registry, loop: ManagerLoop, views: HangingViews, lake: Path, clock: FakeClock
) -> None:
    dead = [mark(registry, f"s3a://dead/t{number}") for number in range(32)]
    clock.advance(1)  # all of the dead store's tables wait for longer
    healthy = [HandMadeTable.create(lake / f"t{number}") for number in range(5)]
    for table in healthy:
        table.commit(1)
    ids = [mark(registry, str(table.path)) for table in healthy]
    loop.start()
    wait_until(lambda: all(registry.get(table_id).dirty_since_ms is None for table_id in ids))
    assert len(views.hanging) == PER_STORE
    assert sum(registry.get(table_id).evaluated_ms is None for table_id in dead) == len(dead)


@pytest.mark.parametrize("lease_s", [SHORT_LEASE_S])
def test_evaluation_that_never_returns_is_named_recorded_and_costs_one_thread(
    registry: Registry, loop: ManagerLoop, views: HangingViews, clock: FakeClock, metrics: FakeMetrics
) -> None:
    table_id = mark(registry, "s3a://dead/orders")
    loop.start()
    began_s = time.monotonic()
    wait_until(lambda: len(views.hanging) == 1)
    assert loop.find_problems() == () or time.monotonic() - began_s > SHORT_LEASE_S
    time.sleep(SHORT_LEASE_S)
    loop.start()
    (problem,) = loop.find_problems()
    assert "1 evaluations of s3a://dead have not returned" in problem
    assert "among them table s3a://dead/orders;" in problem
    (unnamed,) = loop.find_problems(lambda _path: False)
    assert unnamed == problem.replace(", among them table s3a://dead/orders", "")
    row = registry.get(table_id)
    assert re.match(r"the evaluation has not returned for \d+ s: s3a://dead does not answer", row.problem)
    assert (row.evaluation_failures, row.claim_token) == (1, None)
    assert metrics.gauges["lake.stuck_evaluations"] == 1
    clock.advance(3600)
    for _ in range(5):
        loop.start()
        time.sleep(0.05)
    assert views.hanging == ["s3a://dead/orders"]
    # What the late evaluation found is not recorded: the table may be another's by now.
    views.let_go.set()
    assert loop.wait_until_idle(10)
    assert loop.find_problems() == ()


@pytest.mark.parametrize("waiting", [100, 2])
def test_tables_with_nothing_due_are_decided_while_due_ones_wait_for_their_runs(
    settings: LakeSettings,
    registry: Registry,
    timeline_server: TimelineServer,
    views: HangingViews,
    gateway: FakeRunGateway,
    tables: TablesConfig,
    lake: Path,
    clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
    waiting: int,
) -> None:
    """All of one store. With more due tables than may wait, those beyond keep the threads that decided them."""
    loop = ManagerLoop(
        settings, registry, TimelineServerGateway(timeline_server), views, gateway, lambda: tables,
        limits=EvaluatorLimits(PER_STORE, all_stores=8, starting=2, waiting=waiting),
    )  # fmt: skip
    let_go, starts = threading.Event(), []
    start = loop.evaluation.run_scheduler.start

    def wait_and_start(lease: TableLease, *rest: Any) -> StartDecision:
        starts.append(lease.table_id)
        let_go.wait(60)
        return start(lease, *rest)

    monkeypatch.setattr(loop.evaluation.run_scheduler, "start", wait_and_start)
    due, quiet = [], []
    for number in range(10):
        table = HandMadeTable.create(lake / f"t{number}")
        for second in range(1, 4 if number < 8 else 2):
            table.commit(second)
        (due if number < 8 else quiet).append(mark(registry, str(table.path)))
        clock.advance(1)  # those with nothing due came last
    loop.start()
    if waiting == 100:
        wait_until(lambda: all(registry.get(table_id).dirty_since_ms is None for table_id in quiet))
        assert len(starts) == 2
    else:
        wait_until(lambda: len(starts) == 2 + PER_STORE)
        time.sleep(0.1)
        assert all(registry.get(table_id).evaluated_ms is None for table_id in quiet)
    assert not gateway.runs
    let_go.set()
    loop.start()
    wait_until(lambda: loop.wait_until_idle(10) and all(registry.get(each).dirty_since_ms is None for each in quiet))
    assert sorted(map(table_of, gateway.runs)) == sorted(due)
    assert all(registry.get(table_id).dirty_since_ms is None for table_id in due)


def test_tables_that_fail_come_after_those_that_do_not(registry: Registry, clock: FakeClock) -> None:
    failed = mark(registry, "s3a://slow/old")
    (lease,) = registry.acquire(1, 60)
    now_ms = registry.now_ms()
    registry.release(lease, EvaluationResult(now_ms, retry_ms=now_ms, failed=True, problem="no route to host"))
    clock.advance(60)
    healthy = mark(registry, "/lake/new")
    assert [lease.table_id for lease in registry.acquire(2, 60)] == [healthy, failed]
    # It is not postponed without end: after a while it is the one that waits longest.
    clock.advance(61 + FAILED_BEHIND_MS / 1000)
    newer = mark(registry, "/lake/newer")
    assert [lease.table_id for lease in registry.acquire(3, 60)] == [healthy, failed, newer]


def test_claims_leave_out_stores_and_tables_that_are_named(registry: Registry) -> None:
    marked = [mark(registry, path) for path in ("/lake/a", "/lake/b", "s3a://x/a", "s3a://xy/a", "s3a://x_/a")]
    leases = registry.acquire(9, 60, except_stores=["s3a://x", "s3a://x_"], except_tables=[marked[0]])
    assert [lease.base_path for lease in leases] == ["/lake/b", "s3a://xy/a"]
    assert {lease.base_path for lease in registry.acquire(9, 60, except_stores=[""])} == {"s3a://x/a", "s3a://x_/a"}


def test_many_failing_tables_leave_a_healthy_one_its_place(
    registry: Registry, loop: ManagerLoop, lake: Path, clock: FakeClock
) -> None:
    """A dead store that is noticed only after a while: the healthy table must not wait for all of its tables."""
    slow = [mark(registry, f"s3a://slow/t{number}") for number in range(20)]
    clock.advance(1)
    table = HandMadeTable.create(lake / "orders")
    table.commit(1)
    table_id = mark(registry, str(table.path))
    loop.start()
    wait_until(lambda: registry.get(table_id).dirty_since_ms is None)
    assert any(registry.get(slow_id).evaluated_ms is None for slow_id in slow)
    assert loop.wait_until_idle(30)
    assert all(registry.get(slow_id).evaluation_failures == 1 for slow_id in slow)


def test_repairs_reach_tables_beyond_the_first_page(registry: Registry) -> None:
    """By id or by age: no table is left out for good however many there are."""
    row = {"table_name": "t", "registered_ms": 1, "identified_ms": 1}
    rows = [{"table_id": f"t{number}", "base_path": f"/elsewhere/t{number}", **row} for number in range(1200)]
    with registry.transaction() as session:
        session.execute(lake_table.insert(), rows)
    muted = TablesConfig(defaults=TablePolicy(doctor=DoctorPolicy(notify=False)))
    rounds = RepairRound(registry, lambda: muted, lambda path: pytest.fail(f"{path} asks for no examination"))
    rounds.run()
    assert all(row.examined_ms for row in registry.list_tables(2000))


def test_request_that_postpones_silent_tables_waits_for_no_store(
    registry: Registry, loop: ManagerLoop, views: HangingViews
) -> None:
    """Each of them would keep a thread of the API server; lake_watch sends one each minute."""
    silent = [mark(registry, f"s3a://dead/t{number}") for number in range(3)]
    for lease in registry.acquire(3, 60):
        registry.release(lease, EvaluationResult(next_evaluation_ms=registry.now_ms()))
    request = threading.Thread(target=loop.postpone, args=(silent,), daemon=True)
    request.start()
    request.join(5)
    assert not request.is_alive()
    assert views.hanging == []
    # What is not in memory has to be read, and the evaluators do that.
    assert all(registry.get(table_id).dirty_since_ms is not None for table_id in silent)


def test_silent_table_whose_heartbeat_does_not_return_is_evaluated(
    registry: Registry,
    make_loop: Callable[[], ManagerLoop],
    timeline_server: TimelineServer,
    lake: Path,
    clock: FakeClock,
) -> None:
    """Each process may have a refresh of it that hangs; then none would ever find a commit without notice."""
    table = HandMadeTable.create(lake / "orders")
    table.commit(1)
    table_id, loop = mark(registry, str(table.path)), make_loop()
    assert loop.drain() == 1
    pause_s = timeline_server.pause_s(str(table.path))
    clock.advance(pause_s)
    loop.postpone([table_id])
    assert registry.get(table_id).dirty_since_ms is None
    clock.advance(pause_s + 61)
    loop.postpone([table_id])
    assert registry.get(table_id).dirty_since_ms is not None


def register(registry: Registry, paths: list[str]) -> None:
    """Register tables that nothing waits for."""
    for path in paths:
        mark(registry, path)
    with registry.transaction() as session:
        session.execute(update(lake_table).values(identified_ms=1, dirty_since_ms=None))


class CountingRegistry(Registry):
    """Counts how often the evaluators ask for a waiting table."""

    asked = 0

    def acquire_first(self, lease_s: float, **others: Any) -> FirstLease:
        self.asked += 1
        return super().acquire_first(lease_s, **others)


def test_a_calm_table_costs_one_query_for_waiting_ones(engine: Engine, clock: FakeClock) -> None:
    counting = CountingRegistry(sessionmaker(engine), ProcessClock(clock))
    done: list[str] = []

    def evaluate(lease: TableLease) -> None:
        counting.release(lease, EvaluationResult(counting.now_ms() + 600_000))
        done.append(lease.base_path)

    evaluators = Evaluators(counting, evaluate, lambda _lease, _error: None, 60)
    paths = [f"/lake/t{number}" for number in range(5)]
    register(counting, paths)
    for path in paths:
        mark(counting, path)
        evaluators.wake()
        assert evaluators.wait_until_idle(10)
    assert done == paths
    assert counting.asked == 5


def test_table_that_changes_all_the_time_is_evaluated_at_a_steady_pace(registry: Registry) -> None:
    """Its last mark is evaluated as well, without a later wake, and another table does not rest with it."""
    done: list[str] = []

    def evaluate(lease: TableLease) -> None:
        registry.release(lease, EvaluationResult(registry.now_ms() + 600_000))
        done.append(lease.base_path)

    limits = EvaluatorLimits(at_once=3, every_s=2.0)
    evaluators = Evaluators(registry, evaluate, lambda _lease, _error: None, 60, limits)
    register(registry, ["/lake/hot", "/lake/calm"])

    def announce(path: str) -> None:
        mark(registry, path)
        evaluators.wake()

    for count in (1, 2, 3):
        announce("/lake/hot")
        wait_until(lambda count=count: done == ["/lake/hot"] * count)  # type: ignore[misc]
    for _ in range(20):
        announce("/lake/hot")
    announce("/lake/calm")
    wait_until(lambda: "/lake/calm" in done)
    assert evaluators.wait_until_idle(60)
    assert done.count("/lake/hot") == 4
    assert done[-1] == "/lake/hot"
    assert [row.base_path for row in registry.list_tables(100) if row.dirty_since_ms is not None] == []


def test_table_with_something_due_does_not_rest(registry: Registry) -> None:
    done: list[str] = []

    def evaluate(lease: TableLease) -> Callable[[], None]:
        def conclude() -> None:
            done.append(lease.base_path)
            registry.release(lease, EvaluationResult(registry.now_ms() + 600_000))

        return conclude

    limits = EvaluatorLimits(at_once=1, every_s=600.0)
    evaluators = Evaluators(registry, evaluate, lambda _lease, _error: None, 60, limits)
    register(registry, ["/lake/hot"])
    for count in range(1, 5):
        mark(registry, "/lake/hot")
        evaluators.wake()
        wait_until(lambda count=count: len(done) == count and evaluators.wait_until_idle(1))  # type: ignore[misc]


@pytest.mark.parametrize("seed", range(3))
def test_no_mark_waits_for_a_later_wake(registry: Registry, seed: int) -> None:
    """Marks from many threads, each followed by one wake, also during the table's own evaluation, of full stores and of
    tables that rest.
    """
    draw = random.Random(seed)
    paths = [f"{store}/t{number}" for store in ("/lake", "s3a://one", "s3a://two") for number in range(4)]
    register(registry, paths)
    inside = iter(range(8))
    evaluators: Evaluators

    def evaluate(lease: TableLease) -> Callable[[], None] | None:
        time.sleep(draw.random() * 0.01)
        if draw.random() < 0.5 and next(inside, None) is not None:
            mark(registry, lease.base_path)  # by another process, which wakes its own loop only

        def release() -> None:
            if not registry.release(lease, EvaluationResult(registry.now_ms() + 600_000)):
                evaluators.expect_more()

        if draw.random() < 0.5:
            return release
        release()
        return None

    limits = EvaluatorLimits(per_store=2, all_stores=4, starting=2, at_once=2, every_s=0.05)
    evaluators = Evaluators(registry, evaluate, lambda _lease, _error: None, 600, limits)

    def announce(some: list[str]) -> None:
        for path in some:
            mark(registry, path)
            evaluators.wake()
            time.sleep(draw.random() * 0.01)

    writers = [threading.Thread(target=announce, args=([draw.choice(paths) for _ in range(8)],)) for _ in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert evaluators.wait_until_idle(30)
    assert [row.base_path for row in registry.list_tables(100) if row.dirty_since_ms is not None] == []
