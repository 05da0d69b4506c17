"""No service changes what a reader sees (G7): rewritten rows are compared before they are committed.

The judge knows the rows from what was written, and reads the table by Spark with and without its metadata table.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from conftest import content, rows, rows_written, run, write
from pyspark.sql import functions as F
from test_indexing_on_hudi import indexing
from test_planted_plans_on_hudi import edit, plan_of

from airflow_lake_provider.job_contract import REWRITE_BLOCK, VERIFY, FailureKind, Mode, Outcome, Service
from lake_jobs.services import context
from lake_jobs.verify import execution, rewrite, savings
from local_stack import lake_writer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from conftest import MakeTable, Table
    from pyspark.sql import SparkSession

    from airflow_lake_provider.job_contract import ServiceResult

ALL = {VERIFY: "all"}
SAMPLE = {VERIFY: "sample"}
ALL_FILES = {"hoodie.clustering.plan.strategy.small.file.limit": "1000000000"}
BY_LISTING = {"hoodie.metadata.enable": "false"}


def serve(spark: SparkSession, table: Table, service: Service, **options: str) -> ServiceResult:
    wanted = ALL | ALL_FILES | options
    return run(spark, table.request(Mode.SCHEDULE_AND_EXECUTE, service=service, service_options=wanted))


def assert_refused_and_blocked(spark: SparkSession, table: Table, service: Service, result: ServiceResult) -> None:
    assert (result.outcome, result.failure_kind) == (Outcome.FAILED, FailureKind.REFUSED), result.message
    assert result.message.endswith("; the plan is withdrawn"), result.message
    assert not table.pending()
    assert not list((table.path / ".hoodie" / ".heartbeat").glob("2*"))
    assert not [name for name in table.files() if ".clustering." in name]
    block = table.path / REWRITE_BLOCK
    assert block.exists()
    again = serve(spark, table, service)
    assert (again.outcome, again.failure_kind) == (Outcome.FAILED, FailureKind.REFUSED), again.message
    assert REWRITE_BLOCK in again.message
    block.unlink()


@pytest.mark.parametrize("service", [Service.COMPACTION, Service.CLUSTERING])
@pytest.mark.parametrize("version", [9, pytest.param(6, marks=pytest.mark.soak)])
def test_a_rewrite_says_how_much_it_compared(
    spark: SparkSession, make_table: MakeTable, service: Service, version: int
) -> None:
    table = make_table(version=version)
    expected = rows_written(spark, table.written, 3)

    result = serve(spark, table, service)

    assert result.outcome is Outcome.COMPLETED, result.message
    if service is Service.CLUSTERING:
        assert f", {len(expected)} rows (" in result.message
    assert result.message.endswith("with what readers saw: equal")
    assert rows(spark, table) == expected


def test_columns_that_spark_cannot_compare_do_not_freeze_a_table(
    spark: SparkSession, make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compare_as_another_type(spark: SparkSession, *_: Any) -> None:
        spark.range(1).selectExpr("cast(binary('a') as array<float>)")

    monkeypatch.setattr(execution, "compare", compare_as_another_type)
    table = make_table()

    result = serve(spark, table, Service.COMPACTION)

    assert result.outcome is Outcome.COMPLETED, result.message
    assert "nothing was compared: Spark cannot compare the columns ([DATATYPE_MISMATCH" in result.message
    assert rows(spark, table) == rows_written(spark, table.written, 3)


def drop_a_row(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let the next rewrite write one file without its first row; return a list that gets the row's key."""
    dropped: list[str] = []
    write_files = rewrite.write_files

    def write_less(spark: SparkSession, client: Any, service: Service, instant: str) -> rewrite.UncommittedRewrite:
        written = write_files(spark, client, service, instant)
        path = f"{client.getConfig().getBasePath()}/{written.written[0].path}".removeprefix("file:")
        whole = pq.read_table(path)
        dropped.append(whole["_hoodie_record_key"][0].as_py())
        pq.write_table(whole.slice(1), path)
        folder, _, name = path.rpartition("/")
        spark._jvm.java.io.File(f"{folder}/.{name}.crc").delete()
        return written

    monkeypatch.setattr(rewrite, "write_files", write_less)
    return dropped


