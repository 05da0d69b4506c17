"""What the check of a restore names, compared with what Hudi's own restore takes from the timeline."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from conftest import ROOT, SPARK_JOBS, MakeTable, Table, content, rows, rows_written, run, write
from test_archive_on_hudi import NO_METADATA_TABLE

from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.doctor.report_lines import LineKind, is_refused
from airflow_lake_provider.doctor.restore_check import check_restore
from airflow_lake_provider.doctor.restore_facts import load_restore_facts
from airflow_lake_provider.indexing.index_spec import parse_indexes, requested_options
from airflow_lake_provider.job_contract import INDEX_DROP, Mode, Outcome, Service
from airflow_lake_provider.storage.table_storage import open_storage
from lake_jobs.hudi.table import open_client
from local_stack import lake_writer

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from pyspark.sql import SparkSession

    from airflow_lake_provider.doctor.report_lines import ReportLine

WRITES = ("commit", "deltacommit", "replacecommit", "compaction", "logcompaction", "clustering")
LATER_MS = 600_000
"""The heartbeats of the tests' writers are old by then."""


def check(table: Table, savepoint: str) -> tuple[ReportLine, ...]:
    now_ms = int(time.time() * 1000) + LATER_MS
    return check_restore(load_restore_facts(open_storage(str(table.path)), TablePolicy(), savepoint, now_ms))


def named(lines: tuple[ReportLine, ...], kind: LineKind) -> set[str]:
    return {line.subject for line in lines if line.kind is kind}


def writes_of(table: Table) -> set[str]:
    """Return the requested times of all writes and plans on the timeline, by the names of its files."""
    found = set()
    for name in table.files():
        words = name.split(".")
        if words[1:] == ["inflight"] or (len(words) > 1 and words[1] in WRITES):
            found.add(words[0].split("_")[0])
    return found


def settings_of(table: Table) -> dict[str, str]:
    settings = lake_writer.write_options(table.written, 3, None, {}) | {"hoodie.table.services.enabled": "true"}
    version = {"hoodie.write.table.version": str(table.written.version), "hoodie.write.auto.upgrade": "false"}
    return settings | version


def with_client(spark: SparkSession, table: Table) -> Any:
    return open_client(spark, str(table.path), settings_of(table), {})


def restore_by_sql(spark: SparkSession, table: Table, savepoint: str, settings: set[str]) -> None:
    """Restore by Hudi's procedure, as the documentation says, with these settings and no others."""
    named = dict(setting.split("=") for setting in settings)
    for key, value in named.items():
        spark.conf.set(key, value)
    try:
        spark.sql(f"CALL rollback_to_savepoint(path => '{table.path}', instant_time => '{savepoint}')").collect()
    finally:
        for key in named:
            spark.conf.unset(key)


@pytest.mark.parametrize(
    ("type", "version", "options"),
    [
        ("MOR", 9, {}),
        ("COW", 6, {}),
        pytest.param("MOR", 6, NO_METADATA_TABLE, marks=pytest.mark.soak),
        pytest.param("MOR", 6, {}, marks=pytest.mark.soak),
        pytest.param("MOR", 8, {}, marks=pytest.mark.soak),
        pytest.param("COW", 8, NO_METADATA_TABLE, marks=pytest.mark.soak),
        pytest.param("COW", 9, {}, marks=pytest.mark.soak),
    ],
)
def test_check_names_what_the_restore_takes_back(
    spark: SparkSession, make_table: MakeTable, type: str, version: int, options: dict[str, str]
) -> None:
    table = make_table(type=type, version=version, **options)
    before = content(spark, table)
    saved = max(table.completed() | table.completed("deltacommit"))
    with with_client(spark, table) as client:
        client.savepoint(saved, "people", "before the change")
    refused = check(table, saved)
    assert [line.what for line in refused] == ["nothing was written after this savepoint"]
    for commit in (3, 4):
        write(spark, table.written, commit)
    if type == "MOR":
        assert run(spark, table.request(Mode.SCHEDULE)).outcome is Outcome.SCHEDULED
    writes = writes_of(table)

    lines = check(table, saved)

    assert not is_refused(lines), lines
    assert named(lines, LineKind.TAKEN_BACK) == {write for write in writes if write > saved}
    restore_by_sql(spark, table, saved, named(lines, LineKind.SETTING))
    assert writes - writes_of(table) == named(lines, LineKind.TAKEN_BACK)
    assert table.properties()["hoodie.table.version"] == str(version)
    assert content(spark, table) == before


