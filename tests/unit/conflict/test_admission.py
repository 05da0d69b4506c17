"""When a service may begin: beside writers of every kind, on a table in memory."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from airflow_lake_provider.conflict.admission import AdmissionVerdict, Intent, admit
from airflow_lake_provider.conflict.expected_write import ExpectedWrite, expect_write
from airflow_lake_provider.conflict.gate import ask_admission, needs_admission
from airflow_lake_provider.job_contract import Mode, Service
from airflow_lake_provider.policies import ConflictPolicy
from airflow_lake_provider.timeline.commit_metadata import CommitMetadata, WriteStat
from tests.unit.conflict.fake_table import FakeTable

W1, W2, W3 = "20261121100000001", "20261121100000002", "20261121100000003"
OSLO, BONN, CORK = ("Oslo", "f1-0"), ("Bonn", "f2-0"), ("Cork", "f3-0")
ALL = frozenset({"Oslo", "Bonn", "Cork"})
GO, SHRINK, WAIT = AdmissionVerdict.GO, AdmissionVerdict.SHRINK, AdmissionVerdict.WAIT
SELECTED = "hoodie.clustering.plan.strategy.partition.selected"


def ask(table: FakeTable, *plans: str, partitions: frozenset[str] = ALL, expected: ExpectedWrite | None = None):
    intent = Intent(Service.CLUSTERING, plans, partitions)
    return admit(intent, table.open().look(table.now_ms), expected, 10_000, 120_000)


@pytest.mark.parametrize(
    "service", [Service.COMPACTION, Service.LOGCOMPACTION, Service.CLEAN, Service.ARCHIVE, Service.ROLLBACK]
)
def test_service_that_hudi_lets_pass_writers_is_never_held_back(service: Service) -> None:
    table = FakeTable()
    table.begin(W1)
    table.mark_direct(W1, [OSLO])
    found = admit(Intent(service), table.open().look(table.now_ms), None, 10_000, 120_000)
    assert found.verdict is GO
    assert not needs_admission(service, Mode.SCHEDULE_AND_EXECUTE, ConflictPolicy())


def test_clustering_goes_where_nobody_is_at_work() -> None:
    assert ask(FakeTable()).verdict is GO


def test_clustering_leaves_out_the_partitions_that_a_writer_announced() -> None:
    table = FakeTable()
    table.begin(W1)
    table.announce(W1, [OSLO], inserts=("Bonn",))
    found = ask(table)
    assert (found.verdict, found.in_the_way) == (SHRINK, (W1,))
    assert found.options[SELECTED] == "Cork"
    assert W1 in found.reason


@pytest.mark.parametrize("partitions", [frozenset({"Oslo"}), frozenset(), frozenset({"Oslo", "a,b"}), frozenset({""})])
def test_clustering_waits_when_no_other_partition_can_be_named(partitions: frozenset[str]) -> None:
    table = FakeTable()
    table.begin(W1)
    table.announce(W1, [OSLO, ("", "f9-0")])
    found = ask(table, partitions=partitions)
    assert (found.verdict, found.look_again_ms) == (WAIT, table.now_ms + 10_000)


@pytest.mark.parametrize("marks", [[], [OSLO]], ids=["before-its-first-marker", "with-some-markers"])
def test_clustering_waits_for_a_writer_that_has_not_said_on_what_it_works(marks: list[tuple[str, str]]) -> None:
    table = FakeTable()
    table.begin(W1)
    table.mark_direct(W1, marks)
    found = ask(table)
    assert (found.verdict, found.in_the_way) == (WAIT, (W1,))


def test_dead_writer_blocks_nothing_and_one_that_comes_back_does() -> None:
    table = FakeTable()
    table.begin(W1)
    table.mark_direct(W1, [OSLO])
    table.beat(W1, ago_ms=120_001)
    opened = table.open()
    intent = Intent(Service.CLUSTERING, (), ALL)
    assert admit(intent, opened.look(table.now_ms), None, 10_000, 120_000).verdict is GO
    table.beat(W1)
    assert admit(intent, opened.look(table.now_ms), None, 10_000, 120_000).verdict is WAIT


@pytest.mark.parametrize(
    ("due_in_ms", "partitions", "verdict"),
    [
        pytest.param(30_000, {"Oslo"}, SHRINK, id="elsewhere-while-it-runs"),
        pytest.param(30_000, ALL, WAIT, id="everywhere-while-it-runs"),
        pytest.param(-5_000, ALL, WAIT, id="overdue"),
        pytest.param(61_000, ALL, GO, id="after-it-will-have-ended"),
    ],
)
def test_expected_write_counts_as_one_at_work(due_in_ms: int, partitions: set[str], verdict: AdmissionVerdict) -> None:
    table = FakeTable()
    expected = ExpectedWrite(table.now_ms + due_in_ms, 60_000, frozenset(partitions))
    assert ask(table, expected=expected).verdict is verdict


def test_pending_plan_is_withdrawn_for_a_writer_that_needs_its_file_groups() -> None:
    table = FakeTable()
    table.plan(W2, [OSLO, BONN])
    assert ask(table, W2).verdict is GO
    table.begin(W3)
    table.announce(W3, [BONN])
    found = ask(table, W2)
    assert (found.verdict, found.withdraw, found.in_the_way) == (WAIT, (W2,), (W3,))
    assert "Bonn/f2-0" in found.reason


@pytest.mark.parametrize(
    ("instant", "inserts", "verdict"),
    [
        pytest.param(W1, ("Oslo",), WAIT, id="began-before-the-plan-and-may-fill-its-small-files"),
        pytest.param(W3, ("Oslo",), GO, id="began-after-the-plan-and-leaves-its-file-groups-alone"),
        pytest.param(W1, ("Cork",), GO, id="elsewhere"),
    ],
)
def test_writer_that_inserts_beside_a_plan(instant: str, inserts: tuple[str, ...], verdict: AdmissionVerdict) -> None:
    table = FakeTable()
    table.plan(W2, [OSLO])
    table.begin(instant)
    table.announce(instant, [], inserts=inserts)
    assert ask(table, W2).verdict is verdict


def test_plan_that_shares_a_file_group_with_a_foreign_plan_waits() -> None:
    table = FakeTable()
    table.plan(W2, [OSLO])
    table.plan(W1, [OSLO, BONN])
    found = ask(table, W2)
    assert (found.verdict, found.in_the_way, found.withdraw) == (WAIT, (W1,), ())


def stat(partition: str) -> WriteStat:
    return WriteStat(partition, "f1-0", f"{partition}/f1-0_0-1-2_1.parquet", 1, 1)


@pytest.mark.parametrize(
    ("silent_s", "operation", "is_expected"),
    [(30, "UPSERT", True), (179, "UPSERT", True), (181, "UPSERT", False), (30, "BULK_INSERT", False)],
)
def test_next_write_is_expected_by_the_rhythm_until_it_ended(
    silent_s: int, operation: str, *, is_expected: bool
) -> None:
    table = FakeTable()
    table.properties["hoodie.table.timeline.timezone"] = "UTC"
    last = datetime.fromtimestamp(table.now_ms / 1000, UTC) - timedelta(seconds=silent_s)
    times = [(last - timedelta(minutes=n)).strftime("%Y%m%d%H%M%S") + "000" for n in range(5)]
    for time in times:
        table.commit(time, time, [OSLO])
    commits = {time: CommitMetadata(operation, (stat("Oslo"),)) for time in times}
    found = expect_write(table.snapshot(), commits, table.now_ms)
    assert (found is not None) is is_expected
    if found is not None:
        assert (found.partitions, found.gap_ms) == (frozenset({"Oslo"}), 60_000)
        assert found.due_ms == table.now_ms + 60_000 - silent_s * 1000
        assert ask_admission(table.open(), commits, (), ConflictPolicy(), table.now_ms).verdict is WAIT
