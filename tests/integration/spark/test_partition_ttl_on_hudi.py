"""Deletion of expired partitions of real tables, run inside the test's own Spark session.

No test waits for days: what is written at one instant is made expired by asking as if a later one were now.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from conftest import MakeTable, Table, rows, run
from paused_writers import insert
from test_clustering_on_hudi import update

from airflow_lake_provider.job_contract import FailureKind, JobRequest, Mode, Outcome, Service
from airflow_lake_provider.shared.hudi_settings import TTL_DAYS, TTL_MAX_PARTITIONS
from lake_jobs.services import ttl as partition_ttl
from lake_jobs.services import ttl_rules

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession


UNLOCKED = {
    "hoodie.write.concurrency.mode": "single_writer",
    "hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.InProcessLockProvider",
    "hoodie.clean.failed.writes.policy": "LAZY",
}


def ttl(table: Table, days: str = "50", mode: Mode = Mode.EXECUTE, **options: str) -> JobRequest:
    return table.request(mode, service=Service.TTL, service_options={TTL_DAYS: days, **options})


def pass_days(patch: pytest.MonkeyPatch, days: int) -> None:
    """Let the job take it for so many days later than it is."""
    find_expired = partition_ttl.find_expired

    def later(last_writes: Mapping[str, str], now: str, rules: ttl_rules.TtlRules) -> tuple[str, ...]:
        moment = datetime.strptime(now[:14], "%Y%m%d%H%M%S") + timedelta(days=days)  # noqa: DTZ007 - only moved
        return find_expired(last_writes, f"{moment:%Y%m%d%H%M%S}000", rules)

    patch.setattr(partition_ttl, "find_expired", later)


@pytest.mark.parametrize("type", ["COW", "MOR"])
def test_partitions_without_a_recent_write_go_and_others_stay(
    spark: SparkSession, make_table: MakeTable, monkeypatch: pytest.MonkeyPatch, type: str
) -> None:
    table = make_table(type=type)
    before, files = rows(spark, table), table.files()
    # Hudi's own strategy takes 50 days for 7 hours, and leaves a replacecommit.requested when nothing is expired.
    pass_days(monkeypatch, 2)
    result = run(spark, ttl(table))
    assert result.outcome is Outcome.NOTHING_TO_DO, result.message
    assert "none of 4 partitions" in result.message
    assert table.files() == files

    monkeypatch.undo()
    # On merge-on-read this update is a log file: the base file of the partition is as old as all others.
    newest = max(table.completed("deltacommit") | table.completed("commit"))
    update(spark, table, 1, "Bilbao")
    monkeypatch.setattr(partition_ttl, "find_expired", lambda last, _now, _rules: older_than(newest, last))
    result = run(spark, ttl(table))
    assert result.outcome is Outcome.COMPLETED, result.message
    (instant,) = result.completed_instants
    assert instant in table.completed("replacecommit")
    left = rows(spark, table)
    assert {row[1] for row in left} == {"Bilbao"}
    assert [row[0] for row in left] == [row[0] for row in before if row[1] == "Bilbao"]
    files = table.files()
    assert run(spark, ttl(table)).outcome is Outcome.NOTHING_TO_DO
    assert table.files() == files


def older_than(instant: str, last_writes: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(sorted(partition for partition, last in last_writes.items() if last <= instant))


def test_at_most_so_many_partitions_go_at_once(
    spark: SparkSession, make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(type="COW")
    pass_days(monkeypatch, 60)
    result = run(spark, ttl(table, **{TTL_MAX_PARTITIONS: "3"}))
    assert result.outcome is Outcome.COMPLETED, result.message
    assert len({row[1] for row in rows(spark, table)}) == 1


def test_write_meanwhile_wins_and_the_deletion_is_taken_back(
    spark: SparkSession, make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(type="COW")
    require_untouched = partition_ttl.require_untouched

    def write_first(visit: object, before: frozenset[str], partitions: frozenset[str]) -> None:
        # One that takes no lock: any other one waits for the end of the deletion.
        insert(spark, table, 60_000, **UNLOCKED)
        require_untouched(visit, before, partitions)

    monkeypatch.setattr(partition_ttl, "require_untouched", write_first)
    pass_days(monkeypatch, 60)
    result = run(spark, ttl(table))
    assert (result.outcome, result.failure_kind) == (Outcome.FAILED, FailureKind.CONFLICT), result.message
    assert len({row[1] for row in rows(spark, table)}) == 4
    assert not [name for name in table.files() if "replacecommit" in name]


def test_pending_plan_is_waited_for(
    spark: SparkSession, make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(type="COW")
    (plan,) = run(spark, table.request(Mode.SCHEDULE, service=Service.CLUSTERING)).scheduled_instants
    files = table.files()
    pass_days(monkeypatch, 60)
    result = run(spark, ttl(table))
    assert (result.outcome, result.failure_kind) == (Outcome.FAILED, FailureKind.CONFLICT)
    assert plan in result.message
    assert table.files() == files


@pytest.mark.parametrize(
    ("table", "request_of", "says"),
    [
        pytest.param({"type": "COW"}, {"mode": Mode.SCHEDULE}, "no plan to schedule", id="schedule"),
        pytest.param({"type": "COW"}, {"days": "0"}, "whole number from 1", id="no-days"),
        pytest.param({"type": "COW"}, {ttl_rules.STRATEGY: "KEEP_BY_CREATION_TIME"}, "KEEP_BY_TIME", id="strategy"),
        pytest.param({"version": 6}, {}, "upgrade it to version 8", id="mor-6"),
    ],
)
def test_what_is_unknown_is_refused(
    spark: SparkSession, make_table: MakeTable, table: dict[str, object], request_of: dict[str, str], says: str
) -> None:
    made = make_table(**table)
    files = made.files()
    result = run(spark, ttl(made, **request_of))
    assert result.outcome is Outcome.FAILED
    assert says in result.message
    assert made.files() == files
