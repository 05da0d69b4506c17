"""Writers in another time zone than the jobs, on real Hudi: what happens to rows, and that no service is planned then.

The session's JVM runs the jobs. The writer is a process of its own: a JVM keeps the zone with which Hudi's classes were
loaded, and never names an instant that sorts before its last one.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import pytest
from conftest import ROOT, SPARK_JOBS, MakeTable, Table, rows, rows_written, run

from airflow_lake_provider.config.policies import StuckKind, TablePolicy
from airflow_lake_provider.doctor.diagnosis import Finding
from airflow_lake_provider.doctor.table_doctor import TableDoctor
from airflow_lake_provider.job_contract import (
    FailureKind,
    JobResult,
    Mode,
    Outcome,
    Service,
    ServiceResult,
    from_json,
    to_json,
)
from airflow_lake_provider.storage.table_storage import open_storage
from local_stack import hudi_bundle, lake_writer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WRITERS_ZONE = "America/New_York"
SAYS_UTC = {"hoodie.table.timeline.timezone": "UTC"}
JOBS_IN_TURN = """
import sys
from pathlib import Path
from airflow_lake_provider.job_contract import JobRequest, from_json, to_json
from lake_jobs.driver.application import open_session
from run_services import run_job
spark = open_session()
for path in sys.argv[1:]:
    request = from_json(JobRequest, Path(path).read_text())
    Path(request.result_path).write_text(to_json(run_job(spark, request)))
