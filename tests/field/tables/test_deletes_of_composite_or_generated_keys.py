"""Deletes by key found no row where Hudi made the keys, or took a row of another partition or spelling as well.

Report: https://github.com/apache/hudi/issues/9079
Report: https://github.com/apache/hudi/issues/11212
Verdict: right
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from erased_rows import erase, files_with, keys_of_files
from kept_rows import KeptTable

from airflow_lake_provider.job_contract import Outcome
from local_stack import lake_writer

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

KEY_FIELD = "hoodie.datasource.write.recordkey.field"
COMPLEX = {
    "hoodie.datasource.write.keygenerator.class": "org.apache.hudi.keygen.ComplexKeyGenerator",
    KEY_FIELD: "mail,day",
}
SCHEMA = "mail string, city string, day string, ts long"
COLUMNS = ("mail", "city", "day", "ts")
ROWS = [
    ("a:b,day:1@example.org", "Aachen", "2026-01-01", 0),
    ("größe-漢字@example.org", "Aachen", None, 0),
    ("GRÖSSE@example.org", "Aachen", "", 0),
    ("grösse@example.org", "Aachen", "", 0),
    ("stays@example.org", "Bilbao", "2026-01-01", 0),
]
ERASED = ROWS[:3]


class Mails(KeptTable):
    """Rows by mail and partition, because the key may be of both."""

    def fill(self, rows: list[tuple[object, ...]], operation: str = "upsert") -> None:
        self.append(self.spark.createDataFrame(rows, SCHEMA).coalesce(1), operation)
        self.rows |= {(row[0], row[1]): row for row in rows}


class KeylessMails(Mails):
    """Rows of which Hudi makes the keys, because the writer names no field."""

    def append(self, frame: DataFrame, operation: str = "upsert", **options: str) -> None:
        settings = lake_writer.write_options(self.table.written, 0, None, options)
        settings |= {"hoodie.datasource.write.operation": operation}
        del settings[KEY_FIELD]
        frame.write.format("hudi").options(**settings).mode("append").save(str(self.path))


@pytest.mark.soak
@pytest.mark.parametrize(("type", "version"), [("COW", 9), ("MOR", 9), ("MOR", 6)])
def test_keys_of_several_columns_are_gone_and_those_like_them_stay(
    spark: SparkSession, tmp_path: Path, type: str, version: int
) -> None:
    kept = Mails(spark, tmp_path / "t", type, version, COMPLEX, SCHEMA, COLUMNS)
    kept.fill(ROWS)
    # The key that is to go in one partition only is in another as well.
    twin = (*ROWS[0][:1], "Bilbao", *ROWS[0][2:])
    kept.fill([twin, *[(*row[:3], 1) for row in ROWS]])
    keys = {row[0]: next(key for key in keys_of_files(kept.path) if f"mail:{row[0]},day" in key) for row in ERASED}
    assert keys[ROWS[1][0]].endswith("day:__null__")
    assert keys[ROWS[2][0]].endswith("day:__empty__")
    named = [{"key": key} | ({"partition": "Aachen"} if mail == ROWS[0][0] else {}) for mail, key in keys.items()]

    done, receipt = erase(kept, tmp_path / "erasure", named)

    assert done.outcome is Outcome.COMPLETED, done.message
    assert all(key["deleted_at"] and key["gone_at"] for key in receipt), receipt
    kept.forget((row[0], row[1]) for row in ERASED)
    kept.require_rows()
    assert [name for name in files_with(kept.path, keys[ROWS[0][0]]) if name.startswith("Aachen")] == []
    for mail in (ROWS[1][0], ROWS[2][0]):
        assert files_with(kept.path, keys[mail]) == []


def test_keys_that_hudi_made_are_gone(spark: SparkSession, tmp_path: Path) -> None:
    kept = KeylessMails(spark, tmp_path / "t", "COW", 9, {}, SCHEMA, COLUMNS)
    kept.fill(ROWS, "insert")
    read = [row for path in kept.path.glob("[!.]*/*.parquet") for row in pq.ParquetFile(path).read().to_pylist()]
    (key,) = [row["_hoodie_record_key"] for row in read if row["mail"] == ROWS[1][0]]

    done, receipt = erase(kept, tmp_path / "erasure", [{"key": key}])

    assert done.outcome is Outcome.COMPLETED, done.message
    assert receipt[0]["gone_at"]
    kept.forget([ROWS[1][:2]])
    kept.require_rows()
    assert files_with(kept.path, ROWS[1][0]) == []
