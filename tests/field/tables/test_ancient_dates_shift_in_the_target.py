"""Dates before 1582, such as 0001-01-01, were two days off in a change stream's target.

Report: https://github.com/confluentinc/kafka-connect-jdbc/issues/745
Verdict: refused
Way out: set `spark.sql.parquet.datetimeRebaseModeInRead` in `spark_conf`, as the error says.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from airflow_lake_provider.replication.change import ChangeMode
from airflow_lake_provider.replication.job import ReplicationRequest, ReplicationResult
from airflow_lake_provider.replication.transactions import Order
from replicate import replicate

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

REBASE = "spark.sql.parquet.datetimeRebaseModeInRead"
DATES = {1: "0001-01-01", 2: "1582-10-04", 3: "1582-10-15", 4: "1899-12-31", 5: "9999-12-31"}


def test_dates_are_exact_or_the_stream_says_what_to_set(spark: SparkSession, tmp_path: Path) -> None:
    table, target = str(tmp_path / "days"), tmp_path / "target"
    settings = {
        "hoodie.table.name": "days",
        "hoodie.datasource.write.recordkey.field": "id",
        "hoodie.datasource.write.precombine.field": "id",
        "hoodie.upsert.shuffle.parallelism": "1",
    }
    values = ", ".join(f"({number}L, date '{day}', timestamp '{day} 10:00:00Z')" for number, day in DATES.items())
    rows = spark.sql(f"select * from values {values} as t(id, day, moment)")
    rows.write.format("hudi").options(**settings).mode("append").save(table)

    def follow() -> ReplicationResult:
        options = {"path": str(target)}
        order, result_path = Order("days.file"), str(tmp_path / "result.json")
        return replicate(
            spark, ReplicationRequest(table, "days", "file", order, result_path, ChangeMode.LATEST, options=options)
        )

    assert f"set `spark_conf: {{{REBASE}: CORRECTED}}` for this table" in follow().message
    spark.conf.set(REBASE, "CORRECTED")
    try:
        assert follow().message == ""
    finally:
        spark.conf.unset(REBASE)
    lines = [json.loads(line) for file in sorted(target.glob("*.jsonl")) for line in file.read_text().splitlines()]
    found = {line["row"]["id"]: (line["row"]["day"], line["row"]["moment"][:19]) for line in lines if "row" in line}
    found |= {line["id"]: (line["day"], line["moment"][:19]) for line in lines if "id" in line}
    assert found == {number: (day, f"{day}T10:00:00") for number, day in DATES.items()}