"""
PATIENCE_S = 240.0


@pytest.fixture(scope="module", autouse=True)
def _zone_of_this_process(spark: SparkSession) -> None:
    jobs_zone = str(spark._jvm.java.util.TimeZone.getDefault().getID())
    assert jobs_zone != WRITERS_ZONE, "these tests need a writer in another zone than this machine's"


@pytest.fixture(scope="module")
def written(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, lake_writer.WrittenTable]:
    """Tables that a writer in New York wrote, each with a base commit and log files."""
    lake = tmp_path_factory.mktemp("new york")
    kinds = {"v9": (9, 3, {}), "v8": (8, 2, {}), "v6": (6, 2, {}), "utc": (9, 3, SAYS_UTC)}
    tables = {
        name: lake_writer.WrittenTable(
            name, str(lake / name), "MOR", version, commits=commits, keys=80, rows=17, pause_s=0.0, hudi_options=options
        )
        for name, (version, commits, options) in kinds.items()
    }
    # One JVM for each of them: Hudi keeps one zone per JVM, and names no instant that sorts before its last one.
    local = [table for table in tables.values() if not table.hudi_options]
    write_in_new_york(lake, local, [tables["utc"]])
    return tables


def write_in_new_york(folder: Path, *jvms: list[lake_writer.WrittenTable]) -> None:
    """Let a writer in New York write tables, one after another in each JVM."""
    command = [sys.executable, str(ROOT / "local_stack" / "lake_writer.py")]
    env = {**hudi_bundle.spark_env(Path(sys.executable), hudi_bundle.HUDI_CLASSES), "TZ": WRITERS_ZONE}
    writers = []
    for number, tables in enumerate(jvms):
        settings = {
            "tables": [{**asdict(table), "hudi_options": dict(table.hudi_options)} for table in tables],
            "spark_conf": {"spark.jars": str(hudi_bundle.JAR), **hudi_bundle.bundle_first()},
        }
        path = folder / f"settings-{number}.json"
        path.write_text(json.dumps(settings), encoding="utf-8")
        with path.with_suffix(".log").open("wb") as log:
            writers.append((subprocess.Popen([*command, str(path)], env=env, cwd=ROOT, stdout=log, stderr=log), path))
    try:
        for writer, path in writers:
            assert writer.wait(PATIENCE_S) == 0, path.with_suffix(".log").read_text()[-4000:]
    finally:
        for writer, _ in writers:
            writer.kill()
            writer.wait()


def examine(table: Table) -> dict[StuckKind, Finding]:
    doctor = TableDoctor(open_storage(str(table.path)), TablePolicy(), "test", lambda: int(time.time() * 1000))
    return {finding.kind: finding for finding, _ in doctor.examine()}


@pytest.mark.parametrize("kind", ["v9", "v8", "v6"])
def test_no_service_begins_on_a_table_whose_writer_is_in_another_zone(
    spark: SparkSession, written: dict[str, lake_writer.WrittenTable], kind: str
) -> None:
    table = Table(written[kind])
    before = table.files()
    others = (Service.CLEAN, Service.CLUSTERING, Service.ROLLBACK, Service.ARCHIVE) if kind == "v9" else ()
    for service in (Service.COMPACTION, *others):
        result = run(spark, table.request(Mode.SCHEDULE_AND_EXECUTE, service=service))
        assert (result.outcome, result.failure_kind) == (Outcome.FAILED, FailureKind.REFUSED), result
        assert str(table.path) in result.message
        assert "hoodie.table.timeline.timezone=LOCAL" in result.message
        assert "h behind the clock of the jobs" in result.message
        assert max(table.completed("deltacommit")) in result.message
    assert table.files() == before
    assert rows(spark, table) == rows_written(spark, table.written, table.written.commits)


def test_a_table_whose_instants_are_in_utc_is_served_whatever_the_writers_zone(
    spark: SparkSession, written: dict[str, lake_writer.WrittenTable], tmp_path: Path
) -> None:
    table = copy_of(written["utc"], tmp_path)
    result = run(spark, table.request(Mode.SCHEDULE_AND_EXECUTE))
    assert result.outcome is Outcome.COMPLETED, result.message
    assert rows(spark, table) == rows_written(spark, table.written, table.written.commits)
    assert StuckKind.FOREIGN_TIME_ZONE not in examine(table)


def test_jobs_in_the_writers_zone_serve_its_tables_and_name_instants_as_each_table_says(
    spark: SparkSession, written: dict[str, lake_writer.WrittenTable], tmp_path: Path
) -> None:
    in_local, in_utc = (copy_of(written[kind], tmp_path / kind) for kind in ("v9", "utc"))
    began = datetime.now(UTC)
    for result in run_in_new_york(tmp_path, in_local, in_utc):
        assert result.outcome is Outcome.COMPLETED, result.message
    for table, zone in ((in_local, ZoneInfo(WRITERS_ZONE)), (in_utc, UTC)):
        ((requested, completed),) = table.spans("commit")
        assert f"{began.astimezone(zone):%Y%m%d%H%M%S}" <= requested < completed
        assert completed[:14] <= f"{datetime.now(zone):%Y%m%d%H%M%S}"
        assert rows(spark, table) == rows_written(spark, table.written, table.written.commits)


def run_in_new_york(folder: Path, *tables: Table) -> list[ServiceResult]:
    """Compact tables with the jobs in a JVM of that zone."""
    requests = []
    for table in tables:
        request = table.request(Mode.SCHEDULE_AND_EXECUTE)
        requests.append(folder / f"{table.written.name}.json")
        requests[-1].write_text(to_json(request), encoding="utf-8")
    quick = " ".join(f"--conf {key}={value}" for key, value in hudi_bundle.bundle_first().items())
    settings = f"--master local[1] --jars {hudi_bundle.JAR} --conf spark.ui.enabled=false {quick}"
    env = {
        **hudi_bundle.spark_env(Path(sys.executable), hudi_bundle.HUDI_CLASSES),
        "TZ": WRITERS_ZONE,
        "PYTHONPATH": os.pathsep.join([str(SPARK_JOBS), str(ROOT)]),
        "PYSPARK_SUBMIT_ARGS": f"{settings} pyspark-shell",
    }
    command = [sys.executable, "-c", JOBS_IN_TURN, *map(str, requests)]
    done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    results = (Path(table.request(Mode.EXECUTE).result_path).read_text(encoding="utf-8") for table in tables)
    return [from_json(JobResult, text).services[0] for text in results]


def test_a_writer_in_the_jobs_zone_is_served(spark: SparkSession, make_table: MakeTable) -> None:
    table = make_table()
    result = run(spark, table.request(Mode.SCHEDULE_AND_EXECUTE))
    assert result.outcome is Outcome.COMPLETED, result.message
    assert not {StuckKind.FOREIGN_TIME_ZONE, StuckKind.DISORDERED_WRITES} & examine(table).keys()


@pytest.mark.soak
def test_rows_behind_a_compaction_from_another_zone_are_stale_and_the_doctor_names_them(
    spark: SparkSession, written: dict[str, lake_writer.WrittenTable], tmp_path: Path
) -> None:
    """What the services would do without their question: shown with Hudi's own client."""
    table = copy_of(written["v9"], tmp_path)
    found = examine(table)
    assert StuckKind.FOREIGN_TIME_ZONE in found
    assert StuckKind.DISORDERED_WRITES not in found
    compaction = compact_with_hudi_alone(spark, table)
    known = table.completed("deltacommit")
    write_in_new_york(tmp_path, [continued(table.written, commits=2)])
    later = sorted(table.completed("deltacommit") - known)
    assert len(later) == 2

    expected = rows_written(spark, table.written, table.written.commits + 2)
    stale = set(expected) - set(rows(spark, table))
    assert stale, "Hudi reads these rows by now: the guard may go"
    finding = examine(table)[StuckKind.DISORDERED_WRITES]
    assert finding.instant == compaction
    assert all(instant in finding.message for instant in later)

    result = run(spark, table.request(Mode.SCHEDULE_AND_EXECUTE))
    assert (result.outcome, result.failure_kind) == (Outcome.FAILED, FailureKind.REFUSED)


def copy_of(table: lake_writer.WrittenTable, folder: Path) -> Table:
    """Copy a table with the times of its files."""
    shutil.copytree(table.base_path, folder / "orders")
    return Table(replace(table, base_path=str(folder / "orders")))


def continued(table: lake_writer.WrittenTable, commits: int) -> lake_writer.WrittenTable:
    return replace(table, first_commit=table.commits, commits=commits)


def compact_with_hudi_alone(spark: SparkSession, table: Table) -> str:
    jvm = spark._jvm
    settings = jvm.java.util.HashMap()
    for key, value in {**lake_writer.MANAGED_LAKE, "hoodie.table.services.enabled": "true"}.items():
        settings.put(key, value)
    settings.put("hoodie.compact.inline.max.delta.commits", "1")
    client = jvm.org.apache.hudi.HoodieCLIUtils.createHoodieWriteClient(
        spark._jsparkSession, str(table.path), jvm.PythonUtils.toScalaMap(settings), jvm.scala.Option.empty()
    )
    try:
        instant = str(client.scheduleCompaction(jvm.org.apache.hudi.common.util.Option.empty()).get())
        auto_complete = True
        client.compact(instant, auto_complete)
    finally:
        client.close()
    return instant
