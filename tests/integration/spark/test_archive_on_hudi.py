"""Archiving instants of real tables, run inside the test's own Spark session."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from conftest import LOCK, MakeTable, Table, content, rows, rows_written, run, write
from hudi_table import look_at_table, open_client, requested_times
from job_contract import JobRequest, Mode, Outcome, Service, ServiceRequest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Hudi does not archive what the clean policy still wants to see; file versions want to see no commits.
EAGER_ARCHIVE = {
    "hoodie.keep.min.commits": "1",
    "hoodie.keep.max.commits": "2",
    "hoodie.clean.policy": "KEEP_LATEST_FILE_VERSIONS",
}
# A merge-on-read table keeps as many delta commits as the compaction trigger counts.
COMPACTION_COUNTS_ONE = {"hoodie.compact.inline.max.delta.commits": "1"}
NO_METADATA_TABLE = {"hoodie.metadata.enable": "false"}
METADATA_COMPACTED = {"hoodie.metadata.compact.max.delta.commits": "1"}


def archive(table: Table, mode: Mode = Mode.EXECUTE, options: dict[str, str] = EAGER_ARCHIVE) -> JobRequest:
    return table.request(mode, service=Service.ARCHIVE, service_options=options)


def archived(spark: SparkSession, table: Table) -> tuple[str, ...]:
    return requested_times(look_at_table(spark, str(table.path)).meta_client.getArchivedTimeline())


def active(table: Table) -> list[str]:
    return sorted({name.split(".")[0].split("_")[0] for name in table.files() if name[:4].isdigit()})


@pytest.mark.parametrize(
    ("type", "version", "made_with"),
    [
        pytest.param("COW", 9, NO_METADATA_TABLE, id="cow"),
        pytest.param("COW", 9, METADATA_COMPACTED, id="cow-metadata-table"),
        pytest.param("MOR", 6, NO_METADATA_TABLE, id="mor-6"),
    ],
)
@pytest.mark.parametrize("mode", [Mode.EXECUTE, Mode.SCHEDULE_AND_EXECUTE])
def test_old_instants_move_to_the_archive(
    spark: SparkSession, make_table: MakeTable, type: str, version: int, made_with: dict[str, str], mode: Mode
) -> None:
    table = make_table(type=type, version=version, **made_with)
    before, instants, properties = content(spark, table), active(table), table.properties()
    result = run(spark, archive(table, mode, EAGER_ARCHIVE | COMPACTION_COUNTS_ONE))
    assert result.outcome is Outcome.COMPLETED, result.message
    left = active(table)
    assert f"archived {len(instants) - len(left)} instants" in result.message
    assert f"{len(left)} stay active" in result.message
    assert left == instants[-len(left) :]
    assert set(archived(spark, table)) >= set(instants) - set(left)
    assert content(spark, table) == before
    assert table.properties() == properties

    again = run(spark, archive(table, mode, EAGER_ARCHIVE | COMPACTION_COUNTS_ONE))
    assert again.outcome is Outcome.NOTHING_TO_DO
    assert active(table) == left


@pytest.mark.parametrize(
    ("type", "made_with", "options", "why"),
    [
        pytest.param("COW", NO_METADATA_TABLE, {}, "3 completed commits are not more than 30", id="young"),
        pytest.param(
            "COW",
            NO_METADATA_TABLE,
            {"hoodie.keep.min.commits": "1", "hoodie.keep.max.commits": "2", "hoodie.clean.commits.retained": "2"},
            "plus what clean retains",
            id="clean-retains",
        ),
        pytest.param("COW", {}, EAGER_ARCHIVE, "the metadata table has no completed compaction", id="metadata-table"),
        pytest.param("MOR", NO_METADATA_TABLE, EAGER_ARCHIVE, "the compaction trigger counts 5", id="compaction-due"),
    ],
)
def test_nothing_to_archive_says_why(
    spark: SparkSession,
    make_table: MakeTable,
    type: str,
    made_with: dict[str, str],
    options: dict[str, str],
    why: str,
) -> None:
    table = make_table(type=type, **made_with)
    timeline = table.files()
    result = run(spark, archive(table, options=options))
    assert result.outcome is Outcome.NOTHING_TO_DO
    assert why in result.message
    assert table.files() == timeline


def test_savepoint_stays_and_is_named(spark: SparkSession, make_table: MakeTable) -> None:
    table = make_table(type="COW", **NO_METADATA_TABLE)
    first = active(table)[0]
    with open_client(spark, str(table.path), {**LOCK, **NO_METADATA_TABLE}, {}) as client:
        client.savepoint(first, "a test", "to be kept")
    message = run(spark, archive(table)).message
    assert message == f"nothing to archive: instant {first} must stay active, it is a savepoint"


def test_clustering_stays_until_a_clean_has_removed_what_it_replaced(
    spark: SparkSession, make_table: MakeTable
) -> None:
    table = make_table(type="COW", **NO_METADATA_TABLE)
    (instant,) = run(spark, table.request(Mode.SCHEDULE, service=Service.CLUSTERING)).scheduled_instants
    # Older instants than a pending plan may go, but for the last before it.
    assert run(spark, archive(table)).outcome is Outcome.COMPLETED
    assert len(active(table)) == 2
    assert run(spark, table.request(Mode.EXECUTE, service=Service.CLUSTERING)).completed_instants == (instant,)
    for commit in (3, 4):
        write(spark, table.written, commit)
    assert run(spark, archive(table)).outcome is Outcome.COMPLETED
    write(spark, table.written, 5)
    message = run(spark, archive(table)).message
    why = f"instant {instant} must stay active, no clean has removed the files that it replaced"
    assert message == f"nothing to archive: {why}"

    clean = table.request(Mode.SCHEDULE_AND_EXECUTE, service=Service.CLEAN, service_options=EAGER_ARCHIVE)
    assert run(spark, clean).outcome is Outcome.COMPLETED
    assert run(spark, archive(table)).outcome is Outcome.COMPLETED
    assert instant not in active(table)
    assert rows(spark, table) == rows_written(spark, table.written, 6)


def test_scheduling_is_refused_with_a_sentence(spark: SparkSession, make_table: MakeTable) -> None:
    result = run(spark, archive(make_table(type="COW"), Mode.SCHEDULE))
    assert result.outcome is Outcome.FAILED
    assert "no plan to schedule" in result.message


def test_one_job_runs_all_services_in_the_order_of_the_request(spark: SparkSession, make_table: MakeTable) -> None:
    import run_services

    table = make_table(**METADATA_COMPACTED)
    before = content(spark, table)
    order = (Service.CLEAN, Service.ARCHIVE, Service.COMPACTION, Service.CLUSTERING)
    request = replace(
        table.request(Mode.EXECUTE),
        services=tuple(ServiceRequest(service, Mode.SCHEDULE_AND_EXECUTE, (), {}) for service in order),
    )
    results = run_services.run_job(spark, request).services
    assert tuple(result.service for result in results) == order
    assert [result.outcome for result in results] == [
        Outcome.NOTHING_TO_DO,
        Outcome.NOTHING_TO_DO,
        Outcome.COMPLETED,
        Outcome.COMPLETED,
    ], results
    assert content(spark, table) == before
