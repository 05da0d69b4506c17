"""Services that are blocked or given up, and tables that cannot be read, reach people once each, not only a page."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.config.service_policies import CompactionPolicy
from airflow_lake_provider.config.settings import LakeSettings
from airflow_lake_provider.config.tables_config import TablesConfig
from airflow_lake_provider.config.tables_file import parse_tables_file
from airflow_lake_provider.manager.db.registry import Registry
from airflow_lake_provider.manager.db.rows import Notice, Source
from airflow_lake_provider.manager.loop.reconciler import ManagerLoop
from airflow_lake_provider.manager.loop.timeline_feed import TimelineServerGateway
from airflow_lake_provider.manager.runs.airflow_runs import RunState
from airflow_lake_provider.manager.supervision.monitoring import DeadlineSweep
from airflow_lake_provider.planner.table_view import TableViewCache
from airflow_lake_provider.timeline_server.server import TimelineServer
from tests.support.planted_problems import Inbox
from tests.support.tables import HandMadeTable
from tests.unit.manager.conftest import LOCK_OPTIONS, FakeClock, FakeInstanceGateway, FakeRunGateway

RULES = CompactionPolicy(delta_commits=3)
UNLOCKED = TablePolicy(compaction=RULES)
LOCKED = TablePolicy(compaction=RULES, hudi_options=LOCK_OPTIONS, retry_backoff_s=60, max_runs_per_instant=2)


class World:
    """Several loops of one registry; `policy` is what the tables file says now."""

    def __init__(
        self,
        settings: LakeSettings,
        registry: Registry,
        server: TimelineServer,
        gateway: FakeRunGateway,
        clock: FakeClock,
    ) -> None:
        self.inbox, self.policy, self.registry, self.clock = Inbox(), UNLOCKED, registry, clock
        self.budgets = TablesConfig().budgets
        self.loops = [
            ManagerLoop(
                settings,
                registry,
                TimelineServerGateway(server),
                TableViewCache(server.timelines),
                gateway,
                self.load_tables,
            )
            for _ in range(2)
        ]
        self.sweeps = [
            DeadlineSweep(registry, FakeInstanceGateway(), notifier=self.inbox, load_tables=self.load_tables)
            for _ in range(2)
        ]

    def load_tables(self) -> TablesConfig:
        return TablesConfig(defaults=self.policy, budgets=self.budgets)

    def mark(self, table: HandMadeTable) -> str:
        return self.registry.mark_dirty(Notice(str(table.path), "orders", Source.HINT)).table_id

    def pass_by(self, table: HandMadeTable, seconds: float) -> None:
        for step in range(6):
            self.clock.advance(seconds / 6)
            self.mark(table)
            self.loops[step % 2].drain()
            self.sweeps[step % 2].sweep()


@pytest.fixture
def world(
    settings: LakeSettings,
    registry: Registry,
    timeline_server: TimelineServer,
    gateway: FakeRunGateway,
    clock: FakeClock,
) -> World:
    return World(settings, registry, timeline_server, gateway, clock)


@pytest.fixture
def table(lake: Path) -> HandMadeTable:
    table = HandMadeTable.create(lake / "orders")
    for second in (1, 2, 3):
        table.commit(second)
    return table


def test_blocked_services_of_a_table_are_one_message_after_an_hour(world: World, table: HandMadeTable) -> None:
    world.pass_by(table, 3000)
    assert world.inbox.messages == []
    world.pass_by(table, 7200)
    (message,) = world.inbox.messages
    assert "compaction" in message.service
    assert "hoodie.write.lock.provider" in message.reason
    # It is remembered across loops; when the cause returns after it went away, people hear of it again.
    world.policy = LOCKED
    world.pass_by(table, 60)
    assert [ended.key for ended in world.inbox.ended] == [message.key]
    world.policy = UNLOCKED
    world.pass_by(table, 7200)
    assert (len(world.inbox.messages), len(world.inbox.ended)) == (2, 1)


def test_policy_that_mutes_the_doctor_mutes_this(world: World, table: HandMadeTable) -> None:
    world.policy = UNLOCKED.model_copy(update={"doctor": UNLOCKED.doctor.model_copy(update={"notify": False})})
    world.pass_by(table, 10_000)
    assert world.inbox.messages == []


def test_service_that_was_given_up_is_one_message(world: World, table: HandMadeTable, gateway: FakeRunGateway) -> None:
    world.policy = LOCKED
    for _ in range(4):
        world.pass_by(table, 600)
        for run in [run for run in gateway.runs if run.active]:
            gateway.end(run.run_id, RunState.FAILED, world.registry.now_ms())
    messages = [message for message in world.inbox.messages if "compaction" in message.service]
    assert len(messages) == 1
    assert "given up until " in messages[0].reason


def test_service_that_its_budget_can_never_start_is_one_message(
    world: World, table: HandMadeTable, lake: Path, gateway: FakeRunGateway
) -> None:
    world.policy = LOCKED
    world.budgets = parse_tables_file("budgets: {all: {core_hours_per_day: 0.00001}}", "t.yaml").budgets
    other = HandMadeTable.create(lake / "payments")
    for second in (1, 2, 3):
        other.commit(second)
    # The idle budget tries the first one, whose price is not proven.
    world.pass_by(table, 60)
    assert [run.run_id.split(".")[0] for run in gateway.runs] == ["orders"]
    assert world.inbox.messages == []
    for _ in range(3):
        world.pass_by(other, 600)
    (message,) = world.inbox.messages
    assert message.service == "compaction"
    assert "never starts: it needs " in message.reason
    # When the budget is raised it starts.
    world.budgets = TablesConfig().budgets
    world.pass_by(other, 60)
    assert len(gateway.runs) == 2
    assert len(world.inbox.messages) == 1


def test_table_that_cannot_be_read_is_one_message_after_half_an_hour(world: World, table: HandMadeTable) -> None:
    sweep = DeadlineSweep(world.registry, FakeInstanceGateway(), notifier=world.inbox)
    world.mark(table)
    world.loops[0].drain()
    shutil.move(table.path / ".hoodie" / "hoodie.properties", table.path / "away")
    for expected in (0, 0, 1, 1, 1):
        world.pass_by(table, 900)
        sweep.sweep()
        assert len(world.inbox.messages) == expected
    assert "no Hudi table" in world.inbox.messages[0].reason


def test_silent_table_that_cannot_be_read_is_one_message_too(
    world: World, table: HandMadeTable, registry: Registry, clock: FakeClock
) -> None:
    """Nothing announces it: the retries alone must be enough."""
    sweep = DeadlineSweep(registry, FakeInstanceGateway(), notifier=world.inbox)
    world.mark(table)
    world.loops[0].drain()
    shutil.move(table.path / ".hoodie" / "hoodie.properties", table.path / "away")
    world.mark(table)
    for _ in range(30):
        world.loops[0].drain()
        clock.advance(120)
        sweep.sweep()
    assert len(world.inbox.messages) == 1
