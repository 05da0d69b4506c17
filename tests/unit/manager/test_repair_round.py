from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_lake_provider.config.policies import DoctorPolicy, StuckKind, TablePolicy
from airflow_lake_provider.config.tables_config import TableEntry, TablesConfig
from airflow_lake_provider.doctor.repairs import load_records
from airflow_lake_provider.manager import monitoring as repair_round
from airflow_lake_provider.manager.db.marks import Notice, Source
from airflow_lake_provider.manager.db.registry import Registry
from airflow_lake_provider.manager.instances import PEOPLE, Instance, NoNotifier
from airflow_lake_provider.manager.monitoring import EVERY_MS, RepairRound, StuckNotifier
from airflow_lake_provider.manager.reconciler import ManagerLoop
from airflow_lake_provider.metrics import NoMetrics
from airflow_lake_provider.storage.table_storage import open_storage
from tests.support.tables import HandMadeTable
from tests.unit.manager.conftest import FakeClock

LONG_AGO_S = 1_000_000_000


class FakeMetrics(NoMetrics):
    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def incr(self, name: str, count: int = 1) -> None:
        self.counts[name] += count


@pytest.fixture
def config(lake: Path) -> TablesConfig:
    repair = TablePolicy(doctor=DoctorPolicy(repairs=(StuckKind.ORPHANED_LOCK, StuckKind.PLAN_WITHOUT_EXECUTOR)))
    return TablesConfig(entries=(TableEntry(f"{lake}/mended_*", "", repair),))


def add_patient(lake: Path, registry: Registry, name: str) -> Path:
    table = HandMadeTable.create(lake / name)
    table.commit(1)
    registry.mark_dirty(Notice(str(table.path), name, Source.HINT))
    lock = table.path / ".hoodie" / "lock"
    lock.write_bytes(b"")
    os.utime(lock, (LONG_AGO_S, LONG_AGO_S))
    return lock


def test_round_repairs_what_the_policy_allows_and_nothing_else(
    lake: Path, registry: Registry, config: TablesConfig
) -> None:
    repaired, other = add_patient(lake, registry, "mended_1"), add_patient(lake, registry, "other")
    plan = HandMadeTable(repaired.parents[1]).plan(9)
    file = repaired.parents[1] / ".hoodie" / "timeline" / f"{plan}.compaction.requested"
    os.utime(file, (LONG_AGO_S, LONG_AGO_S))
    metrics = FakeMetrics()
    assert RepairRound(registry, lambda: config, open_storage, metrics).run() == 1
    assert (repaired.exists(), other.exists(), file.exists()) == (False, True, True)
    (record,) = load_records(open_storage(str(repaired.parents[1])))
    assert (record.by, record.kind, record.result) == ("manager", "orphaned_lock", "repaired")
    assert metrics.counts == {"lake.repairs": 1}


def test_table_is_examined_again_only_after_a_while(
    lake: Path, registry: Registry, config: TablesConfig, clock: FakeClock
) -> None:
    lock = add_patient(lake, registry, "mended_1")
    rounds = RepairRound(registry, lambda: config, open_storage)
    assert rounds.run() == 1
    lock.write_bytes(b"")
    os.utime(lock, (LONG_AGO_S, LONG_AGO_S))
    assert rounds.run() == 0
    # Nor by another server, or after a restart.
    assert RepairRound(registry, lambda: config, open_storage).run() == 0
    clock.advance(EVERY_MS / 1000)
    assert rounds.run() == 1


def test_table_that_cannot_be_read_keeps_no_other_from_its_repair(
    lake: Path, registry: Registry, config: TablesConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repair_round, "MOST_EXAMINED", 1)
    registry.mark_dirty(Notice(f"{lake}/mended_0", "gone", Source.HINT))
    locks = [add_patient(lake, registry, f"mended_{number}") for number in (1, 2)]
    rounds = RepairRound(registry, lambda: config, open_storage)
    assert sum(rounds.run() for _ in range(3)) == 2
    assert not any(lock.exists() for lock in locks)


class Heard(NoNotifier):
    def __init__(self) -> None:
        self.stucks: list[tuple[str, Instance]] = []

    def stuck(self, base_path: str, instance: Instance, on_notified: Callable[[], None]) -> None:
        self.stucks.append((base_path, instance))
        on_notified()


def test_people_are_notified_once_of_what_nothing_repairs(
    lake: Path, registry: Registry, config: TablesConfig, clock: FakeClock
) -> None:
    """Not of what the round repaired, nor of what a service repairs, nor where no person wants to know."""
    add_patient(lake, registry, "mended_1")
    other = add_patient(lake, registry, "other").parents[1]
    plan = HandMadeTable(other).plan(9)
    file = other / ".hoodie" / "timeline" / f"{plan}.compaction.requested"
    os.utime(file, (LONG_AGO_S, LONG_AGO_S))
    add_patient(lake, registry, "quiet")
    quiet = TableEntry(f"{lake}/quiet", "", TablePolicy(doctor=DoctorPolicy(notify=False)))
    tables = TablesConfig(entries=(*config.entries, quiet))
    heard, metrics = Heard(), FakeMetrics()

    def run_round() -> None:
        stuck = StuckNotifier(registry, metrics, heard)
        RepairRound(registry, lambda: tables, open_storage, metrics, stuck).run()

    run_round()
    clock.advance(EVERY_MS / 1000)
    run_round()
    ((base_path, instance),) = heard.stucks
    assert (base_path, instance.service, instance.owner) == (str(other), "orphaned_lock", PEOPLE)
    assert "repaired by: " in instance.reason
    assert metrics.counts["lake.stuck_shapes"] == 1


def test_people_are_notified_of_a_damaged_commit_that_an_evaluation_has_found(
    lake: Path, registry: Registry, make_loop: Callable[[], ManagerLoop]
) -> None:
    table = HandMadeTable.create(lake / "orders")
    table.commit(1)
    registry.mark_dirty(Notice(str(table.path), "orders", Source.HINT))
    (file,) = (table.path / ".hoodie" / "timeline").glob("*.deltacommit")
    file.write_text("{broken")
    make_loop().drain()
    heard = Heard()
    stuck = StuckNotifier(registry, NoMetrics(), heard)
    RepairRound(registry, TablesConfig, open_storage, stuck=stuck).run()
    ((_, instance),) = heard.stucks
    assert (instance.service, instance.owner) == ("unreadable_file", PEOPLE)
    assert f"{file.name}: damaged JSON" in instance.reason
