"""Early conflict detection next to real Hudi: what we find before the commit, Hudi rejects at it, and nothing else."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from conftest import MakeTable, Table, content, file_groups, rows, run
from held_writers import HeldWriter, start_writer, start_writer_of

from airflow_lake_provider.config.service_policies import ConflictPolicy
from airflow_lake_provider.conflict.activity import ConflictTable
from airflow_lake_provider.conflict.admission import Admission, AdmissionVerdict, ask_admission
from airflow_lake_provider.conflict.contention import ClashCheck, ClashKind, WriteIntent
from airflow_lake_provider.conflict.service_watch import ServiceWatch
from airflow_lake_provider.conflict.strategies import BUILT_IN, StrategySettings, make_strategy
from airflow_lake_provider.hudi.commit_metadata import file_group_key, load_commit_metadata
from airflow_lake_provider.job_contract import JobRequest, Mode, Outcome, Service
from airflow_lake_provider.storage.table_storage import open_storage
from airflow_lake_provider.timeline_server.snapshot import Depth, refresh

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DIRECT = {"hoodie.write.markers.type": "DIRECT", "hoodie.embed.timeline.server": "false"}
SERVER = {"hoodie.write.markers.type": "TIMELINE_SERVER_BASED", "hoodie.embed.timeline.server": "true"}
# A writer that Hudi lets begin on file groups of a pending clustering.
ALLOWED = {
    "hoodie.clustering.updates.strategy": "org.apache.hudi.client.clustering.update.strategy.SparkAllowUpdateStrategy"
}
SELECTED = "hoodie.clustering.plan.strategy.partition.selected"
REJECTED = "HoodieWriteConflictException"


def now_ms() -> int:
    return int(time.time() * 1000)


def open_table(table: Table) -> ConflictTable:
    storage = open_storage(str(table.path))
    return ConflictTable(storage, lambda: refresh(storage, None, Depth.LIST, now_ms()).snapshot)


def claim_of(table: ConflictTable, writer: HeldWriter) -> WriteIntent:
    (active,) = (active for active in table.read_activity(now_ms()).actives if active.instant == writer.instant)
    return WriteIntent(writer.instant, active.markers.file_groups(), since=writer.instant)


def check(table: ConflictTable, intent: WriteIntent) -> ClashCheck:
    """Return what all strategies say of a claim; they differ in what they read, never in what they find."""
    at_once = StrategySettings(period_s=0)
    verdict, *others = [make_strategy(name, at_once).check(table, intent, now_ms()) for name in BUILT_IN]
    assert others == [verdict] * len(others)
    return verdict


@contextmanager
def reading_along(table: Table) -> Iterator[list[dict[str, int]]]:
    """Read all markers again and again while writers write them; yields how many each one had at each reading."""
    readings: list[dict[str, int]] = []
    is_over = threading.Event()

    def read_on() -> None:
        opened = open_table(table)
        while not is_over.wait(0.02):
            readings.append({active.instant: active.markers.count for active in opened.read_activity(now_ms()).actives})

    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(read_on)
        try:
            yield readings
        finally:
            is_over.set()
            reader.result()


def ask(table: Table, *plans: str, service: Service = Service.CLUSTERING) -> Admission:
    storage = open_storage(str(table.path))
    snapshot = refresh(storage, None, Depth.LIST, now_ms()).snapshot
    commits = {
        instant.requested_time: load_commit_metadata(storage, snapshot.properties.timeline_path, instant)
        for instant in snapshot.timeline.completed_writes
    }
    # Tests write at intervals of seconds: in an hour's time nothing is expected any more.
    opened = open_table(table)
    opened.rule = type(opened.rule)(interval_ms=3_600_000, tolerable_misses=2)
    return ask_admission(service, opened, commits, plans, ConflictPolicy(), now_ms() + 3_600_000)


def clustering(table: Table, mode: Mode, *instants: str, options: Mapping[str, str] | None = None) -> JobRequest:
    return table.request(mode, *instants, service=Service.CLUSTERING, service_options=dict(options or {}))


def only(*cities: str) -> dict[str, str]:
    return {
        "hoodie.clustering.plan.partition.filter.mode": "SELECTED_PARTITIONS",
        SELECTED: ",".join(cities),
    }


@pytest.mark.parametrize(
    ("type", "markers"),
    [
        pytest.param("MOR", DIRECT, id="MOR-direct"),
        pytest.param("COW", SERVER, id="COW-server", marks=pytest.mark.soak),
        pytest.param("MOR", SERVER, id="MOR-server", marks=pytest.mark.soak),
        pytest.param("COW", DIRECT, id="COW-direct", marks=pytest.mark.soak),
    ],
)
def test_each_pair_is_found_before_the_commit_when_hudi_rejects_it_there(
    spark: SparkSession, make_table: MakeTable, tmp_path: Path, type: str, markers: dict[str, str]
) -> None:
    table = make_table(type=type)
    opened = open_table(table)

    def start(name: str, city: str, options: Mapping[str, str] = markers) -> HeldWriter:
        return start_writer(spark, table, city, tmp_path / f"lock-{name}", options)

    # Writers and writers: the smaller instant survives, and disjoint file groups raise no alarm.
    with reading_along(table) as readings:
        writers = [start("older", "Bilbao"), start("younger", "Bilbao"), start("elsewhere", "Aachen")]
    assert len(readings) > 1
    for before, after in pairwise(readings):
        assert all(after[instant] >= count for instant, count in before.items()), "markers are only ever added"
    older, younger, elsewhere = writers
    claims = [claim_of(opened, writer) for writer in writers]
    verdicts = [check(opened, intent) for intent in claims]
    assert [[(clash.instant, clash.kind) for clash in verdict.clashes] for verdict in verdicts] == [
        [],
        [(older.instant, ClashKind.MARKER)],
        [],
    ]
    assert all(not verdict.unread for verdict in verdicts)

    if type == "MOR":
        # A compaction of the same file groups: Hudi lets both commit, and no writer is warned.
        result = run(spark, table.request(Mode.SCHEDULE_AND_EXECUTE))
        assert result.outcome is Outcome.COMPLETED, result.message
        assert [check(opened, intent).is_free for intent in claims] == [True, False, True]

    # A clustering and writers: all three said what they touch, so it is planned around them and hurts none.
    admission = ask(table)
    assert admission.verdict is AdmissionVerdict.SHRINK, admission.reason
    assert admission.options == only("Cork", "Dublin")
    result = run(spark, clustering(table, Mode.SCHEDULE_AND_EXECUTE, options=admission.options))
    assert result.outcome is Outcome.COMPLETED, result.message
    assert older.release() == ""
    # Its markers are gone, and its commit names them.
    (clash,) = check(opened, claims[1]).clashes
    assert (clash.instant, clash.kind) == (older.instant, ClashKind.COMMIT)
    assert check(opened, claims[2]).is_free
    assert [younger.release(), elsewhere.release()] == [REJECTED, ""]

    # In a partition where a writer is at work it would end that writer's commit.
    late = start("late", "Aachen")
    assert not late.outcome.done(), late.release()
    admission = ask(table)
    assert admission.verdict is AdmissionVerdict.SHRINK, admission.reason
    assert "Aachen" not in admission.options[SELECTED]
    intent = claim_of(opened, late)
    assert check(opened, intent).is_free
    result = run(spark, clustering(table, Mode.SCHEDULE_AND_EXECUTE, options=only("Aachen")))
    assert result.outcome is Outcome.COMPLETED, result.message
    (clash,) = check(opened, intent).clashes
    assert (clash.instant, clash.kind) == (result.completed_instants[0], ClashKind.COMMIT)
    assert late.release() == REJECTED

    # A plan that is only requested, and writers on its file groups and on others.
    (plan,) = run(spark, clustering(table, Mode.SCHEDULE, options=only("Bilbao"))).scheduled_instants
    lost, free = start("lost", "Bilbao", {**markers, **ALLOWED}), start("free", "Cork")
    assert {(clash.instant, clash.kind) for clash in check(opened, claim_of(opened, lost)).clashes} == {
        (plan, ClashKind.PLAN)
    }
    assert check(opened, claim_of(opened, free)).is_free
    admission = ask(table, plan)
    assert (admission.verdict, admission.withdraw) == (AdmissionVerdict.WAIT, (plan,)), admission.reason
    assert [lost.release(), free.release()] == [REJECTED, ""]

    if markers is DIRECT:
        clusterings_pass_each_other(spark, table, plan)
    assert {row[1] for row in rows(spark, table) if row[3] == table.written.commits} == {"Aachen", "Bilbao", "Cork"}


def clusterings_pass_each_other(spark: SparkSession, table: Table, plan: str) -> None:
    """Hudi plans nothing twice, so two real plans never meet, and we say so of each."""
    assert run(spark, clustering(table, Mode.SCHEDULE, options=only("Bilbao"))).outcome is Outcome.NOTHING_TO_DO
    (other,) = run(spark, clustering(table, Mode.SCHEDULE, options=only("Dublin"))).scheduled_instants
    assert [ask(table, name).verdict for name in (plan, other)] == [AdmissionVerdict.GO, AdmissionVerdict.GO]
    # One of unknown origin on the same file groups is seen.
    foreign = f"{int(other) + 1}"
    copy = shutil.copy(
        table.timeline / f"{plan}.clustering.requested", table.timeline / f"{foreign}.clustering.requested"
    )
    admission = ask(table, plan)
    assert (admission.verdict, admission.in_the_way) == (AdmissionVerdict.WAIT, (foreign,))
    assert ask(table, other).verdict is AdmissionVerdict.GO
    Path(copy).unlink()
    result = run(spark, clustering(table, Mode.EXECUTE, plan, other))
    assert result.outcome is Outcome.COMPLETED, result.message


@pytest.mark.parametrize(("version", "service"), [(9, Service.LOGCOMPACTION), (6, Service.COMPACTION)])
def test_log_compaction_and_compaction_of_old_tables_wait_for_writers_that_they_would_fail(
    spark: SparkSession, make_table: MakeTable, tmp_path: Path, version: int, service: Service
) -> None:
    table = make_table(version=version)
    opened = open_table(table)
    assert ask(table, service=service).verdict is AdmissionVerdict.GO
    writer = start_writer(spark, table, "Bilbao", tmp_path / "lock", DIRECT)
    intent = claim_of(opened, writer)
    admission = ask(table, service=service)
    assert (admission.verdict, admission.in_the_way) == (AdmissionVerdict.WAIT, (writer.instant,)), admission.reason
    options = {"hoodie.log.compaction.blocks.threshold": "2"} if service is Service.LOGCOMPACTION else {}
    result = run(spark, table.request(Mode.SCHEDULE_AND_EXECUTE, service=service, service_options=options))
    assert result.outcome is Outcome.COMPLETED, result.message
    (clash,) = check(opened, intent).clashes
    assert (clash.instant, clash.kind) == (result.completed_instants[0], ClashKind.COMMIT)
    assert writer.release() == REJECTED


def test_writer_on_file_groups_of_a_pending_plan_is_saved_by_its_withdrawal(
    spark: SparkSession, make_table: MakeTable, tmp_path: Path
) -> None:
    table = make_table(type="COW")
    (plan,) = run(spark, clustering(table, Mode.SCHEDULE, options=only("Bilbao"))).scheduled_instants
    assert ask(table, plan).verdict is AdmissionVerdict.GO
    saved = start_writer(spark, table, "Bilbao", tmp_path / "lock", {**DIRECT, **ALLOWED})
    assert ask(table, plan).withdraw == (plan,)
    withdrawn = run(spark, clustering(table, Mode.WITHDRAW, plan))
    assert withdrawn.outcome is Outcome.COMPLETED, withdrawn.message
    assert saved.release() == ""
    assert not any(name.startswith(plan) for name in table.files())
    again = run(spark, clustering(table, Mode.WITHDRAW, plan))
    assert again.outcome is Outcome.NOTHING_TO_DO


def test_plan_of_a_killed_executor_is_withdrawn_with_what_it_wrote(spark: SparkSession, make_table: MakeTable) -> None:
    table = make_table(type="COW")
    before = content(spark, table)
    (plan,) = run(spark, clustering(table, Mode.SCHEDULE, options=only("Bilbao"))).scheduled_instants
    (table.timeline / f"{plan}.clustering.inflight").touch()
    heartbeat = table.path / ".hoodie" / ".heartbeat" / plan
    heartbeat.parent.mkdir(exist_ok=True)
    heartbeat.touch()
    # Its heartbeat seems alive for two minutes, unless the caller has ended the executor.
    assert run(spark, clustering(table, Mode.WITHDRAW, plan)).outcome is Outcome.FAILED
    withdrawn = run(spark, clustering(table, Mode.WITHDRAW, plan, options={"lake.executor.ended": "true"}))
    assert withdrawn.outcome is Outcome.COMPLETED, withdrawn.message
    assert not any(name.startswith(plan) and "clustering" in name for name in table.files())
    assert content(spark, table) == before
    assert run(spark, clustering(table, Mode.SCHEDULE_AND_EXECUTE, options=only("Bilbao"))).outcome is Outcome.COMPLETED
    assert content(spark, table) == before


def test_writer_counts_as_long_as_its_heartbeat_lives(
    spark: SparkSession, make_table: MakeTable, tmp_path: Path
) -> None:
    table = make_table(type="COW")
    opened = open_table(table)
    first, second = (start_writer(spark, table, "Bilbao", tmp_path / f"lock-{n}", DIRECT) for n in range(2))
    intent, heartbeat = claim_of(opened, second), table.path / ".hoodie" / ".heartbeat" / first.instant
    assert not opened.check(intent, now_ms()).is_free
    expired_s = time.time() - 121
    os.utime(heartbeat, (expired_s, expired_s))
    assert opened.check(intent, now_ms()).is_free
    os.utime(heartbeat)
    assert not opened.check(intent, now_ms()).is_free
    assert [first.release(), second.release()] == ["", REJECTED]


def test_writers_of_two_file_groups_of_one_partition_raise_no_alarm_and_both_commit(
    spark: SparkSession, make_table: MakeTable, tmp_path: Path
) -> None:
    table = make_table(type="COW")
    groups = sorted(group for group in file_groups(spark, table) if group[0] == "Bilbao")[:2]
    orders = spark.read.format("hudi").load(str(table.path))
    columns = [name for name in orders.columns if not name.startswith("_hoodie")]
    writers = [
        start_writer_of(
            orders.where(f"_hoodie_file_name like '{file_id}%'").select(columns), table, tmp_path / file_id, DIRECT
        )
        for _, file_id in groups
    ]
    opened = open_table(table)
    claims = [claim_of(opened, writer) for writer in writers]
    assert [intent.file_groups for intent in claims] == [{file_group_key(*group)} for group in groups]
    assert [check(opened, intent).is_free for intent in claims] == [True, True]
    # The same two, had they met.
    both = WriteIntent(writers[1].instant, claims[0].file_groups | claims[1].file_groups, since=writers[1].instant)
    assert [clash.file_groups for clash in check(opened, both).clashes] == [claims[0].file_groups]
    assert [writer.release() for writer in writers] == ["", ""]


def test_insert_overwrite_in_flight_counts_for_every_file_group_of_its_partition(
    spark: SparkSession, make_table: MakeTable, tmp_path: Path
) -> None:
    table = make_table(type="COW")
    opened = open_table(table)
    (plan,) = run(spark, clustering(table, Mode.SCHEDULE, options=only("Bilbao"))).scheduled_instants
    options = {**DIRECT, **ALLOWED, "hoodie.datasource.write.operation": "insert_overwrite"}
    writer = start_writer(spark, table, "Bilbao", tmp_path / "lock", options)
    (active,) = opened.read_activity(now_ms()).live_writers()
    assert (active.instant, active.action) == (writer.instant, "replacecommit")
    groups = file_groups(spark, table)
    bilbao, aachen = (
        frozenset(file_group_key(*group) for group in groups if group[0] == city) for city in ("Bilbao", "Aachen")
    )
    # Its own markers name new file groups only.
    assert not active.markers.overlap(bilbao)
    later = f"{int(writer.instant) + 1}"
    (clash,) = [
        clash
        for clash in check(opened, WriteIntent(later, bilbao, since=later)).clashes
        if clash.action == "replacecommit"
    ]
    assert (clash.instant, clash.file_groups) == (writer.instant, bilbao)
    elsewhere = check(opened, WriteIntent(later, aachen, since=later))
    assert (elsewhere.clashes, elsewhere.is_free) == ((), False)
    admission = ask(table, plan)
    assert (admission.verdict, admission.withdraw) == (AdmissionVerdict.WAIT, (plan,)), admission.reason
    found = ServiceWatch(opened, ConflictPolicy()).check(now_ms())
    assert found is not None
    assert (found.plan, [clash.instant for clash in found.clashes]) == (plan, [writer.instant])
    result = run(spark, clustering(table, Mode.EXECUTE, plan))
    assert result.outcome is Outcome.COMPLETED, result.message
    assert writer.release() == REJECTED
