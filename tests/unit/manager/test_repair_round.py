from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from airflow_lake_provider.config.policies import DoctorPolicy, StuckKind, TablePolicy
from airflow_lake_provider.config.tables_config import TableEntry, TablesConfig
from airflow_lake_provider.doctor.repairs import load_records
from airflow_lake_provider.errors import StorageError
from airflow_lake_provider.hudi.base_path import table_id_of
from airflow_lake_provider.job_contract import Damage, DamageKind, KnownDamage, Outcome, to_json
from airflow_lake_provider.manager.db.operations import RunReport, report_run
from airflow_lake_provider.manager.db.registry import Registry
from airflow_lake_provider.manager.db.rows import Notice, Source
from airflow_lake_provider.manager.loop.reconciler import ManagerLoop
from airflow_lake_provider.manager.supervision import repair_round
from airflow_lake_provider.manager.supervision.monitoring import DeadlineSweep
from airflow_lake_provider.manager.supervision.repair_round import (
    EVERY_MS,
    WHOLE_AT_LATEST_MS,
    WHOLE_EVERY_MS,
    RepairRound,
)
from airflow_lake_provider.metrics import NoMetrics
from airflow_lake_provider.planner.table_view import TableViewCache
from airflow_lake_provider.storage.table_storage import Storage, StorageCalls, open_storage
from airflow_lake_provider.timeline_server.cache import SharedTimelines
from airflow_lake_provider.timeline_server.snapshot import NOW
from tests.support.heard_problems import Heard
from tests.support.tables import HandMadeTable
from tests.unit.manager.conftest import FakeClock, FakeInstanceGateway

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
    lake: Path, registry: Registry, config: TablesConfig
) -> None:
    registry.mark_dirty(Notice(f"{lake}/mended_0", "gone", Source.HINT))
    locks = [add_patient(lake, registry, f"mended_{number}") for number in (1, 2)]
    assert RepairRound(registry, lambda: config, open_storage).run() == 2
    assert not any(lock.exists() for lock in locks)


class CountingStores:
    """Opens tables, counts what is asked of them; those whose path has `dead` in it never answer."""

    def __init__(self) -> None:
        self.calls = StorageCalls()
        self.answers = threading.Event()

    def __call__(self, base_path: str) -> Storage:
        if "dead" in base_path:
            self.answers.wait(60)
            raise StorageError(f"{base_path}: no answer")
        storage = open_storage(base_path)
        storage.calls = self.calls
        return storage

    def taken(self) -> int:
        asked = self.calls.lists + self.calls.opens + self.calls.stats
        self.calls.lists = self.calls.opens = self.calls.stats = 0
        return asked


def test_well_table_costs_one_stat_until_something_is_pending_or_an_hour_has_passed_since_it_changed(
    lake: Path, registry: Registry, clock: FakeClock
) -> None:
    clock.now = datetime.now(UTC)  # a folder's time counts only when it is past
    table = HandMadeTable.create(lake / "orders")
    table.commit(1)
    registry.mark_dirty(Notice(str(table.path), "orders", Source.HINT))
    stores, heard = CountingStores(), Heard()
    timelines = SharedTimelines(open_table=stores, now_ms=registry.now_ms)
    stores.calls, views = timelines.calls, TableViewCache(timelines)
    sweep = DeadlineSweep(registry, FakeInstanceGateway(), notifier=heard)
    # Without the sample of figures, which one examination in twenty takes.
    rounds = RepairRound(registry, TablesConfig, stores, views=views, chance=lambda: 1.0)

    def examine(*, after_s: float = EVERY_MS / 1000 + 1) -> int:
        clock.advance(after_s)
        timelines.snapshot(str(table.path), NOW)  # its heartbeat
        stores.taken()
        rounds.run()
        return stores.taken()

    whole = examine()
    assert whole >= 8
    assert [examine() for _ in range(20)] == [1] * 20
    assert examine(after_s=WHOLE_AT_LATEST_MS / 1000) >= whole
    table.commit(600)
    assert examine() == 1
    assert examine(after_s=WHOLE_EVERY_MS / 1000) >= whole
    # What becomes stuck is found at the next turn: a lock, which is on no timeline, and a plan.
    lock = table.path / ".hoodie" / "lock"
    lock.write_bytes(b"")
    os.utime(lock, (LONG_AGO_S, LONG_AGO_S))
    assert examine() >= whole
    sweep.sweep()
    assert [problem.service for problem in heard.problems] == ["orphaned_lock"]
    lock.unlink()
    examine()
    assert examine() == 1
    # What a check of integrity has found lies on no timeline, too: its run says that there is something.
    report = table.path / DamageKind.DUPLICATE_KEYS.place
    report.parent.mkdir(parents=True, exist_ok=True)
    report.write_text(to_json(KnownDamage((Damage(DamageKind.DUPLICATE_KEYS, ("p",), "7 has 2 rows"),))))
    assert examine() == 1
    with registry.transaction() as session:
        found = RunReport(1, outcome=Outcome.COMPLETED)
        report_run(session, table_id_of(str(table.path)), "run-1", "integrity", found, registry.now_ms())
    assert examine() >= whole
    sweep.sweep()
    assert (heard.problems[-1].service, heard.problems[-1].reason.startswith("7 has 2 rows")) == (
        "duplicate_keys",
        True,
    )
    report.unlink()
    examine(after_s=WHOLE_EVERY_MS / 1000)
    assert examine() == 1
    table.plan(9)
    assert examine() >= whole


