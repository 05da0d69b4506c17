"""The guard's forecast of a user's own write: when it has lost, when it can win, and when nothing is certain."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from airflow_lake_provider.conflict.activity import ConflictTable
from airflow_lake_provider.conflict.contention import (
    BUCKET,
    INDEX_TYPE,
    PREFER_WRITER,
    STRATEGY,
    ClashKind,
    find_writer_rule,
)
from airflow_lake_provider.conflict.guard import GuardWatch, Outlook, WriteForecast, describe_end
from airflow_lake_provider.conflict.guard_register import GUARD_FOLDER, GuardRegister, PartitionReservation
from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.shared.hudi_settings import CONCURRENCY_MODE
from airflow_lake_provider.storage.table_storage import Storage, open_storage
from tests.unit.conflict.fake_table import BASE, RULE, FakeTable, commit_body

W1, W2, W3, W4 = (f"2026112110000{n}000" for n in range(1, 5))
LATER = "20261121110000000"
OSLO, BONN, CORK = ("Oslo", "f1-0"), ("Bonn", "f2-0"), ("Cork", "f3-0")
PATIENCE_S = 120.0


def watch(table: FakeTable, instant: str, options: dict[str, str] | None = None) -> GuardWatch:
    storage = Storage(BASE, table.store, BASE)
    opened = ConflictTable(storage, table.snapshot, RULE, options)
    return GuardWatch(opened, table.snapshot, lambda _: instant, PATIENCE_S)


def judge(table: FakeTable, instant: str, options: dict[str, str] | None = None) -> WriteForecast:
    return watch(table, instant, options).check(table.now_ms)


def two_writers(*, by_server: bool = False) -> FakeTable:
    table = FakeTable()
    for instant in (W1, W2):
        table.begin(instant)
        (table.mark_by_server if by_server else table.mark_direct)(instant, [OSLO])
    return table


@pytest.mark.parametrize("by_server", [False, True])
def test_later_of_two_live_writers_loses_and_the_text_names_what_to_do(by_server: bool) -> None:
    table = two_writers(by_server=by_server)
    assert judge(table, W1).outlook is Outlook.CAN_WIN
    lost = judge(table, W2)
    assert (lost.outlook, [clash.instant for clash in lost.clashes]) == (Outlook.LOSES, [W1])
    text = describe_end(BASE, lost, find_writer_rule({}), 12.4)
    for part in (BASE, W1, W2, "Oslo/f1-0", STRATEGY, "after 12 s", "pool"):
        assert part in text
    table.beat(W1, ago_ms=RULE.most_ms + 1)
    assert judge(table, W2).outlook is Outlook.CAN_WIN


def test_writer_in_the_way_of_which_is_one_that_has_lost_itself_goes_on() -> None:
    table = FakeTable()
    for instant, groups in ((W1, [OSLO]), (W2, [OSLO, BONN]), (W3, [BONN])):
        table.begin(instant)
        table.mark_direct(instant, groups)
    assert [judge(table, instant).outlook for instant in (W1, W2, W3)] == [
        Outlook.CAN_WIN,
        Outlook.LOSES,
        Outlook.CAN_WIN,
    ]


def test_commit_counts_for_certain_once_the_write_had_planned_its_work() -> None:
    table = two_writers()
    watched = watch(table, W1)
    table.announce(W1, [OSLO])
    assert watched.check(table.now_ms).outlook is Outlook.CAN_WIN
    table.commit(W2, "20261121100005000", [OSLO])
    forecast = watched.check(table.now_ms)
    assert (forecast.outlook, forecast.clashes[0].kind) == (Outlook.LOSES, ClashKind.COMMIT)
    # A guard that came later does not know what the write began with.
    unsure = judge(table, W1)
    assert (unsure.outlook, unsure.clashes) == (Outlook.UNKNOWN, ())
    assert "when this write was beginning" in unsure.notes[0]


def test_commit_of_a_minute_after_the_beginning_counts_for_certain() -> None:
    table = two_writers()
    table.commit(W2, LATER, [OSLO])
    assert judge(table, W1).outlook is Outlook.LOSES
    table = two_writers()
    table.commit(W2, LATER, [BONN])
    assert judge(table, W1).outlook is Outlook.CAN_WIN
    table = two_writers()
    table.commit(W2, LATER, [OSLO], "COMPACT")
    assert judge(table, W1).outlook is Outlook.CAN_WIN


def test_commit_that_made_a_rival_lose_frees_the_later_writer() -> None:
    table = FakeTable()
    for instant, groups in ((W1, [OSLO]), (W2, [OSLO, BONN]), (W3, [BONN])):
        table.begin(instant)
        table.mark_direct(instant, groups)
    table.commit(W1, LATER, [OSLO])
    assert judge(table, W2).outlook is Outlook.LOSES
    assert judge(table, W3).outlook is Outlook.CAN_WIN


def test_rival_that_was_seen_to_have_planned_before_a_commit_leaves_nothing_in_doubt() -> None:
    table = FakeTable()
    for instant, groups in ((W1, [OSLO, BONN]), (W2, [BONN, CORK]), (W3, [CORK]), (W4, [OSLO])):
        table.begin(instant)
        table.announce(instant, groups)
        table.mark_direct(instant, groups)
    watched = watch(table, W3)
    assert watched.check(table.now_ms).outlook is Outlook.CAN_WIN, "the oldest one makes its only rival lose"
    table.commit(W4, "20261121100005000", [OSLO])
    forecast = watched.check(table.now_ms)
    assert [(clash.instant, forecast.outlook) for clash in forecast.clashes] == [(W2, Outlook.LOSES)]
    # A guard that came later does not know whether the oldest one had planned its work, so whether its rival can win.
    unsure = judge(table, W3)
    assert (unsure.outlook, unsure.clashes) == (Outlook.UNKNOWN, ())
    assert f"writer {W2} shares" in unsure.notes[0]


def test_marker_file_that_is_cut_off_ends_no_write() -> None:
    table = FakeTable()
    for instant in (W1, W2):
        table.begin(instant)
    table.mark_direct(W2, [OSLO])
    table.mark_by_server(W1, [BONN], cut=5)
    forecast = judge(table, W2)
    assert (forecast.outlook, forecast.clashes) == (Outlook.UNKNOWN, ())
    assert "MARKERS0" in forecast.notes[0]


@pytest.mark.parametrize(
    ("options", "outlook"),
    [
        ({CONCURRENCY_MODE: "NON_BLOCKING_CONCURRENCY_CONTROL"}, Outlook.UNKNOWN),
        ({STRATEGY: "com.example.Mine"}, Outlook.UNKNOWN),
        ({STRATEGY: PREFER_WRITER}, Outlook.LOSES),
        ({STRATEGY: BUCKET}, Outlook.LOSES),
    ],
)
def test_rule_of_the_writers_settings_decides(options: dict[str, str], outlook: Outlook) -> None:
    assert judge(two_writers(), W2, options).outlook is outlook


def test_two_new_file_groups_of_one_bucket_conflict_with_a_bucket_index_only() -> None:
    table = FakeTable()
    for instant, file_id in ((W1, "00000007-aaaa-0"), (W2, "00000007-bbbb-0"), (W3, "00000008-cccc-0")):
        table.begin(instant)
        table.mark_direct(instant, [("Oslo", file_id)])
    bucket = {INDEX_TYPE: "BUCKET"}
    assert [judge(table, w, bucket).outlook for w in (W2, W3)] == [Outlook.LOSES, Outlook.CAN_WIN]
    assert judge(table, W2).outlook is Outlook.LOSES, "the file ids show it"
    assert judge(table, W2, {INDEX_TYPE: "BLOOM"}).outlook is Outlook.CAN_WIN


def test_pending_clustering_ends_a_write_only_when_it_is_not_withdrawn() -> None:
    table = FakeTable()
    table.begin(W2)
    table.mark_direct(W2, [OSLO])
    table.plan(W1, [OSLO])
    watched, preferring = watch(table, W2), watch(table, W2, {STRATEGY: PREFER_WRITER})
    first = watched.check(table.now_ms)
    assert (first.outlook, first.clashes) == (Outlook.UNKNOWN, ())
    assert preferring.check(table.now_ms).outlook is Outlook.CAN_WIN
    table.now_ms += int(PATIENCE_S * 1000)
    table.beat(W2)
    assert watched.check(table.now_ms).outlook is Outlook.LOSES
    assert preferring.check(table.now_ms).outlook is Outlook.CAN_WIN


def test_compaction_ends_a_write_of_version_6_only() -> None:
    for version, outlook in ((9, Outlook.CAN_WIN), (6, Outlook.LOSES)):
        table = FakeTable(version=version)
        table.begin(W1)
        table.mark_direct(W1, [OSLO])
        table.plan_compaction(W2, [OSLO])
        assert judge(table, W1).outlook is outlook


def test_log_compaction_and_restore_are_reported_and_end_nothing() -> None:
    table = FakeTable()
    table.begin(W2)
    table.mark_direct(W2, [OSLO])
    table.plan_compaction(W1, [OSLO], "logcompaction")
    table.write(f"timeline/{W1}.logcompaction.inflight")
    table.write(f"timeline/{W3}.restore.requested")
    forecast = judge(table, W2)
    assert (forecast.outlook, forecast.clashes) == (Outlook.UNKNOWN, ())
    assert any(W3 in note for note in forecast.notes)


def test_insert_overwrite_of_a_partition_meets_each_of_its_file_groups() -> None:
    table = FakeTable()
    table.begin_overwrite(W1, "INSERT_OVERWRITE", ("Oslo",))
    for instant, group in ((W2, OSLO), (W3, BONN)):
        table.begin(instant)
        table.mark_direct(instant, [group])
    assert judge(table, W2).outlook is Outlook.LOSES
    assert judge(table, W3).clashes == ()


def test_write_is_known_to_have_committed_or_to_have_left_the_timeline() -> None:
    table = two_writers()
    watched = watch(table, W1)
    assert watched.check(table.now_ms).outlook is Outlook.CAN_WIN
    table.commit(W1, LATER, [OSLO])
    assert watched.check(table.now_ms).outlook is Outlook.COMMITTED
    table.remove(f"timeline/{W1}")
    gone = watched.check(table.now_ms)
    assert (gone.outlook, gone.clashes) == (Outlook.UNKNOWN, ())


def test_write_without_a_known_instant_reads_no_markers() -> None:
    table = two_writers()
    assert judge(table, "").outlook is Outlook.NOT_BEGUN
    assert judge(table, W4).outlook is Outlook.NOT_BEGUN


# --- The register: which instant is whose, and reserved partitions


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_storage(str(tmp_path))


def test_guard_names_the_one_new_instant_and_leaves_what_others_named(storage: Storage) -> None:
    table = FakeTable()
    table.begin(W1)
    first, second = GuardRegister(storage, 1), GuardRegister(storage, 2)
    assert first.wait()
    first.start(table.snapshot())
    assert first.identify(table.snapshot()) == ""
    assert not second.wait(), "the first one's job has no instant yet"
    table.begin(W2)
    assert first.identify(table.snapshot()) == W2
    assert second.wait()
    second.start(table.snapshot())
    table.begin(W3)
    assert second.identify(table.snapshot()) == W3
    assert first.identify(table.snapshot()) == W2


def test_guards_whose_jobs_begin_together_name_none(storage: Storage) -> None:
    table = FakeTable()
    guards = [GuardRegister(storage, n) for n in range(2)]
    for guard in guards:
        guard.start(table.snapshot())
    table.begin(W1)
    assert [guard.identify(table.snapshot()) for guard in guards] == ["", ""]
    table.begin(W2)
    assert [guard.identify(table.snapshot()) for guard in guards] == ["", ""]
    assert not any(guard.is_certain for guard in guards)


def test_instant_of_a_job_that_ended_unnamed_is_not_taken_for_ones_own(storage: Storage) -> None:
    table = FakeTable()
    gone, mine = GuardRegister(storage, 1), GuardRegister(storage, 2)
    gone.start(table.snapshot())
    mine.start(table.snapshot())
    table.begin(W1)
    gone.end()
    assert mine.identify(table.snapshot()) == ""


def test_two_new_instants_are_not_certainly_the_writes(storage: Storage) -> None:
    table, mine = FakeTable(), GuardRegister(storage, 1)
    mine.start(table.snapshot())
    table.begin(W1)
    table.begin(W2)
    assert mine.identify(table.snapshot()) == ""


def test_entry_that_cannot_be_read_makes_nothing_certain(storage: Storage) -> None:
    table, mine = FakeTable(), GuardRegister(storage, 1)
    storage.write(f"{GUARD_FOLDER}/7-{'0' * 32}", b"")
    mine.start(table.snapshot())
    table.begin(W1)
    assert mine.identify(table.snapshot()) == ""


def test_entries_are_refused_where_listings_may_lag() -> None:
    with pytest.raises(ConfigError, match="every_writer_is_guarded"):
        GuardRegister(Storage(BASE, FakeTable().store, BASE), 1)


def test_one_guard_at_a_time_reserves_a_partition(storage: Storage) -> None:
    table, now_ms = FakeTable(), int(time.time() * 1000)
    opened = ConflictTable(storage, table.snapshot)
    first, second, third = (PartitionReservation(storage, opened, names) for names in (["a", "b"], ["b"], ["c"]))
    assert first.take(now_ms) == ()
    assert third.take(now_ms) == ()
    (obstacle,) = second.take(now_ms)
    assert obstacle.startswith("reservation")
    first.beat()
    first.release()
    assert second.take(now_ms) == ()


def test_partition_that_a_writer_touches_is_not_reserved(storage: Storage) -> None:
    table = FakeTable()
    now_ms = int(time.time() * 1000)
    table.begin(W1)
    storage.write(f".hoodie/.heartbeat/{W1}")
    storage.write(f".hoodie/timeline/{W1}.deltacommit.inflight", commit_body([OSLO]))
    table.announce(W1, [OSLO])
    opened = ConflictTable(storage, table.snapshot)
    assert PartitionReservation(storage, opened, ["Bonn"]).take(now_ms) == ()
    assert W1 in PartitionReservation(storage, opened, ["Oslo"]).take(now_ms)[0]