@pytest.mark.parametrize("service", [Service.COMPACTION, Service.CLUSTERING])
def test_a_row_that_the_executor_loses_is_named_and_nothing_is_committed(
    spark: SparkSession, make_table: MakeTable, monkeypatch: pytest.MonkeyPatch, service: Service
) -> None:
    table = make_table()
    expected = rows_written(spark, table.written, 3)
    with monkeypatch.context() as planted:
        (dropped,) = [drop_a_row(planted)]
        result = serve(spark, table, service)

        assert f"keys: {dropped[0]} (missing in the new files)" in result.message
        assert_refused_and_blocked(spark, table, service, result)
    assert rows(spark, table) == expected

    write(spark, table.written, 3)
    lifted = serve(spark, table, service)

    assert lifted.outcome is Outcome.COMPLETED, lifted.message
    assert rows(spark, table) == rows_written(spark, table.written, 4)


def test_a_sample_always_has_the_file_group_of_which_a_plan_leaves_a_log_file_out(
    spark: SparkSession, make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(savings, "IN_ADVANCE_S", 0.0)
    monkeypatch.setattr(savings, "SAMPLE_SHARE", 0.0)
    table = make_table()
    expected = rows_written(spark, table.written, 3)
    assert run(spark, table.request(Mode.SCHEDULE)).outcome is Outcome.SCHEDULED
    left_out = ""

    def leave_out(record: dict[str, Any]) -> None:
        nonlocal left_out
        chosen = next(each for each in record["operations"] if len(each["deltaFilePaths"]) > 1)
        left_out = chosen["fileId"]
        chosen["deltaFilePaths"].sort(key=lambda path: path.rpartition("/")[2].split("_")[1])
        chosen["deltaFilePaths"].pop()

    edit(plan_of(table, "compaction"), leave_out)
    result = run(spark, table.request(Mode.EXECUTE))

    assert f"file group {left_out}" in result.message
    assert_refused_and_blocked(spark, table, Service.COMPACTION, result)
    assert rows(spark, table) == expected
    whole = run(spark, table.request(Mode.SCHEDULE_AND_EXECUTE))
    assert "compared none of" in whole.message
    assert rows(spark, table) == expected


@pytest.mark.parametrize("service", [Service.COMPACTION, pytest.param(Service.CLUSTERING, marks=pytest.mark.soak)])
def test_a_sample_always_has_the_file_whose_rows_are_fewer_than_its_writer_counted(
    spark: SparkSession, make_table: MakeTable, monkeypatch: pytest.MonkeyPatch, service: Service
) -> None:
    monkeypatch.setattr(savings, "IN_ADVANCE_S", 0.0)
    monkeypatch.setattr(savings, "SAMPLE_SHARE", 0.0)
    table = make_table()
    expected = rows_written(spark, table.written, 3)
    with monkeypatch.context() as planted:
        dropped = drop_a_row(planted)
        result = serve(spark, table, service, **SAMPLE)
        assert f"keys: {dropped[0]} (missing in the new files)" in result.message
        assert_refused_and_blocked(spark, table, service, result)
    assert rows(spark, table) == expected
    assert "compared none of" in serve(spark, table, service, **SAMPLE).message
    assert rows(spark, table) == expected


@pytest.mark.soak
def test_a_compaction_that_leaves_log_files_out_is_not_committed(
    spark: SparkSession, make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hudi takes archived writes after an index build that is still active for uncommitted.

    The service archive takes that build away, and a compaction of such a table is refused; here both do not happen.
    """
    monkeypatch.setattr(context, "find_behind", lambda _state: None)
    table = make_table(**{"hoodie.metadata.streaming.write.enabled": "false"})
    assert run(spark, indexing(table, Mode.SCHEDULE_AND_EXECUTE, "column_stats")).outcome is Outcome.COMPLETED
    expected = {row[0]: row[2] for row in rows_written(spark, table.written, 3)}
    for commit in range(8):
        # Each commit updates other rows: its log file is the only one that has them.
        changed = lake_writer.orders_of_commit(spark, table.written, 0).where(
            F.col("id").between(commit * 10, commit * 10 + 9)
        )
        changed = changed.withColumn("amount", F.lit(1000.0 + commit)).withColumn("ts", F.lit(10 + commit).cast("long"))
        options = lake_writer.write_options(table.written, 1, None, {})
        changed.write.format("hudi").options(**options).mode("append").save(str(table.path))
        expected |= dict.fromkeys(range(commit * 10, commit * 10 + 10), 1000.0 + commit)
    keep = {"hoodie.keep.min.commits": "3", "hoodie.keep.max.commits": "4", "hoodie.clean.commits.retained": "2"}
    build = {path: path.read_bytes() for path in table.timeline.glob("*.indexing*")}
    for service, mode, options in (
        (Service.METACOMPACTION, Mode.SCHEDULE_AND_EXECUTE, {}),
        (Service.ARCHIVE, Mode.EXECUTE, keep),
    ):
        assert run(spark, table.request(mode, service=service, service_options=options)).outcome is Outcome.COMPLETED
    for path, body in build.items():
        path.write_bytes(body)

    result = serve(spark, table, Service.COMPACTION)

    for options in ({}, BY_LISTING):
        seen = spark.read.format("hudi").options(**options).load(str(table.path)).select("id", "amount").collect()
        assert {row.id: row.amount for row in seen} == expected
    assert "other values" in result.message, result.message
    assert_refused_and_blocked(spark, table, Service.COMPACTION, result)


def test_clustered_rows_in_a_wrong_partition_are_not_committed(
    spark: SparkSession, make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hudi derives the partition of clustered rows again where a table has virtual keys, by a setting.

    Jobs set it; here they do not.
    """
    monkeypatch.setattr(context, "give_layout", lambda _service, options, *_: dict(options))
    table = make_table(**{"hoodie.populate.meta.fields": "false"})
    expected = rows_written(spark, table.written, 3)

    compacted = serve(spark, table, Service.COMPACTION)
    result = serve(spark, table, Service.CLUSTERING)

    assert compacted.outcome is Outcome.COMPLETED, compacted.message
    assert rows(spark, table) == expected
    assert_refused_and_blocked(spark, table, Service.CLUSTERING, result)


def odd_rows(spark: SparkSession, ids: Sequence[int], ts: int, more: dict[str, str] | None = None) -> Any:
    found = (
        spark.range(1)
        .select(F.explode(F.array(*(F.lit(each).cast("long") for each in ids))).alias("id"))
        .selectExpr(
            "id",
            "if(id % 2 = 0, 'Cork', 'Aachen') city",
            f"{ts}L ts",
            "if(id % 3 = 0, null, cast(id * 1.000001 as decimal(20, 6))) amount",
            "if(id = 4, null, timestamp_micros(-1000000000000000 + id * 1000001)) at",
            "date_add(date'1969-12-30', int(id)) day",
            "case when id % 4 = 0 then double('NaN') when id % 4 = 1 then -0.0D else id / 3D end ratio",
            "if(id = 2, float('NaN'), float(id)) small",
            "id % 2 = 1 flag",
            "cast(string(id) as binary) bytes",
            "if(id % 3 = 0, null, array('a', string(id))) tags",
            "if(id % 5 = 0, null, map('b', int(id), 'a', null)) sizes",
            "if(id % 2 = 0, null, named_struct('x', double(id), 'names', array(string(id)))) place",
            *(f"{value} {name}" for name, value in (more or {}).items()),
        )
    )
    return found


@pytest.mark.parametrize("type", ["MERGE_ON_READ", pytest.param("COPY_ON_WRITE", marks=pytest.mark.soak)])
def test_odd_values_deletes_and_a_new_column_are_equal(
    spark: SparkSession, make_table: MakeTable, tmp_path: Path, type: str
) -> None:
    template = make_table()
    table = table_at(template, tmp_path / "odd")
    options = lake_writer.write_options(table.written, 0, None, {}) | {"hoodie.datasource.write.table.type": type}

    def put(frame: Any, operation: str = "upsert") -> None:
        frame.write.format("hudi").options(**options | {"hoodie.datasource.write.operation": operation}).mode(
            "append"
        ).save(str(table.path))

    put(odd_rows(spark, range(12), 0))
    put(odd_rows(spark, range(6), 1))
    put(odd_rows(spark, [1, 2], 2), "delete")
    put(odd_rows(spark, [3, 20], 3, {"added": "if(id < 0, null, string(id))"}))
    before = content(spark, table)
    assert len(before) == 11

    for service in (Service.COMPACTION, Service.CLUSTERING)[type != "MERGE_ON_READ" :]:
        result = serve(spark, table, service)
        assert result.outcome is Outcome.COMPLETED, result.message
        assert result.message.endswith("equal")
        assert repr(content(spark, table)) == repr(before)


def table_at(template: Table, path: Path) -> Table:
    return replace(template, written=replace(template.written, base_path=str(path)))
