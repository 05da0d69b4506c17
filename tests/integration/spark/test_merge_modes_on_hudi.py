"""Each way in which Hudi merges the records of a key gives the same rows with services and without them.

A seeded history is written to two tables. One is served, the other one is not: its rows are what the writers' merge
mode or payload class makes of the history, and no assumption about it is made here. Late, equal and missing values,
deletions in each spelling and partial rows are part of the history.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from conftest import Table, run

from airflow_lake_provider.job_contract import Mode, Outcome, Service
from local_stack import lake_writer
from tests.support.spark_session import ONE_TASK

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

Row = tuple[object, ...]

MODELS = "org.apache.hudi.common.model"
PAYLOAD = "hoodie.datasource.write.payload.class"
MERGE_MODE = "hoodie.record.merge.mode"
ORDER = "hoodie.datasource.write.precombine.field"
KEYS, COMMITS = 12, 9
COLUMNS = ("id", "city", "amount", "ts", "note", "event")
SCHEMA = "id long, city string, amount double, ts long, note string, event string, _hoodie_is_deleted boolean"
CITIES = ("Cork", "Bonn")
EVENTS = ("I", "U")


@dataclass(frozen=True)
class Merging:
    """Settings of the writers, how an event column says that a row is gone, and the oldest version that knows them."""

    options: Mapping[str, str]
    gone: str = ""
    is_partial: bool = False
    """A row's missing values are those of the row before it."""
    since: int = 6


MODES = {
    "commit-time": Merging({MERGE_MODE: "COMMIT_TIME_ORDERING", ORDER: ""}, since=8),
    "event-time": Merging({MERGE_MODE: "EVENT_TIME_ORDERING"}, since=8),
    "overwrite": Merging({PAYLOAD: f"{MODELS}.OverwriteWithLatestAvroPayload"}),
    "default": Merging({PAYLOAD: f"{MODELS}.DefaultHoodieRecordPayload"}),
    "default-with-marker": Merging(
        {
            PAYLOAD: f"{MODELS}.DefaultHoodieRecordPayload",
            "hoodie.payload.delete.field": "event",
            "hoodie.payload.delete.marker": "X",
        },
        gone="X",
    ),
    "event-time-payload": Merging({PAYLOAD: f"{MODELS}.EventTimeAvroPayload"}),
    "overwrite-non-defaults": Merging(
        {PAYLOAD: f"{MODELS}.OverwriteNonDefaultsWithLatestAvroPayload"}, is_partial=True
    ),
    "partial-update": Merging({PAYLOAD: f"{MODELS}.PartialUpdateAvroPayload"}, is_partial=True),
}


@dataclass
class Pair:
    """A table that is served and one that is not, with the same writes."""

    spark: SparkSession
    served: Table
    alone: Table
    log: list[str] = field(default_factory=list)

    def write(self, rows: list[Row], operation: str = "upsert") -> None:
        self.log.append(f"{operation} {rows}")
        for table in (self.served, self.alone):
            options = lake_writer.write_options(
                table.written, 0, None, {"hoodie.datasource.write.operation": operation}
            )
            frame = self.spark.createDataFrame(rows, SCHEMA)
            frame.write.format("hudi").options(**options).mode("append").save(str(table.path))

    def read(self, table: Table) -> list[Row]:
        frame = self.spark.read.format("hudi").load(str(table.path)).select(*COLUMNS)
        return sorted(map(tuple, frame.collect()), key=repr)

    def serve(self, service: Service, **options: str) -> Outcome:
        before = self.read(self.served)
        request = self.served.request(Mode.SCHEDULE_AND_EXECUTE, service=service, service_options=options)
        result = run(self.spark, request)
        self.log.append(f"{service} {result.outcome} {result.message}")
        assert result.outcome is not Outcome.FAILED, "\n".join(self.log)
        assert self.read(self.served) == before, "\n".join(self.log)
        return result.outcome

    def require_same(self) -> None:
        assert self.read(self.served) == self.read(self.alone), "\n".join(self.log)


SERVICES = (
    (Service.COMPACTION, {"lake.verify": "all"}),
    (Service.LOGCOMPACTION, {"lake.verify": "all", "hoodie.log.compaction.blocks.threshold": "2"}),
    (Service.CLUSTERING, {"lake.verify": "all"}),
    (Service.CLEAN, {"hoodie.clean.commits.retained": "1"}),
)


def draw_rows(rng: random.Random, commit: int, merging: Merging, deleted: set[int]) -> list[Row]:
    """Return the rows of one commit: some late, some equal, some without values, some gone by a column."""
    rows: list[Row] = []
    for key in sorted(rng.sample(range(KEYS), rng.randint(3, 8))):
        # A key that was deleted is written again with a newer and whole row only: Hudi's deletions have no ordering
        # value, and what a partial row lacks is taken from the row before the deletion until a compaction.
        # What a late partial row gives to a newer one depends on whether a compaction ran between, with stock Hudi too.
        late = 0 if key in deleted else rng.choice((0, 0, 1) if merging.is_partial else (-2, -1, 0, 0, 1))
        ts = 10 * commit + (5 if key in deleted else 10 * late)
        is_gone = rng.random() < 0.12
        by_event = bool(merging.gone) and is_gone and rng.random() < 0.5
        event = merging.gone if by_event else rng.choice(EVENTS)
        is_whole = key in deleted
        amount = None if rng.random() < 0.25 and not is_whole else float(commit * 100 + key)
        note = None if rng.random() < 0.4 and not is_whole else f"n{commit}-{key}"
        rows.append((key, CITIES[key % 2], amount, ts, note, event, is_gone and not by_event))
        deleted.discard(key)
        if is_gone:
            deleted.add(key)
    return rows


def play(spark: SparkSession, folder: Path, mode: str, type: str, version: int, commits: int) -> None:
    """Write a history, serve it on the way, and compare with the table that is not served."""
    options = ONE_TASK | dict(MODES[mode].options)
    served, alone = (
        Table(lake_writer.WrittenTable(name, str(folder / name), type, version, hudi_options=options))
        for name in ("served", "alone")
    )
    pair = Pair(spark, served, alone)
    rng = random.Random(f"{mode} {type} {version}")
    deleted: set[int] = set()
    completed = 0
    for commit in range(1, commits + 1):
        if commit > 2 and rng.random() < 0.2:
            keys = sorted(rng.sample(range(KEYS), 2))
            pair.write([(key, CITIES[key % 2], 0.0, 10 * commit, "", "U", False) for key in keys], "delete")
            deleted.update(keys)
        else:
            pair.write(draw_rows(rng, commit, MODES[mode], deleted))
        pair.require_same()
        if commit > 1:
            service, more = rng.choice(SERVICES if type == "MOR" else SERVICES[2:])
            completed += pair.serve(service, **more) is Outcome.COMPLETED
            pair.require_same()
    assert completed, "\n".join(pair.log)


def test_services_keep_what_partial_updates_make(spark: SparkSession, tmp_path: Path) -> None:
    play(spark, tmp_path, "partial-update", "MOR", 9, 4)


@pytest.mark.soak(covered_by="tests/integration/spark/test_merge_modes_on_hudi.py")
@pytest.mark.parametrize("version", [9, 6])
@pytest.mark.parametrize("type", ["MOR", "COW"])
@pytest.mark.parametrize("mode", list(MODES))
def test_services_keep_what_writers_merge(
    spark: SparkSession, tmp_path: Path, mode: str, type: str, version: int
) -> None:
    if version < MODES[mode].since:
        pytest.skip("table version 6 has no merge modes")
    play(spark, tmp_path, mode, type, version, COMMITS)
