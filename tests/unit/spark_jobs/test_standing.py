"""A standing application without Spark: what it pulls, how it ends, and what one item does to the others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from airflow_lake_provider.errors import EngineError, LeaseLostError, ManagerUnreachableError
from airflow_lake_provider.job_contract import (
    JobRequest,
    JobResult,
    Mode,
    Outcome,
    Service,
    ServiceRequest,
    ServiceResult,
    from_json,
    to_json,
)
from lake_jobs.driver import standing
from lake_jobs.driver.files import log_progress
from lake_jobs.driver.standing import ItemKind, StandingApplication, StandingSettings, ZoneGate, failed_result

SETTINGS = StandingSettings(at_once=3, idle_s=0.2, max_age_s=60)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standing, "PULL_INTERVAL_S", 0.01)
    monkeypatch.setattr(standing, "RETRY_INTERVAL_S", 0.01)


@dataclass
class FakeSource:
    """Hands out items in turn; `failures` are raised first, by the name of the call."""

    waiting: dict[str, str] = field(default_factory=dict)
    cancel: dict[str, str] = field(default_factory=dict)
    failures: dict[str, list[Exception]] = field(default_factory=dict)
    ended: dict[str, JobResult] = field(default_factory=dict)
    lines: dict[str, list[str]] = field(default_factory=dict)
    rooms: list[int] = field(default_factory=list)
    following: dict[str, str] = field(default_factory=dict)
    """Items of the same table, one for each end."""
    known: list[list[str]] = field(default_factory=list)

    def pull(
        self, free: int, lines: Mapping[str, list[str]], known: list[str]
    ) -> tuple[dict[str, str], dict[str, str]]:
        self._fail("pull")
        self.known.append(known)
        self.rooms.append(free)
        for item_id, new in lines.items():
            self.lines.setdefault(item_id, []).extend(new)
        names = list(self.waiting)[:free]
        return {name: self.waiting.pop(name) for name in names}, dict(self.cancel)

    def finish(self, item_id: str, result: JobResult, lines: list[str], *, takes_next: bool) -> dict[str, str]:
        self._fail("finish")
        self.lines.setdefault(item_id, []).extend(lines)
        self.ended[item_id] = result
        return {name: self.following.pop(name) for name in list(self.following)[:1]} if takes_next else {}

    def _fail(self, call: str) -> None:
        if self.failures.get(call):
            raise self.failures[call].pop(0)


@dataclass
class FakeSpark:
    pools: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)

    def setLocalProperty(self, key: str, value: str) -> None:
        assert key == "spark.scheduler.pool"
        self.pools.append(value)

    def addJobTag(self, tag: str) -> None:
        self.tags.append(tag)

    def removeJobTag(self, tag: str) -> None:
        self.tags.remove(tag)

    def cancelJobsWithTag(self, tag: str) -> None:
        self.cancelled.append(tag)


def request_of(name: str) -> str:
    services = (ServiceRequest(Service.COMPACTION, Mode.EXECUTE),)
    return to_json(JobRequest(f"{name}/1", f"/lake/{name}", name, services, "/result"))


def done(request: JobRequest, _: Callable[[], str] = str) -> JobResult:
    return JobResult(request.job_id, (ServiceResult(Service.COMPACTION, Outcome.COMPLETED),))


def wait_until(holds: Callable[[], bool]) -> None:
    until_s = time.monotonic() + 10
    while not holds() and time.monotonic() < until_s:
        time.sleep(0.01)


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def run(
    source: FakeSource,
    work: Any = done,
    spark: FakeSpark | None = None,
    clock: Callable[[], float] = time.monotonic,
    **settings: Any,
) -> StandingApplication[JobRequest, JobResult]:
    chosen = StandingSettings(**({"at_once": 3, "idle_s": 0.2, "max_age_s": 60} | settings))
    application = StandingApplication(
        source,
        chosen,
        spark or FakeSpark(),
        ItemKind(partial(from_json, JobRequest), work, failed_result),
        monotonic_s=clock,
    )
    application.run()
    return application


def outcomes(source: FakeSource) -> dict[str, str]:
    return {name: result.services[0].outcome.value for name, result in source.ended.items()}


def test_it_runs_all_work_several_at_once_and_ends_when_idle() -> None:
    together: list[int] = []
    inside, guard = [0], threading.Lock()

    def work(request: JobRequest, _: Callable[[], str]) -> JobResult:
        with guard:
            inside[0] += 1
            together.append(inside[0])
        time.sleep(0.05)
        with guard:
            inside[0] -= 1
        return done(request)

    source, spark = FakeSource({f"i{n}": request_of(f"t{n}") for n in range(10)}), FakeSpark()
    run(source, work, spark)
    assert outcomes(source) == {f"i{n}": "completed" for n in range(10)}
    assert max(together) == 3
    assert set(spark.pools) <= {"lake-0", "lake-1", "lake-2"}, "pools stay in Spark for good, so they are few"
    assert spark.tags == []


def test_items_of_one_table_run_in_one_place_one_after_another_and_each_reports_its_end() -> None:
    inside: list[str] = []

    def work(request: JobRequest, _: Callable[[], str]) -> JobResult:
        inside.append(request.table_name)
        assert len(inside) == 1
        if request.table_name == "compaction":
            wait_until(lambda: any("compaction" in known for known in source.known))
        inside.remove(request.table_name)
        if request.table_name == "clean":
            raise OSError("it fails alone")
        return done(request)

    source, spark = FakeSource({"compaction": request_of("compaction")}), FakeSpark()
    source.following = {name: request_of(name) for name in ("clean", "archive")}
    run(source, work, spark, at_once=2)
    assert outcomes(source) == {"compaction": "completed", "clean": "failed", "archive": "completed"}
    assert set(spark.pools) == {"lake-0"}
    assert all(len(known) <= 1 for known in source.known)
    assert {name for known in source.known for name in known} >= {"compaction"}


def test_table_with_ever_new_work_gives_its_place_to_others() -> None:
    source = FakeSource({"i0": request_of("t")})
    source.following = {f"i{n}": request_of("t") for n in range(1, 50)}
    run(source)
    assert len(source.ended) == standing.MAX_IN_TURN


def test_old_application_takes_no_next_item() -> None:
    source, clock = FakeSource({"i0": request_of("t")}, following={"i1": request_of("t")}), Clock()

    def work(request: JobRequest, _: Callable[[], str]) -> JobResult:
        clock.now_s += 20
        return done(request)

    run(source, work, clock=clock, max_age_s=10, idle_s=60)
    assert list(source.ended) == ["i0"]


def test_item_that_fails_in_any_way_hurts_no_other() -> None:
    def work(request: JobRequest, _: Callable[[], str]) -> JobResult:
        if request.table_name == "poisoned":
            raise MemoryError("no more")
        return done(request)

    source = FakeSource(
        {"a": request_of("orders"), "b": request_of("poisoned"), "c": "not a request", "d": request_of("users")}
    )
    run(source, work)
    assert {name: result.has_failed for name, result in source.ended.items() if name != "c"} == {
        "a": False, "b": True, "d": False,
    }  # fmt: skip
    assert "MemoryError: no more" in source.ended["b"].services[0].message
    assert {found.service for found in source.ended["c"].services} == set(Service), "its task finds its own"
    assert all("not JSON" in found.message for found in source.ended["c"].services)


def test_cancelled_item_is_ended_by_its_tag_until_it_has_ended() -> None:
    spark = FakeSpark()

    def work(request: JobRequest, find_cancelled: Callable[[], str]) -> JobResult:
        while len(spark.cancelled) < 3:
            time.sleep(0.005)
        assert find_cancelled() == "it was cleared"
        return done(request)

    source = FakeSource({"a": request_of("orders")}, cancel={"a": "it was cleared", "gone": "x"})
    run(source, work, spark)
    assert set(spark.cancelled) == {"a"}


def test_manager_that_is_away_loses_no_end_and_no_line() -> None:
    away = [ManagerUnreachableError("away") for _ in range(3)]

    def work(request: JobRequest, _: Callable[[], str]) -> JobResult:
        log_progress("orders", "begins")
        source.failures["pull"] = list(away)
        time.sleep(0.2)
        return done(request)

    source = FakeSource({"a": request_of("orders")}, failures={"finish": list(away)})
    run(source, work)
    assert outcomes(source) == {"a": "completed"}
    assert source.lines == {"a": ["lake: orders: begins"]}


@pytest.mark.parametrize("call", ["pull", "finish"])
def test_application_whose_lease_has_passed_on_ends_at_once(call: str) -> None:
    source = FakeSource({"a": request_of("orders")}, failures={call: [LeaseLostError("passed on")]})
    with pytest.raises(LeaseLostError):
        run(source, idle_s=60)
    assert source.ended == {}


def test_result_that_is_not_accepted_is_replaced_by_a_short_one() -> None:
    source = FakeSource({"a": request_of("orders")}, failures={"finish": [ValueError("too long")]})
    run(source)
    assert {found.message for found in source.ended["a"].services} == {"too long"}


def test_old_application_takes_no_more_work_and_ends_with_its_last_item() -> None:
    source, clock = FakeSource({f"i{n}": request_of(f"t{n}") for n in range(50)}), Clock()

    def work(request: JobRequest, _: Callable[[], str]) -> JobResult:
        clock.now_s += 10
        if clock.now_s > 25:  # the last one goes on until the application has asked once more
            wait_until(lambda: source.rooms[-1] == 0)
        return done(request)

    run(source, work, clock=clock, at_once=1, max_age_s=25, idle_s=60)
    assert len(source.ended) == 3
    assert source.rooms[-1] == 0


@pytest.mark.parametrize(
    ("now_s", "worked_s", "running", "ends"),
    [(0.1, 0.0, 0, False), (0.3, 0.0, 0, True), (0.3, 0.2, 0, False), (99, 0.0, 1, False), (99, 98.9, 0, True)],
)
def test_why_it_ends(now_s: float, worked_s: float, running: int, ends: bool) -> None:
    assert bool(SETTINGS.why_ends(0.0, worked_s, now_s, running)) is ends


def test_tables_of_two_zones_are_never_served_together() -> None:
    gate, inside, mixed = ZoneGate(), [], []
    guard = threading.Lock()

    def enter(zone: str) -> None:
        with gate.enter(zone):
            with guard:
                inside.append(zone)
                mixed.append(len(set(inside)) > 1)
            time.sleep(0.01)
            with guard:
                inside.remove(zone)

    threads = [threading.Thread(target=enter, args=("UTC" if n % 3 else "LOCAL",)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(mixed) == 12
    assert not any(mixed)


def test_zone_with_many_items_does_not_keep_another_one_out() -> None:
    gate, order = ZoneGate(), list[str]()

    def enter(zone: str) -> None:
        with gate.enter(zone):
            order.append(zone)

    def begin(zone: str, waiting: int) -> threading.Thread:
        thread = threading.Thread(target=enter, args=(zone,))
        thread.start()
        while len(gate._line) < waiting:
            thread.join(0.001)
        return thread

    with gate.enter("UTC"):
        threads = [begin("LOCAL", 1), begin("UTC", 2)]
        assert order == []
    for thread in threads:
        thread.join(10)
    assert order == ["LOCAL", "UTC"]


def test_java_name_is_asked_for_once() -> None:
    asked: list[str] = []

    class Package:
        def __getattr__(self, name: str) -> Any:
            asked.append(name)
            return Package() if name == "org" else name

    standing.keep_attributes(Package, (Package,))
    jvm = Package()
    assert jvm.org is jvm.org
    assert [jvm.a_call, jvm.a_call] == ["a_call", "a_call"]
    assert asked == ["org", "a_call", "a_call"], "what is no name of a package or class is asked for each time"


def test_last_lines_of_an_item_come_with_its_end() -> None:
    def work(request: JobRequest, _: Callable[[], str]) -> JobResult:
        log_progress("orders", "completed")
        return done(request)

    source = FakeSource({"a": request_of("orders")})
    run(source, work)
    assert source.lines["a"] == ["lake: orders: completed"]


def test_what_fails_because_spark_has_ended_is_not_reported_as_failed() -> None:
    source = FakeSource({name: request_of(name) for name in "ab"})
    ended: list[str] = []

    def work(request: JobRequest, _: Callable[[], str]) -> JobResult:
        if request.table_name == "b":
            ended.append("its JVM was out of memory")
            raise RuntimeError("the gateway is closed")
        return done(request)

    application = StandingApplication(
        source,  # type: ignore[arg-type]
        StandingSettings(1, 5.0, 100.0),
        FakeSpark(),
        ItemKind(partial(from_json, JobRequest), work, failed_result),
        find_end=lambda: "".join(ended),
    )
    with pytest.raises(EngineError, match="out of memory"):
        application.run()
    assert outcomes(source) == {"a": "completed"}, "the next application is given the other one"
