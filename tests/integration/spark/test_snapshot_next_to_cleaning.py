"""A snapshot next to a writer that cleans with each commit: its savepoint, and which run removes it."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from test_replicate_as_process import TIMEOUT_S, end, submit
from test_replication_on_hudi import Lake, _time_zone  # noqa: F401 - the fixture holds here as well

from airflow_lake_provider.job_contract import from_json
from airflow_lake_provider.replication import snapshot_run
from airflow_lake_provider.replication.job import ReplicationRequest, ReplicationResult, as_source_options
from airflow_lake_provider.replication.sinks.file import FileSink
from airflow_lake_provider.replication.transactions import Order
from lake_jobs.hudi.table import open_client
from lake_jobs.services.savepoint_rules import MADE_BY_REPLICATION
from local_stack import lake_writer
from replicate import replicate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLEANS = {
    "hoodie.table.services.enabled": "true",
    "hoodie.clean.automatic": "true",
    "hoodie.clean.commits.retained": "1",
}
COMPACTS = {"hoodie.compact.inline": "true", "hoodie.compact.inline.max.delta.commits": "1"}
LOCK = {key: text for key, text in lake_writer.MANAGED_LAKE.items() if ".lock." in key}


def cleaning_lake(spark: SparkSession, tmp_path: Path, type: str, rows: int) -> Lake:
    lake = Lake(spark, tmp_path, type, **CLEANS, **(COMPACTS if type == "MOR" else {}))
    for ts in range(1, 5):
        lake.write(lake.rows(range(rows), ts))
    assert list(lake.timeline.glob("*.clean"))
    return lake


def request_of(lake: Lake, part_rows: int, **options: str) -> ReplicationRequest:
    order = Order("events.files", snapshot_part_rows=part_rows)
    given = {"path": str(lake.folder / "files"), **as_source_options(LOCK), **options}
    return ReplicationRequest(lake.path, "events", "file", order, str(lake.folder / "result.json"), options=given)


def savepoints(lake: Lake) -> set[str]:
    return {path.name.split(".")[0].split("_")[0] for path in lake.timeline.glob("*.savepoint")}


def write_after_each_part(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """Commit, and clean, whenever a part of a snapshot is durable; the savepoints of those moments are returned."""
    commit, seen = FileSink.commit, list[set[str]]()

    def commit_and_write(self: FileSink, checkpoint: Any) -> None:
        commit(self, checkpoint)
        if checkpoint.snapshot is not None:
            lake.write(lake.rows(range(12), 100 + len(seen)))
            seen.append(savepoints(lake))

    monkeypatch.setattr(FileSink, "commit", commit_and_write)
    return seen


@pytest.mark.parametrize("type", ["COW", pytest.param("MOR", marks=pytest.mark.soak)])
def test_snapshot_ends_next_to_a_writer_that_cleans_faster_than_parts_are_read(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, type: str
) -> None:
    lake = cleaning_lake(spark, tmp_path, type, 12)
    before, instants = lake.table(), savepoints(lake)
    assert instants == set()
    with monkeypatch.context() as patch:
        # A slow snapshot is counted once a clean has passed its instant: Hudi begins no reading there any more.
        patch.setattr(snapshot_run, "COUNTED_AFTER_S", 0.0)
        seen = write_after_each_part(lake, patch)
        result = replicate(spark, request_of(lake, 4))
    assert result.message == ""
    delivered = lake.delivered()
    (instant,) = {checkpoint.snapshot.instant for checkpoint, _ in delivered if checkpoint.snapshot is not None}
    assert seen == [{instant}] * 3
    records = [record for _, found in delivered for record in found]
    assert {record["key"]["id"]: record["after"] for record in records} == before
    assert len(records) == len(before)
    assert savepoints(lake) == set()
    # What came meanwhile is cleaned, and the run says why it ends, instead of beginning one snapshot after another.
    assert "the snapshot took longer than a writer's cleans keep files" in result.waits_for
    result = replicate(spark, request_of(lake, 100))
    assert (result.message, result.waits_for) == ("", "")
    assert lake.replica() == lake.table()
    assert savepoints(lake) == set()


@pytest.mark.soak
def test_two_snapshots_of_one_instant_are_each_kept_to_their_end(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hudi has one savepoint of an instant. The stream that made it removes it, and the other one still reads."""
    lake = cleaning_lake(spark, tmp_path, "COW", 12)
    before, instant = lake.table(), lake.commits()[-1].requested_time
    first, second, third = (
        replace(request_of(lake, 4, path=str(tmp_path / name)), order=Order(f"events.{name}", snapshot_part_rows=4))
        for name in ("first", "second", "third")
    )
    begun, shared, ended = (threading.Event() for _ in range(3))
    commit, seen, results = FileSink.commit, list[set[str]](), list[ReplicationResult]()

    def commit_in_turn(self: FileSink, checkpoint: Any) -> None:
        commit(self, checkpoint)
        if checkpoint.snapshot is None:
            return
        if checkpoint.stream == first.order.stream and not begun.is_set():
            begun.set()
            assert shared.wait(TIMEOUT_S)
        elif checkpoint.stream == second.order.stream:
            if not shared.is_set():
                seen.append(savepoints(lake))
                shared.set()
                assert ended.wait(TIMEOUT_S)
            else:
                lake.write(lake.rows(range(12), 100 + len(seen)))
                if len(seen) == 2:
                    # One of a later instant, and it goes with the stream that made it.
                    results.append(replicate(spark, third))
            seen.append(savepoints(lake))

    def run_first() -> None:
        results.append(replicate(spark, first))
        ended.set()

    monkeypatch.setattr(FileSink, "commit", commit_in_turn)
    thread = threading.Thread(target=run_first)
    thread.start()
    assert begun.wait(TIMEOUT_S)
    result = replicate(spark, second)
    thread.join(TIMEOUT_S)
    assert [each.message for each in (*results, result)] == ["", "", ""]
    # Shared; gone with the first stream; and the second one's own, while the writer cleans.
    assert seen == [{instant}, set(), {instant}, {instant}]
    delivered = lake.delivered("second")
    assert {checkpoint.generation for checkpoint, _ in delivered} == {1}
    records = [record for checkpoint, found in delivered if checkpoint.snapshot is not None for record in found]
    assert {record["key"]["id"]: record["after"] for record in records} == before
    assert savepoints(lake) == set()


