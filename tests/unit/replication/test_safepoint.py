"""The safepoint: pure rules, and the rows behind it. TiCDC's bugs are named where they would come back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import create_engine, update
from sqlalchemy.orm import sessionmaker

from airflow_lake_provider.errors import SinkBusyError, SinkUnknownError
from airflow_lake_provider.manager.db.database import ProcessClock
from airflow_lake_provider.manager.db.registry import Registry
from airflow_lake_provider.manager.db.rows import Notice, Source
from airflow_lake_provider.manager.db.schema import lake_table, metadata
from airflow_lake_provider.manager.db.sinks import RunProgress, Sinks
from airflow_lake_provider.planner.rules import Hold
from airflow_lake_provider.replication.change import CommitRef
from airflow_lake_provider.replication.checkpoint import (
    EVERYTHING,
    Checkpoint,
    Safepoint,
    SinkHold,
    find_safepoint,
    to_text,
)

HOUR_S = 3600.0
RUN = "run-1"


@dataclass
class FakeClock:
    now: datetime = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def sinks(tmp_path: Path, clock: FakeClock) -> Iterator[Sinks]:
    engine = create_engine(f"sqlite:///{tmp_path}/airflow.db")
    metadata.create_all(engine)
    yield Sinks(Registry(sessionmaker(engine), ProcessClock(clock)))
    engine.dispose()


def at(hold: str, run_id: str = RUN) -> RunProgress:
    """The progress of a run that made this hold durable."""
    text = to_text(Checkpoint("t.s", 1, 1, CommitRef(hold, hold), hold=hold))
    return RunProgress(run_id, text, completed_time=hold, ended=True)


def failed(problem: str = "the broker is away") -> RunProgress:
    return RunProgress(RUN, problem=problem, ended=True)


def hold(name: str, instant: str, renewed_ms: int = 0, ttl_s: float = 10, needs_snapshot: bool = False) -> SinkHold:
    return SinkHold(name, instant, renewed_ms, ttl_s, needs_snapshot)


@pytest.mark.parametrize(
    ("holds", "expected"),
    [
        pytest.param([], Safepoint(), id="no-sinks"),
        pytest.param([hold("a", "5"), hold("b", "3")], Safepoint("3", "b"), id="the-slowest-counts"),
        pytest.param([hold("a", "5", 1), hold("b", "3", -5_000)], Safepoint("5", "a", ("b",)), id="one-is-over"),
        pytest.param([hold("a", "5", needs_snapshot=True)], Safepoint(), id="released-holds-nothing"),
        pytest.param([hold("a", "5", 1), hold("b", EVERYTHING, 1)], Safepoint(EVERYTHING, "b"), id="never-started"),
    ],
)
def test_find_safepoint(holds: list[SinkHold], expected: Safepoint) -> None:
    assert find_safepoint(holds, 9_000) == expected


def test_what_holds_a_clean_back_is_reported_without_releasing_anything(sinks: Sinks, clock: FakeClock) -> None:
    assert sinks.find_hold("t") is None
    sinks.configure("t", {"a": HOUR_S, "b": 2 * HOUR_S})
    sinks.record_progress("t", "a", at("5"))
    assert sinks.find_hold("t") == Hold(EVERYTHING, "b", int((clock.now.timestamp() + 2 * HOUR_S) * 1000))
    sinks.record_progress("t", "b", at("7"))
    assert sinks.find_hold("t") == Hold("5", "a", int((clock.now.timestamp() + HOUR_S) * 1000))
    clock.advance(HOUR_S + 1)
    hold = sinks.find_hold("t")
    assert hold is not None
    assert hold.holder == "b"
    assert not sinks.get("t", "a").needs_snapshot


def test_ticdc_603_stopped_sink_still_counts(sinks: Sinks, clock: FakeClock) -> None:
    sinks.configure("t", {"a": HOUR_S})
    sinks.begin_run("t", "a", HOUR_S, RUN)
    sinks.record_progress("t", "a", at("5"))
    clock.advance(HOUR_S - 60)
    assert sinks.safepoint("t") == Safepoint("5", "a")


def test_ticdc_9543_sink_that_never_started_counts(sinks: Sinks) -> None:
    sinks.configure("t", {"a": HOUR_S})
    sinks.begin_run("t", "a", HOUR_S, RUN)
    sinks.record_progress("t", "a", at("5"))
    sinks.configure("t", {"a": HOUR_S, "b": HOUR_S})
    assert sinks.safepoint("t") == Safepoint(EVERYTHING, "b")


def test_ticdc_9388_failed_sink_counts_until_its_time_to_live_is_over(sinks: Sinks, clock: FakeClock) -> None:
    sinks.configure("t", {"a": HOUR_S})
    sinks.record_progress("t", "a", at("5"))
    for _ in range(3):
        clock.advance(1000)
        sinks.begin_run("t", "a", HOUR_S, RUN)
        sinks.record_progress("t", "a", failed())
        assert sinks.safepoint("t") == Safepoint("5", "a")


def test_ticdc_1731_failing_sink_does_not_pin_for_ever(sinks: Sinks, clock: FakeClock) -> None:
    sinks.configure("t", {"a": HOUR_S})
    sinks.record_progress("t", "a", at("5"))
    for _ in range(40):
        clock.advance(100)
        sinks.begin_run("t", "a", HOUR_S, RUN)
        sinks.record_progress("t", "a", failed())
    assert sinks.safepoint("t").instant is None
    row = sinks.get("t", "a")
    assert row.needs_snapshot
    # Nor does it pin again by trying to take its snapshot, and failing, once more.
    sinks.begin_run("t", "a", HOUR_S, RUN)
    assert sinks.safepoint("t") == Safepoint(EVERYTHING, "a")
    sinks.record_progress("t", "a", failed())
    assert sinks.safepoint("t").instant is None


def test_ticdc_5057_hold_of_a_sink_that_was_removed_goes(sinks: Sinks, clock: FakeClock) -> None:
    sinks.configure("t", {"a": 10 * HOUR_S, "b": HOUR_S})
    sinks.record_progress("t", "a", at("5"))
    sinks.configure("t", {"a": 10 * HOUR_S}, 2 * HOUR_S)
    assert sinks.safepoint("t") == Safepoint(EVERYTHING, "b")
    assert sinks.find_hold("t") == Hold(EVERYTHING, "b", int((clock.now.timestamp() + 2 * HOUR_S) * 1000))
    clock.advance(2 * HOUR_S)
    found = sinks.find_hold("t")
    assert found is not None
    assert found.holder == "a"
    assert sinks.safepoint("t") == Safepoint("5", "a")
    with pytest.raises(SinkUnknownError):
        sinks.get("t", "b")


def test_released_sink_says_so_and_holds_again_from_its_new_snapshot(sinks: Sinks, clock: FakeClock) -> None:
    sinks.configure("t", {"a": HOUR_S})
    sinks.record_progress("t", "a", at("5"))
    clock.advance(HOUR_S + 1)
    assert sinks.safepoint("t").released == ("a",)
    assert "time to live has ended" in sinks.get("t", "a").problem
    assert sinks.is_due(sinks.get("t", "a"), "5")
    row = sinks.begin_run("t", "a", HOUR_S, RUN)
    assert row.needs_snapshot
    sinks.record_progress("t", "a", at("9"))
    assert sinks.safepoint("t") == Safepoint("9", "a")
    assert sinks.get("t", "a").problem == ""


def evaluation_found(sinks: Sinks, completed_time: str) -> None:
    """Leave what an evaluation of table `t` leaves: how far it is."""
    registry = sinks._registry
    if registry.find("t") is None:
        registry.register(Notice("/lake/t", "t", Source.CONFIG))
    with registry.transaction() as session:
        session.execute(update(lake_table).values(table_id="t", changed_time=completed_time))


def test_up_to_date_sink_of_a_quiet_table_is_renewed_by_each_search_of_due_sinks(
    sinks: Sinks, clock: FakeClock
) -> None:
    sinks.configure("t", {"a": HOUR_S})
    evaluation_found(sinks, "5")
    sinks.begin_run("t", "a", HOUR_S, RUN)
    sinks.record_progress("t", "a", at("5"))
    for _ in range(5):
        clock.advance(HOUR_S - 1)
        sinks.renew("t")
        assert not sinks.is_due(sinks.get("t", "a"), "5")
    clock.advance(HOUR_S - 1)
    assert sinks.safepoint("t") == Safepoint("5", "a")


def test_up_to_date_sink_is_not_released_though_no_dag_asked_for_a_day(sinks: Sinks, clock: FakeClock) -> None:
    sinks.configure("t", {"a": HOUR_S})
    evaluation_found(sinks, "5")
    sinks.record_progress("t", "a", at("5"))
    clock.advance(24 * HOUR_S)
    assert sinks.find_hold("t") == Hold("5", "a", int((clock.now.timestamp() + HOUR_S) * 1000))
    clock.advance(24 * HOUR_S)
    assert sinks.safepoint("t") == Safepoint("5", "a")
    # From the move of the table on, its time to live counts.
    evaluation_found(sinks, "6")
    clock.advance(HOUR_S - 1)
    assert sinks.safepoint("t") == Safepoint("5", "a")
    clock.advance(2)
    assert sinks.safepoint("t").released == ("a",)


@pytest.mark.parametrize("how", ["paused", "failing", "never-ran"])
def test_sink_that_stands_still_is_not_renewed_by_a_search(sinks: Sinks, clock: FakeClock, how: str) -> None:
    sinks.configure("t", {"a": HOUR_S})
    evaluation_found(sinks, "" if how == "never-ran" else "5")
    if how != "never-ran":
        sinks.record_progress("t", "a", at("5"))
    if how == "failing":
        sinks.record_progress("t", "a", failed())
    if how == "paused":
        sinks.pause("t", "a", paused=True)
    clock.advance(HOUR_S + 1)
    sinks.renew("t")
    assert sinks.safepoint("t").released == ("a",)


def test_paused_sink_holds_and_is_not_due(sinks: Sinks, clock: FakeClock) -> None:
    sinks.configure("t", {"a": HOUR_S})
    sinks.record_progress("t", "a", at("5"))
    sinks.pause("t", "a", paused=True)
    assert not sinks.is_due(sinks.get("t", "a"), "9")
    assert sinks.safepoint("t").instant == "5"
    clock.advance(HOUR_S + 1)
    assert sinks.safepoint("t").instant is None
    sinks.pause("t", "a", paused=False)
    assert sinks.is_due(sinks.get("t", "a"), "9")


def test_sink_is_due_when_the_table_moved_and_no_run_is_alive(sinks: Sinks, clock: FakeClock) -> None:
    sinks.configure("t", {"a": HOUR_S})
    assert sinks.is_due(sinks.get("t", "a"), "5")
    sinks.begin_run("t", "a", HOUR_S, RUN)
    assert not sinks.is_due(sinks.get("t", "a"), "5")
    clock.advance(91)
    assert sinks.is_due(sinks.get("t", "a"), "5")
    sinks.record_progress("t", "a", at("5"))
    assert not sinks.is_due(sinks.get("t", "a"), "5")
    assert sinks.is_due(sinks.get("t", "a"), "6")
    sinks.record_progress("t", "a", failed())
    assert not sinks.is_due(sinks.get("t", "a"), "6")
    clock.advance(31)
    assert sinks.is_due(sinks.get("t", "a"), "6")
    # Each failure in turn doubles the pause, up to half an hour.
    for pause_s in (60, 120, 240, 480, 960, 1800, 1800):
        sinks.record_progress("t", "a", failed())
        clock.advance(pause_s - 1)
        assert not sinks.is_due(sinks.get("t", "a"), "6")
        clock.advance(2)
        assert sinks.is_due(sinks.get("t", "a"), "6")


def test_what_completed_and_was_replicated_while_a_run_went_on_needs_no_other_run(sinks: Sinks) -> None:
    sinks.configure("t", {"a": HOUR_S})
    sinks.begin_run("t", "a", HOUR_S, RUN)
    text = to_text(Checkpoint("t.a", 2, 1, CommitRef("6", "7"), hold="6"))
    sinks.record_progress("t", "a", RunProgress(RUN, text, completed_time="5", ended=True))
    assert not sinks.is_due(sinks.get("t", "a"), "7")
    assert sinks.is_due(sinks.get("t", "a"), "8")


def test_sink_is_one_run_s_until_it_ends_or_does_not_report(sinks: Sinks, clock: FakeClock) -> None:
    sinks.configure("t", {"a": HOUR_S})
    assert sinks.claim("t", "a", "first")
    assert sinks.claim("t", "a", "first"), "the answer may have been lost"
    assert not sinks.claim("t", "a", "second")
    assert sinks.is_due(sinks.get("t", "a"), "5", "first")
    assert not sinks.is_due(sinks.get("t", "a"), "5", "second")
    with pytest.raises(SinkBusyError, match="run first has sink a of table t for 180 s more"):
        sinks.begin_run("t", "a", HOUR_S, "second")
    sinks.begin_run("t", "a", HOUR_S, "first")
    clock.advance(91)
    sinks.begin_run("t", "a", HOUR_S, "second")
    # What the first reports now is older than what the second one knows.
    before = sinks.get("t", "a")
    with pytest.raises(SinkBusyError):
        sinks.record_progress("t", "a", at("5", "first"))
    assert sinks.get("t", "a") == before
    sinks.record_progress("t", "a", at("6", "second"))
    assert sinks.claim("t", "a", "third")


def test_sink_that_was_started_by_hand_stays_when_the_configuration_is_read(sinks: Sinks) -> None:
    sinks.begin_run("t", "by-hand", HOUR_S, RUN)
    sinks.record_progress("t", "by-hand", at("3"))
    sinks.configure("t", {})
    assert sinks.safepoint("t") == Safepoint("3", "by-hand")
    sinks.forget("t", "by-hand")
    assert sinks.safepoint("t") == Safepoint()
