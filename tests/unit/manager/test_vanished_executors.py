"""A run whose task died with its worker is ended as successful once the timeline shows its work done, and no sooner."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from airflow_lake_provider.hudi.base_path import table_id_of
from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.manager.db.leases import Executors
from airflow_lake_provider.manager.db.registry import Registry
from airflow_lake_provider.manager.db.rows import Notice, Source
from airflow_lake_provider.manager.loop.reconciler import ManagerLoop
from airflow_lake_provider.manager.loop.timeline_feed import TimelineServerGateway
from airflow_lake_provider.manager.runs.airflow_runs import RunFacts, RunState, TaskTry
from airflow_lake_provider.manager.runs.run_ids import run_id_of
from airflow_lake_provider.manager.supervision.vanished import SILENT_MS, VanishedExecutors
from airflow_lake_provider.planner.last_runs import parse_last_runs
from airflow_lake_provider.planner.table_view import TableViewCache
from airflow_lake_provider.timeline_server.cache import SharedTimelines
from tests.support.tables import HandMadeTable
from tests.unit.manager.conftest import FakeClock, FakeInstanceGateway, FakeRunGateway

LEASE_S = 900.0
LATE = "20261121130000000"


class Stage:
    """A table with a run whose task holds the lease; the executor's last sign of life is at the clock's start."""

    def __init__(self, registry: Registry, clock: FakeClock, path: Path, *, instants: list[str]) -> None:
        self.registry, self.clock, self.path = registry, clock, path
        self.table_id = table_id_of(str(path))
        self.run_id = run_id_of(self.table_id, Service.COMPACTION, "20261121120003000")
        self.executors = Executors(registry, LEASE_S)
        self.gateway = FakeInstanceGateway()
        params = {"service": "compaction", "mode": "schedule_and_execute", "instants": instants}
        task = TaskTry("running", try_number=1, heartbeat_ms=registry.now_ms())
        self.gateway.runs = [RunFacts(self.run_id, RunState.RUNNING, 0, params=MappingProxyType(params), task=task)]
        self.vanished = VanishedExecutors(
            registry, self.executors, self.gateway, TableViewCache(SharedTimelines(now_ms=registry.now_ms))
        )
        self.token = self.executors.acquire(self.table_id, Service.COMPACTION, self.run_id, 1).token
        self.last_runs = parse_last_runs(
            json.dumps(
                {
                    "of": {
                        "compaction": {
                            "number": 1, "run_id": self.run_id, "key_instant": "20261121120003000", "digest": "",
                            "newest_write": "20261121120003500", "retained_from": "",
                        }
                    }
                }
            )
        )  # fmt: skip
        self.end_done_runs()  # the server has been up since the executor was seen last

    def end_done_runs(self) -> tuple[str, ...]:
        return self.vanished.end_done_runs(self.table_id, str(self.path), self.last_runs)

    def change(self, **changes: Any) -> None:
        self.gateway.runs = [replace(self.gateway.runs[0], **changes)]

    def complete(self, requested: str, operation: str = "COMPACT") -> None:
        body = {"operationType": operation, "partitionToWriteStats": {}}
        (self.path / ".hoodie" / "timeline" / f"{requested}_{requested[:-3]}900.commit").write_text(json.dumps(body))


@pytest.fixture
def table(lake: Path) -> HandMadeTable:
    table = HandMadeTable.create(lake / "orders")
    for second in (1, 2, 3):
        table.commit(second)
    return table


@pytest.fixture
def named(registry: Registry, clock: FakeClock, table: HandMadeTable) -> Stage:
    return Stage(registry, clock, table.path, instants=[table.plan(4)])


@pytest.fixture
def unnamed(registry: Registry, clock: FakeClock, table: HandMadeTable) -> Stage:
    return Stage(registry, clock, table.path, instants=[])


def test_run_of_a_completed_plan_is_ended_a_minute_after_the_last_sign_of_life(named: Stage) -> None:
    named.complete("20261121120004000")
    named.clock.advance(SILENT_MS / 1000 - 1)
    assert named.end_done_runs() == ()
    named.clock.advance(1)
    assert named.end_done_runs() == (named.run_id,)
    (run,) = named.gateway.runs
    assert run.state is RunState.SUCCESS
    assert "the timeline shows compaction 20261121120004000 completed" in run.note
    assert named.end_done_runs() == ()
    # G2: before its end the lease is only passed on to a try that sees that its holder has ended.
    assert [lease.run_id for lease in named.executors.find_active(named.table_id)] == [named.run_id]


def test_lease_that_has_ended_goes_with_its_run(named: Stage) -> None:
    named.complete("20261121120004000")
    named.clock.advance(LEASE_S)
    assert named.end_done_runs() == (named.run_id,)
    assert named.executors.find_silent(named.table_id, 0) == []


def test_nothing_is_ended_while_the_plan_is_pending(named: Stage) -> None:
    named.clock.advance(LEASE_S * 2)
    assert named.end_done_runs() == ()
    assert named.gateway.runs[0].is_active


@pytest.mark.parametrize("sign", ["lease", "heartbeat"])
def test_one_sign_of_life_is_enough(named: Stage, sign: str) -> None:
    named.complete("20261121120004000")
    named.clock.advance(SILENT_MS / 1000 + 5)
    if sign == "lease":
        named.executors.renew(named.table_id, Service.COMPACTION, named.token)
    else:
        task = replace(named.gateway.runs[0].task, heartbeat_ms=named.registry.now_ms())
        named.change(task=task)
    assert named.end_done_runs() == ()


@pytest.mark.parametrize("state", ["up_for_retry", "up_for_reschedule", "queued", "scheduled"])
def test_a_task_that_airflow_takes_care_of_is_left_to_it(named: Stage, state: str) -> None:
    named.complete("20261121120004000")
    named.clock.advance(SILENT_MS / 1000 + 5)
    named.change(task=replace(named.gateway.runs[0].task, state=state))
    assert named.end_done_runs() == ()


def test_later_try_of_the_run_is_not_ended_by_the_lease_of_the_earlier_one(named: Stage) -> None:
    named.complete("20261121120004000")
    named.clock.advance(SILENT_MS / 1000 + 5)
    named.change(task=replace(named.gateway.runs[0].task, try_number=2))
    assert named.end_done_runs() == ()


def test_server_that_was_away_itself_first_waits_for_signs_of_life(named: Stage) -> None:
    named.complete("20261121120004000")
    named.clock.advance(600)
    again = VanishedExecutors(named.registry, named.executors, named.gateway, TableViewCache())
    assert again.end_done_runs(named.table_id, str(named.path), named.last_runs) == ()
    named.executors.renew(named.table_id, Service.COMPACTION, named.token)
    named.clock.advance(SILENT_MS / 1000 - 1)
    assert again.end_done_runs(named.table_id, str(named.path), named.last_runs) == ()


def test_run_without_a_named_plan_is_ended_by_the_plan_that_was_made_after_its_decision(unnamed: Stage) -> None:
    unnamed.clock.advance(SILENT_MS / 1000 + 5)
    # An older compaction, and a write: neither is this run's work.
    unnamed.complete("20261121120002100")
    unnamed.complete(LATE, operation="UPSERT")
    assert unnamed.end_done_runs() == ()
    unnamed.complete("20261121130100000")
    assert unnamed.end_done_runs() == (unnamed.run_id,)


def test_run_without_a_named_plan_is_left_while_another_plan_may_be_its_own(unnamed: Stage) -> None:
    unnamed.clock.advance(SILENT_MS / 1000 + 5)
    unnamed.complete(LATE)
    timeline = unnamed.path / ".hoodie" / "timeline"
    (timeline / "20261121130200000.compaction.requested").write_bytes(b"{}")
    assert unnamed.end_done_runs() == ()


@pytest.mark.parametrize(("service", "mode"), [("ttl", "schedule_and_execute"), ("compaction", "withdraw")])
def test_what_the_timeline_does_not_prove_is_left_to_airflow(named: Stage, service: str, mode: str) -> None:
    named.complete("20261121120004000")
    named.clock.advance(SILENT_MS / 1000 + 5)
    params = {**named.gateway.runs[0].params, "service": service, "mode": mode}
    named.change(params=MappingProxyType(params))
    assert named.end_done_runs() == ()


def test_loop_lets_the_table_go_on(
    settings: Any, registry: Registry, clock: FakeClock, gateway: FakeRunGateway, tables: Any, timeline_server: Any,
    table: HandMadeTable,
) -> None:  # fmt: skip
    views = TableViewCache(timeline_server.timelines)
    executors, instances = Executors(registry, LEASE_S), FakeInstanceGateway()
    plan = table.plan(4)
    vanished = VanishedExecutors(registry, executors, instances, views)
    loop = ManagerLoop(
        settings, registry, TimelineServerGateway(timeline_server), views, gateway, lambda: tables, vanished=vanished
    )
    registry.mark_dirty(Notice(str(table.path), "orders", Source.CONFIG))
    loop.drain()
    (run,) = gateway.runs
    task = TaskTry("running", try_number=1, heartbeat_ms=registry.now_ms())
    instances.runs = [RunFacts(run.run_id, RunState.RUNNING, 0, params=MappingProxyType(gateway.confs[0]), task=task)]
    executors.acquire(table_id_of(str(table.path)), Service.COMPACTION, run.run_id, 1)
    # A pass before the executor falls silent, as each 30 s.
    clock.advance(31)
    loop.drain()
    body = {"operationType": "COMPACT", "partitionToWriteStats": {}}
    (table.path / ".hoodie" / "timeline" / f"{plan}_20261121120005900.commit").write_text(json.dumps(body))
    passed_s = 0
    while instances.runs[0].is_active:
        clock.advance(10)
        passed_s += 10
        loop.drain()
        assert passed_s <= 150
    gateway.end(run.run_id, RunState.SUCCESS, registry.now_ms())
    clock.advance(31)
    loop.drain()
    last_runs = parse_last_runs(registry.get(table_id_of(str(table.path))).last_runs)
    assert last_runs.of[Service.COMPACTION].end == "success"