def test_store_that_never_answers_takes_no_turn_of_other_tables(
    lake: Path, registry: Registry, config: TablesConfig, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repair_round, "ROUND_S", 1.0)
    monkeypatch.setattr(repair_round, "_HANGS_S", 0.1)
    stores = CountingStores()
    for number in range(20):
        registry.mark_dirty(Notice(f"s3a://dead/t{number}", "dead", Source.HINT))
    locks = [add_patient(lake, registry, f"mended_{number}") for number in range(3)]
    rounds = RepairRound(registry, lambda: config, stores, threads=2)
    try:
        for _ in range(30):  # three, where a round's second is this machine's own
            rounds.run()
            clock.advance(60)
            if not any(lock.exists() for lock in locks):
                break
        assert not any(lock.exists() for lock in locks)
        waiting = [thread for thread in threading.enumerate() if thread.name.endswith("(_take_turns)")]
        assert len(waiting) <= 2
    finally:
        stores.answers.set()
    for thread in waiting:
        thread.join(10)


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
        RepairRound(registry, lambda: tables, open_storage, metrics).run()
        DeadlineSweep(registry, FakeInstanceGateway(), metrics, heard, lambda: tables).sweep()

    run_round()
    clock.advance(EVERY_MS / 1000)
    run_round()
    (problem,) = heard.problems
    assert (problem.base_path, problem.service) == (str(other), "orphaned_lock")
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
    RepairRound(registry, TablesConfig, open_storage).run()
    DeadlineSweep(registry, FakeInstanceGateway(), notifier=heard).sweep()
    (problem,) = heard.problems
    assert problem.service == "unreadable_file"
    assert f"{file.name}: damaged JSON" in problem.reason


class GaugedMetrics(FakeMetrics):
    def __init__(self) -> None:
        super().__init__()
        self.gauges: dict[str, float] = {}

    def gauge(self, name: str, value: float) -> None:
        self.gauges[name] = value


def test_sampled_table_whose_files_are_not_those_of_its_commits_is_named(
    lake: Path, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    table = HandMadeTable.create(lake / "orders")
    partition = table.path / "p"
    partition.mkdir()
    for second in range(1, 5):
        time = table.commit(second)
        (partition / f".a_{time}.log.1_0-1-0").write_bytes(b"x" * 100)
        # Next to it what Hadoop writes on a local disk, and what only readers of change data open.
        (partition / f"..a_{time}.log.1_0-1-0.crc").write_bytes(b"x" * 12)
        (partition / f".a_{time}.log.1_0-1-0.cdc").write_bytes(b"x" * 90)
    registry.mark_dirty(Notice(str(table.path), "orders", Source.HINT))
    views, metrics = TableViewCache(), GaugedMetrics()

    def examine(chance: float) -> None:
        for row in RepairRound(registry, TablesConfig, open_storage, metrics)._list_due():
            policy = TablePolicy(doctor=DoctorPolicy(notify=True))
            RepairRound(registry, TablesConfig, open_storage, metrics, views=views, chance=lambda: chance)._examine(
                row, policy
            )

    examine(1.0)
    assert metrics.gauges == {}, "not each examination lists data files"
    examine(0.0)
    assert (metrics.gauges["lake.figures.error"], metrics.counts["lake.figures.wrong"]) == (0.0, 0)
    for file in sorted(partition.glob(".a_*-0"))[:2]:
        file.unlink()
    examine(0.0)
    assert metrics.gauges["lake.figures.error"] == 1.0, "twice as much as lies there"
    assert metrics.counts["lake.figures.wrong"] == 1
    assert "400 bytes in 4 log files of 1 partitions, a listing 200 bytes in 2" in caplog.text
