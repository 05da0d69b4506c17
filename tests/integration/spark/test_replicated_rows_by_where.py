"""Rows that fit `where` are in the sink, and no others, while rows of a real table begin and cease to fit.

The judge asks the table itself, by plain SQL, and reads the sinks' places without the provider.
"""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F
from test_replication_on_hudi import Lake, _time_zone  # noqa: F401 - the fixture holds here as well

from airflow_lake_provider.job_contract import FailureKind
from airflow_lake_provider.replication.change import ChangeMode
from airflow_lake_provider.replication.job import ReplicationRequest, ReplicationResult
from airflow_lake_provider.replication.transactions import Order
from replicate import replicate
from tests.support.spark_session import ONE_TASK

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WHERE = "ratio >= 10 and part = 'p0'"


def run(lake: Lake, mode: ChangeMode, kind: str, *, verify: bool = False, **options: str) -> ReplicationResult:
    request = ReplicationRequest(
        lake.path, "events", kind, Order(f"events.{kind}"), str(lake.folder / "result.json"), mode,
        options={"where": WHERE, **options}, is_verification=verify,
    )  # fmt: skip
    result = replicate(lake.spark, request)
    assert result.message == ""
    return result


@pytest.mark.parametrize(("type", "cdc"), [("MOR", "false"), pytest.param("COW", "true", marks=pytest.mark.soak)])
def test_sinks_have_the_rows_that_fit(spark: SparkSession, tmp_path: Path, type: str, cdc: str) -> None:
    lake, chance = Lake(spark, tmp_path, type, **{"hoodie.table.cdc.enabled": cdc, **ONE_TASK}), random.Random(7)
    url, database = f"sqlite:///{tmp_path}/mirror.db", tmp_path / "mirror.db"
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("create table mirror (id integer, part text, ratio real, primary key (id, part))")

    def rows(ids: list[int], ts: int) -> DataFrame:
        ratios = {number: chance.choice([None, 5.0, 10.0, 15.0]) for number in ids}
        found = lake.rows(ids, ts)
        mapped = F.create_map(*[F.lit(part).cast("double") for pair in ratios.items() for part in pair])
        return found.withColumn("ratio", mapped[F.col("id").cast("double")])

    def check(*, verify: bool) -> None:
        run(lake, ChangeMode.CHANGES, "file", path=str(tmp_path / "files"), verify=verify)
        columns = {"columns": "id, part, ratio"}
        run(lake, ChangeMode.LATEST, "database", url=url, table="mirror", verify=verify, **columns)
        table = spark.read.format("hudi").load(lake.path).where(WHERE).select("id", "ratio").collect()
        expected = sorted((row["id"], row["ratio"]) for row in table)
        # It pops what is deleted, so a delete of a row that the reader does not have is an error.
        assert sorted((number, row["ratio"]) for number, row in lake.replica("files").items()) == expected
        with closing(sqlite3.connect(database)) as connection:
            assert sorted(connection.execute("select id, ratio from mirror")) == expected

    lake.write(rows(list(range(12)), ts=1))
    check(verify=False)
    for ts in range(2, 6):
        lake.write(rows(sorted(chance.sample(range(14), 6)), ts=ts))
        if ts == 4:
            lake.write(lake.rows([0, 2, 4, 6], ts=ts), "delete")
    check(verify=True)


def test_filter_that_does_not_fit_the_table_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, tmp_path, **ONE_TASK)
    lake.write(lake.rows(range(2), ts=1))
    for options, said in (
        ({"where": "ratoi > 1"}, "no column 'ratoi' that reaches the sink as it is"),
        ({"where": "name = 'x'", "column.exclude.list": "name"}, "no column 'name' that reaches the sink as it is"),
        ({"where": "ratio = 'x'"}, "is a double, and where has 'x': write a number"),
    ):
        request = ReplicationRequest(lake.path, "events", "noop", Order("e.n"), "", options=options)
        refused = replicate(spark, request)
        assert refused.failure_kind is FailureKind.REFUSED
        assert said in refused.message
