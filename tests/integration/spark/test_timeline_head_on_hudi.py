"""Writes that are archived although an older index build or restore stays on the active timeline.

Each commit updates rows of its own, so that a log file which a compaction leaves out shows in the rows. The judge is a
plain read of Spark against what was written, with the metadata table and without.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from conftest import LOCK, MakeTable, Table, run
from pyspark.sql import functions as F
from test_archive_on_hudi import (
    COMPACTION_COUNTS_ONE,
    EAGER_ARCHIVE,
    METADATA_COMPACTED,
    NO_METADATA_TABLE,
    active,
    archive,
)

from airflow_lake_provider.config.policies import StuckKind
from airflow_lake_provider.doctor.diagnosis import diagnose
from airflow_lake_provider.doctor.evidence import collect_evidence
from airflow_lake_provider.indexing.index_spec import parse_indexes, requested_options
from airflow_lake_provider.job_contract import Mode, Outcome, Service
from airflow_lake_provider.storage.table_storage import open_storage
from lake_jobs.hudi.files import TableFiles
from lake_jobs.hudi.table import open_client
from lake_jobs.services.timeline_heads import KEPT_IN
from local_stack import lake_writer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AMOUNTS = dict[int, float]
NO_STATISTICS = {"hoodie.metadata.index.column.stats.enable": "false"}
ROWS_OF_A_COMMIT = 10


def update(spark: SparkSession, table: Table, commit: int, truth: AMOUNTS) -> None:
    """Update ten rows that no other commit updates."""
    ids = range(commit * ROWS_OF_A_COMMIT, (commit + 1) * ROWS_OF_A_COMMIT)
    orders = lake_writer.orders_of_commit(spark, table.written, 0).where(F.col("id").isin(*ids))
    changed = orders.withColumn("amount", F.lit(1000.0 + commit)).withColumn("ts", F.lit(10 + commit).cast("long"))
    options = lake_writer.write_options(table.written, 1, None, {})
    changed.write.format("hudi").options(**options).mode("append").save(str(table.path))
    truth |= dict.fromkeys(ids, 1000.0 + commit)


def amounts(spark: SparkSession, table: Table, **options: str) -> AMOUNTS:
    found = spark.read.format("hudi").options(**options).load(str(table.path)).select("id", "amount").collect()
    return {row["id"]: row["amount"] for row in found}


def wrong_rows(spark: SparkSession, table: Table, truth: AMOUNTS) -> tuple[int, int]:
    """Return how many rows a reader gets wrong, by the metadata table and by listing the files."""
    by_metadata = amounts(spark, table)
    by_listing = amounts(spark, table, **NO_METADATA_TABLE)
    return tuple(len(set(found.items()) ^ set(truth.items())) for found in (by_metadata, by_listing))  # type: ignore[return-value]


def restore(spark: SparkSession, table: Table, settings: dict[str, str]) -> None:
    """Take the last write back by a savepoint and a restore, and remove the savepoint."""
    saved = active(table)[-2]
    for step in ("savepoint", "restoreToSavepoint", "deleteSavepoint"):
        with open_client(spark, str(table.path), LOCK | NO_STATISTICS | settings, {}) as client:
            getattr(client, step)(*((saved, "test", "") if step == "savepoint" else (saved,)))


def build_index(spark: SparkSession, table: Table) -> None:
    index = requested_options(parse_indexes(["column_stats:amount"]))
    request = table.request(Mode.SCHEDULE_AND_EXECUTE, service=Service.INDEXING, service_options=index)
    assert run(spark, request).outcome is Outcome.COMPLETED


def archive_as_writers(spark: SparkSession, table: Table, settings: dict[str, str]) -> None:
    """Archive as Hudi's own client does."""
    at_work = {"hoodie.table.services.enabled": "true", "hoodie.clean.automatic": "false"}
    eager = EAGER_ARCHIVE | COMPACTION_COUNTS_ONE
    with open_client(spark, str(table.path), LOCK | at_work | settings | eager, {}) as client:
        client.archive()


def begin(
    spark: SparkSession, make_table: MakeTable, head: str, version: int, settings: dict[str, str]
) -> tuple[Table, AMOUNTS]:
    """Return a table with an index build or a restore, and updates behind it."""
    table = make_table(type="MOR", version=version, **settings)
    if head == "restore":
        restore(spark, table, settings | {"hoodie.write.table.version": str(version)})
    else:
        build_index(spark, table)
    truth = amounts(spark, table)
    for commit in range(5):
        update(spark, table, commit, truth)
    return table, truth


@pytest.mark.parametrize(
    ("head", "version", "settings"),
    [
        pytest.param("restore", 9, NO_METADATA_TABLE, id="restore", marks=pytest.mark.soak),
        pytest.param("restore", 8, NO_METADATA_TABLE, id="restore-8", marks=pytest.mark.soak),
        pytest.param("indexing", 9, METADATA_COMPACTED, id="index-build"),
    ],
)
def test_no_service_leaves_out_what_hudi_archived_behind_the_head(
    spark: SparkSession, make_table: MakeTable, head: str, version: int, settings: dict[str, str]
) -> None:
    table, truth = begin(spark, make_table, head, version, settings)
    archive_as_writers(spark, table, settings)
    first = active(table)[0]
    assert any(name.startswith(first) and name.endswith(f".{head}") for name in table.files())
    assert wrong_rows(spark, table, truth) == (0, 0), "only a compaction makes it wrong"

    (finding,) = diagnose(collect_evidence(open_storage(str(table.path)), int(time.time() * 1000)))
    assert (finding.kind, finding.instant) == (StuckKind.ARCHIVED_BEHIND_HEAD, first)
    files = table.files()
    for service in (Service.COMPACTION, Service.CLEAN, Service.CLUSTERING, Service.LOGCOMPACTION):
        refused = run(spark, table.request(Mode.SCHEDULE_AND_EXECUTE, service=service))
        assert refused.outcome is Outcome.FAILED
        assert f"after the {head} {first}, which stays active, are archived" in refused.message
    assert table.files() == files

    # What the finding advises: the files are kept, and a compaction merges everything.
    done = run(spark, archive(table, options=EAGER_ARCHIVE | COMPACTION_COUNTS_ONE))
    assert done.outcome is Outcome.COMPLETED, done.message
    assert not any(name.endswith(f".{head}") for name in table.files())
    assert any(path.name.endswith(f".{head}") for path in (table.path / KEPT_IN).iterdir())
    assert diagnose(collect_evidence(open_storage(str(table.path)), int(time.time() * 1000))) == ()
    assert wrong_rows(spark, table, truth) == (0, 0)
    assert run(spark, table.request(Mode.SCHEDULE_AND_EXECUTE)).outcome is Outcome.COMPLETED
    assert wrong_rows(spark, table, truth) == (0, 0)


