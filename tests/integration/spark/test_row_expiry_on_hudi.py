"""Deletion of expired rows of real tables; the rows that must stay are kept outside Hudi."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from conftest import Table, run
from paused_writers import PATIENCE_S, wait_until
from pyspark.sql import functions as F
from test_file_format_on_hudi import base_files, formats
from test_partition_ttl_on_hudi import UNLOCKED
from test_real_processes import _age_heartbeat, _kill_family, submit  # noqa: F401 - a fixture
from test_replication_on_hudi import Lake, _time_zone  # noqa: F401 - the fixture holds here as well
from test_small_commits_on_hudi import WITHOUT_CHANGE_DATA

from airflow_lake_provider.job_contract import (
    TTL_COLUMN,
    TTL_COLUMN_DAYS,
    TTL_COLUMN_MODE,
    TTL_COLUMN_UNIT,
    TTL_MAX_FILE_GROUPS,
    FailureKind,
    JobRequest,
    Mode,
    Outcome,
    Service,
    ServiceResult,
)
from lake_jobs.services import row_deletion
from local_stack import lake_writer
from tests.support.spark_session import ONE_TASK

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from pyspark.sql import SparkSession

NOW = datetime.now(UTC).replace(microsecond=0)
OLD = NOW - timedelta(days=400)
OLDER = NOW - timedelta(days=800)
NEW = NOW - timedelta(days=10)
Rows = dict[int, datetime | None]
PAYLOADS = "org.apache.hudi.common.model"


class Events:
    """A table with a time in a column, and the rows that it must have."""

    def __init__(
        self, spark: SparkSession, folder: Path, type: str = "MOR", version: int = 9, kind: str = "timestamp", **o: str
    ) -> None:
        options = ONE_TASK | {key.replace("__", "."): value for key, value in o.items()}
        self.spark = spark
        self.table = Table(
            lake_writer.WrittenTable("events", str(folder / "lake" / "events"), type, version, hudi_options=options)
        )
        self.kind = kind
        self.rows: Rows = {}

    def write(self, rows: Rows, ts: int = 0, operation: str = "upsert", **more: str) -> None:
        wanted = {
            "timestamp": "timestamp_seconds(s)",
            "date": "date_from_unix_date(cast(s / 86400 as int))",
            "ms": "s * 1000",
            "timestamp_ntz": "cast(timestamp_seconds(s) as timestamp_ntz)",
        }[self.kind]
        found = [(at, f"c{at % 2}", None if seen is None else int(seen.timestamp()), ts) for at, seen in rows.items()]
        frame = self.spark.createDataFrame(found, "id long, city string, s long, ts long")
        more = {"hoodie.datasource.write.operation": operation, **more}
        settings = lake_writer.write_options(self.table.written, 0, None, more)
        rows_of_table = frame.withColumn("seen", F.expr(wanted)).drop("s")
        rows_of_table.write.format("hudi").options(**settings).mode("append").save(str(self.table.path))
        self.rows |= rows

    def expire(self, mode: Mode = Mode.EXECUTE, days: int = 365, **more: str) -> ServiceResult:
        return run(self.spark, self.request(mode, days, **more))

    def request(self, mode: Mode = Mode.EXECUTE, days: int = 365, **more: str) -> JobRequest:
        unit = {TTL_COLUMN_UNIT: self.kind} if self.kind == "ms" else {}
        options = {TTL_COLUMN: "seen", TTL_COLUMN_DAYS: str(days), **unit, **more}
        return self.table.request(mode, service=Service.TTL, service_options=options)

    def require_rows(self) -> None:
        for uses_metadata in ("true", "false"):
            read = self.spark.read.format("hudi").option("hoodie.metadata.enable", uses_metadata)
            found = read.load(str(self.table.path)).select("id").collect()
            assert sorted(row[0] for row in found) == sorted(self.rows)

    def keep_only(self, keeps: Iterable[int]) -> None:
        self.rows = {at: self.rows[at] for at in keeps}


def all_at(ids: Iterable[int], seen: datetime | None) -> Rows:
    return dict.fromkeys(ids, seen)


def fill(events: Events) -> None:
    """Write rows of which 13 expire; base files have old values of rows that were written again since."""
    events.write(all_at(range(20), OLD) | all_at(range(20, 24), NEW) | all_at([24, 25], None))
    events.write(all_at(range(8), NEW) | all_at([8, 9], OLDER) | {20: OLD}, ts=5)
    assert sum(1 for seen in events.rows.values() if seen is not None and seen < NEW) == 13


def kept(events: Events) -> list[int]:
    return [at for at, seen in events.rows.items() if seen is None or seen >= NEW]


@pytest.mark.parametrize(
    ("type", "version", "kind", "options"),
    [
        pytest.param("COW", 9, "timestamp", {"hoodie__parquet__compression__codec": "zstd"}, id="cow-9"),
        pytest.param("MOR", 9, "ms", {}, id="mor-9"),
        pytest.param("MOR", 6, "date", {}, id="mor-6"),
        pytest.param(
            "COW",
            6,
            "date",
            {"hoodie__parquet__compression__codec": "snappy", "hoodie__bloom__index__filter__type": "SIMPLE"},
            id="cow-6",
            marks=pytest.mark.soak,
        ),
        pytest.param("MOR", 8, "timestamp_ntz", {}, id="mor-8", marks=pytest.mark.soak),
        pytest.param(
            "MOR",
            9,
            "timestamp",
            {"hoodie__index__type": "BUCKET", "hoodie__bucket__index__num__buckets": "2"},
            id="buckets",
            marks=pytest.mark.soak,
        ),
        pytest.param(
            "COW",
            9,
            "ms",
            {"hoodie__metadata__record__index__enable": "true", "hoodie__index__type": "RECORD_INDEX"},
            id="record-index",
            marks=pytest.mark.soak,
        ),
        pytest.param(
            "MOR",
            9,
            "timestamp",
            {"hoodie__metadata__index__column__stats__enable": "true"},
            id="column-stats",
            marks=pytest.mark.soak,
        ),
    ],
)
def test_expired_rows_go_and_others_stay(
    spark: SparkSession, tmp_path: Path, type: str, version: int, kind: str, options: dict[str, str]
) -> None:
    events = Events(spark, tmp_path, type, version, kind, **options)
    fill(events)
    written = base_files(events.table)
    files = events.table.files()
    report = events.expire(**{TTL_COLUMN_MODE: "report"})
    assert report.outcome is Outcome.NOTHING_TO_DO, report.message
    assert "13 rows" in report.message
    assert events.table.files() == files

    result = events.expire()
    assert result.outcome is Outcome.COMPLETED, result.message
    assert "deleted 13 rows" in result.message
    (instant,) = result.completed_instants
    assert instant in events.table.completed("commit" if type == "COW" else "deltacommit")
    events.keep_only(kept(events))
    events.require_rows()
    assert bool(base_files(events.table) - written) is (type == "COW")
    assert formats(base_files(events.table)) == formats(written)

    files = events.table.files()
    assert events.expire().outcome is Outcome.NOTHING_TO_DO
    assert events.table.files() == files
    # A key that comes back is a row again, whatever index its writer asks.
    events.write(all_at([8, 20, 30], NEW))
    events.require_rows()


def test_options_of_the_tables_file_reach_the_service_as_a_task_sends_them(spark: SparkSession, tmp_path: Path) -> None:
    events = Events(spark, tmp_path, "COW")
    fill(events)
    (service,) = events.request().services
    # A task has them among Hudi's, with the lock, and none of the service's own.
    job = events.table.request(service.mode, service=service.service)
    result = run(spark, replace(job, hudi_options={**job.hudi_options, **service.options}))
    assert "deleted 13 rows" in result.message, result.message
    events.keep_only(kept(events))
    events.require_rows()


def test_row_that_a_writer_writes_again_after_the_search_stays(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = Events(spark, tmp_path)
    fill(events)

    def write_first(*_: object) -> None:
        events.write(all_at([10, 12, 13], NEW), ts=9)

    monkeypatch.setattr(row_deletion, "wait_for_writers", write_first)
    result = events.expire()
    assert "deleted 10 rows" in result.message, result.message
    events.keep_only(kept(events))
    assert {10, 12, 13} <= set(events.rows)
    events.require_rows()


@pytest.mark.parametrize("type", ["COW", pytest.param("MOR", marks=pytest.mark.soak)])
def test_write_without_a_lock_wins_and_the_deletion_is_taken_back(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, type: str
) -> None:
    events = Events(spark, tmp_path, type)
    fill(events)
    load_living_writers = row_deletion.load_living_writers

    def write_first(*args: Any) -> Any:
        monkeypatch.undo()
        events.write(all_at([10, 12], NEW), ts=9, **UNLOCKED)
        return load_living_writers(*args)

    # Between the reading under the lock and the deletion.
    monkeypatch.setattr(row_deletion, "load_living_writers", write_first)
    result = events.expire()
    assert (result.outcome, result.failure_kind) == (Outcome.FAILED, FailureKind.CONFLICT), result.message
    events.require_rows()
    begun = {name.split(".")[0] for name in events.table.files() if name.endswith("commit.requested")}
    assert begun == events.table.completed("commit") | events.table.completed("deltacommit")
    assert "deleted 11 rows" in events.expire().message
    events.keep_only(kept(events))
    events.require_rows()


def test_file_groups_with_the_oldest_rows_go_first(spark: SparkSession, tmp_path: Path) -> None:
    events = Events(spark, tmp_path, "COW")
    events.write(all_at([1, 3, 5], OLD) | all_at([2, 4], OLDER))
    result = events.expire(**{TTL_MAX_FILE_GROUPS: "1"})
    assert "deleted 2 rows of 1 file groups" in result.message
    assert "1 file groups stay" in result.message
    events.keep_only([1, 3, 5])
    events.require_rows()


def test_key_with_an_expired_row_and_another_one_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    events = Events(spark, tmp_path, "COW")
    same_file = {"hoodie.parquet.small.file.limit": "104857600", "hoodie.merge.allow.duplicate.on.inserts": "true"}
    events.write(all_at([2, 4], OLD), operation="insert", **same_file)
    events.write({2: NEW}, operation="insert", **same_file)
    files = events.table.files()
    result = events.expire()
    assert result.outcome is Outcome.FAILED
    assert "key '2' has several rows in one file group" in result.message
    assert events.table.files() == files


@pytest.mark.parametrize(
    ("table", "more", "says"),
    [
        pytest.param({}, {"mode": Mode.SCHEDULE}, "no plan to schedule", id="schedule"),
        pytest.param({}, {TTL_COLUMN: "gone"}, "has no column gone: correct ttl.column", id="no-column"),
        pytest.param({}, {TTL_COLUMN: "city"}, "city is a partition field", id="partition-field"),
        pytest.param({}, {TTL_COLUMN: "ts"}, "ts is a bigint: set ttl.column_unit", id="no-unit"),
        pytest.param({}, {TTL_COLUMN_UNIT: "s"}, "seen is a timestamp, and ttl.column_unit is of", id="unit"),
        pytest.param({"kind": "ms"}, {TTL_COLUMN_UNIT: "us"}, "before 1980: correct ttl.column_unit", id="other-unit"),
        pytest.param({"hoodie__populate__meta__fields": "false"}, {}, "virtual keys", id="virtual-keys"),
        pytest.param({"hoodie__table__cdc__enabled": "true"}, {}, "records change data", id="cdc"),
        pytest.param(
            {
                "hoodie__datasource__write__payload__class": f"{PAYLOADS}.AWSDmsAvroPayload",
                "version": 6,
            },
            {},
            "merged by a payload's own rules",
            id="payload",
        ),
    ],
)
def test_what_could_be_wrong_is_refused(
    spark: SparkSession, tmp_path: Path, table: dict[str, Any], more: dict[str, Any], says: str
) -> None:
    events = Events(spark, tmp_path, **{"type": "MOR" if "version" in table else "COW", **table})
    events.write(all_at([2, 4], OLD))
    files = events.table.files()
    result = events.expire(**more)
    assert result.outcome is Outcome.FAILED
    assert says in result.message
    assert events.table.files() == files


def test_rows_of_a_pending_clustering_are_waited_for(spark: SparkSession, tmp_path: Path) -> None:
    events = Events(spark, tmp_path, "COW")
    events.write(all_at([2, 4], OLD))
    (plan,) = run(spark, events.table.request(Mode.SCHEDULE, service=Service.CLUSTERING)).scheduled_instants
    result = events.expire()
    assert (result.outcome, result.failure_kind) == (Outcome.FAILED, FailureKind.CONFLICT), result.message
    assert plan in result.message
    events.require_rows()


def test_deletions_reach_a_sink(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, tmp_path, "MOR", **WITHOUT_CHANGE_DATA)
    old, new = (int(moment.timestamp() * 1000) for moment in (OLD, NEW))
    lake.write(lake.rows(range(6), old))
    lake.write(lake.rows([1, 2], new))
    lake.replicate()
    assert sorted(lake.replica()) == [0, 1, 2, 3, 4, 5]
    options = {TTL_COLUMN: "ts", TTL_COLUMN_DAYS: "365", TTL_COLUMN_UNIT: "ms"}
    written = lake_writer.WrittenTable("events", lake.path)
    request = Table(written).request(Mode.EXECUTE, service=Service.TTL, service_options=options)
    assert "deleted 4 rows" in run(spark, request).message
    lake.replicate()
    assert sorted(lake.replica()) == [1, 2]


@pytest.mark.soak
@pytest.mark.parametrize("type", ["COW", "MOR"])
def test_driver_that_is_killed_while_it_writes_leaves_rows_for_the_next_run(
    spark: SparkSession,
    tmp_path: Path,
    submit: Callable[[JobRequest], subprocess.Popen[str]],  # noqa: F811 - a fixture
    type: str,
) -> None:
    events = Events(spark, tmp_path, type)
    fill(events)
    before = events.table.files()
    driver = submit(events.request())
    wait_until(lambda: any(name.endswith(".inflight") for name in pending_files(events, before)), "the deletion")
    _kill_family(driver.pid)
    (instant,) = {name.split(".")[0] for name in pending_files(events, before)}
    assert not [name for name in events.table.files() if name.startswith(f"{instant}_")], "it was too late"
    events.require_rows()
    _age_heartbeat(events.table, instant)
    rolled_back = run(spark, events.table.request(Mode.EXECUTE, service=Service.ROLLBACK))
    assert rolled_back.outcome is Outcome.COMPLETED, rolled_back.message
    events.require_rows()
    # A driver of its own ends by itself, although Hudi called it back.
    output, _ = submit(events.request()).communicate(timeout=PATIENCE_S)
    assert "deleted 13 rows" in output
    events.keep_only(kept(events))
    events.require_rows()


def pending_files(events: Events, before: set[str]) -> set[str]:
    return {name for name in events.table.files() - before if name.endswith((".requested", ".inflight"))}
