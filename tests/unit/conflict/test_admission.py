"""When a service may begin: next to writers of every kind, on a table in memory."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pytest

from airflow_lake_provider.config.service_policies import ConflictPolicy
from airflow_lake_provider.conflict.admission import (
    AdmissionVerdict,
    ExpectedWrite,
    Intent,
    admit,
    ask_admission,
    expect_write,
    find_pending_plans,
    needs_admission,
    needs_watch,
)
from airflow_lake_provider.hudi.commit_metadata import CommitMetadata, WriteStat
from airflow_lake_provider.job_contract import PLANNED_BEAT_MS, Mode, Service
from tests.unit.conflict.fake_table import FakeTable

W1, W2, W3 = "20261121100000001", "20261121100000002", "20261121100000003"
OSLO, BONN, CORK = ("Oslo", "f1-0"), ("Bonn", "f2-0"), ("Cork", "f3-0")
ALL = frozenset({"Oslo", "Bonn", "Cork"})
GO, SHRINK, WAIT = AdmissionVerdict.GO, AdmissionVerdict.SHRINK, AdmissionVerdict.WAIT
SELECTED = "hoodie.clustering.plan.strategy.partition.selected"
MODE = "hoodie.clustering.plan.partition.filter.mode"
REGEX = "hoodie.clustering.plan.strategy.partition.regex.pattern"


def ask(
    table: FakeTable,
    *plans: str,
    partitions: frozenset[str] = ALL,
    expected: ExpectedWrite | None = None,
    options: Mapping[str, str] | None = None,
):
    intent = Intent(Service.CLUSTERING, plans, partitions, options=options or {})
    return admit(intent, table.open().read_activity(table.now_ms), expected, 10_000, 120_000)


@pytest.mark.parametrize("service", [Service.COMPACTION, Service.CLEAN, Service.ARCHIVE, Service.ROLLBACK])
def test_service_that_hudi_lets_pass_writers_is_never_held_back(service: Service) -> None:
    table = FakeTable()
    table.begin(W1)
    table.mark_direct(W1, [OSLO])
    found = admit(Intent(service), table.open().read_activity(table.now_ms), None, 10_000, 120_000)
    assert found.verdict is GO


def test_only_what_rewrites_file_groups_is_asked_about_and_only_a_clustering_watched() -> None:
    policy, mode = ConflictPolicy(), Mode.SCHEDULE_AND_EXECUTE
    asked = {service for service in Service if needs_admission(service, mode, policy)}
    assert asked == {Service.CLUSTERING, Service.COMPACTION, Service.LOGCOMPACTION}
    assert {service for service in Service if needs_watch(service, mode, policy)} == {Service.CLUSTERING}
    assert not any(needs_admission(service, mode, ConflictPolicy(enabled=False)) for service in Service)
    assert not needs_admission(Service.CLUSTERING, Mode.WITHDRAW, policy)


OLD, NEW = 6, 9


@pytest.mark.parametrize(
    ("service", "version", "writer", "group", "verdict"),
    [
        pytest.param(Service.COMPACTION, OLD, W1, OSLO, WAIT, id="old-compaction-of-a-plan-younger-than-the-writer"),
        pytest.param(Service.COMPACTION, OLD, W3, OSLO, GO, id="old-compaction-of-a-plan-that-the-writer-knows"),
        pytest.param(Service.COMPACTION, OLD, W1, BONN, GO, id="old-compaction-elsewhere"),
        pytest.param(Service.COMPACTION, NEW, W1, OSLO, GO, id="new-compaction"),
        pytest.param(Service.LOGCOMPACTION, NEW, W1, OSLO, WAIT, id="log-compaction-beside-an-older-writer"),
        pytest.param(Service.LOGCOMPACTION, NEW, W3, OSLO, WAIT, id="log-compaction-beside-a-younger-writer"),
        pytest.param(Service.LOGCOMPACTION, NEW, W3, BONN, GO, id="log-compaction-elsewhere"),
    ],
)
def test_compaction_that_would_fail_a_writer_waits_for_it(
    service: Service, version: int, writer: str, group: tuple[str, str], verdict: AdmissionVerdict
) -> None:
    table = FakeTable(version=version)
    action = "logcompaction" if service is Service.LOGCOMPACTION else "compaction"
    table.plan_compaction(W2, [OSLO], action=action)
    opened = table.open()
    plans = find_pending_plans(opened, service, table.now_ms)
    assert plans == (W2,)

    def admission(*plans: str) -> AdmissionVerdict:
        return ask_admission(service, opened, {}, plans, ConflictPolicy(), table.now_ms).verdict

    assert (admission(), admission(*plans)) == (GO, GO)
    table.begin(writer)
    assert admission() is (GO if service is Service.COMPACTION and version == NEW else WAIT), "a new plan may take any"
    table.announce(writer, [group])
    assert admission(*plans) is verdict
    table.beat(writer, ago_ms=120_001)
    assert (admission(), admission(*plans)) == (GO, GO)


def test_clustering_goes_where_no_writer_is_at_work() -> None:
    assert ask(FakeTable()).verdict is GO


def test_clustering_leaves_out_the_partitions_that_a_writer_announced() -> None:
    table = FakeTable()
    table.begin(W1)
    table.announce(W1, [OSLO], inserts=("Bonn",))
    found = ask(table)
    assert (found.verdict, found.in_the_way) == (SHRINK, (W1,))
    assert found.options[SELECTED] == "Cork"
    assert W1 in found.reason


@pytest.mark.parametrize(
    ("options", "verdict", "selected"),
    [
        pytest.param({SELECTED: "Oslo,Cork"}, SHRINK, "Cork", id="users-own-list-is-never-widened"),
        pytest.param({SELECTED: "Oslo,Turku", MODE: "SELECTED_PARTITIONS"}, SHRINK, "Turku", id="unknown-until-now"),
        pytest.param({SELECTED: "Oslo,Cork", REGEX: "O.*"}, SHRINK, "Cork", id="pattern-beside-a-list-is-ignored"),
        pytest.param({SELECTED: "Cork,Bonn"}, GO, None, id="users-own-list-is-free"),
        pytest.param({SELECTED: "Oslo"}, WAIT, None, id="nothing-is-left-of-the-list"),
        pytest.param({MODE: "NONE"}, SHRINK, "Bonn,Cork", id="mode-that-leaves-nothing-out"),
    ],
)
def test_clustering_shrinks_only_within_the_partitions_that_the_user_selected(
    options: Mapping[str, str], verdict: AdmissionVerdict, selected: str | None
) -> None:
    table = FakeTable()
    table.begin(W1)
    table.announce(W1, [OSLO])
    found = ask(table, options=options)
    assert (found.verdict, found.options.get(SELECTED)) == (verdict, selected)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        (MODE, "RECENT_DAYS"),
        (MODE, "DAY_ROLLING"),
        (REGEX, "B.*"),
        ("hoodie.clustering.plan.strategy.cluster.begin.partition", "B"),
        ("hoodie.clustering.plan.strategy.cluster.end.partition", "C"),
        ("hoodie.clustering.plan.strategy.class", "org.apache.hudi.x.SparkRecentDaysClusteringPlanStrategy"),
        ("hoodie.clustering.plan.strategy.class", "com.example.MyPlan"),
    ],
)
def test_clustering_waits_where_a_list_would_override_the_users_own_filter(setting: str, value: str) -> None:
    table = FakeTable()
    assert ask(table, options={setting: value}).verdict is GO
    table.begin(W1)
    table.announce(W1, [OSLO])
    found = ask(table, options={setting: value})
    assert (found.verdict, found.in_the_way) == (WAIT, (W1,))
    assert f"{setting} chooses the others; checked again in 10 s" in found.reason


@pytest.mark.parametrize("partitions", [frozenset({"Oslo"}), frozenset(), frozenset({"Oslo", "a,b"}), frozenset({""})])
def test_clustering_waits_when_no_other_partition_can_be_named(partitions: frozenset[str]) -> None:
    table = FakeTable()
    table.begin(W1)
    table.announce(W1, [OSLO, ("", "f9-0")])
    found = ask(table, partitions=partitions)
    assert (found.verdict, found.evaluate_again_ms) == (WAIT, table.now_ms + 10_000)


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
    assert admit(intent, opened.read_activity(table.now_ms), None, 10_000, 120_000).verdict is GO
    table.beat(W1)
    assert admit(intent, opened.read_activity(table.now_ms), None, 10_000, 120_000).verdict is WAIT


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
    table.beat(W2, ago_ms=3_600_000)
    assert ask(table, W2).verdict is GO
    table.begin(W3)
    table.announce(W3, [BONN])
    found = ask(table, W2)
    assert (found.verdict, found.withdraw, found.in_the_way) == (WAIT, (W2,), (W3,))
    assert "Bonn/f2-0" in found.reason


@pytest.mark.parametrize("is_begun", [False, True])
@pytest.mark.parametrize("beat_ms", [pytest.param(None, id="somebody-elses"), pytest.param(1000, id="living")])
def test_plan_whose_executor_may_live_is_never_withdrawn(beat_ms: int | None, is_begun: bool) -> None:
    table = FakeTable()
    table.plan(W2, [OSLO, BONN])
    if is_begun:
        table.write(f"timeline/{W2}.clustering.inflight")
    if beat_ms is not None:
        table.beat(W2, ago_ms=beat_ms)
    table.begin(W3)
    table.announce(W3, [BONN])
    for _ in range(2):
        found = ask(table, W2)
        assert (found.verdict, found.withdraw, found.in_the_way) == (WAIT, (), (W3,))
        if is_begun:
            # What this service left when it made the plan says nothing of which process began it.
            table.beat(W2, ago_ms=table.now_ms - PLANNED_BEAT_MS)
    assert "not withdrawn, because nothing proves that its own executor is dead" in found.reason


@pytest.mark.parametrize(
    ("instant", "inserts", "verdict"),
    [
        pytest.param(W1, ("Oslo",), WAIT, id="began-before-the-plan-and-may-fill-its-small-files"),
        pytest.param(W3, ("Oslo",), GO, id="began-after-the-plan-and-leaves-its-file-groups-alone"),
        pytest.param(W1, ("Cork",), GO, id="elsewhere"),
    ],
)
def test_writer_that_inserts_next_to_a_plan(instant: str, inserts: tuple[str, ...], verdict: AdmissionVerdict) -> None:
    table = FakeTable()
    table.plan(W2, [OSLO])
    table.begin(instant)
    table.announce(instant, [], inserts=inserts)
    assert ask(table, W2).verdict is verdict


@pytest.mark.parametrize("operation", ["", "INSERT_OVERWRITE"])
def test_clustering_waits_for_an_overwrite_that_may_take_out_any_file_group(operation: str) -> None:
    table = FakeTable()
    table.plan(W2, [OSLO])
    table.beat(W2, ago_ms=3_600_000)
    table.begin_overwrite(W3, operation, ("Bonn",) if operation else ())
    found = ask(table, W2)
    assert (found.verdict, found.withdraw, found.in_the_way) == (WAIT, (W2,), (W3,))
    found = ask(table)
    assert (found.verdict, found.in_the_way) == (WAIT, (W3,))
    assert f"the following is unknown: which file groups replacecommit {W3} replaces" in found.reason


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
def test_next_write_is_expected_by_the_commit_interval_until_it_ended(
    silent_s: int, operation: str, *, is_expected: bool
) -> None:
    table = FakeTable()
    table.properties["hoodie.table.timeline.timezone"] = "UTC"
    last = datetime.fromtimestamp(table.now_ms / 1000, UTC) - timedelta(seconds=silent_s)
    times = [(last - timedelta(minutes=n)).strftime("%Y%m%d%H%M%S") + "000" for n in range(5)]
    for time in times:
        table.commit(time, time, [OSLO])
    commits = {time: CommitMetadata(operation, (stat("Oslo"),)) for time in times}
    found = expect_write(table.snapshot(), commits, table.now_ms, UTC)
    assert (found is not None) is is_expected
    if found is not None:
        assert (found.partitions, found.gap_ms) == (frozenset({"Oslo"}), 60_000)
        assert found.due_ms == table.now_ms + 60_000 - silent_s * 1000
        assert (
            ask_admission(Service.CLUSTERING, table.open(), commits, (), ConflictPolicy(), table.now_ms).verdict is WAIT
        )
