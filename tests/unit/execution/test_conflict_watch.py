"""The thread that ends a service for a writer."""

from __future__ import annotations

import threading

import pytest

from airflow_lake_provider.config.service_policies import ConflictPolicy
from airflow_lake_provider.conflict.contention import Clash, ClashKind
from airflow_lake_provider.conflict.service_watch import ServiceConflict, ServiceWatch
from airflow_lake_provider.errors import StorageError
from airflow_lake_provider.execution import admission as conflict_watch
from airflow_lake_provider.execution.admission import ConflictWatch
from tests.unit.conflict.fake_table import FakeTable, keys

PLAN, WRITER = "20261121100000001", "20261121100000002"
OSLO = ("Oslo", "f1-0")
FOUND = ServiceConflict(PLAN, (Clash(WRITER, "deltacommit", ClashKind.MARKER, keys([OSLO])),), 7_000)


class FakeWatch:
    def __init__(self, *answers: ServiceConflict | Exception | None) -> None:
        self.answers = list(answers)
        self.checks = 0
        self.twice = threading.Event()

    def check(self, now_ms: int) -> ServiceConflict | None:
        self.checks += 1
        if self.checks == 2:
            self.twice.set()
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_service_is_ended_again_and_again_until_the_block_is_left(monkeypatch) -> None:
    monkeypatch.setattr(conflict_watch, "STOP_AGAIN_AFTER_S", 0.01)
    stops, thrice = [], threading.Event()

    def stop() -> None:
        stops.append(1)
        if len(stops) == 3:
            thrice.set()

    with ConflictWatch(FakeWatch(None, StorageError("later"), FOUND), stop, 0.01, 0.01) as watch:
        assert thrice.wait(30)
    assert watch.conflict is FOUND


def test_nothing_happens_without_a_conflict_or_without_a_watch() -> None:
    stops: list[int] = []
    asked = FakeWatch()
    with ConflictWatch(asked, lambda: stops.append(1), 0.01, 0.0) as watching:
        assert asked.twice.wait(30)
    assert (stops, watching.conflict) == ([], None)
    with ConflictWatch(None, lambda: stops.append(1), 0.01, 0.0) as watching:
        pass
    assert (stops, watching.conflict) == ([], None)


def test_watch_goes_on_after_any_error_of_a_strategy_or_of_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conflict_watch, "STOP_AGAIN_AFTER_S", 0.01)
    stops, stopped = [], threading.Event()

    def stop() -> None:
        stops.append(1)
        if len(stops) == 1:
            raise OSError("the engine does not answer")
        stopped.set()

    with ConflictWatch(FakeWatch(KeyError("a strategy's own mistake"), FOUND), stop, 0.01, 0.0) as watch:
        assert stopped.wait(30)
    assert watch.conflict is FOUND


def test_watch_finds_the_writer_that_came_upon_the_plan() -> None:
    table = FakeTable()
    table.plan(PLAN, [OSLO])
    watch = ServiceWatch(table.open(), ConflictPolicy())
    assert watch.check(table.now_ms) is None
    table.begin(WRITER)
    table.announce(WRITER, [("Oslo", "other-0")])
    assert watch.check(table.now_ms) is None
    table.mark_direct(WRITER, [OSLO])
    found = watch.check(table.now_ms)
    assert found is not None
    assert (found.plan, [clash.instant for clash in found.clashes]) == (PLAN, [WRITER])
    assert f"deltacommit {WRITER} is writing 1 file group: Oslo/f1-0" in found.describe(12.0)


def test_watch_finds_the_overwrite_that_takes_out_what_the_plan_rewrites() -> None:
    table = FakeTable()
    table.plan(PLAN, [OSLO])
    watch = ServiceWatch(table.open(), ConflictPolicy())
    table.begin_overwrite(WRITER, "INSERT_OVERWRITE", ("Bonn",))
    assert watch.check(table.now_ms) is None, "what is not certain ends no service"
    other = "20261121100000003"
    table.begin_overwrite(other, "INSERT_OVERWRITE", ("Oslo",))
    found = watch.check(table.now_ms)
    assert found is not None
    assert f"replacecommit {other} plans to rewrite 1 file group: Oslo/f1-0" in found.describe(12.0)


def test_conflict_says_what_it_saves() -> None:
    assert "stopped after 12 s" in FOUND.describe(12.0)
    assert "it would lose 7 s of work" in FOUND.describe(12.0)


def test_conflict_with_a_writer_that_has_committed_does_not_say_that_it_would_lose_anything() -> None:
    table = FakeTable()
    table.plan(PLAN, [OSLO])
    watch = ServiceWatch(table.open(), ConflictPolicy())
    table.commit(WRITER, "20261121100000009", [OSLO])
    found = watch.check(table.now_ms)
    assert found is not None
    said = found.describe(12.0)
    assert f"deltacommit {WRITER} has committed 1 file group: Oslo/f1-0. That writer has committed" in said
    assert "reject" not in said
    assert "lose" not in said
