"""Archiving instants of real tables, run inside the test's own Spark session."""

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from conftest import LOCK, MakeTable, Table, content, rows, rows_written, run, write

from airflow_lake_provider.config.policies import StuckKind, TablePolicy
from airflow_lake_provider.config.service_policies import ArchivePolicy, CleanPolicy
from airflow_lake_provider.doctor.diagnosis import diagnose
from airflow_lake_provider.doctor.evidence import collect_evidence
from airflow_lake_provider.hudi.properties import load_table_properties
from airflow_lake_provider.indexing.index_spec import parse_indexes, requested_options
from airflow_lake_provider.job_contract import (
    CHECKPOINT_DAYS,
    CHECKPOINT_KEYS,
    JobRequest,
    Mode,
    Outcome,
    Service,
    ServiceRequest,
)
from airflow_lake_provider.planner.decide import service_options
from airflow_lake_provider.planner.facts import TableFacts
from airflow_lake_provider.planner.periodic import decide_indexing
from airflow_lake_provider.planner.retention import archive_options
from airflow_lake_provider.planner.rules import Decision, Verdict
from airflow_lake_provider.planner.table_view import TableViewCache
from airflow_lake_provider.shared.hudi_settings import COMPACTION_TRIGGER
from airflow_lake_provider.storage.table_storage import open_storage
from airflow_lake_provider.timeline_server.cache import SharedTimelines
from airflow_lake_provider.timeline_server.snapshot import NOW
from airflow_lake_provider.timeline_server.views import FileSystemTimelineView
from airflow_lake_provider.timeline_server.watch import Watch, WatchKind, find_changes
from lake_jobs.hudi.table import open_client, read_table_state, requested_times
from local_stack import lake_writer

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
    return requested_times(read_table_state(spark, str(table.path)).meta_client.getArchivedTimeline())


def active(table: Table) -> list[str]:
    return sorted({name.split(".")[0].split("_")[0] for name in table.files() if name[:4].isdigit()})