@pytest.mark.soak
@pytest.mark.parametrize("options", [{"snapshot_savepoint": "never"}, {"source.hoodie.write.lock.provider": ""}])
def test_without_a_savepoint_the_snapshot_begins_again_each_time(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, str]
) -> None:
    lake = cleaning_lake(spark, tmp_path, "COW", 12)
    seen = write_after_each_part(lake, monkeypatch)
    for _ in range(2):
        result = replicate(spark, request_of(lake, 4, **options))
        assert "while the snapshot was read; it begins again" in result.message
    assert seen == [set()] * len(seen)
    assert len(seen) > 1


@pytest.mark.soak(covered_by="tests/unit/replication/test_snapshot_savepoint.py")
def test_snapshot_after_one_that_was_killed_removes_its_savepoint_and_not_those_of_users(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = cleaning_lake(spark, tmp_path, "COW", 600)
    with open_client(spark, lake.path, {**lake.options, **LOCK}, {}) as client:
        client.savepoint(lake.commits()[-1].requested_time, "ann", "before the migration")
    of_user = savepoints(lake)
    lake.write(lake.rows(range(600), 5))
    request = request_of(lake, 10)
    first = submit(tmp_path, request)
    deadline = time.monotonic() + TIMEOUT_S
    while len(list((tmp_path / "files").glob("[0-9]*.jsonl"))) < 2:
        assert first.poll() is None, (tmp_path / "driver.log").read_text()[-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(first.pid, signal.SIGKILL)
    end(first)
    # The one that was killed removes nothing any more.
    left = savepoints(lake) - of_user
    assert len(left) == 1
    source = lake.source()
    source.read_timeline()
    assert [found.instant for found in source.find_savepoints(MADE_BY_REPLICATION)] == sorted(left)

    for ts in range(6, 9):
        lake.write(lake.rows(range(600), ts))
    second = submit(tmp_path, request)
    try:
        assert second.wait(TIMEOUT_S) == 0, (tmp_path / "driver.log").read_text()[-3000:]
    finally:
        end(second)
    result = from_json(ReplicationResult, (tmp_path / "result.json").read_text())
    assert result.message == ""
    assert lake.delivered()[-1][0].generation == 2
    assert lake.replica() == lake.table()
    assert savepoints(lake) == of_user