@pytest.mark.parametrize(
    ("head", "version", "settings"),
    [
        pytest.param("restore", 9, NO_METADATA_TABLE, id="restore"),
        pytest.param("restore", 8, NO_METADATA_TABLE, id="restore-8", marks=pytest.mark.soak),
        pytest.param("restore", 9, METADATA_COMPACTED, id="restore-metadata-table", marks=pytest.mark.soak),
        pytest.param("indexing", 9, METADATA_COMPACTED, id="index-build", marks=pytest.mark.soak),
    ],
)
def test_archiving_takes_the_head_away_before_the_writes_behind_it(
    spark: SparkSession,
    make_table: MakeTable,
    head: str,
    version: int,
    settings: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table, truth = begin(spark, make_table, head, version, settings)
    before = active(table)
    moved: list[str] = []

    def move_once(files: TableFiles, source: str, target: str) -> None:
        if moved:
            raise OSError("the driver dies here")
        moved.append(source)
        whole(files, source, target)

    whole = TableFiles.move
    with monkeypatch.context() as dying:
        dying.setattr(TableFiles, "move", move_once)
        died = run(spark, archive(table, options=EAGER_ARCHIVE | COMPACTION_COUNTS_ONE))
    assert "the driver dies here" in died.message
    assert active(table) == before, "nothing behind it was archived"
    assert any(name.endswith(f".{head}") for name in table.files()), "it is a completed instant still"
    done = run(spark, archive(table, options=EAGER_ARCHIVE | COMPACTION_COUNTS_ONE))
    assert done.outcome is Outcome.COMPLETED, done.message
    assert not any(name.endswith(f".{head}") for name in table.files())
    assert wrong_rows(spark, table, truth) == (0, 0)
    assert run(spark, table.request(Mode.SCHEDULE_AND_EXECUTE)).outcome is Outcome.COMPLETED
    assert wrong_rows(spark, table, truth) == (0, 0)
    if head == "indexing":
        found = table.properties()["hoodie.table.metadata.partitions"]
        assert "column_stats" in found
        reader = spark.read.format("hudi").option("hoodie.enable.data.skipping", "true").load(str(table.path))
        assert reader.where("amount >= 1000.0").count() == len([a for a in truth.values() if a >= 1000.0])


def test_what_a_compaction_left_out_already_is_named_and_stays_visible(
    spark: SparkSession, make_table: MakeTable
) -> None:
    """As a writer that compacts inline does it: taking the instant away would hide the log files from all readers."""
    table, _ = begin(spark, make_table, "restore", 9, NO_METADATA_TABLE)
    archive_as_writers(spark, table, NO_METADATA_TABLE)
    none = spark._jvm.org.apache.hudi.common.util.Option.empty()
    at_work = LOCK | NO_METADATA_TABLE | COMPACTION_COUNTS_ONE | {"hoodie.table.services.enabled": "true"}
    with open_client(spark, str(table.path), at_work, {}) as client:
        client.compact(client.scheduleCompaction(none).get(), True)
    seen, first = amounts(spark, table), active(table)[0]
    refused = run(spark, archive(table, options=EAGER_ARCHIVE | COMPACTION_COUNTS_ONE))
    assert refused.outcome is Outcome.FAILED, refused.message
    assert "were left out already" in refused.message
    assert f"restore {first}" in refused.message
    assert active(table)[0] == first
    assert amounts(spark, table) == seen


@pytest.mark.soak
def test_what_an_archived_compaction_left_out_is_named_as_well(spark: SparkSession, make_table: MakeTable) -> None:
    table, truth = begin(spark, make_table, "restore", 9, NO_METADATA_TABLE)
    archive_as_writers(spark, table, NO_METADATA_TABLE)
    none = spark._jvm.org.apache.hudi.common.util.Option.empty()
    at_work = LOCK | NO_METADATA_TABLE | COMPACTION_COUNTS_ONE | {"hoodie.table.services.enabled": "true"}
    with open_client(spark, str(table.path), at_work, {}) as client:
        compaction = client.scheduleCompaction(none).get()
        client.compact(compaction, True)
    for commit in range(5, 10):
        update(spark, table, commit, truth)
    archive_as_writers(spark, table, NO_METADATA_TABLE)
    assert not any(name.startswith(compaction) for name in table.files()), "the compaction is archived"
    seen, first = amounts(spark, table), active(table)[0]

    refused = run(spark, archive(table, options=EAGER_ARCHIVE | COMPACTION_COUNTS_ONE))

    assert refused.outcome is Outcome.FAILED, refused.message
    assert "were left out already" in refused.message
    assert active(table)[0] == first
    assert amounts(spark, table) == seen
