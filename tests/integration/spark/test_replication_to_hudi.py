"""The sink `hudi` on real tables: the contract of every sink, runs that die, rivals, rows of others."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pytest
from pyspark.sql import functions as F
from pyspark.sql import types as T
from test_replication_on_hudi import Lake, _time_zone  # noqa: F401 - the fixture holds here as well

from airflow_lake_provider.errors import ConfigError, LakeError, SinkFencedError, SinkRefusedError
from airflow_lake_provider.replication.change import ChangeMode
from airflow_lake_provider.replication.checkpoint import SnapshotProgress, from_text
from airflow_lake_provider.replication.job import ReplicationRequest, ReplicationResult
from airflow_lake_provider.replication.sink import Sink, SinkSettings, create_sink
from airflow_lake_provider.replication.sink_contract import (
    SinkContract,
    batch,
    checkpoint,
    delete,
    insert,
    read,
    update,
)
from airflow_lake_provider.replication.transactions import Order
from lake_jobs.hudi.table import list_times, read_table_state
from lake_jobs.replication import hudi_sink
from lake_jobs.replication.hudi_sink import HudiSink
from lake_jobs.replication.hudi_target import CHECKPOINT, Target
from local_stack import lake_writer
from replicate import replicate
from tests.support.spark_session import ONE_TASK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STREAM = "events.lake"


class FollowedTable:
    """What the contract's changes are of."""

    key, partition, time_zone = ("id",), (), "UTC"
    schema = T.StructType([T.StructField("id", T.LongType()), T.StructField("value", T.IntegerType())])


