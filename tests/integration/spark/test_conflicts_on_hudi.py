"""Early conflict detection beside real Hudi writers: what we find before the commit, Hudi rejects at it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from conftest import MakeTable, Table
from held_writers import start_writer

from airflow_lake_provider.conflict.conflict_table import ConflictTable
from airflow_lake_provider.conflict.contention import Claim
from airflow_lake_provider.timeline.storage import open_storage
from airflow_lake_provider.view.look import Depth, look

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DIRECT = {"hoodie.write.markers.type": "DIRECT", "hoodie.embed.timeline.server": "false"}
SERVER = {
    "hoodie.write.markers.type": "TIMELINE_SERVER_BASED",
    "hoodie.embed.timeline.server": "true",
    "hoodie.markers.timeline_server_based.batch.num_threads": "2",
}


def now_ms() -> int:
    return int(time.time() * 1000)


def open_table(table: Table) -> ConflictTable:
    storage = open_storage(str(table.path))
    return ConflictTable(storage, lambda: look(storage, None, Depth.LIST, now_ms()).snapshot)


@pytest.mark.parametrize("markers", [DIRECT, SERVER], ids=["direct", "server"])
@pytest.mark.parametrize("type", ["MOR", "COW"])
def test_writers_of_one_file_group_are_found_before_the_commit(
    spark: SparkSession, make_table: MakeTable, tmp_path: Path, type: str, markers: dict[str, str]
) -> None:
    table = make_table(type=type)
    first, second, elsewhere = (
        start_writer(spark, table, city, tmp_path / f"lock-{n}", markers)
        for n, city in enumerate(("Bilbao", "Bilbao", "Aachen"))
    )
    writers = [first, second, elsewhere]
    print("MARKERS", [(str(p.relative_to(first.marker_folder)), p.read_bytes()) for p in first.marker_folder.rglob("*") if p.is_file()])
    conflicts = open_table(table)
    activity = conflicts.look(now_ms())
    groups = {a.instant: a.markers.file_groups() for a in activity.live_writers()}
    print(groups)
    verdicts = [
        conflicts.check(Claim(w.instant, groups[w.instant], since=w.instant), now_ms()) for w in writers
    ]
    print(verdicts)
    t=time.monotonic()
    rejected = [w.release() for w in writers]
    print(rejected, time.monotonic()-t)
    assert [v.is_free for v in verdicts] == [True, False, True]
    assert rejected == ["", "HoodieWriteConflictException", ""]
