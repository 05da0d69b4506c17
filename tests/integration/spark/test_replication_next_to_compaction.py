"""A snapshot next to a compaction that was planned while a slow writer wrote: which log files belong to which slice."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from test_replication_on_hudi import Lake, _time_zone  # noqa: F401 - the fixture holds here as well

from airflow_lake_provider.job_contract import Mode as ServiceMode
from airflow_lake_provider.job_contract import Outcome, Service
from airflow_lake_provider.replication.change import CommitRef

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PATIENCE_S = 120.0


@dataclass
class GatedWrite:
    """An upsert that is on the timeline, and has written nothing before `finish`."""

    gate: Path
    instant: str = ""
    errors: list[Exception] = field(default_factory=list)
    thread: threading.Thread | None = None

    def finish(self) -> None:
        self.gate.touch()
        assert self.thread is not None
        self.thread.join(PATIENCE_S)
        assert self.errors == []


def requested(lake: Lake) -> set[str]:
    return {path.name.split(".")[0] for path in lake.timeline.glob("*commit.requested")}


@contextmanager
def gated_write(
    lake: Lake, ids: list[int], ts: int, make_rows: Callable[[list[int], int], DataFrame] | None = None
) -> Iterator[GatedWrite]:
    """Begin an upsert, and give it free at the latest when the block ends."""
    write, before, patience_s = GatedWrite(lake.folder / f"gate-{ts}"), requested(lake), PATIENCE_S
    gate = str(write.gate)

    @F.udf("string")
    def wait(text: str) -> str:
        deadline = time.monotonic() + patience_s
        while not Path(gate).exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        return text

    rows = (make_rows or lake.rows)(ids, ts).coalesce(1).withColumn("name", wait("name"))

    def run() -> None:
        try:
            lake.write(rows)
        except Exception as error:  # noqa: BLE001 - handed to the test
            write.errors.append(error)

    write.thread = threading.Thread(target=run, name=f"gated-write-{ts}")
    write.thread.start()
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not requested(lake) - before:
            assert write.thread.is_alive(), write.errors
            assert time.monotonic() < deadline
            time.sleep(0.05)
        (write.instant,) = requested(lake) - before
        yield write
    finally:
        write.gate.touch()
        write.thread.join(PATIENCE_S)


def compact(lake: Lake, mode: ServiceMode) -> None:
    done = lake.service(Service.COMPACTION, mode, **{"hoodie.compact.inline.max.delta.commits": "1"})
    assert done.outcome in {Outcome.SCHEDULED, Outcome.COMPLETED}, done.message


def commit_of(lake: Lake, write: GatedWrite) -> CommitRef:
    (commit,) = (commit for commit in lake.commits() if commit.requested_time == write.instant)
    return commit


def pending_compaction(lake: Lake) -> str:
    timeline = Path(lake.path) / ".hoodie" / "timeline"
    (plan,) = timeline.glob("*.compaction.requested")
    return plan.name.split(".")[0]


def test_snapshot_has_the_rows_of_a_writer_that_a_pending_compaction_overtook(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(spark, tmp_path, "MOR")
    lake.write(lake.rows(range(6), 1))
    lake.write(lake.rows([1, 2], 2))
    assert lake.replicate(sink="early").message == ""
    with gated_write(lake, [0, 2], 100) as slow:
        compact(lake, ServiceMode.SCHEDULE)
        slow.finish()
    plan, overtaken = pending_compaction(lake), commit_of(lake, slow)
    assert overtaken.requested_time < plan < overtaken.completed_time

    result = lake.replicate()
    assert (result.message, result.waits_for, result.rows) == ("", "", 6)
    assert lake.replica() == lake.table()
    assert {key: lake.replica()[key]["ts"] for key in (0, 1, 2)} == {0: 100, 1: 2, 2: 100}
    # A sink that has its snapshot reads the commit alone.
    early = lake.replicate(sink="early")
    assert (early.message, early.commits, early.rows) == ("", 1, 2)
    assert lake.replica("early") == lake.table()
    # What it then is is known: the compaction's execution is no change, and no gap.
    compact(lake, ServiceMode.EXECUTE)
    result = lake.replicate()
    assert (result.message, result.commits, result.snapshot_reason) == ("", 0, "")
    assert lake.replica() == lake.table()


def test_rows_that_a_snapshot_before_a_pending_write_would_lack_follow_it_as_changes(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(spark, tmp_path, "MOR")
    lake.write(lake.rows(range(6), 1))
    lake.write(lake.rows([1], 2))
    _, last = lake.commits()
    with gated_write(lake, [0, 2], 100) as overtaken:
        # Of a writer that died as soon as it had begun.
        dead = Path(lake.path) / ".hoodie" / "timeline" / f"{int(overtaken.instant) + 1}.deltacommit.requested"
        dead.touch()
        compact(lake, ServiceMode.SCHEDULE_AND_EXECUTE)
        overtaken.finish()
    result = lake.replicate()
    assert (result.message, result.waits_for, result.commits) == ("", "", 1)
    assert [entry[0].commit for entry in lake.delivered() if entry[1]] == [last, commit_of(lake, overtaken)]
    assert lake.replica() == lake.table()
    assert {key: lake.replica()[key]["ts"] for key in range(3)} == {0: 100, 1: 2, 2: 100}
