"""A row that was deleted is still in older files, and nothing says when it is gone from disk.

Report: https://github.com/apache/hudi/issues/2135
Report: https://github.com/apache/hudi/issues/10581
Report: https://github.com/apache/hudi/issues/1840
Verdict: right
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
from conftest import MakeTable, Table, rows, run

from airflow_lake_provider.job_contract import ERASE_FOLDER, ERASE_STEP, EraseStep, Mode, Outcome, Service
from local_stack import lake_writer

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

DELETED = 7


def ids_on_disk(table: Table) -> set[int]:
    return {id for path in table.path.rglob("*.parquet") for id in pq.ParquetFile(path).read(["id"])["id"].to_pylist()}


def test_erasure_says_when_a_row_that_a_writer_deleted_is_gone(
    spark: SparkSession, make_table: MakeTable, tmp_path: Path
) -> None:
    table = make_table(type="COW")
    deleted = spark.read.format("hudi").load(str(table.path)).where(f"id = {DELETED}")
    settings = lake_writer.write_options(table.written, 3, None, {"hoodie.datasource.write.operation": "delete"})
    deleted.select("id", "city", "ts").write.format("hudi").options(**settings).mode("append").save(str(table.path))
    left = rows(spark, table)
    assert DELETED not in {row[0] for row in left}
    assert DELETED in ids_on_disk(table)
    folder = tmp_path / "erasure"
    folder.mkdir()
    (folder / "keys.jsonl").write_text(json.dumps({"key": str(DELETED)}) + "\n", encoding="utf-8")
    for step in EraseStep:
        options = {ERASE_STEP: step.value, ERASE_FOLDER: str(folder)}
        done = run(spark, table.request(Mode.ERASE, service=Service.TTL, service_options=options))
        assert done.outcome is Outcome.COMPLETED, done.message
    assert DELETED not in ids_on_disk(table)
    assert rows(spark, table) == left
    (key,) = json.loads((folder / "receipt.json").read_text(encoding="utf-8"))["keys"]
    assert key["gone_at"]
    assert not key["deleted_at"], "not by this erasure"
