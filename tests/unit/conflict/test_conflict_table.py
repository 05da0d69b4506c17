"""What is read of a table, and how often: markers in every shape, incremental, never free when it is not known."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_lake_provider.conflict.activity import open_conflict_table
from airflow_lake_provider.conflict.contention import ClashKind, WriteIntent
from airflow_lake_provider.conflict.marker_reader import Role
from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.hudi.active_writes import HeartbeatRule, heartbeat_rule
from airflow_lake_provider.storage.table_storage import open_storage
from tests.support.fixture_tables import unpack
from tests.unit.conflict.fake_table import FakeTable, keys

W1, W2, W3, W4 = (f"2026112110000000{n}" for n in range(1, 5))
OSLO, BONN = ("Oslo", "f1-0"), ("Bonn", "f2-0")


def intent(instant: str, *groups: tuple[str, str], role: Role = Role.WRITER) -> WriteIntent:
    return WriteIntent(instant, keys(list(groups)), role, since=instant)


def test_smaller_instant_survives() -> None:
    table = FakeTable()
    for instant in (W1, W2):
        table.begin(instant)
        table.mark_direct(instant, [OSLO])
    opened = table.open()
    assert opened.check(intent(W1, OSLO), table.now_ms).is_free
    (clash,) = opened.check(intent(W2, OSLO), table.now_ms).clashes
    assert (clash.instant, clash.kind) == (W1, ClashKind.MARKER)


def test_announced_update_is_seen_before_its_first_marker() -> None:
    table = FakeTable()
    table.begin(W1)
    opened = table.open()
    assert opened.check(intent(W2, OSLO), table.now_ms).is_free
    table.announce(W1, [OSLO])
    assert [clash.instant for clash in opened.check(intent(W2, OSLO), table.now_ms).clashes] == [W1]
    assert opened.check(intent(W2, BONN), table.now_ms).is_free


@pytest.mark.parametrize("role", [Role.WRITER, Role.CLUSTERING])
def test_commit_since_the_claim_began_is_seen_when_its_markers_are_gone(role: Role) -> None:
    table = FakeTable()
    table.begin(W1)
    table.mark_direct(W1, [OSLO])
    table.commit(W1, W3, [OSLO])
    (clash,) = table.open().check(intent(W2, OSLO, role=role), table.now_ms).clashes
    assert (clash.instant, clash.kind) == (W1, ClashKind.COMMIT)
    assert table.open().check(intent(W2, BONN, role=role), table.now_ms).is_free
    # It had completed before this one began.
    assert table.open().check(WriteIntent("2027", keys([OSLO]), role, since="2027"), table.now_ms).is_free


def test_compaction_and_writers_pass_each_other_and_a_clustering_stops_writers() -> None:
    table = FakeTable()
    table.plan_compaction(W1, [OSLO])
    assert table.open().check(intent(W2, OSLO), table.now_ms).is_free
    table.plan(W3, [BONN])
    # Live or not, older or younger: Hudi rejects the writer.
    (clash,) = table.open().check(intent(W2, BONN), table.now_ms).clashes
    assert (clash.instant, clash.kind) == (W3, ClashKind.PLAN)
    table.begin(W2)
    table.mark_direct(W2, [OSLO])
    assert table.open().check(intent(W1, OSLO, role=Role.COMPACTION), table.now_ms).is_free


@pytest.mark.parametrize(
    ("version", "plan", "clashes"), [(9, W3, 0), (6, W3, 1), (6, W1, 0)], ids=["new", "old-younger", "old-older"]
)
def test_compaction_before_version_8_fails_the_writers_that_were_at_work_when_it_was_planned(
    version: int, plan: str, clashes: int
) -> None:
    table = FakeTable(version=version)
    opened = table.open()
    table.plan_compaction(plan, [OSLO])
    assert len(opened.check(intent(W2, OSLO), table.now_ms).clashes) == clashes
    assert opened.check(intent(W2, BONN), table.now_ms).is_free
    table.commit(plan, W4, [OSLO], operation="COMPACT")
    assert len(opened.check(intent(W2, OSLO), table.now_ms).clashes) == clashes
    assert opened.check(intent(W2, OSLO, role=Role.CLUSTERING), table.now_ms).is_free


def test_log_compaction_fails_writers_from_when_it_is_begun_until_it_has_completed() -> None:
    table = FakeTable()
    opened = table.open()
    table.plan_compaction(W1, [OSLO], action="logcompaction")
    assert opened.check(intent(W2, OSLO), table.now_ms).is_free, "no process has begun it"
    table.write(f"timeline/{W1}.logcompaction.inflight")
    (clash,) = opened.check(intent(W2, OSLO), table.now_ms).clashes
    assert (clash.instant, clash.kind) == (W1, ClashKind.PLAN)
    table.commit(W1, W4, [OSLO], operation="LOG_COMPACT")
    (clash,) = opened.check(intent(W2, OSLO), table.now_ms).clashes
    assert (clash.instant, clash.kind) == (W1, ClashKind.COMMIT)
    assert opened.check(intent(W2, BONN), table.now_ms).is_free


@pytest.mark.parametrize(
    ("operation", "clashes"),
    [
        pytest.param("", [], id="only-requested"),
        pytest.param("DELETE_PARTITION", [], id="of-an-operation-that-says-less"),
        pytest.param("INSERT_OVERWRITE", [OSLO], id="overwrites-its-partitions"),
        pytest.param("INSERT_OVERWRITE_TABLE", [OSLO, BONN], id="overwrites-the-table"),
    ],
)
@pytest.mark.parametrize("role", [Role.WRITER, Role.CLUSTERING])
def test_file_groups_that_a_live_overwrite_may_take_out_are_never_free(
    operation: str, clashes: list[tuple[str, str]], role: Role
) -> None:
    table = FakeTable()
    table.begin_overwrite(W1, operation, ("Oslo",) if operation else ())
    # Its markers name what it brings.
    table.mark_direct(W1, [("Oslo", "new-0")])
    opened = table.open()
    for group in (OSLO, BONN):
        verdict = opened.check(intent(W2, group, role=role), table.now_ms)
        found = [(clash.instant, clash.kind, clash.file_groups) for clash in verdict.clashes]
        assert found == ([(W1, ClashKind.PLAN, keys([group]))] if group in clashes else [])
        assert any("replaces, before its commit" in what for what in verdict.unread)
    table.beat(W1, ago_ms=120_001)
    assert opened.check(intent(W2, OSLO, role=role), table.now_ms).is_free


def test_damaged_plan_or_commit_is_never_free() -> None:
    table = FakeTable()
    table.write(f"timeline/{W1}.clustering.requested", b"Obj\x01damaged")
    opened = table.open()
    verdict = opened.check(intent(W2, OSLO), table.now_ms)
    assert (verdict.clashes, verdict.is_free) == ((), False)
    table.plan(W1, [BONN])
    assert opened.check(intent(W2, OSLO), table.now_ms).is_free
    table.write(f"timeline/{W3}_{W3}9.deltacommit", b"{not json")
    assert not opened.check(intent(W2, OSLO), table.now_ms).is_free


def test_damaged_plan_of_layout_1_may_be_a_clustering_and_is_never_free(tmp_path: Path) -> None:
    path = unpack("cow_v6", tmp_path).path
    opened = open_conflict_table(open_storage(str(path)), {}, {})
    begun = "20991231000000001"
    assert opened.check(intent(begun, OSLO), 0).is_free
    plan = path / ".hoodie" / "20991231000000000.replacecommit.requested"
    plan.write_bytes(b"Obj\x01damaged")
    assert opened.check(intent(begun, OSLO), 0).unread == ("the plan of replacecommit 20991231000000000",)
    plan.write_bytes(b"")
    assert opened.check(intent(begun, OSLO), 0).is_free, "an insert overwrite without a heartbeat"


def test_file_met_while_it_is_written_anew_takes_nothing_back() -> None:
    table = FakeTable()
    table.begin(W1)
    table.mark_by_server(W1, [OSLO])
    opened = table.open()
    assert opened.check(intent(W2, OSLO), table.now_ms).clashes
    table.now_ms += 50
    table.write(f".temp/{W1}/MARKERS0", b"")
    verdict = opened.check(intent(W2, OSLO), table.now_ms)
    assert verdict.clashes
    assert not opened.check(intent(W2, BONN), table.now_ms).is_free
    table.now_ms += 50
    table.mark_by_server(W1, [OSLO, BONN])
    assert [clash.instant for clash in opened.check(intent(W2, BONN), table.now_ms).clashes] == [W1]


def test_folder_first_met_empty_is_understood_when_the_server_writes_into_it() -> None:
    table = FakeTable()
    table.begin(W1)
    table.write(f".temp/{W1}/.nothing.crc")
    opened = table.open()
    assert opened.check(intent(W2, OSLO), table.now_ms).is_free
    table.mark_by_server(W1, [OSLO])
    assert not opened.check(intent(W2, OSLO), table.now_ms).is_free


def test_heartbeat_without_an_instant_is_a_writer_and_a_completed_one_is_none() -> None:
    table = FakeTable()
    table.beat(W1)
    table.mark_direct(W1, [OSLO])
    assert [clash.instant for clash in table.open().check(intent(W2, OSLO), table.now_ms).clashes] == [W1]
    table.write(f"timeline/{W1}_{W1}.deltacommit", b"{}")
    assert table.open().read_activity(table.now_ms).actives == ()


@pytest.mark.parametrize("role", ["clean", "rollback", "indexing", "savepoint"])
def test_instant_that_writes_no_file_group_is_no_rival(role: str) -> None:
    table = FakeTable()
    table.begin(W1, role)
    assert table.open().read_activity(table.now_ms).actives == ()


def test_heartbeat_rule_is_the_tables_own() -> None:
    table = FakeTable()
    table.begin(W1)
    table.beat(W1, ago_ms=5_000)
    opened = table.open()
    opened.rule = heartbeat_rule(
        {"hoodie.client.heartbeat.interval_in_ms": "1000", "hoodie.client.heartbeat.tolerable.misses": "3"}
    )
    assert opened.rule == HeartbeatRule(1000, 3)
    (writer,) = opened.read_activity(table.now_ms).actives
    assert (writer.instant, writer.is_live) == (W1, False)
    with pytest.raises(ConfigError, match="interval_in_ms"):
        heartbeat_rule({"hoodie.client.heartbeat.interval_in_ms": "soon"})
