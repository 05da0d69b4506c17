"""Commits become events of the table's asset in the transaction that moves the cursor: none lost, none twice."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.orm import Session

from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.config.settings import LakeSettings
from airflow_lake_provider.config.tables_config import TablesConfig
from airflow_lake_provider.errors import LeaseLostError
from airflow_lake_provider.manager.db.registry import Registry
from airflow_lake_provider.manager.db.rows import Notice, Source
from airflow_lake_provider.manager.db.schema import lake_table
from airflow_lake_provider.manager.loop.event_emitter import CommitEvents
from airflow_lake_provider.manager.loop.reconciler import ManagerLoop
from airflow_lake_provider.manager.loop.timeline_feed import TimelineServerGateway
from airflow_lake_provider.planner.table_view import TableViewCache
from airflow_lake_provider.timeline_server.server import TimelineServer
from tests.support.tables import HandMadeTable
from tests.unit.manager.conftest import FakeClock, FakeRunGateway


@dataclass
class FakeAssets:
    """Keeps events in the registry's own database, so that a transaction that fails takes them back."""

    is_waiting: bool = False
    fails: bool = False
    announced: list[dict[str, Any]] = field(default_factory=list)

    def waits_for_runs(self, session: Session, base_path: str) -> bool:
        return self.is_waiting

    def add_events(self, session: Session, base_path: str, extras: Sequence[dict[str, Any]]) -> Callable[[], None]:
        session.execute(lake_table.update().values(owner=lake_table.c.owner + "x" * len(extras)))
        if self.fails:
            raise RuntimeError("Airflow's listener")
        return lambda: self.announced.extend(extras)


@pytest.fixture
def assets() -> FakeAssets:
    return FakeAssets()


@pytest.fixture
def make_loop(
    settings: LakeSettings, registry: Registry, timeline_server: TimelineServer, assets: FakeAssets
) -> Callable[..., ManagerLoop]:
    views = TableViewCache(timeline_server.timelines)

    def make(asset_events: str = "commits") -> ManagerLoop:
        policy = TablePolicy.model_validate({"asset_events": asset_events, "mode": "observe"})
        timelines = TimelineServerGateway(timeline_server)
        events = CommitEvents(registry, assets)
        tables = TablesConfig(defaults=policy)
        return ManagerLoop(settings, registry, timelines, views, FakeRunGateway(), lambda: tables, events=events)

    return make


@pytest.fixture
def table(lake: Path) -> HandMadeTable:
    return HandMadeTable.create(lake / "orders")


def notify(registry: Registry, table: HandMadeTable) -> str:
    return registry.mark_dirty(Notice(str(table.path), "orders", Source.COMMIT_CALLBACK)).table_id


def test_commits_after_the_first_evaluation_become_events_each_once(
    registry: Registry, make_loop: Callable[..., ManagerLoop], assets: FakeAssets, table: HandMadeTable
) -> None:
    table.commit(1)
    notify(registry, table)
    make_loop().drain()
    assert assets.announced == []
    second = table.commit(2)
    third = table.commit(3, file_id="b")
    for _ in range(3):
        notify(registry, table)
        make_loop().drain()
    (event,) = assets.announced
    assert (event["kind"], event["table"], event["base_path"]) == ("commits", "orders", str(table.path))
    assert (event["instants"], event["written_bytes"], event["partitions"]) == ([second, third], 200, ["p"])
    assert (event["after"], event["until"]) == ("20261121120001500", "20261121120003500")


def test_the_default_emits_nothing_and_keeps_no_cursor(
    registry: Registry, make_loop: Callable[..., ManagerLoop], assets: FakeAssets, table: HandMadeTable
) -> None:
    for second in (1, 2):
        table.commit(second)
        table_id = notify(registry, table)
        make_loop("services").drain()
    assert (assets.announced, registry.get(table_id).event_cursor) == ([], None)


def test_a_table_that_is_opted_out_and_in_again_begins_with_the_next_commit(
    registry: Registry, make_loop: Callable[..., ManagerLoop], assets: FakeAssets, table: HandMadeTable
) -> None:
    for second, wanted in enumerate(("both", "services", "both", "both"), 1):
        table.commit(second)
        notify(registry, table)
        make_loop(wanted).drain()
    assert [event["after"] for event in assets.announced] == ["20261121120003500"]


def test_commits_wait_while_airflow_has_an_event_without_its_run_and_become_one(
    registry: Registry,
    make_loop: Callable[..., ManagerLoop],
    assets: FakeAssets,
    table: HandMadeTable,
    clock: FakeClock,
) -> None:
    table.commit(1)
    table_id = notify(registry, table)
    make_loop().drain()
    assets.is_waiting = True
    for second in (2, 3, 4):
        table.commit(second)
        notify(registry, table)
        make_loop().drain()
    assert assets.announced == []
    assert registry.get(table_id).retry_ms == registry.now_ms() + 1000
    assets.is_waiting = False
    clock.advance(2)
    make_loop().drain()  # without a notice
    assert [event["commits"] for event in assets.announced] == [3]


def test_an_event_that_fails_leaves_nothing_and_comes_with_the_next_try(
    registry: Registry,
    make_loop: Callable[..., ManagerLoop],
    assets: FakeAssets,
    table: HandMadeTable,
    clock: FakeClock,
) -> None:
    table.commit(1)
    table_id = notify(registry, table)
    make_loop().drain()
    assets.fails = True
    table.commit(2)
    notify(registry, table)
    make_loop().drain()
    row = registry.get(table_id)
    assert (row.owner, row.evaluation_failures) == ("", 0)
    assets.fails = False
    clock.advance(11)
    make_loop().drain()
    assert [event["commits"] for event in assets.announced] == [1]
    assert registry.get(table_id).owner == "x"


def test_a_loop_whose_lease_has_passed_on_emits_nothing(
    registry: Registry,
    make_loop: Callable[..., ManagerLoop],
    assets: FakeAssets,
    table: HandMadeTable,
    clock: FakeClock,
) -> None:
    table.commit(1)
    notify(registry, table)
    make_loop().drain()
    table.commit(2)
    notify(registry, table)
    (stale,) = registry.acquire(1, 5)
    clock.advance(10)
    loop = make_loop()
    loop.drain()
    third = table.commit(3)
    view = TableViewCache().refresh(str(table.path))
    with pytest.raises(LeaseLostError):
        CommitEvents(registry, assets).emit(stale, view, TablePolicy(asset_events="commits"))
    notify(registry, table)
    loop.drain()
    assert [event["instants"] for event in assets.announced] == [["20261121120002000"], [third]]


@pytest.mark.parametrize("seed", range(3))
def test_loops_at_once_that_fail_at_random_emit_each_commit_once(
    registry: Registry, make_loop: Callable[..., ManagerLoop], assets: FakeAssets, table: HandMadeTable, seed: int
) -> None:
    rng = random.Random(seed)
    table.commit(1)
    notify(registry, table)
    make_loop().drain()
    made = []
    for second in range(2, 40):
        made.append(table.commit(second))
        notify(registry, table)
        assets.fails = rng.random() < 0.3
        assets.is_waiting = rng.random() < 0.3
        loops = [threading.Thread(target=make_loop().drain) for _ in range(rng.randint(0, 3))]
        for thread in loops:
            thread.start()
        for thread in loops:
            thread.join()
    assets.fails = assets.is_waiting = False
    notify(registry, table)
    make_loop().drain()
    reported = [instant for event in assets.announced for instant in event["instants"]]
    assert reported == made
