"""An insert overwrite passed a pending clustering, which then brought the old rows back.

Report: https://github.com/apache/hudi/issues/18830
Report: https://github.com/apache/hudi/issues/9885
Verdict: right
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from conftest import run
from kept_rows import CITIES, KeptTable, first_rows

from airflow_lake_provider.job_contract import FailureKind, Mode, Outcome, Service
from lake_jobs.verify import execution, rewrite

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

ALONE = {"hoodie.write.concurrency.mode": "single_writer"}
UPDATES_PASS = {
    "hoodie.clustering.updates.strategy": "org.apache.hudi.client.clustering.update.strategy.SparkAllowUpdateStrategy"
}
WRITER_WINS = {
    "hoodie.write.lock.conflict.resolution.strategy": (
        "org.apache.hudi.client.transaction.PreferWriterConflictResolutionStrategy"
    )
}


def overwrite(kept: KeptTable, **options: str) -> None:
    kept.rows = {key: row for key, row in kept.rows.items() if row[1] != CITIES[0]}
    kept.write([(100, CITIES[0], 9.0, 9)], "insert_overwrite", **options)


def update(kept: KeptTable, **options: str) -> None:
    kept.write(((i, CITIES[i % 2], 2.5, 2) for i in range(5)), **UPDATES_PASS, **options)


def planned(spark: SparkSession, path: Path, type: str, version: int) -> tuple[KeptTable, str]:
    kept = KeptTable(spark, path, type=type, version=version)
    kept.write(first_rows())
    kept.write(((i, CITIES[i % 2], 1.5, 1) for i in range(30, 40)), "insert")
    (plan,) = kept.serve(Service.CLUSTERING, Mode.SCHEDULE).scheduled_instants
    return kept, plan


def require_withdrawn(kept: KeptTable, plan: str, what: str) -> None:
    """Execute a plan that a write has overtaken, and then a new one."""
    done = run(kept.spark, kept.table.request(Mode.EXECUTE, plan, service=Service.CLUSTERING))
    assert (done.outcome, done.failure_kind) == (Outcome.FAILED, FailureKind.CONFLICT), done.message
    assert what in done.message
    assert done.message.endswith("the plan is withdrawn")
    kept.require_rows()
    kept.write((i, CITIES[i % 2], 4.5, 10) for i in (1, 3, 100))
    assert kept.serve(Service.CLUSTERING).outcome is Outcome.COMPLETED
    kept.require_rows()


@pytest.mark.parametrize(
    ("type", "version"),
    [
        ("COW", 9),
        pytest.param("MOR", 9, marks=pytest.mark.soak),
        pytest.param("COW", 6, marks=pytest.mark.soak),
        pytest.param("MOR", 8, marks=pytest.mark.soak),
    ],
)
def test_what_was_overwritten_stays_away(spark: SparkSession, tmp_path: Path, type: str, version: int) -> None:
    kept, plan = planned(spark, tmp_path / "t", type, version)
    overwrite(kept, **ALONE)
    kept.require_rows()
    require_withdrawn(kept, plan, "has replaced files of the plan, whose rows would come back")


@pytest.mark.soak
@pytest.mark.parametrize(("type", "version"), [("COW", 9), ("MOR", 9), ("MOR", 6)])
@pytest.mark.parametrize("options", [ALONE, WRITER_WINS], ids=["alone", "writer-wins"])
def test_updates_that_passed_the_plan_stay(
    spark: SparkSession, tmp_path: Path, type: str, version: int, options: dict[str, str]
) -> None:
    kept, plan = planned(spark, tmp_path / "t", type, version)
    update(kept, **options)
    kept.require_rows()
    require_withdrawn(kept, plan, "has written into files of the plan, and its rows would be lost")


@pytest.mark.soak
def test_an_overwrite_while_the_clustering_runs(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, plan = planned(spark, tmp_path / "t", "COW", 9)
    write_files = rewrite.write_files

    def write_and_be_overtaken(*arguments: Any) -> rewrite.UncommittedRewrite:
        written = write_files(*arguments)
        overwrite(kept, **ALONE)
        return written

    with monkeypatch.context() as patched:
        patched.setattr(execution.rewrite, "write_files", write_and_be_overtaken)
        done = run(spark, kept.table.request(Mode.EXECUTE, plan, service=Service.CLUSTERING))
    assert (done.outcome, done.failure_kind) == (Outcome.FAILED, FailureKind.CONFLICT), done.message
    kept.require_rows()
    assert kept.serve(Service.CLUSTERING).outcome is Outcome.COMPLETED
    kept.require_rows()
