"""`partition_by` of the sink `hudi`, from a tables file to real tables: each row is in the target once, in its place.

The judge are the rows that the test wrote, and the folders of the target's files.
"""

from __future__ import annotations

import datetime
import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from test_replication_on_hudi import Lake, _time_zone  # noqa: F401 - the fixture holds here as well

from airflow_lake_provider.config.tables_file import parse_tables_file
from airflow_lake_provider.replication.change import ChangeMode
from airflow_lake_provider.replication.job import ReplicationRequest, ReplicationResult
from airflow_lake_provider.replication.transactions import Order
from replicate import replicate
from tests.support.spark_session import ONE_TASK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = "id long, city string, day date, size int, ts long, part string"
DAY = datetime.date(2026, 3, 1)


class Cities:
    """A table by `part` whose rows change their city, followed by one with another layout."""

    def __init__(self, spark: SparkSession, folder: Path, **entry: str) -> None:
        self.spark = spark
        self.lake = Lake(spark, folder, **{"hoodie.table.cdc.enabled": "false", **ONE_TASK})
        self.path = str(folder / "other" / "cities")
        entry = {"sink": "hudi", "path": self.path, **ONE_TASK, **entry}
        text = json.dumps({"tables": [{"base_path": self.lake.path, "replication": [entry]}]})  # YAML as well
        (self.policy,) = parse_tables_file(text, "t.yaml").policy_for(self.lake.path, "events").replication
        self.rows: dict[int, tuple[Any, ...]] = {}

    def write(self, ts: int, **cities: str | None) -> None:
        for name, city in cities.items():
            number = int(name[1:])
            self.rows[number] = (number, city, DAY + datetime.timedelta(days=ts * number % 3), ts, ts, f"p{number % 2}")
        written = [self.rows[int(name[1:])] for name in cities]
        self.lake.write(self.spark.createDataFrame(written, COLUMNS))

    def delete(self, ts: int, *numbers: int) -> None:
        gone = [(*self.rows.pop(number)[:4], ts, f"p{number % 2}") for number in numbers]
        self.lake.write(self.spark.createDataFrame(gone, COLUMNS), "delete")

    def follow(self, *, verify: bool = False) -> ReplicationResult:
        request = ReplicationRequest(
            self.lake.path, "events", "hudi", Order("events.cities"), str(self.lake.folder / "result.json"),
            ChangeMode(self.policy.mode), key=tuple(self.policy.key), options=dict(self.policy.options),
            is_verification=verify,
        )  # fmt: skip
        return replicate(self.spark, request)

    def require_rows(self, partition_by: tuple[str, ...]) -> None:
        """Compare the target's rows, and where each of them lies, with what was written."""
        table = self.spark.read.format("hudi").load(self.path)
        names = COLUMNS.replace(",", "").split()[::2]
        found = [tuple(row[name] for name in names) for row in table.collect()]
        assert Counter(found) == Counter(self.rows.values())
        assert table.schema["day"].dataType.simpleString() == "date"
        places = {row["id"]: row["_hoodie_partition_path"] for row in table.collect()}
        values = {row[0]: dict(zip(names, row, strict=True)) for row in self.rows.values()}
        wanted = {
            number: "/".join("default" if row[name] is None else str(row[name]) for name in partition_by)
            for number, row in values.items()
        }
        for number, place in places.items():
            if None not in (values[number][name] for name in partition_by):
                assert place == wanted[number]


@pytest.mark.parametrize(
    "partition_by",
    [
        "city",
        pytest.param("", marks=pytest.mark.soak),
        pytest.param("city, day", marks=pytest.mark.soak),
        pytest.param("day", marks=pytest.mark.soak),
        pytest.param("part, city", marks=pytest.mark.soak),
        pytest.param("size", marks=pytest.mark.soak),
    ],
)
def test_rows_move_between_the_targets_partitions(spark: SparkSession, tmp_path: Path, partition_by: str) -> None:
    cities = Cities(spark, tmp_path, partition_by=partition_by)
    names = tuple(name.strip() for name in partition_by.split(",") if name)
    cities.write(1, i1="cork", i2="cork", i3="bern", i4=None, i5="köln süd" if len(names) > 1 else "köln/süd")
    assert cities.follow().message == ""
    cities.require_rows(names)
    cities.write(2, i1="bern", i2="cork", i4="cork", i6="new")
    cities.write(3, i1="cork", i3=None)  # back where it was, in one catch-up
    cities.delete(4, 2)
    result = cities.follow()
    assert (result.message, result.commits) == ("", 3)
    cities.require_rows(names)
    result = cities.follow(verify=True)
    assert result.verified.startswith("the sink has the table's 5 rows"), (result.message, result.verified)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        pytest.param(
            {"mode": "latest"},
            "mode: latest does not say of which partition a row was: set mode: changes",
            marks=pytest.mark.soak,
        ),
        ({"hoodie.index.type": "GLOBAL_SIMPLE"}, "hoodie.index.type is GLOBAL_SIMPLE: leave the index out"),
    ],
)
def test_partitions_that_a_row_could_not_leave_are_refused(
    spark: SparkSession, tmp_path: Path, entry: dict[str, str], said: str
) -> None:
    cities = Cities(spark, tmp_path, partition_by="city", **entry)
    cities.write(1, i1="cork")
    assert said in cities.follow().message
    assert not (tmp_path / "other").exists()


@pytest.mark.soak
def test_slash_in_one_of_several_values_is_encoded_or_refused(spark: SparkSession, tmp_path: Path) -> None:
    cities = Cities(spark, tmp_path / "refused", partition_by="city, day")
    cities.write(1, i1="köln/süd")
    assert "set hoodie.datasource.write.partitionpath.urlencode: true" in cities.follow().message
    encoding = {"hoodie.datasource.write.partitionpath.urlencode": "true"}
    cities = Cities(spark, tmp_path / "encoded", partition_by="city, day", **encoding)
    cities.write(1, i1="köln/süd", i2="cork")
    assert cities.follow().message == ""
    cities.write(2, i1="cork", i2="köln/süd")
    assert cities.follow().message == ""
    found = spark.read.format("hudi").load(cities.path).select("id", "city").collect()
    assert sorted((row["id"], row["city"]) for row in found) == [(1, "cork"), (2, "köln/süd")]


@pytest.mark.soak
def test_other_partitions_than_the_targets_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    cities = Cities(spark, tmp_path, partition_by="city")
    cities.write(1, i1="cork")
    assert cities.follow().message == ""
    again = Cities(spark, tmp_path, partition_by="day")
    assert "is partitioned by city, and partition_by is day: name another path" in again.follow().message