@pytest.mark.parametrize(
    ("type", "version", "made_with"),
    [
        pytest.param("COW", 9, NO_METADATA_TABLE, id="cow", marks=pytest.mark.soak),
        pytest.param("COW", 9, METADATA_COMPACTED, id="cow-metadata-table", marks=pytest.mark.soak),
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


def test_what_keeps_writes_older_than_a_position_of_a_stream_is_named(
    spark: SparkSession, make_table: MakeTable
) -> None:
    position = {"hoodie.datasource.write.commitmeta.key.prefix": "reader.", "reader.position": "17"}
    table = make_table(type="COW", **position)
    others = {name: value for name, value in table.written.hudi_options.items() if name not in position}
    for commit in (3, 4):
        write(spark, replace(table.written, hudi_options=others), commit)
    before = active(table)
    kept = {CHECKPOINT_DAYS: "30", CHECKPOINT_KEYS: "reader.position"}
    message = run(spark, archive(table, options=EAGER_ARCHIVE | kept)).message
    assert "the metadata table has no completed compaction" in message
    compacted = EAGER_ARCHIVE | kept | NO_METADATA_TABLE
    message = run(spark, archive(table, options=compacted)).message
    assert message.endswith(
        f"3 newest writes stay active: commit {before[-3]} has the newest checkpoint reader.position"
    )
    assert active(table) == before[-3:]


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


def test_sensor_finds_what_hudi_archived_behind_an_index_build_and_no_commit_makes_the_build_due_again(
    spark: SparkSession, make_table: MakeTable
) -> None:
    """Hudi archives no `indexing`, so the active timeline begins before cursors whose commits are archived."""
    table = make_table(type="COW", **METADATA_COMPACTED)
    index = requested_options(parse_indexes(["column_stats:amount"]))
    build = table.request(Mode.SCHEDULE_AND_EXECUTE, service=Service.INDEXING, service_options=index)
    timelines = SharedTimelines()
    assert decide_on_index(timelines, table).verdict is Verdict.DUE
    assert run(spark, build).outcome is Outcome.COMPLETED
    timelines.hint(str(table.path))
    timelines.refresh_if_due(str(table.path), is_hinted=True)
    assert timelines.snapshot(str(table.path)).properties == load_table_properties(open_storage(str(table.path)))
    view = FileSystemTimelineView(str(table.path))
    readers = [SimpleNamespace(after=completed, found=[]) for _, completed in hudis_commits(spark, table)]
    for commit in range(3, 8):
        write(spark, table.written, commit)
        if commit in {5, 7}:
            assert run(spark, archive(table)).outcome is Outcome.COMPLETED
        commits = hudis_commits(spark, table)
        timelines.hint(str(table.path), [commits[-1][0]], is_by_writer=True)
        assert decide_on_index(timelines, table).verdict is Verdict.NOT_DUE
        readers.append(SimpleNamespace(after=commits[-1][1], found=[]))
        for reader in readers[::2]:  # the others read at the end only
            reader.found += read_after(view, reader)
    assert active(table)[0] < archived(spark, table)[-1], "the index build stays at the head"
    commits = hudis_commits(spark, table)
    assert len(commits) == 8
    for (_, began), reader in zip(commits, readers, strict=True):
        reader.found += read_after(view, reader)
        assert reader.found == [requested for requested, completed in commits if completed > began]


def decide_on_index(timelines: SharedTimelines, table: Table) -> Decision:
    """Decide as the manager does when it is notified of a commit."""
    policy = TablePolicy(indexing=TablePolicy().indexing.replace(indexes=("column_stats:amount",)), hudi_options=LOCK)
    return decide_indexing(TableFacts(TableViewCache(timelines).refresh(str(table.path), 0)), policy, 0)


def read_after(view: FileSystemTimelineView, reader: SimpleNamespace) -> list[str]:
    """Read as a sensor does, and move its cursor on."""
    watch = Watch(WatchKind.COMMIT, ((view.base_path, reader.after),))
    (finding,) = find_changes(watch, SimpleNamespace(get_view=lambda _: view), NOW)
    assert (finding.error, finding.incomplete) == (None, "")
    reader.after = max(reader.after, finding.to_dict()["after"])
    return [instant.requested_time for instant in finding.instants]


def hudis_commits(spark: SparkSession, table: Table) -> list[tuple[str, str]]:
    """Return requested and completed time of all commits that Hudi itself knows of, by completion."""
    meta_client = read_table_state(spark, str(table.path)).meta_client
    found: set[tuple[str, str]] = set()
    for timeline in (meta_client.getActiveTimeline(), meta_client.getArchivedTimeline()):
        for instant in timeline.getCommitsTimeline().filterCompletedInstants().getInstants():
            found.add((instant.requestedTime(), instant.getCompletionTime()))
    return sorted(found, key=lambda commit: commit[1])


def test_scheduling_is_refused_with_a_sentence(spark: SparkSession, make_table: MakeTable) -> None:
    result = run(spark, archive(make_table(type="COW"), Mode.SCHEDULE))
    assert result.outcome is Outcome.FAILED
    assert "no plan to schedule" in result.message


@pytest.mark.soak(
    covered_by="tests/integration/spark/test_standing_on_hudi.py"
)  # in their order in one application: test_standing_on_hudi.py
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


def test_a_merge_on_read_table_that_only_insert_overwrites_fill_is_archived(
    spark: SparkSession, make_table: MakeTable
) -> None:
    """Hudi keeps everything from the first delta commit on until five came, for a trigger that no writer has."""
    table = make_table(type="MOR", **NO_METADATA_TABLE)
    overwrite = {"hoodie.datasource.write.operation": "insert_overwrite_table"}
    for commit in range(3, 7):
        lake_writer.write_commit(
            spark, table.written, commit, lake_writer.write_options(table.written, commit, None, {}) | overwrite
        )
    before = content(spark, table)
    rules = TablePolicy(
        archive=ArchivePolicy(min_commits=2, max_commits=3),
        clean=CleanPolicy(commits=1, retained_commits=1),
        hudi_options=LOCK,
    )
    clean = table.request(
        Mode.SCHEDULE_AND_EXECUTE, service=Service.CLEAN, service_options=dict(service_options(Service.CLEAN, rules))
    )
    assert run(spark, clean).outcome is Outcome.COMPLETED
    chosen = dict(service_options(Service.ARCHIVE, rules))
    counts = run(spark, archive(table, options=chosen | {COMPACTION_TRIGGER: "NUM_COMMITS"}))
    assert "the compaction trigger counts 5 delta commits" in counts.message
    done = run(spark, archive(table, options=chosen))
    assert done.outcome is Outcome.COMPLETED, done.message
    assert content(spark, table) == before


def test_archiving_passes_no_savepoint_whatever_is_set_elsewhere(spark: SparkSession, make_table: MakeTable) -> None:
    table = behind_savepoint(spark, make_table)
    before = content(spark, table)
    request = archive(table, options=dict(archive_options(ArchivePolicy(min_commits=2, max_commits=3))))
    beyond = {"hoodie.archive.beyond.savepoint": "true", **EAGER_ARCHIVE, **COMPACTION_COUNTS_ONE}
    result = run(spark, replace(request, hudi_options={**request.hudi_options, **beyond}))
    assert (result.outcome, archived(spark, table)) == (Outcome.NOTHING_TO_DO, ()), result.message
    assert content(spark, table) == before


def test_writes_archived_behind_a_savepoint_are_named_and_no_service_makes_their_loss_final(
    spark: SparkSession, make_table: MakeTable
) -> None:
    """Hudi's own archiver, as a writer with hoodie.archive.beyond.savepoint=true runs it."""
    table = behind_savepoint(spark, make_table)
    before, timeline = content(spark, table), active(table)
    at_work = {"hoodie.table.services.enabled": "true", "hoodie.clean.automatic": "false"}
    settings = {**LOCK, **at_work, **NO_METADATA_TABLE, **EAGER_ARCHIVE, **COMPACTION_COUNTS_ONE}
    with open_client(spark, str(table.path), {**settings, "hoodie.archive.beyond.savepoint": "true"}, {}) as client:
        client.archive()
    assert content(spark, table) != before, "Hudi returns these writes now: the refusal can go"
    lost = sorted(set(timeline) - set(active(table)))
    (finding,) = diagnose(collect_evidence(open_storage(str(table.path)), int(time.time() * 1000)))
    assert (finding.kind, finding.instant) == (StuckKind.ARCHIVED_BEHIND_SAVEPOINT, timeline[0])
    assert f"{len(lost)} writes after savepoint {timeline[0]} are archived, so Hudi" in finding.message
    assert f"({lost[0]}, " in finding.message
    files = table.files()
    for service in (Service.COMPACTION, Service.CLEAN, Service.CLUSTERING, Service.LOGCOMPACTION):
        refused = run(spark, table.request(Mode.SCHEDULE_AND_EXECUTE, service=service))
        assert refused.outcome is Outcome.FAILED
        assert f"{len(lost)} writes after savepoint {timeline[0]} are archived" in refused.message
    assert table.files() == files
    # What the finding advises.
    with open_client(spark, str(table.path), settings, {}) as client:
        client.deleteSavepoint(timeline[0])
    refused = run(spark, table.request(Mode.SCHEDULE_AND_EXECUTE))
    assert "this service would make that final" in refused.message, "its write is active still"
    none_before = {"hoodie.keep.min.commits": "0", "hoodie.keep.max.commits": "1"}
    done = run(spark, archive(table, options=EAGER_ARCHIVE | COMPACTION_COUNTS_ONE | none_before))
    assert done.outcome is Outcome.COMPLETED, done.message
    assert content(spark, table) == before
    assert diagnose(collect_evidence(open_storage(str(table.path)), int(time.time() * 1000))) == ()
    assert run(spark, table.request(Mode.SCHEDULE_AND_EXECUTE)).outcome is Outcome.COMPLETED
    assert rows(spark, table) == rows_written(spark, table.written, 5)


def behind_savepoint(spark: SparkSession, make_table: MakeTable) -> Table:
    """Make a merge-on-read table whose first write has a savepoint, with updates behind it."""
    table = make_table(type="MOR", version=9, **NO_METADATA_TABLE)
    with open_client(spark, str(table.path), {**LOCK, **NO_METADATA_TABLE}, {}) as client:
        client.savepoint(active(table)[0], "test", "before the updates")
    for commit in (3, 4):
        write(spark, table.written, commit)
    return table
