"""What the rule about unguarded writers rests on: which writers beat, and when, on real Hudi."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_lake_provider.errors import WriterUnguardedError
from airflow_lake_provider.planner.rules import require_guarded_writers
from local_stack import lake_writer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SINGLE_WRITER = {
    "hoodie.write.concurrency.mode": "single_writer",
    "hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.InProcessLockProvider",
    "hoodie.clean.failed.writes.policy": "EAGER",
}


def watch_writer(spark: SparkSession, table: lake_writer.WrittenTable, commit: int) -> tuple[int, int]:
    """Write one commit and read the table all the while, as the operator does; return reads and refusals."""
    options = lake_writer.write_options(table, commit, None, {})
    writer = threading.Thread(target=lake_writer.write_commit, args=(spark, table, commit, options))
    reads = refusals = 0
    writer.start()
    while writer.is_alive():
        heartbeats = beats(table)
        pending = pending_writes(table)
        if pending:
            reads += 1
            try:
                require_guarded_writers(pending, heartbeats | beats(table), table.base_path)
            except WriterUnguardedError:
                refusals += 1
        time.sleep(0.005)
    writer.join()
    return reads, refusals


def beats(table: lake_writer.WrittenTable) -> set[str]:
    folder = Path(table.base_path) / ".hoodie" / ".heartbeat"
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


def pending_writes(table: lake_writer.WrittenTable) -> set[str]:
    folder = Path(table.base_path) / ".hoodie" / "timeline"
    names = [path.name for path in folder.iterdir()] if folder.exists() else []
    completed = {name.split("_")[0] for name in names if name.endswith(".deltacommit")}
    requested = {name.split(".")[0] for name in names if name.endswith(".deltacommit.requested")}
    return requested - completed


@pytest.mark.parametrize(("options", "guarded"), [({}, True), (SINGLE_WRITER, False)], ids=["multi", "single"])
def test_writer_in_flight_is_recognised_by_its_heartbeat(
    spark: SparkSession, tmp_path: Path, options: dict[str, str], *, guarded: bool
) -> None:
    table = lake_writer.WrittenTable("watched", str(tmp_path / "watched"), keys=40, rows=8)
    table = replace(table, hudi_options=options)
    reads, refusals = 0, 0
    for commit in (0, 1):
        seen, refused = watch_writer(spark, table, commit)
        reads, refusals = reads + seen, refusals + refused
    assert reads > 10
    assert (refusals == 0) if guarded else (refusals > 0)
