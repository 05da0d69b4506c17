"""Tables whose partitions' paths Hudi makes of a field's value, and tables with a part of a column as record key.

The reader knows messages alone: a change belongs to the row that has its key, byte for byte. Random histories find the
fault that replication once had with such tables, when it is brought back.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from test_replication_on_hudi import _time_zone  # noqa: F401 - the fixture holds here as well

from airflow_lake_provider.replication.change import ChangeMode
from airflow_lake_provider.replication.job import ReplicationRequest, ReplicationResult
from airflow_lake_provider.replication.transactions import Order
from lake_jobs.replication.source import HudiSource
from local_stack import lake_writer
from replicate import replicate
from tests.support.spark_session import ONE_TASK

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DAY_MS = 1_767_225_600_000
HOUR_MS = 3_600_000
TIMESTAMP = {
    "hoodie.datasource.write.keygenerator.class": "org.apache.hudi.keygen.TimestampBasedKeyGenerator",
    "hoodie.datasource.write.partitionpath.field": "day",
    "hoodie.keygen.timebased.timestamp.type": "EPOCHMILLISECONDS",
    "hoodie.keygen.timebased.output.dateformat": "yyyy/MM/dd",
    "hoodie.keygen.timebased.timezone": "UTC",
}
CUSTOM = TIMESTAMP | {
    "hoodie.datasource.write.keygenerator.class": "org.apache.hudi.keygen.CustomKeyGenerator",
    "hoodie.datasource.write.partitionpath.field": "day:TIMESTAMP",
}


@dataclass
class Stream:
    """A table, and the file sink that follows it."""

    spark: SparkSession
    folder: Path
    type: str
    more: dict[str, str]
    state: dict[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return str(self.folder / "lake" / "events")

    def write(self, rows: DataFrame, operation: str = "upsert") -> None:
        options = {
            "hoodie.table.name": "events",
            "hoodie.datasource.write.table.type": lake_writer.TABLE_TYPES[self.type],
            "hoodie.datasource.write.recordkey.field": "id",
            "hoodie.datasource.write.precombine.field": "ts",
            "hoodie.datasource.write.operation": operation,
            "hoodie.embed.timeline.server": "false",
            "hoodie.write.markers.type": "DIRECT",
            "hoodie.metadata.index.column.stats.enable": "false",
            **ONE_TASK,
            **lake_writer.MANAGED_LAKE,
            **self.more,
        }
        rows.write.format("hudi").options(**options).mode("append").save(self.path)

    def run(self, *, is_verification: bool = False) -> ReplicationResult:
        request = ReplicationRequest(
            self.path,
            "events",
            "file",
            Order("events.file"),
            str(self.folder / "result.json"),
            ChangeMode.CHANGES,
            options={"path": str(self.folder / "files")},
            is_verification=is_verification,
        )
        return replicate(self.spark, request)

    def catch_up(self) -> dict[str, Any]:
        """Replicate, and return the rows that a reader has, by the text of their key."""
        result = self.run()
        assert result.message == "", result.message
        self.state = {}
        for path in sorted((self.folder / "files").glob("[0-9]*.jsonl")):
            for line in path.read_text().splitlines()[:-1]:
                change = json.loads(line)
                key = line[line.index('"key":') : line.index(',"before"')]
                assert (key in self.state) is (change["op"] in "ud"), line
                if change["op"] == "d":
                    del self.state[key]
                else:
                    self.state[key] = change["after"]
        return self.state


@pytest.mark.parametrize(
    ("type", "more"),
    [
        pytest.param("COW", TIMESTAMP, id="timestamp-COW", marks=pytest.mark.soak),
        pytest.param("MOR", TIMESTAMP, id="timestamp-MOR"),
        pytest.param("MOR", CUSTOM, id="custom-MOR"),
    ],
)
def test_changes_meet_the_rows_of_the_snapshot(
    spark: SparkSession, tmp_path: Path, type: str, more: dict[str, str]
) -> None:
    stream = Stream(spark, tmp_path, type, more)

    def rows(*found: tuple[int, int, int, int]) -> DataFrame:
        return spark.createDataFrame(list(found), "id long, v int, ts long, day long")

    stream.write(rows(*((i, 1, 1, DAY_MS) for i in (1, 2, 3))), "insert")
    stream.catch_up()
    stream.write(rows((1, 2, 2, DAY_MS)))
    stream.write(rows((2, 1, 3, DAY_MS)), "delete")
    # Another hour of the same day is the same row to Hudi.
    stream.write(rows((3, 4, 4, DAY_MS + HOUR_MS)))
    # One record key in two partitions is two rows.
    stream.write(rows((1, 9, 9, DAY_MS + 48 * HOUR_MS)))
    expected = [(1, 2, 2, DAY_MS), (1, 9, 9, DAY_MS + 48 * HOUR_MS), (3, 4, 4, DAY_MS + HOUR_MS)]
    state = stream.catch_up()
    assert sorted((row["id"], row["v"], row["ts"], row["day"]) for row in state.values()) == expected
    result = stream.run(is_verification=True)
    assert "has the table's 3 rows" in result.verified, result.message


IDS, DAYS = 5, 3


def play(stream: Stream, chance: random.Random, steps: int) -> None:
    """Write random rows, delete some, move some within their day; a reader has what was written."""
    table = dict[tuple[int, int], tuple[int, int, int, int]]()

    def rows(keys: list[tuple[int, int]], ts: int) -> DataFrame:
        hours = {key: chance.randrange(24) for key in keys}
        found = [(number, ts, ts, DAY_MS + (24 * day + hours[number, day]) * HOUR_MS) for number, day in keys]
        table.update(zip(keys, found, strict=True))
        return stream.spark.createDataFrame(found, "id long, v int, ts long, day long")

    places = [(number, day) for number in range(IDS) for day in range(DAYS)]
    stream.write(rows(chance.sample(places, 8), 1), "insert")
    stream.catch_up()
    for ts in range(2, 2 + steps):
        if ts % 3 == 0:
            gone = chance.sample(sorted(table), 2)
            stream.write(rows(gone, ts), "delete")
            for key in gone:
                del table[key]
        else:
            stream.write(rows(sorted({*chance.sample(sorted(table), 2), *chance.sample(places, 2)}), ts))
        state = stream.catch_up()
        found = sorted((row["id"], row["v"], row["ts"], row["day"]) for row in state.values())
        assert found == sorted(table.values())


@pytest.mark.parametrize(
    ("type", "more", "seed"),
    [
        pytest.param("MOR", TIMESTAMP, 1, id="timestamp-MOR", marks=pytest.mark.soak),
        pytest.param("COW", CUSTOM, 2, id="custom-COW", marks=pytest.mark.soak),
    ],
)
def test_reader_of_a_random_history_has_the_rows_that_were_written(
    spark: SparkSession, tmp_path: Path, type: str, more: dict[str, str], seed: int
) -> None:
    play(Stream(spark, tmp_path, type, more), random.Random(seed), 9)


def type_the_field_as_hudis_reader_does(patch: pytest.MonkeyPatch) -> None:
    """A snapshot has texts where commits have numbers."""
    patch.setattr(HudiSource, "_as_written", lambda self, rows: rows)


def name_rows_by_the_field(patch: pytest.MonkeyPatch) -> None:
    """A row is named by the value of which its path is made, and not by the path."""
    patch.setattr(HudiSource, "_is_path_made", property(lambda self: False))


@pytest.mark.parametrize(
    "plant", [name_rows_by_the_field, pytest.param(type_the_field_as_hudis_reader_does, marks=pytest.mark.soak)]
)
def test_random_history_finds_the_fault_that_was_brought_back(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        play(Stream(spark, tmp_path, "COW", TIMESTAMP), random.Random(1), 3)


@pytest.mark.parametrize("type", ["COW", "MOR"])
def test_part_of_a_column_as_record_key(spark: SparkSession, tmp_path: Path, type: str) -> None:
    more = {
        "hoodie.datasource.write.recordkey.field": "st.a",
        "hoodie.datasource.write.partitionpath.field": "",
        "hoodie.datasource.write.keygenerator.class": "org.apache.hudi.keygen.NonpartitionedKeyGenerator",
    }
    stream = Stream(spark, tmp_path, type, more)

    def rows(*found: tuple[int, int, int]) -> DataFrame:
        made = [((a, "x"), v, ts) for a, v, ts in found]
        return spark.createDataFrame(made, "st struct<a: long, b: string>, v int, ts long")

    stream.write(rows((1, 1, 1), (2, 1, 1), (3, 1, 1)), "insert")
    stream.catch_up()
    stream.write(rows((1, 2, 2)))
    stream.write(rows((2, 1, 3)), "delete")
    state = stream.catch_up()
    assert sorted((row["st"]["a"], row["v"]) for row in state.values()) == [(1, 2), (3, 1)]
    assert sorted(state) == ['"key":{"st.a":1}', '"key":{"st.a":3}']
