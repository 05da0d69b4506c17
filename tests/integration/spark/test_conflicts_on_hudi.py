"""Early conflict detection beside real Hudi: what we find before the commit, Hudi rejects at it, and nothing else."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from conftest import MakeTable, Table, content, run
from held_writers import HeldWriter, start_writer
from job_contract import JobRequest, Mode, Outcome, Service

from airflow_lake_provider.conflict.admission import Admission, AdmissionVerdict
from airflow_lake_provider.conflict.conflict_table import ConflictTable
from airflow_lake_provider.conflict.contention import Claim, ClashKind
from airflow_lake_provider.conflict.gate import ask_admission
from airflow_lake_provider.policies import ConflictPolicy
from airflow_lake_provider.timeline.commit_metadata import load_commit_metadata
from airflow_lake_provider.timeline.storage import open_storage
from airflow_lake_provider.view.look import Depth, look

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
    return ConflictTable(storage, lambda: look(storage, None, Depth.LIST, now_ms()).snapshot)


def claim_of(table: ConflictTable, writer: HeldWriter) -> Claim:
    (active,) = (active for active in table.look(now_ms()).actives if active.instant == writer.instant)
    return Claim(writer.instant, active.markers.file_groups(), since=writer.instant)


def ask(table: Table, *plans: str) -> Admission:
    storage = open_storage(str(table.path))
    snapshot = look(storage, None, Depth.LIST, now_ms()).snapshot
    commits = {
        instant.requested_time: load_commit_metadata(storage, snapshot.properties.timeline_path, instant)
        for instant in snapshot.timeline.completed_writes_by_completion()
    }
    # Tests write in a rhythm of seconds: in an hour's time nothing is expected any more.
    opened = open_table(table)
    opened.rule = type(opened.rule)(interval_ms=3_600_000, tolerable_misses=2)
    return ask_admission(opened, commits, plans, ConflictPolicy(), now_ms() + 3_600_000)


def clustering(table: Table, mode: Mode, *instants: str, options: Mapping[str, str] | None = None) -> JobRequest:
    return table.request(mode, *instants, service=Service.CLUSTERING, service_options=dict(options or {}))


def only(*cities: str) -> dict[str, str]:
    return {
        "hoodie.clustering.plan.partition.filter.mode": "SELECTED_PARTITIONS",
        SELECTED: ",".join(cities),
    }


@pytest.mark.parametrize("markers", [DIRECT, SERVER], ids=["direct", "server"])
@pytest.mark.parametrize("type", ["MOR", "COW"])
def test_two_writers_and_a_clustering(
    spark: SparkSession, make_table: MakeTable, tmp_path: Path, type: str, markers: dict[str, str]
) -> None:
    table = make_table(type=type)
    opened = open_table(table)
    first, *_ = writers = [
        start_writer(spark, table, city, tmp_path / f"lock-{n}", markers)
        for n, city in enumerate(("Bilbao", "Bilbao", "Aachen"))
    ]
    verdicts = [opened.check(claim_of(opened, writer), now_ms()) for writer in writers]
    # The smaller instant survives, and disjoint file groups raise no alarm.
    assert [verdict.is_free for verdict in verdicts] == [True, False, True]
    assert [(clash.instant, clash.kind) for clash in verdicts[1].clashes] == [(first.instant, ClashKind.MARKER)]

    # All three said what they touch, so a clustering is planned around them: it may run, and hurts nobody.
    admission = ask(table)
    assert admission.verdict is AdmissionVerdict.SHRINK, admission.reason
    assert admission.options == only("Cork", "Dublin")
    result = run(spark, clustering(table, Mode.SCHEDULE_AND_EXECUTE, options=admission.options))
    assert result.outcome is Outcome.COMPLETED, result.message
    assert [writer.release() for writer in writers] == ["", REJECTED, ""]

    # And in a partition where a writer is at work it would end that writer's commit.
    late = start_writer(spark, table, "Aachen", tmp_path / "lock-late", markers)
    assert "Aachen" not in ask(table).options[SELECTED]
    claim = claim_of(opened, late)
    assert opened.check(claim, now_ms()).is_free
    result = run(spark, clustering(table, Mode.SCHEDULE_AND_EXECUTE, options=only("Aachen")))
    assert result.outcome is Outcome.COMPLETED, result.message
    (clash,) = opened.check(claim, now_ms()).clashes
    assert (clash.instant, clash.kind) == (result.completed_instants[0], ClashKind.COMMIT)
    assert late.release() == REJECTED


def test_writer_on_file_groups_of_a_pending_plan_is_found_and_saved(
    spark: SparkSession, make_table: MakeTable, tmp_path: Path
) -> None:
    table = make_table(type="COW")
    opened = open_table(table)
    (plan,) = run(spark, clustering(table, Mode.SCHEDULE, options=only("Bilbao"))).scheduled_instants
    assert ask(table, plan).verdict is AdmissionVerdict.GO
    lost, saved = (
        start_writer(spark, table, "Bilbao", tmp_path / f"lock-{n}", {**DIRECT, **ALLOWED}) for n in range(2)
    )
    elsewhere = start_writer(spark, table, "Aachen", tmp_path / "lock-2", DIRECT)
    kinds = {clash.kind for clash in opened.check(claim_of(opened, lost), now_ms()).clashes}
    assert kinds == {ClashKind.PLAN}
    assert opened.check(claim_of(opened, elsewhere), now_ms()).is_free
    admission = ask(table, plan)
    assert (admission.verdict, admission.withdraw) == (AdmissionVerdict.WAIT, (plan,)), admission.reason
    assert lost.release() == REJECTED
    withdrawn = run(spark, clustering(table, Mode.WITHDRAW, plan))
    assert withdrawn.outcome is Outcome.COMPLETED, withdrawn.message
    assert [saved.release(), elsewhere.release()] == ["", ""]
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
    # Its heartbeat looks alive for two minutes, unless whoever asks has ended the executor.
    assert run(spark, clustering(table, Mode.WITHDRAW, plan)).outcome is Outcome.FAILED
    withdrawn = run(spark, clustering(table, Mode.WITHDRAW, plan, options={"lake.executor.ended": "true"}))
    assert withdrawn.outcome is Outcome.COMPLETED, withdrawn.message
    assert not any(name.startswith(plan) and "clustering" in name for name in table.files())
    assert content(spark, table) == before
    assert run(spark, clustering(table, Mode.SCHEDULE_AND_EXECUTE, options=only("Bilbao"))).outcome is Outcome.COMPLETED
    assert content(spark, table) == before


def test_two_clusterings(spark: SparkSession, make_table: MakeTable) -> None:
    table = make_table(type="COW")
    (first,) = run(spark, clustering(table, Mode.SCHEDULE, options=only("Bilbao"))).scheduled_instants
    # Hudi plans nothing twice, so two real plans never meet, and we say so of each.
    assert run(spark, clustering(table, Mode.SCHEDULE, options=only("Bilbao"))).outcome is Outcome.NOTHING_TO_DO
    (second,) = run(spark, clustering(table, Mode.SCHEDULE)).scheduled_instants
    assert [ask(table, plan).verdict for plan in (first, second)] == [AdmissionVerdict.GO, AdmissionVerdict.GO]
    # One of unknown origin on the same file groups is seen.
    foreign = f"{int(second) + 1}"
    shutil.copy(table.timeline / f"{first}.clustering.requested", table.timeline / f"{foreign}.clustering.requested")
    admission = ask(table, first)
    assert (admission.verdict, admission.in_the_way) == (AdmissionVerdict.WAIT, (foreign,))
    assert ask(table, second).verdict is AdmissionVerdict.GO
    (table.timeline / f"{foreign}.clustering.requested").unlink()
    result = run(spark, clustering(table, Mode.EXECUTE, first, second))
    assert result.outcome is Outcome.COMPLETED, result.message


def test_writer_counts_as_long_as_its_heartbeat_lives(
    spark: SparkSession, make_table: MakeTable, tmp_path: Path
) -> None:
    table = make_table(type="COW")
    opened = open_table(table)
    first, second = (start_writer(spark, table, "Bilbao", tmp_path / f"lock-{n}", DIRECT) for n in range(2))
    claim, heartbeat = claim_of(opened, second), table.path / ".hoodie" / ".heartbeat" / first.instant
    assert not opened.check(claim, now_ms()).is_free
    expired_s = time.time() - 121
    os.utime(heartbeat, (expired_s, expired_s))
    assert opened.check(claim, now_ms()).is_free
    os.utime(heartbeat)
    assert not opened.check(claim, now_ms()).is_free
    assert [first.release(), second.release()] == ["", REJECTED]
