"""Marks become runs: exactly one for each state of a table, whatever dies in between (G1, G2, G4)."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.config.settings import LakeSettings
from airflow_lake_provider.config.tables_config import TablesConfig
from airflow_lake_provider.errors import StorageError
from airflow_lake_provider.hudi.base_path import table_id_of
from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.manager.db.registry import Registry
from airflow_lake_provider.manager.db.rows import Notice, Source
from airflow_lake_provider.manager.db.sinks import RunProgress, Sinks
from airflow_lake_provider.manager.loop.reconciler import ManagerLoop
from airflow_lake_provider.manager.loop.timeline_feed import TimelineServerGateway
from airflow_lake_provider.manager.runs.airflow_runs import RunState
from airflow_lake_provider.manager.runs.run_ids import run_id_of
from airflow_lake_provider.manager.scheduling.run_scheduler import RunScheduler
from airflow_lake_provider.manager.scheduling.scheduling import GIVEN_UP_PAUSE_MS, StartVerdict
from airflow_lake_provider.planner.last_runs import RunEnd, parse_last_runs
from airflow_lake_provider.planner.rules import Decision, Verdict
from airflow_lake_provider.planner.table_view import TableViewCache
from airflow_lake_provider.replication.change import CommitRef
from airflow_lake_provider.replication.checkpoint import Checkpoint, to_text
from airflow_lake_provider.storage.table_storage import open_storage
from airflow_lake_provider.timeline_server.cache import SharedTimelines
from airflow_lake_provider.timeline_server.server import ServerOptions, TimelineServer
from airflow_lake_provider.timeline_server.snapshot import NOW
from tests.support.tables import HandMadeTable
from tests.unit.manager.conftest import FakeClock, FakeRunGateway

MakeLoop = Callable[[], ManagerLoop]


@pytest.fixture
def table(lake: Path) -> HandMadeTable:
    return HandMadeTable.create(lake / "orders")


def announce(registry: Registry, table: HandMadeTable, instant: str = "20261121120001000") -> str:
    return registry.mark_dirty(Notice(str(table.path), "orders", Source.COMMIT_CALLBACK, (instant,))).table_id


def test_drain_of_a_due_table_starts_one_run_with_its_reason(
    registry: Registry, make_loop: MakeLoop, gateway: FakeRunGateway, table: HandMadeTable
) -> None:
    for second in (1, 2, 3):
        newest = table.commit(second)
    table_id = announce(registry, table)
    assert make_loop().drain() == 1
    assert [run.run_id for run in gateway.runs] == [run_id_of(table_id, Service.COMPACTION, newest)]
    assert gateway.confs[0]["reason"] == "3 delta commits and no compaction yet (rule: 3)"
    assert gateway.confs[0]["hudi_options"]["hoodie.write.lock.provider"].endswith("FileSystemBasedLockProvider")
    assert registry.get(table_id).dirty_since_ms is None


def test_drain_of_a_hundred_notices_that_make_nothing_due_starts_none(
    registry: Registry, make_loop: MakeLoop, gateway: FakeRunGateway, table: HandMadeTable
) -> None:
    table.commit(1)
    for _ in range(100):
        announce(registry, table)
    loop = make_loop()
    assert loop.drain() == 1
    assert loop.drain() == 0
    assert gateway.runs == []


def test_drain_of_a_notice_doubled_ten_times_starts_one_run(
    registry: Registry, make_loop: MakeLoop, gateway: FakeRunGateway, table: HandMadeTable
) -> None:
    for second in (1, 2, 3):
        table.commit(second)
    loop = make_loop()
    for _ in range(10):
        announce(registry, table)
        loop.drain()
    assert len(gateway.runs) == 1


def test_drain_while_a_run_is_active_starts_no_second_one_for_newer_commits(
    registry: Registry, make_loop: MakeLoop, gateway: FakeRunGateway, table: HandMadeTable
) -> None:
    loop = make_loop()
    for second in range(1, 8):
        table.commit(second)
        announce(registry, table)
        loop.drain()
    table.plan(8)
    announce(registry, table)
    loop.drain()
    assert len(gateway.runs) == 1


def test_drain_by_two_loops_at_once_starts_one_run_per_table(
    registry: Registry, make_loop: MakeLoop, gateway: FakeRunGateway, lake: Path
) -> None:
    for name in "abcdefgh":
        made = HandMadeTable.create(lake / name)
        for second in (1, 2, 3):
            made.commit(second)
        announce(registry, made)
    loops = [threading.Thread(target=make_loop().drain) for _ in range(4)]
    for thread in loops:
        thread.start()
    for thread in loops:
        thread.join()
    assert len(gateway.runs) == 8
    assert registry.acquire(10, 1) == []


def test_drain_after_a_loop_died_between_lease_and_run_takes_the_lease_over(
    registry: Registry, make_loop: MakeLoop, gateway: FakeRunGateway, table: HandMadeTable, clock: FakeClock
) -> None:
    for second in (1, 2, 3):
        table.commit(second)
    announce(registry, table)
    assert len(registry.acquire(1, lease_s=60)) == 1  # and then the process is killed
    assert make_loop().drain() == 0
    clock.advance(61)
    assert make_loop().drain() == 1
    assert len(gateway.runs) == 1


def test_release_of_a_lease_that_passed_on_changes_nothing(
    registry: Registry, make_loop: MakeLoop, gateway: FakeRunGateway, table: HandMadeTable, clock: FakeClock
) -> None:
    """A loop that slept through its lease must neither start a run nor wipe the mark of the one that took over."""
    for second in (1, 2, 3):
        table.commit(second)
    table_id = announce(registry, table)
    slept = registry.acquire(1, lease_s=60)[0]
    clock.advance(61)
    assert len(registry.acquire(1, lease_s=60)) == 1
    make_loop()._evaluate_safely(slept)
    assert gateway.runs == []
    assert registry.get(table_id).dirty_since_ms is not None


def test_drain_when_a_notice_arrives_during_the_evaluation_evaluates_again(
    registry: Registry, make_loop: MakeLoop, gateway: FakeRunGateway, table: HandMadeTable
) -> None:
    announce(registry, table)
    lease = registry.acquire(1, lease_s=60)[0]
    announce(registry, table)
    make_loop()._evaluate_safely(lease)
    assert make_loop().drain() == 1


def test_drain_when_airflow_refuses_the_run_keeps_the_mark_and_tries_again(
    registry: Registry, make_loop: MakeLoop, gateway: FakeRunGateway, table: HandMadeTable, clock: FakeClock
) -> None:
    for second in (1, 2, 3):
        table.commit(second)
    table_id = announce(registry, table)
    gateway.fails_with = StorageError("DAG lake_table_service is not in the database yet")
    loop = make_loop()
    loop.drain()
    assert "not in the database yet" in registry.get(table_id).problem
    assert loop.drain() == 0
    clock.advance(2)
    loop.drain()
    assert len(gateway.runs) == 1
    assert registry.get(table_id).problem == ""


def test_drain_of_a_table_with_an_unexpected_error_goes_on_with_the_others(
    registry: Registry, make_loop: MakeLoop, gateway: FakeRunGateway, lake: Path, clock: FakeClock
) -> None:
    ids = []
    for name in ("first", "second"):
        made = HandMadeTable.create(lake / name)
        for second in (1, 2, 3):
            made.commit(second)
        ids.append(announce(registry, made))
        clock.advance(1)
    gateway.fails_with = RuntimeError("as Airflow raises it")
    loop = make_loop()
    assert loop.drain() == 2
    assert len(gateway.runs) == 1
    assert registry.get(ids[0]).problem == "RuntimeError: as Airflow raises it"
    clock.advance(2)
    loop.drain()
    assert len(gateway.runs) == 2


def test_drain_of_a_missing_table_backs_off_and_disturbs_no_other(
    registry: Registry, make_loop: MakeLoop, gateway: FakeRunGateway, table: HandMadeTable, lake: Path, clock: FakeClock
) -> None:
    missing = HandMadeTable(lake / "missing")
    missing_id = announce(registry, missing)
    for second in (1, 2, 3):
        table.commit(second)
    announce(registry, table)
    loop = make_loop()
    assert loop.drain() == 2
    assert len(gateway.runs) == 1
    assert "no Hudi table at" in registry.get(missing_id).problem
    announce(registry, missing)
    assert loop.drain() == 0, "a notice must not turn a broken table into a busy loop"
    HandMadeTable.create(missing.path)
    clock.advance(700)
    assert loop.drain() >= 1
    assert registry.get(missing_id).problem == ""


def test_drain_after_a_failed_run_starts_another_with_backoff_and_gives_up_at_the_maximum(
    registry: Registry, make_loop: MakeLoop, gateway: FakeRunGateway, table: HandMadeTable, clock: FakeClock
) -> None:
    for second in (1, 2, 3):
        newest = table.commit(second)
    table_id = announce(registry, table)
    loop = make_loop()
    loop.drain()
    for attempt, pause_s in ((2, 61), (3, 121)):
        gateway.end(gateway.runs[-1].run_id, RunState.FAILED, registry.now_ms())
        clock.advance(31)
        loop.drain()
        assert len(gateway.runs) == attempt - 1, "the pause is not over"
        clock.advance(pause_s)
        loop.drain()
        assert gateway.runs[-1].run_id == run_id_of(table_id, Service.COMPACTION, newest, attempt)
    gateway.end(gateway.runs[-1].run_id, RunState.FAILED, registry.now_ms())
    clock.advance(10_000)
    announce(registry, table)
    loop.drain()
    assert len(gateway.runs) == 3
    assert "given up until " in registry.get(table_id).decisions
    table.commit(9)
    announce(registry, table)
    loop.drain()
    assert len(gateway.runs) == 3, "a commit gives the decision a new instant, and no new tries"
    reason = json.loads(registry.get(table_id).decisions)[0]["run_reason"]
    assert reason.startswith("3 runs of compaction failed in a row")
    clock.advance(GIVEN_UP_PAUSE_MS / 1000 - 9_000)
    loop.drain()
    assert len(gateway.runs) == 4
    gateway.end(gateway.runs[-1].run_id, RunState.FAILED, registry.now_ms())
    table.commit(10)
    announce(registry, table)
    loop.drain()
    assert len(gateway.runs) == 4, "still given up after one more failure"
    # A person clears the run, and it succeeds: the count begins again.
    gateway.end(gateway.runs[-1].run_id, RunState.SUCCESS, registry.now_ms())
    table.commit(11)
    announce(registry, table)
    loop.drain()
    last = parse_last_runs(registry.get(table_id).last_runs).of[Service.COMPACTION]
    assert (last.end, last.failures) == (RunEnd.SUCCESS, 0)


def test_drain_after_a_run_ended_without_a_report_evaluates_by_itself(
    registry: Registry, make_loop: MakeLoop, gateway: FakeRunGateway, table: HandMadeTable, clock: FakeClock
) -> None:
    for second in (1, 2, 3):
        table.commit(second)
    announce(registry, table)
    loop = make_loop()
    loop.drain()
    gateway.end(gateway.runs[0].run_id, RunState.FAILED, registry.now_ms())
    for _ in range(4):
        clock.advance(31)
        loop.drain()
    assert len(gateway.runs) == 2


def test_end_of_a_run_that_comes_after_its_tasks_hint_is_seen_within_two_seconds(
    registry: Registry, make_loop: MakeLoop, gateway: FakeRunGateway, table: HandMadeTable, clock: FakeClock
) -> None:
    for second in (1, 2, 3):
        table.commit(second)
    table_id = announce(registry, table)
    loop = make_loop()
    loop.drain()
    (run,) = gateway.runs
    # A task sends its hint while it still runs; Airflow records the end of its run a moment later.
    clock.advance(20)
    registry.mark_dirty(Notice(str(table.path), "orders", Source.HINT))
    loop.drain()
    assert json.loads(registry.get(table_id).decisions)[0]["run"] == "already_active"
    gateway.end(run.run_id, RunState.SUCCESS, registry.now_ms())
    clock.advance(2)
    assert loop.drain() == 1
    assert json.loads(registry.get(table_id).decisions)[0].get("run") != "already_active"


def test_run_that_goes_on_after_a_hint_is_checked_less_and_less_often(
    registry: Registry, make_loop: MakeLoop, table: HandMadeTable, clock: FakeClock
) -> None:
    for second in (1, 2, 3):
        table.commit(second)
    announce(registry, table)
    loop = make_loop()
    loop.drain()
    registry.mark_dirty(Notice(str(table.path), "orders", Source.HINT))
    loop.drain()
    checks = 0
    for _ in range(120):
        clock.advance(1)
        checks += loop.drain()
    # After 2, 4, 8, 16, 32 s, and each 30 s from then on.
    assert 6 <= checks <= 9


def test_list_silent_after_the_heartbeat_names_the_table_until_it_is_postponed(
    registry: Registry, make_loop: MakeLoop, table: HandMadeTable, clock: FakeClock
) -> None:
    table.commit(1)
    table_id = announce(registry, table)
    loop = make_loop()
    loop.drain()
    assert registry.list_silent() == []
    clock.advance(601)
    assert [row.table_id for row in registry.list_silent()] == [table_id]
    loop.postpone([table_id, "unknown-table"])
    assert registry.list_silent() == []
    assert table_id == table_id_of(str(table.path))


@pytest.mark.parametrize("is_watched", [True, False])
def test_silent_table_on_which_a_writer_died_is_evaluated_and_rolled_back(
    registry: Registry,
    make_loop: MakeLoop,
    gateway: FakeRunGateway,
    table: HandMadeTable,
    clock: FakeClock,
    timeline_server: TimelineServer,
    is_watched: bool,
) -> None:
    """No commit follows, and no notice announces a write that was only begun."""
    timeline_server.options = replace(timeline_server.options, is_watching=is_watched)
    table.commit(1)
    table_id = announce(registry, table)
    loop = make_loop()
    loop.drain()
    begun = "20261121120100000"
    (table.path / ".hoodie" / "timeline" / f"{begun}.deltacommit.requested").touch()
    heartbeat = table.path / ".hoodie" / ".heartbeat" / begun
    heartbeat.parent.mkdir(exist_ok=True)
    heartbeat.touch()
    os.utime(heartbeat, (1, 1))
    clock.advance(1201)
    if is_watched:
        timeline_server.timelines.snapshot(str(table.path), NOW)  # its heartbeat
    loop.postpone([table_id])
    loop.drain()
    assert [run.run_id for run in gateway.runs] == [run_id_of(table_id, Service.ROLLBACK, begun)]


def test_clean_that_a_sink_holds_back_starts_no_run_until_the_sink_goes_on(
    registry: Registry, make_loop: MakeLoop, gateway: FakeRunGateway, lake: Path
) -> None:
    table, sinks, loop = HandMadeTable.create(lake / "orders", "COPY_ON_WRITE"), Sinks(registry), make_loop()
    instants = [table.commit(second) for second in range(1, 31)]
    table_id = announce(registry, table)
    sinks.configure(table_id, {"mirror": 3600})

    def decided_clean() -> dict[str, Any]:
        announce(registry, table)
        loop.drain()
        decisions = json.loads(registry.get(table_id).decisions)
        return next(decision for decision in decisions if decision["service"] == "clean")

    for _ in range(3):
        clean = decided_clean()
        assert clean["verdict"] == "not_due"
        assert "held back: sink mirror holds everything, until 2026-11-21 13:00:00 UTC" in clean["reason"]
        assert clean["evidence"]["held_by"] == "mirror"
    assert gateway.runs == []
    assert not sinks.get(table_id, "mirror").needs_snapshot, "an evaluation releases nothing"

    newest = CommitRef(instants[-1], instants[-1])
    text = to_text(Checkpoint(f"{table_id}.mirror", 1, 1, newest, hold=instants[-1]))
    sinks.record_progress(table_id, "mirror", RunProgress("run-1", text, ended=True))
    assert decided_clean()["run"] == "start"
    assert [run.run_id.split(".")[1] for run in gateway.runs] == ["clean"]


def test_hold_that_is_over_lets_the_clean_start(
    registry: Registry, make_loop: MakeLoop, gateway: FakeRunGateway, lake: Path, clock: FakeClock
) -> None:
    table, loop = HandMadeTable.create(lake / "orders", "COPY_ON_WRITE"), make_loop()
    for second in range(1, 31):
        table.commit(second)
    table_id = announce(registry, table)
    Sinks(registry).configure(table_id, {"mirror": 3600})
    loop.drain()
    assert gateway.runs == []
    clock.advance(3601)
    # No notice comes: its own time of the next evaluation has come.
    loop.drain()
    assert [run.run_id.split(".")[1] for run in gateway.runs] == ["clean"]


def append(table: HandMadeTable, number: int) -> None:
    """Add a commit of one new file group, as a bulk insert makes it."""
    requested, completed = (
        f"20261121{11 + number // 3600:02d}{number // 60 % 60:02d}{number % 60:02d}{ms}" for ms in ("000", "500")
    )
    stat = {"fileId": f"g{number}", "path": f"p/g{number}_0-1-0_0.parquet", "prevCommit": "null"}
    body = {"operationType": "BULK_INSERT", "partitionToWriteStats": {"p": [stat]}}
    (table.path / ".hoodie" / "timeline" / f"{requested}_{completed}.commit").write_text(json.dumps(body), "utf-8")


def test_table_that_is_only_appended_to_is_cleaned_once_for_nothing_and_archived(
    registry: Registry, make_loop: MakeLoop, gateway: FakeRunGateway, lake: Path, clock: FakeClock
) -> None:
    """What the run found outlives the loop that started it; then the clean is not due, only the archiving."""
    table = HandMadeTable.create(lake / "events", "COPY_ON_WRITE")
    for number in range(1, 51):
        append(table, number)
        table_id = announce(registry, table)
        make_loop().drain()
        clock.advance(600)
        if gateway.runs and gateway.runs[-1].active:
            gateway.end(gateway.runs[-1].run_id, RunState.SUCCESS, registry.now_ms())
    services = [run.run_id.split(".")[1] for run in gateway.runs]
    assert services == ["clean", "archive", "archive"], "a model of Hudi's archiver is not in this test"
    decisions = {d["service"]: d for d in json.loads(registry.get(table_id).decisions)}
    assert decisions["clean"]["verdict"] == "not_due"
    assert decisions["clean"]["reason"].startswith("nothing to clean")
    assert "run" not in decisions["clean"]


def test_run_is_among_the_turns_even_if_the_loop_dies_at_once(
    registry: Registry,
    make_loop: MakeLoop,
    gateway: FakeRunGateway,
    table: HandMadeTable,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for second in (1, 2, 3):
        table.commit(second)
    table_id = announce(registry, table)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as killed:
        killed.setattr(registry, "conclude", die)
        with pytest.raises(KeyboardInterrupt):
            make_loop().drain()
    last_runs = parse_last_runs(registry.get(table_id).last_runs)
    assert last_runs.open_run_ids() == (gateway.runs[0].run_id,)


def test_busy_table_gives_its_one_place_to_each_service_in_turn(
    registry: Registry, make_loop: MakeLoop, gateway: FakeRunGateway, lake: Path, clock: FakeClock
) -> None:
    """The runs find nothing here; each is due again when its run ends, and none takes the place twice in a row."""
    table, loop = HandMadeTable.create(lake / "orders"), make_loop()
    plan = table.plan(1)
    for number in range(2, 60):
        append(table, number)
        announce(registry, table)
        loop.drain()
        clock.advance(7 * 3600)
        if gateway.runs[-1].active:
            gateway.end(gateway.runs[-1].run_id, RunState.FAILED, registry.now_ms())
    services = [run.run_id.split(".")[1] for run in gateway.runs]
    assert plan in gateway.runs[0].run_id
    later = services[services.index("clean") - 1 :]
    assert all(first != then for first, then in pairwise(later)), services


def test_archiving_waits_for_a_clean_that_runs_where_several_services_may(
    registry: Registry, gateway: FakeRunGateway, clock: FakeClock
) -> None:
    registry.mark_dirty(Notice("/lake/orders", "orders", Source.CONFIG))
    (lease,) = registry.acquire(1, 60)
    policy = TablePolicy(max_active_runs=3)
    starts = RunScheduler(registry, gateway, TablesConfig)
    clean, archive = (
        Decision(service, Verdict.DUE, "due", key_instant="1") for service in (Service.CLEAN, Service.ARCHIVE)
    )
    assert [said.verdict for said in starts.preview(lease.table_id, policy, [clean, archive])] == ["start", "waiting"]
    assert starts.start(lease, policy, clean).verdict is StartVerdict.START
    waits = starts.start(lease, policy, archive)
    assert waits.verdict is StartVerdict.WAITING
    assert (waits.run_id, waits.reason.partition(":")[0]) == (
        run_id_of(lease.table_id, Service.CLEAN, "1"),
        "waits for the clean that runs",
    )
    gateway.end(gateway.runs[0].run_id, RunState.FAILED, registry.now_ms())
    assert starts.start(lease, policy, archive).verdict is StartVerdict.START


class CountingStorage:
    """Counts the calls of a storage."""

    def __init__(self, storage: Any, calls: list[str]) -> None:
        self._storage = storage
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._storage, name)
        if not callable(found):
            return found

        def call(*arguments: Any, **named: Any) -> Any:
            self._calls.append(name)
            return found(*arguments, **named)

        return call


def test_table_that_waits_for_its_own_run_does_not_ask_storage_until_the_run_ends(
    settings: LakeSettings, registry: Registry, gateway: FakeRunGateway, table: HandMadeTable, tables: TablesConfig,
    clock: FakeClock,
) -> None:  # fmt: skip
    calls: list[str] = []
    timelines = SharedTimelines(None, lambda path: CountingStorage(open_storage(path), calls), registry.now_ms)  # type: ignore[arg-type, return-value]
    server = TimelineServer(timelines, ServerOptions(service_tokens=settings.service_tokens))
    loop = ManagerLoop(
        settings, registry, TimelineServerGateway(server), TableViewCache(timelines), gateway, lambda: tables
    )
    for second in (1, 2, 3):
        table.commit(second)
    table_id = announce(registry, table)
    loop.drain()
    (run,) = gateway.runs
    calls.clear()
    for _ in range(20):
        clock.advance(31)
        assert loop.drain() == 1
        assert json.loads(registry.get(table_id).decisions)[0]["run"] == "already_active"
    assert calls == []
    gateway.end(run.run_id, RunState.FAILED, registry.now_ms())
    clock.advance(31)
    loop.drain()
    assert calls