def test_check_names_younger_indexes_and_refuses_younger_savepoints(spark: SparkSession, make_table: MakeTable) -> None:
    table = make_table(type="COW")
    saved = max(table.completed())
    with with_client(spark, table) as client:
        client.savepoint(saved, "people", "before the change")
    write(spark, table.written, 3)
    index = requested_options(parse_indexes(["record_index"]))
    build = table.request(Mode.SCHEDULE_AND_EXECUTE, service=Service.INDEXING, service_options=index)
    assert run(spark, build).outcome is Outcome.COMPLETED
    assert named(check(table, saved), LineKind.INDEX) == {"record_index"}
    by_writer = replace(
        table.written, hudi_options=table.written.hudi_options | {"hoodie.metadata.index.bloom.filter.enable": "true"}
    )
    write(spark, by_writer, 4)
    assert named(check(table, saved), LineKind.INDEX) == {"record_index", "bloom_filters"}

    younger = max(table.completed())
    with with_client(spark, table) as client:
        client.savepoint(younger, "people", "after the change")
        lines = check(table, saved)
        assert named(lines, LineKind.REFUSED) == {younger}
        with pytest.raises(Exception, match="avepoint"):
            client.restoreToSavepoint(saved)


@pytest.mark.soak
def test_a_table_whose_younger_index_is_dropped_first_is_written_and_indexed_after_the_restore(
    spark: SparkSession, make_table: MakeTable
) -> None:
    table = make_table()
    before = content(spark, table)
    saved = max(table.completed("deltacommit"))
    with with_client(spark, table) as client:
        client.savepoint(saved, "people", "before the change")
    write(spark, table.written, 3)
    index = requested_options(parse_indexes(["record_index"]))
    build = table.request(Mode.SCHEDULE_AND_EXECUTE, service=Service.INDEXING, service_options=index)
    assert run(spark, build).outcome is Outcome.COMPLETED
    drop = table.request(
        Mode.SCHEDULE_AND_EXECUTE, service=Service.INDEXING, service_options=index | {INDEX_DROP: "true"}
    )
    dropped = run(spark, drop)
    assert dropped.outcome is Outcome.COMPLETED, dropped.message
    lines = check(table, saved)
    assert not named(lines, LineKind.INDEX)
    assert not is_refused(lines)

    restore_by_sql(spark, table, saved, named(lines, LineKind.SETTING))

    assert content(spark, table) == before
    write(spark, table.written, 3)
    rebuilt = run(spark, build)
    assert rebuilt.outcome is Outcome.COMPLETED, rebuilt.message
    assert rows(spark, table) == rows_written(spark, table.written, 4)


RESTORE = """
import sys
from pathlib import Path
from tests.support.spark_session import open_test_session
from lake_jobs.hudi.table import open_client
settings = dict(line.split("=", 1) for line in sys.argv[4:])
spark = open_test_session(Path(sys.argv[3]))
with open_client(spark, sys.argv[1], settings, {}) as client:
    client.restoreToSavepoint(sys.argv[2])
"""


@pytest.mark.soak(covered_by="tests/field/tables/test_restore_stops_halfway.py")
@pytest.mark.parametrize(("type", "version"), [("MOR", 9), ("COW", 6)])
def test_a_restore_that_was_killed_is_refused_to_others_and_goes_on_when_it_is_repeated(
    spark: SparkSession, make_table: MakeTable, tmp_path: Path, type: str, version: int
) -> None:
    table = make_table(type=type, version=version)
    before = content(spark, table)
    saved = max(table.completed() | table.completed("deltacommit"))
    with with_client(spark, table) as client:
        client.savepoint(saved, "people", "before the change")
    for commit in (3, 4, 5):
        write(spark, table.written, commit)
    lines = check(table, saved)
    words = [f"{key}={value}" for key, value in settings_of(table).items()]
    process = subprocess.Popen(
        [sys.executable, "-c", RESTORE, str(table.path), saved, str(tmp_path / "session"), *words],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, SPARK_JOBS)))},
        start_new_session=True,
    )
    while not any(name.endswith(".restore.inflight") for name in table.files()):
        assert process.poll() is None
        time.sleep(0.002)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not table.completed("restore")

    assert "is pending" in next(line.what for line in check(table, saved) if line.kind is LineKind.REFUSED)
    with with_client(spark, table) as client:
        client.restoreToSavepoint(saved)
    assert len(table.completed("restore")) == 1
    assert content(spark, table) == before
    assert not named(lines, LineKind.TAKEN_BACK) & writes_of(table)
    write(spark, table.written, 3)
    if type == "MOR":
        assert run(spark, table.request(Mode.SCHEDULE_AND_EXECUTE)).outcome is Outcome.COMPLETED
    assert rows(spark, table) == rows_written(spark, table.written, 4)