@pytest.mark.soak
@pytest.mark.parametrize("type", ["COW", "MOR"])
class TestHudiSink(SinkContract):
    keeps_versions: ClassVar[bool] = False

    @pytest.fixture(autouse=True)
    def _place(self, spark: SparkSession, tmp_path: Path, type: str) -> None:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        self.spark, self.folder, self.type = spark, tmp_path, type

    def path(self, stream: str) -> str:
        return str(self.folder / stream)

    def make_sink(self, stream: str) -> Sink:
        type = lake_writer.TABLE_TYPES[self.type]
        options = {"path": self.path(stream), "hoodie.datasource.write.table.type": type, **ONE_TASK}
        sink = create_sink("hudi", SinkSettings(stream, "orders", options=options))
        assert isinstance(sink, HudiSink)
        sink.follow(FollowedTable())
        return sink

    def read_back(self, stream: str) -> list[tuple[int, int | None]]:
        if not (self.folder / stream / ".hoodie").exists():
            return []
        rows = self.spark.read.format("hudi").load(self.path(stream))
        return sorted((row["id"], row["value"]) for row in rows.select("id", "value").collect())

    def pending(self, stream: str) -> list[str]:
        timeline = read_table_state(self.spark, self.path(stream)).timeline
        return [requested for requested, _ in list_times(timeline.getWriteTimeline().filterInflightsAndRequested())]

    def test_run_that_dies_between_write_and_commit_leaves_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        stream, sink = self._opened()
        sink.write(batch(1, [insert(1, 10), insert(2, 20)]))
        sink.commit(checkpoint(stream, 1))

        def dying(*_: object) -> None:
            raise RuntimeError("the driver dies")

        sink.write(batch(2, [update(1, 11), delete(2, 20), insert(3, 30)]))
        with monkeypatch.context() as planted:
            planted.setattr(Target, "_require_newest", dying)
            with pytest.raises(Exception, match="the driver dies"):
                sink.commit(checkpoint(stream, 2))
        sink.close()
        (dead,) = self.pending(stream)
        assert self.read_back(stream) == [(1, 10), (2, 20)]

        beat = self.folder / stream / ".hoodie" / ".heartbeat" / dead
        if beat.exists():
            os.utime(beat, (time.time() - 600,) * 2)
        again = self.make_sink(stream)
        assert from_text(again.open() or "") == checkpoint(stream, 1)
        assert self.pending(stream) == []
        again.write(batch(2, [update(1, 12), delete(2, 20)]))
        again.commit(checkpoint(stream, 2))
        again.close()
        assert self.read_back(stream) == [(1, 12)]

    def test_of_two_runs_that_commit_at_the_same_time_one_is_shut_out(self) -> None:
        """Whichever is first under the lock; here the first is held between its files and its commit."""
        stream, first = self._opened()
        first.write(batch(1, [insert(1, 10)]))
        first.commit(checkpoint(stream, 1))
        second = self.make_sink(stream)
        assert from_text(second.open() or "").sequence == 1
        errors: list[LakeError] = []

        def commit(sink: Sink, key: int) -> None:
            # Other rows, so that no file of the one is one of the other's.
            sink.write(batch(2, [insert(key, key)]))
            try:
                sink.commit(checkpoint(stream, 2))
            except LakeError as error:
                errors.append(error)

        threads = [threading.Thread(target=commit, args=args) for args in ((first, 50), (second, 60))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert [type(error) for error in errors] == [SinkFencedError]
        assert len(self.read_back(stream)) == 2
        for sink in (first, second):
            sink.close()

    def test_rows_of_another_writer_are_refused(self) -> None:
        stream, sink = self._opened()
        sink.write(batch(1, [insert(1, 10)]))
        sink.commit(checkpoint(stream, 1))
        rows = self.spark.read.format("hudi").load(self.path(stream)).select("id", "value", "_hoodie_is_deleted")
        settings = {**lake_writer.MANAGED_LAKE, **ONE_TASK, "hoodie.table.name": "orders"}
        rows.withColumn("value", F.lit(99).cast("int")).write.format("hudi").options(**settings).mode("append").save(
            self.path(stream)
        )
        sink.write(batch(2, [insert(2, 20)]))
        with pytest.raises(
            SinkRefusedError, match="is of another writer, and the rows of a sink are its stream's alone"
        ):
            sink.commit(checkpoint(stream, 2))
        sink.close()
        assert self.read_back(stream) == [(1, 99)]
        with pytest.raises(SinkRefusedError, match="is of another writer"):
            self.make_sink(stream).open()

    def test_table_of_another_stream_is_refused(self) -> None:
        stream, sink = self._opened()
        sink.write(batch(1, [insert(1, 10)]))
        sink.commit(checkpoint(stream, 1))
        sink.close()
        options = {"path": self.path(stream), **ONE_TASK}
        with pytest.raises(SinkRefusedError, match=f"is stream {stream}'s .*, not customers.lake's"):
            create_sink("hudi", SinkSettings("customers.lake", "customers", options=options)).open()

    def test_snapshot_in_parts_replaces_the_table_with_one_commit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(hudi_sink, "MAX_ROWS", 2)
        stream, sink = self._opened()
        sink.write(batch(1, [insert(key, 10) for key in range(5)]))
        sink.commit(checkpoint(stream, 1))
        part = replace(checkpoint(stream, 2), generation=2, snapshot=SnapshotProgress("1", "k"))
        sink.write(batch(2, [read(1, 11), read(7, 70), read(8, 80)], 2, begins_snapshot=True))
        sink.commit(part)
        assert len(self.read_back(stream)) == 5
        sink.write(batch(2, [read(9, 90)], 2))
        sink.commit(replace(part, sequence=3))
        assert len(self.read_back(stream)) == 5
        done = replace(part, sequence=4, snapshot=None)
        sink.commit(done)
        assert self.read_back(stream) == [(1, 11), (7, 70), (8, 80), (9, 90)]
        # A row that changes several times in one commit, in memory and in files.
        sink.write(batch(5, [update(1, 12), update(7, 71), update(8, 81), update(1, 13), delete(7, 71)], 2))
        sink.commit(replace(checkpoint(stream, 5), generation=2))
        sink.close()
        assert self.read_back(stream) == [(1, 13), (8, 81), (9, 90)]
        assert not list(self.folder.glob(".*spool/*"))
        again = self.make_sink(stream)
        assert from_text(again.open() or "").sequence == 5
        # An emptied table.
        again.write(batch(6, [], 3, begins_snapshot=True))
        again.commit(replace(checkpoint(stream, 6), generation=3))
        again.close()
        assert self.read_back(stream) == []


def follow(
    spark: SparkSession, lake: Lake, mode: ChangeMode = ChangeMode.CHANGES, *, verify: bool = False
) -> ReplicationResult:
    options = {"path": other(lake), **ONE_TASK}
    order, result_path = Order(STREAM, snapshot_part_rows=3), str(lake.folder / "result.json")
    request = ReplicationRequest(lake.path, "events", "hudi", order, result_path, mode, options=options)
    return replicate(spark, replace(request, is_verification=verify))


def other(lake: Lake) -> str:
    return str(lake.folder / "other" / "events")


def rows_of(spark: SparkSession, path: str) -> list[tuple[object, ...]]:
    rows = spark.read.format("hudi").load(path)
    names = sorted(name for name in rows.columns if not name.startswith("_hoodie_"))
    assert [rows.schema[name].dataType for name in names] != []
    return sorted((tuple(row) for row in rows.select(*names).collect()), key=str)


def types_of(spark: SparkSession, path: str) -> dict[str, T.DataType]:
    schema = spark.read.format("hudi").load(path).schema
    return {field.name: field.dataType for field in schema.fields if not field.name.startswith("_hoodie_")}


def test_table_of_another_lake_is_the_table_that_it_follows(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, tmp_path, "MOR", **{"hoodie.table.cdc.enabled": "false", **ONE_TASK})
    lake.write(lake.rows(range(8), 1))
    first = follow(spark, lake)
    assert (first.message, first.rows) == ("", 8)
    city = F.when(F.col("id") >= 0, "Cork")
    lake.write(lake.rows([0, 9], 2).withColumn("city", city))
    lake.write(lake.rows([1], 3).withColumn("city", city), "delete")
    done = follow(spark, lake, verify=True)
    last = lake.commits()[-1].requested_time
    assert (done.message, done.commits) == ("", 2)
    assert done.verified == f"the sink has the table's 8 rows as of commit {last}"
    assert rows_of(spark, other(lake)) == rows_of(spark, lake.path)
    assert types_of(spark, other(lake)) == types_of(spark, lake.path)
    assert sorted(path.name for path in Path(other(lake)).iterdir() if path.name[0] != ".") == ["p0", "p1"]
    # One commit of the target for each of the source, with its checkpoint.
    state = read_table_state(spark, other(lake))
    assert len(list_times(state.timeline.getCommitsTimeline().filterCompletedInstants())) == 3
    assert (
        state.timeline.readCommitMetadata(state.timeline.lastInstant().get()).getMetadata(CHECKPOINT) == done.checkpoint
    )


@pytest.mark.soak
@pytest.mark.parametrize("mode", [ChangeMode.CHANGES, ChangeMode.LATEST])
def test_lake_follows_moves_overwrites_and_restores(spark: SparkSession, tmp_path: Path, mode: ChangeMode) -> None:
    lake = Lake(spark, tmp_path, "COW", **ONE_TASK)
    lake.write(lake.rows(range(8), 1))
    assert follow(spark, lake, mode).message == ""
    lake.write(lake.rows([20, 22], 2), "insert_overwrite")
    assert follow(spark, lake, mode).message == ""
    assert rows_of(spark, other(lake)) == rows_of(spark, lake.path)
    # The target is set back to an earlier commit: the stream goes on from there.
    first = list_times(read_table_state(spark, other(lake)).timeline.getCommitsTimeline())[0][0]
    settings = {"hoodie.clean.failed.writes.policy": "LAZY"}
    for name, value in settings.items():
        spark.conf.set(name, value)
    for procedure, name in (("create_savepoint", "commit_time"), ("rollback_to_savepoint", "instant_time")):
        spark.sql(f"call {procedure}(path => '{other(lake)}', {name} => '{first}')").collect()
    for name in settings:
        spark.conf.unset(name)
    assert len(rows_of(spark, other(lake))) == 8
    result = follow(spark, lake, mode, verify=True)
    assert (result.message, result.commits) == ("", 1)
    assert rows_of(spark, other(lake)) == rows_of(spark, lake.path)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        pytest.param({}, "needs the setting 'path'", id="path"),
        pytest.param({"path": "/x", "topic": "t"}, "knows no setting 'topic'", id="unknown"),
        pytest.param({"path": "/x", "hoodie.record.merge.mode": "CUSTOM"}, "must not be set", id="owned"),
        pytest.param({"path": "/x", "hoodie.base.path": "/y"}, "hoodie.base.path must not be set", id="other-table"),
        pytest.param(
            {"path": "/x", "hoodie.write.lock.provider": "org.apache.hudi.InProcessLockProvider"},
            "does not shut out another run",
            id="lock",
        ),
        pytest.param({"path": "s3a://b/x"}, "on s3a:// needs hoodie.write.lock.provider", id="store"),
    ],
)
def test_settings_with_which_rows_could_be_lost_are_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        create_sink("hudi", SinkSettings(STREAM, "events", options=options))


def test_folder_of_other_files_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "orders.csv").write_text("1,2\n")
    sink = create_sink("hudi", SinkSettings(STREAM, "events", options={"path": str(tmp_path / "other")}))
    with pytest.raises(SinkRefusedError, match="holds files and no Hudi table"):
        sink.open()
