"""Each stuck shape, produced by real Hudi: what it blocks, its repair, and that writers and services go on after it."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from conftest import LOCK, MakeTable, Table, content, run
from py4j.protocol import Py4JJavaError
from pyspark.errors import IllegalArgumentException
from pyspark.sql import functions

from airflow_lake_provider.config.policies import DoctorPolicy, StuckKind, TablePolicy
from airflow_lake_provider.doctor import diagnosis
from airflow_lake_provider.doctor.repairs import Record, Repair, ServiceCall, load_records
from airflow_lake_provider.doctor.table_doctor import TableDoctor
from airflow_lake_provider.errors import RepairRefusedError
from airflow_lake_provider.job_contract import Mode, Outcome, Service
from airflow_lake_provider.storage.table_storage import open_storage
from lake_jobs.hudi.table import open_client
from local_stack import lake_writer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

ALL = DoctorPolicy(repairs=tuple(StuckKind))
HOURS_S = 3600
RECORD_INDEX = {
    **LOCK,
    "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
    "hoodie.metadata.auto.delete.partitions": "false",
    "hoodie.metadata.global.record.level.index.enable": "true",
    "hoodie.metadata.index.column.stats.enable": "false",
}
IMPATIENT = {
    "hoodie.write.lock.client.num_retries": "1",
    "hoodie.write.lock.client.wait_time_ms_between_retry": "100",
    "hoodie.write.lock.num_retries": "1",
    "hoodie.write.lock.wait_time_ms_between_retry": "100",
    "hoodie.write.lock.wait_time_ms": "300",
}


class Starter:
    """Runs a service call at once, in this session, as the DAG run would."""

    def __init__(self, spark: SparkSession, table: Table) -> None:
        self._spark, self._table = spark, table

    def __call__(self, call: ServiceCall) -> str:
        result = run(self._spark, self._table.request(call.mode, *call.instants, service=call.service))
        assert result.outcome is Outcome.COMPLETED, result.message
        return f"{call.service}.{'.'.join(call.instants)}"


def doctor_of(table: Table, starter: Starter | None = None, policy: DoctorPolicy = ALL) -> TableDoctor:
    storage = open_storage(str(table.path))
    return TableDoctor(storage, TablePolicy(doctor=policy), "test", lambda: int(time.time() * 1000), starter)


def shapes(table: Table) -> list[tuple[str, str]]:
    return [(finding.kind.value, finding.instant) for finding, _ in doctor_of(table).examine()]


def repair_of(table: Table, kind: StuckKind) -> Repair:
    return next(repair for finding, repair in doctor_of(table).examine() if finding.kind is kind)


def treat(table: Table, kind: StuckKind, starter: Starter | None = None) -> Record:
    record = doctor_of(table, starter).repair(repair_of(table, kind))
    assert load_records(open_storage(str(table.path)))[-1] == record
    return record


def let_hours_pass(table: Table, hours: float = 7) -> None:
    """Make everything that is pending, and every sign of life, seem as old as that."""
    hoodie, then = table.path / ".hoodie", time.time() - hours * HOURS_S
    pending = [f for f in table.timeline.iterdir() if f.name.endswith((".requested", ".inflight"))]
    signs = [hoodie / "lock", *hoodie.glob(".heartbeat/*"), *hoodie.glob("metadata/.hoodie/.heartbeat/*")]
    for file in [*pending, *signs, *hoodie.glob(".temp/*/*")]:
        if file.exists():
            os.utime(file, (then, then))


@contextmanager
def client_of(spark: SparkSession, table: Table, options: Mapping[str, str]) -> Iterator[Any]:
    with open_client(spark, str(table.path), {**options, "hoodie.table.services.enabled": "true"}, {}) as client:
        yield client


def write_on(spark: SparkSession, table: Table, commit: int | None = None, **options: str) -> None:
    settings = lake_writer.write_options(table.written, commit or table.written.commits, None, options)
    lake_writer.write_commit(spark, table.written, commit or table.written.commits, settings)


def pending(table: Table, action: str) -> set[str]:
    names = table.files()
    completed = {name.split("_")[0] for name in names if "_" in name}
    return {n.split(".")[0] for n in names if n.endswith((f".{action}.requested", f".{action}.inflight"))} - completed


def test_orphaned_lock_stops_every_writer_until_it_is_moved_away(spark: SparkSession, make_table: MakeTable) -> None:
    table = make_table(type="COW")
    never_expires = {"hoodie.write.lock.filesystem.expire": "0", **IMPATIENT}
    none = spark._jvm.org.apache.hudi.common.util.Option.empty()
    with client_of(spark, table, {**LOCK, **RECORD_INDEX, **never_expires}) as client:
        client.getTransactionManager().beginStateChange(none, none)
        lock = (table.path / ".hoodie" / "lock").read_bytes()
    # A closing client takes its lock along; a killed one leaves it.
    (table.path / ".hoodie" / "lock").write_bytes(lock)
    assert shapes(table) == []
    with pytest.raises(Py4JJavaError, match="lock"):
        write_on(spark, table, **never_expires)
    let_hours_pass(table, hours=1)
    record = treat(table, StuckKind.ORPHANED_LOCK)
    assert record.result == "repaired"
    write_on(spark, table, **never_expires)
    assert shapes(table) == []


def test_lock_of_a_writer_that_lives_is_never_touched(spark: SparkSession, make_table: MakeTable) -> None:
    table = make_table(type="COW")
    none = spark._jvm.org.apache.hudi.common.util.Option.empty()
    with client_of(spark, table, {**RECORD_INDEX, "hoodie.write.lock.filesystem.expire": "0"}) as client:
        instant = client.startCommit()
        client.getTransactionManager().beginStateChange(none, none)
        lock = table.path / ".hoodie" / "lock"
        os.utime(lock, (1_700_000_000, 1_700_000_000))
        assert shapes(table) == [], f"{instant} has a heartbeat"
        client.getTransactionManager().endStateChange(none)
        client.getHeartbeatClient().stop(instant)


def test_failed_write_and_empty_ttl_run_are_holes_until_they_are_rolled_back(
    spark: SparkSession, make_table: MakeTable
) -> None:
    table = make_table(type="COW")
    spark.sql(f"create table orders using hudi location '{table.path}'")
    options = ",".join(f"{key}={value}" for key, value in RECORD_INDEX.items())
    try:
        with pytest.raises((IllegalArgumentException, Py4JJavaError), match=r"replacecommit\.inflight"):
            spark.sql(f"call run_ttl(table => 'orders', retain_days => 36500, options => '{options}')")
    finally:
        spark.sql("drop table orders")
    (dangling,) = pending(table, "replacecommit")
    orders = lake_writer.orders_of_commit(spark, table.written, 3)
    failing = orders.withColumn("customer", functions.udf(lambda value: 1 // (value - value), "long")("customer"))
    writer = failing.write.format("hudi").options(**lake_writer.write_options(table.written, 3, None, {}))
    with pytest.raises(Py4JJavaError, match="ZeroDivisionError"):
        writer.mode("append").save(str(table.path))
    (failed,) = pending(table, "commit")
    let_hours_pass(table, hours=1)
    assert shapes(table) == [("failed_write", failed)], "run_ttl in single-writer mode had no heartbeat"
    let_hours_pass(table)
    stuck = [("dangling_replacecommit", dangling), ("failed_write", failed)]
    assert shapes(table) == stuck
    write_on(spark, table, commit=4)
    assert shapes(table) == stuck, "a writer in multi-writer mode rolls back no write"
    record = treat(table, StuckKind.DANGLING_REPLACECOMMIT, Starter(spark, table))
    assert record.run_id == f"rollback.{dangling}.{failed}"
    assert shapes(table) == []
    assert not pending(table, "replacecommit")
    write_on(spark, table, commit=5)


def test_clustering_plan_rejects_updates_until_its_service_has_run(spark: SparkSession, make_table: MakeTable) -> None:
    table = make_table(type="COW")
    scheduled = run(spark, table.request(Mode.SCHEDULE, service=Service.CLUSTERING))
    (instant,) = scheduled.scheduled_instants
    with pytest.raises(Py4JJavaError, match="HoodieClusteringUpdateException"):
        write_on(spark, table)
    before = content(spark, table)
    # What a writer's executor leaves that is killed after it began: Hudi gives clusterings no heartbeat.
    (table.path / ".hoodie" / ".heartbeat" / instant).unlink()
    with client_of(spark, table, RECORD_INDEX):
        hudi = spark._jvm.org.apache.hudi
        conf = hudi.storage.hadoop.HadoopStorageConfiguration(spark._jsc.hadoopConfiguration())
        builder = hudi.common.table.HoodieTableMetaClient.builder().setConf(conf).setBasePath(str(table.path))
        meta = builder.build()
        requested = meta.getInstantGenerator().getClusteringCommitRequestedInstant(instant)
        meta.getActiveTimeline().transitionClusterRequestedToInflight(requested, hudi.common.util.Option.empty())
    let_hours_pass(table, hours=1)
    assert ("unguarded_service", instant) in shapes(table)
    with pytest.raises(RepairRefusedError, match="may be at work"):
        treat(table, StuckKind.UNGUARDED_SERVICE)
    let_hours_pass(table, hours=7)
    finding = next(f for f, _ in doctor_of(table).examine() if f.kind is StuckKind.BLOCKING_CLUSTERING)
    assert finding.instant == instant
    assert any(line.startswith("updates of ") and "Bilbao" in line for line in finding.blocks), finding
    record = treat(table, StuckKind.BLOCKING_CLUSTERING, Starter(spark, table))
    assert record.run_id == f"clustering.{instant}"
    assert content(spark, table) == before
    write_on(spark, table)
    # What is left is the write that was rejected.
    assert [kind for kind, _ in shapes(table)] == ["failed_write"]


def test_overtaken_log_compaction_is_refused_by_hudi_and_its_plan_removed(
    spark: SparkSession, make_table: MakeTable
) -> None:
    table = make_table()
    before = content(spark, table)
    options = {
        **RECORD_INDEX,
        "hoodie.metadata.global.record.level.index.enable": "false",
        "hoodie.log.compaction.enable": "true",
        "hoodie.log.compaction.blocks.threshold": "1",
        "hoodie.compact.inline.max.delta.commits": "1",
    }
    none = spark._jvm.org.apache.hudi.common.util.Option.empty()
    with client_of(spark, table, options) as client:
        log_compaction = client.scheduleLogCompaction(none).get()
        compaction = client.scheduleCompaction(none).get()
        with pytest.raises(Py4JJavaError, match="compaction instant with greater timestamp"):
            client.logCompact(log_compaction, True)
    with pytest.raises(RepairRefusedError, match="it is young"):
        treat(table, StuckKind.OVERTAKEN_LOG_COMPACTION)
    let_hours_pass(table, hours=1)
    assert ("overtaken_log_compaction", log_compaction) in shapes(table)
    record = treat(table, StuckKind.OVERTAKEN_LOG_COMPACTION)
    assert record.result == "repaired"
    assert record.removed[0].path.endswith(f"{log_compaction}.logcompaction.requested")
    assert not pending(table, "logcompaction")
    done = treat(table, StuckKind.PLAN_WITHOUT_EXECUTOR, Starter(spark, table))
    assert done.instant == compaction
    assert content(spark, table) == before
    write_on(spark, table)
    assert shapes(table) == []


def schedule_index(spark: SparkSession, client: Any) -> str:
    jvm = spark._jvm
    kinds = jvm.java.util.ArrayList()
    kinds.add(jvm.org.apache.hudi.metadata.MetadataPartitionType.RECORD_INDEX)
    return str(client.scheduleIndexing(kinds, jvm.java.util.ArrayList()).get())


def test_duplicate_index_plan_is_removed_and_the_first_one_builds(spark: SparkSession, make_table: MakeTable) -> None:
    table = make_table(type="COW")
    with client_of(spark, table, RECORD_INDEX) as client:
        first, second = schedule_index(spark, client), schedule_index(spark, client)
    let_hours_pass(table, hours=1)
    assert ("duplicate_index_plan", second) in shapes(table)
    assert treat(table, StuckKind.DUPLICATE_INDEX_PLAN).result == "repaired"
    assert pending(table, "indexing") == {first}
    with client_of(spark, table, RECORD_INDEX) as client:
        assert client.index(first).isPresent()
        assert "record_index" in table.properties()["hoodie.table.metadata.partitions"]
    assert shapes(table) == []


def test_index_build_that_gave_up_is_reset_after_its_partition_was_dropped(
    spark: SparkSession, make_table: MakeTable
) -> None:
    table = make_table(type="COW")
    with client_of(spark, table, RECORD_INDEX) as client:
        instant = schedule_index(spark, client)
        # A writer that is alive and never ends.
        writer = client.startCommit()
    heartbeat = table.path / ".hoodie" / ".heartbeat" / writer
    heartbeat.parent.mkdir(exist_ok=True)
    in_an_hour = time.time() + HOURS_S
    heartbeat.touch()
    os.utime(heartbeat, (in_an_hour, in_an_hour))
    with (
        client_of(spark, table, {**RECORD_INDEX, "hoodie.metadata.index.check.timeout.seconds": "2"}) as client,
        pytest.raises(Py4JJavaError, match="catchup"),
    ):
        client.index(instant)
    heartbeat.unlink()
    assert table.properties().get("hoodie.table.metadata.partitions.inflight") == "record_index"
    let_hours_pass(table)
    with pytest.raises(RepairRefusedError, match="record_index is partly built"):
        treat(table, StuckKind.STALE_INDEX_BUILD)
    with client_of(spark, table, RECORD_INDEX) as client:
        names = spark._jvm.java.util.ArrayList()
        names.add("record_index")
        client.dropIndex(names)
    record = treat(table, StuckKind.STALE_INDEX_BUILD)
    assert record.result == "repaired"
    with client_of(spark, table, RECORD_INDEX) as client:
        again = instant if instant in pending(table, "indexing") else schedule_index(spark, client)
        assert client.index(again).isPresent()
    assert "stale_index_build" not in dict(shapes(table))


def test_archiving_is_frozen_until_the_metadata_table_is_compacted(
    spark: SparkSession, make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(type="COW")
    monkeypatch.setattr(diagnosis, "FROZEN_AFTER_WRITES", 3)
    keep = {"hoodie.keep.min.commits": "1", "hoodie.keep.max.commits": "2", "hoodie.clean.commits.retained": "0"}
    archive = table.request(Mode.SCHEDULE_AND_EXECUTE, service=Service.ARCHIVE, service_options=keep)
    assert run(spark, archive).outcome is Outcome.NOTHING_TO_DO
    assert shapes(table) == [("frozen_archive", "")]
    assert treat(table, StuckKind.FROZEN_ARCHIVE, Starter(spark, table)).run_id == "metacompaction."
    assert shapes(table) == []
    assert run(spark, archive).outcome is Outcome.COMPLETED
