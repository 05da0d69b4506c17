"""RFC-56's strategies, and the registration of others."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from airflow_lake_provider.config.service_policies import ConflictPolicy
from airflow_lake_provider.conflict.activity import ConflictTable
from airflow_lake_provider.conflict.claims import LOCK_FOLDER, Reservation
from airflow_lake_provider.conflict.contention import ClashCheck, WriteIntent
from airflow_lake_provider.conflict.service_watch import ServiceWatch
from airflow_lake_provider.conflict.strategies import BUILT_IN, ENTRY_POINTS, StrategySettings, make_strategy
from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.storage.table_storage import Storage, open_storage
from tests.unit.conflict.fake_table import BASE, FakeTable, keys

W1, W2, W3 = "20261121100000001", "20261121100000002", "20261121100000003"
OSLO, BONN = ("Oslo", "f1-0"), ("", "f2-0")


def intent(instant: str, *groups: tuple[str, str]) -> WriteIntent:
    return WriteIntent(instant, keys(list(groups)), since=instant)


def test_periodic_checker_waits_and_repeats_what_it_saw() -> None:
    table = FakeTable()
    opened = table.open()
    checker = make_strategy("AsyncTimelineMarkerBased", StrategySettings(period_s=10, initial_delay_s=5))
    assert not checker.check(opened, intent(W2, OSLO), table.now_ms).is_free, "nothing was read yet"
    table.now_ms += 5_000
    assert checker.check(opened, intent(W2, OSLO), table.now_ms).is_free
    table.begin(W1)
    table.mark_by_server(W1, [OSLO])
    table.now_ms += 9_999
    assert checker.check(opened, intent(W2, OSLO), table.now_ms).is_free
    table.now_ms += 1
    assert [clash.instant for clash in checker.check(opened, intent(W2, OSLO), table.now_ms).clashes] == [W1]


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_every_strategy_sees_markers_of_both_kinds(name: str, tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    settings = StrategySettings(period_s=0, reserve=lambda instant: Reservation(storage, instant))
    for mark in (FakeTable.mark_direct, FakeTable.mark_by_server):
        table = FakeTable()
        table.begin(W1)
        mark(table, W1, [OSLO])
        opened = table.open()
        assert make_strategy(name, settings).check(opened, intent(W2, OSLO), table.now_ms).clashes
        assert make_strategy(name, settings).check(opened, intent(W3, BONN), table.now_ms).is_free


@pytest.fixture
def disk(tmp_path: Path) -> tuple[ConflictTable, Storage]:
    storage = open_storage(str(tmp_path))
    return ConflictTable(storage, FakeTable().snapshot), storage


def test_transaction_leaves_a_claim_that_the_next_one_sees(disk: tuple[ConflictTable, Storage]) -> None:
    table, storage = disk
    now_ms = int(time.time() * 1000)
    settings = StrategySettings(reserve=lambda instant: Reservation(storage, instant))
    strategy = make_strategy("SimpleTransactionDirectMarkerBased", settings)
    assert strategy.check(table, intent(W1, OSLO, BONN), now_ms).is_free
    assert strategy.check(table, intent(W1, OSLO, BONN), now_ms).is_free, "one's own claim is no obstacle"
    assert [clash.instant for clash in strategy.check(table, intent(W2, BONN), now_ms).clashes] == [W1]
    assert os.listdir(f"{storage.root}/{LOCK_FOLDER}") == [], "locks are given back"
    Reservation(storage, W1).release()
    assert strategy.check(table, intent(W2, BONN), now_ms).is_free
    assert [clash.instant for clash in strategy.check(table, intent(W1, BONN), now_ms).clashes] == [W2], "it came first"


def test_transaction_is_not_free_while_another_claim_is_being_made(disk: tuple[ConflictTable, Storage]) -> None:
    table, storage = disk
    now_ms = int(time.time() * 1000)
    settings = StrategySettings(reserve=lambda instant: Reservation(storage, instant))
    strategy = make_strategy("SimpleTransactionDirectMarkerBased", settings)
    with Reservation(storage, W1).lock(keys([OSLO])):
        verdict = strategy.check(table, intent(W2, OSLO, BONN), now_ms)
        assert (verdict.clashes, verdict.is_free) == ((), False)
        with Reservation(storage, W3).lock(keys([BONN])):
            """Another file group is free."""


def test_reservation_is_refused_where_it_cannot_be_exclusive() -> None:
    with pytest.raises(ConfigError, match="local file system"):
        Reservation(Storage(BASE, FakeTable().store, BASE), W1)


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_every_strategy_watches_a_plan_and_finds_its_writer(name: str) -> None:
    table = FakeTable()
    table.plan(W1, [OSLO, BONN])
    watch = ServiceWatch(table.open(), ConflictPolicy(strategy=name))
    assert watch.check(table.now_ms) is None
    table.begin(W2)
    table.mark_direct(W2, [BONN])
    found = watch.check(table.now_ms + 1)
    assert found is not None
    assert (found.plan, [clash.instant for clash in found.clashes]) == (W1, [W2])


def test_service_that_executes_named_plans_does_not_stop_for_the_writer_of_another_plan() -> None:
    table = FakeTable()
    table.plan(W1, [OSLO])
    table.plan(W2, [BONN])
    table.begin(W3)
    table.mark_direct(W3, [BONN])
    assert ServiceWatch(table.open(), ConflictPolicy(), (W1,)).check(table.now_ms) is None
    found = [ServiceWatch(table.open(), ConflictPolicy(), plans).check(table.now_ms) for plans in ((W1, W2), ())]
    assert [conflict.plan if conflict else None for conflict in found] == [W2, W2]


class AlwaysFree:
    def __init__(self, settings: StrategySettings) -> None:
        self.settings = settings

    def check(self, table: ConflictTable, intent: WriteIntent, now_ms: int) -> ClashCheck:
        return ClashCheck()


def install(folder: Path, package: str, *lines: str) -> None:
    """Lay down what an installed package leaves of its entry points."""
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n", encoding="utf-8")
    text = "\n".join([f"[{ENTRY_POINTS}]", *lines])
    (info / "entry_points.txt").write_text(text, encoding="utf-8")


def test_third_party_registers_a_strategy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "one", f"mine = {__name__}:AlwaysFree", f"twice = {__name__}:AlwaysFree")
    install(tmp_path, "two", "twice = other:Strategy", f"AsyncTimelineMarkerBased = {__name__}:AlwaysFree")
    monkeypatch.syspath_prepend(str(tmp_path))
    table = FakeTable()
    table.plan(W1, [OSLO])
    table.begin(W2)
    table.mark_direct(W2, [OSLO])
    strategy = make_strategy("mine", StrategySettings())
    assert type(strategy).__name__ == "AlwaysFree"
    assert ServiceWatch(table.open(), ConflictPolicy(strategy="mine")).check(table.now_ms) is None
    assert ServiceWatch(table.open(), ConflictPolicy()).check(table.now_ms), "none takes a built-in one's place"
    with pytest.raises(ConfigError, match="twice"):
        make_strategy("twice", StrategySettings())
    with pytest.raises(ConfigError, match=r"AsyncTimelineMarkerBased.*mine"):
        make_strategy("unheard-of", StrategySettings())
