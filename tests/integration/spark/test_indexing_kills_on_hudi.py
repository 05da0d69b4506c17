"""Builders as they run in production, processes of their own: stopped and killed while a writer goes on.

`LAKE_INDEX_KILLS` is the number of kills, `LAKE_INDEX_SEED` what their moments are drawn from. Some moments hurt the
writer that commits next, as docs/indexing.md says, so the kills are not part of the short run.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest
from conftest import MakeTable, Table, run
from job_contract import JobRequest, Mode, Outcome
from paused_writers import STREAMING_OFF, insert, wait_until
from test_indexing_on_hudi import complete, found_by_key, indexing, make_old, missing, plans
from test_real_processes import _family, _kill_family, submit  # noqa: F401 - a fixture

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KILLS = int(os.environ.get("LAKE_INDEX_KILLS", "0"))
SEED = int(os.environ.get("LAKE_INDEX_SEED", "1"))
SPAN_S = float(os.environ.get("LAKE_INDEX_SPAN_S", "8"))
"""About how long a builder process is at work after its plan appeared."""
BOTH = Mode.SCHEDULE_AND_EXECUTE
Submit = Callable[[JobRequest], "subprocess.Popen[str]"]


class GoingOn:
    """A writer that inserts one commit after the other until it is told to stop."""

    def __init__(self, spark: SparkSession, table: Table) -> None:
        self.first_ids: list[int] = []
        self.error: Exception | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write, args=(spark, table), daemon=True)
        self._thread.start()

    def _write(self, spark: SparkSession, table: Table) -> None:
        first_id = 100_000
        while not self._stop.is_set():
            try:
                insert(spark, table, first_id, **STREAMING_OFF)
            except Exception as error:  # noqa: BLE001 - handed to the test
                self.error = error
                return
            self.first_ids.append(first_id)
            first_id += 100
            self._stop.wait(0.5)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=240)
        assert not self._thread.is_alive(), "the writer hangs"
        assert self.error is None, str(self.error)


@contextmanager
def going_on(spark: SparkSession, table: Table) -> Iterator[GoingOn]:
    writer = GoingOn(spark, table)
    try:
        yield writer
    finally:
        writer.stop()


@pytest.mark.skipif(KILLS == 0, reason="LAKE_INDEX_KILLS is not set: some moments of a kill hurt the next writer")
@pytest.mark.parametrize("kill", range(max(KILLS, 1)))
def test_killed_builder_is_followed_by_one_that_completes(
    spark: SparkSession,
    make_table: MakeTable,
    submit: Submit,  # noqa: F811
    kill: int,
) -> None:
    pause_s = random.Random(SEED * 1000 + kill).uniform(0, SPAN_S)
    table = make_table(type="MOR" if kill % 2 == 0 else "COW", **STREAMING_OFF)
    request = indexing(table, BOTH, "record_index", "column_stats", lake__index__check="full")
    builder = submit(request)
    wait_until(lambda: bool(plans(table)) or builder.poll() is not None, "the plan")
    with going_on(spark, table) as writer:
        time.sleep(pause_s)
        _kill_family(builder.pid)
        builder.wait()
        expire_what_the_dead_left(table)
        result = run(spark, request)
        assert result.outcome is not Outcome.FAILED, f"killed after {pause_s:.1f} s: {result.message}"
        wait_until(lambda: len(writer.first_ids) > 1 or writer.error is not None, "two commits")
    assert (complete(table), plans(table)) == ({"files", "record_index", "column_stats"}, set())
    for index in ("record_index", "column_stats"):
        assert missing(spark, table, index) == [], f"killed after {pause_s:.1f} s"
    everything = spark.read.format("hudi").load(str(table.path))
    without = spark.read.format("hudi").option("hoodie.metadata.enable", "false").load(str(table.path))
    for first_id in writer.first_ids:
        assert found_by_key(spark, table, first_id + 3) == 1
        assert without.where(f"id between {first_id} and {first_id + 19}").count() == 20
    assert everything.count() == without.count()


def test_writer_commits_while_the_builder_stands_still_half_way(
    spark: SparkSession,
    make_table: MakeTable,
    submit: Submit,  # noqa: F811
) -> None:
    table = make_table(**STREAMING_OFF)
    # Many file groups take long to write.
    groups = {"hoodie__metadata__global__record__level__index__min__filegroup__count": "200"}
    builder = submit(indexing(table, BOTH, "record_index", **groups))
    wait_until(lambda: bool(plans(table)) or builder.poll() is not None, "the plan")
    (instant,) = plans(table)
    begun = table.path / ".hoodie" / "metadata" / ".hoodie" / "timeline" / f"{instant}.deltacommit.inflight"
    deadline = time.monotonic() + 120
    while not (begun.exists() and not (table.path / ".hoodie" / "lock").exists()):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    family = _family(builder.pid)
    for member in family:
        # Spark's helpers come and go.
        with suppress(ProcessLookupError):
            os.kill(member, signal.SIGSTOP)
    # From its request on, the index is every writer's business: nobody waits, and nobody fails.
    insert(spark, table, 70_000, **STREAMING_OFF)
    assert plans(table) == {instant}
    for member in family:
        with suppress(ProcessLookupError):
            os.kill(member, signal.SIGCONT)
    output, _ = builder.communicate(timeout=240)
    assert builder.returncode == 0, output
    assert "begins beside" in output
    insert(spark, table, 80_000, **STREAMING_OFF)
    assert complete(table) == {"files", "record_index"}
    assert missing(spark, table) == []
    assert found_by_key(spark, table, 70_003) == found_by_key(spark, table, 80_003) == 1


def expire_what_the_dead_left(table: Table) -> None:
    """Do what waiting does: the killed builder's heartbeat and lock expire."""
    lock = table.path / ".hoodie" / "lock"
    for _ in range(60):
        if not lock.exists() or time.time() - _modified_s(lock) > 15:
            break
        time.sleep(0.5)
    if lock.exists() and time.time() - _modified_s(lock) > 15:
        lock.unlink(missing_ok=True)
    for plan in plans(table):
        heartbeat = table.path / ".hoodie" / ".heartbeat" / plan
        if heartbeat.exists():
            make_old(heartbeat)
        else:
            # Killed before its first beat: an inflight file of it cannot be there either.
            assert f"{plan}.indexing.inflight" not in table.files()


def _modified_s(path: os.PathLike[str]) -> float:
    try:
        return os.stat(path).st_mtime
    except FileNotFoundError:
        return time.time()
