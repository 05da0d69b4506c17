"""Hudi's Java classes, as far as table services need them: a fresh look at a table, and a client on it."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from failure_kind import causes_of, classify, describe
from job_contract import ENDED_BEAT_MS, FailureKind
from py4j.protocol import Py4JJavaError
from whole_file import open_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

MERGE_ON_READ = "MERGE_ON_READ"
LOOKS = 20
LOOK_EVERY_S = 0.1


class NoTableError(Exception):
    """There is no Hudi table at a base path."""


class PlanBusyError(Exception):
    """Another executor's heartbeat on the same plan lives."""


class SettingLostError(Exception):
    """A setting that must hold has another value in the client that Hudi made."""


@dataclass(frozen=True, slots=True)
class TableLook:
    """One look at a table's properties and active timeline; it does not refresh itself.

    `metadata_partitions` are the parts of the metadata table that are complete, such as `files` and `record_index`;
    `timeline` and `meta_client` are Hudi's own objects.
    """

    base_path: str
    table_type: str
    table_version: int
    metadata_partitions: frozenset[str]
    timeline: Any
    meta_client: Any


def requested_times(timeline: Any) -> tuple[str, ...]:
    """Return the requested times of a Hudi timeline's instants, oldest first."""
    return tuple(sorted(instant.requestedTime() for instant in timeline.getInstants()))


def find_instant(timeline: Any, requested_time: str) -> Any | None:
    """Return the instant of a Hudi timeline that was requested at this time; None when there is none."""
    found = (instant for instant in timeline.getInstants() if instant.requestedTime() == requested_time)
    return next(found, None)


def look_at_table(spark: SparkSession, base_path: str) -> TableLook:
    """Read a table afresh. Raises NoTableError, or Py4JJavaError when the storage cannot be read."""
    meta_client = _open_meta_client(spark, base_path)
    table_config = meta_client.getTableConfig()
    return TableLook(
        base_path=base_path,
        table_type=meta_client.getTableType().name(),
        table_version=table_config.getTableVersion().versionCode(),
        metadata_partitions=frozenset(table_config.getMetadataPartitions()),
        timeline=meta_client.getActiveTimeline(),
        meta_client=meta_client,
    )


@contextmanager
def open_client(
    spark: SparkSession, base_path: str, settings: Mapping[str, str], must_hold: Mapping[str, str]
) -> Iterator[Any]:
    """Open a Hudi write client and close it. Raises SettingLostError unless every setting in `must_hold` holds.

    Session and cluster defaults (`hoodie-defaults.conf`) go into the client as well, hence the check.
    """
    client = _create_client(spark, base_path, settings)
    try:
        properties = client.getConfig().getProps()
        for key, value in must_hold.items():
            if properties.getProperty(key) != value:
                raise SettingLostError(f"{key} is {properties.getProperty(key)} in Hudi's client, not {value}")
        yield client
    except Py4JJavaError as error:
        # FileSystemBasedLockProvider.close() deletes the lock file whoever holds it. After a lock that we did not get,
        # that is a writer's lock, so this client is left to die with its driver.
        if classify(causes_of(error.java_exception)) is not FailureKind.LOCK:
            _close(client)
        raise
    except BaseException:
        _close(client)
        raise
    else:
        _close(client)


def take_lock_once(spark: SparkSession, client: Any) -> None:
    """Take the table's lock and give it back. Raises Py4JJavaError when the client's settings do not get it."""
    with hold_lock(spark, client):
        pass


@contextmanager
def hold_lock(spark: SparkSession, client: Any) -> Iterator[None]:
    """Hold the table's lock. Raises Py4JJavaError when the client's settings do not get it."""
    none = spark._jvm.org.apache.hudi.common.util.Option.empty()
    transactions = client.getTransactionManager()
    # Not inside the `try`: ending what never began deletes a lock file that another holds.
    transactions.beginStateChange(none, none)
    try:
        yield
    finally:
        transactions.endStateChange(none)


@contextmanager
def be_sole_executor(spark: SparkSession, client: Any, instant: str) -> Iterator[None]:
    """Beat for an instant while its plan is executed. Raises PlanBusyError when another executor's heartbeat lives.

    Hudi beats for compactions only. Two executors of one clustering would roll back each other's files. When the
    execution fails an expired heartbeat stays behind, as a killed executor's does: it tells that this plan's executor
    is dead, and who sees none cannot know (`planner/plan_owner.py`).
    """
    heartbeats = client.getHeartbeatClient()
    with hold_lock(spark, client):
        if not heartbeats.isHeartbeatExpired(instant):
            raise PlanBusyError(instant)
        heartbeats.start(instant)
    try:
        yield
    except BaseException:
        heartbeats.stop(instant)
        leave_expired_heartbeat(spark, client.getConfig().getBasePath(), instant)
        raise
    heartbeats.stop(instant)


def leave_expired_heartbeat(spark: SparkSession, base_path: str, instant: str, beat_ms: int = ENDED_BEAT_MS) -> bool:
    """Leave a heartbeat of long ago; return whether it is as old as that, which some stores do not let one choose."""
    fs, path = open_path(spark, f"{base_path}/.hoodie/.heartbeat/{instant}")
    try:
        fs.create(path).close()
        fs.setTimes(path, beat_ms, -1)
        return bool(fs.getFileStatus(path).getModificationTime() == beat_ms)
    except Py4JJavaError as error:
        print(f"lake: no expired heartbeat was left for {instant}: {error.java_exception}", flush=True)
        return False


def remove_heartbeat(spark: SparkSession, base_path: str, instant: str) -> None:
    """Remove what an executor that ended left of its heartbeat."""
    fs, path = open_path(spark, f"{base_path}/.hoodie/.heartbeat/{instant}")
    fs.delete(path)


def find_heartbeat_age_s(spark: SparkSession, base_path: str, instant: str) -> float | None:
    """Return how many seconds ago an instant's executor beat last; None when it has no heartbeat."""
    beat_ms = find_beat_ms(spark, base_path, instant)
    return None if beat_ms is None else float(spark._jvm.java.lang.System.currentTimeMillis() - beat_ms) / 1000


def find_beat_ms(spark: SparkSession, base_path: str, instant: str) -> int | None:
    """Return when an instant's executor beat last, ms since the epoch; None when it has no heartbeat."""
    fs, path = open_path(spark, f"{base_path}/.hoodie/.heartbeat/{instant}")
    try:
        return int(fs.getFileStatus(path).getModificationTime())
    except Py4JJavaError:
        return None


def class_of(spark: SparkSession, name: str, neighbour: Any) -> Any:
    """Return a class of Hudi, from where an object of Hudi is: Spark loads a submission's jars with its own loader."""
    initialize = False
    return spark._jvm.java.lang.Class.forName(name, initialize, neighbour.getClass().getClassLoader())


def _open_meta_client(spark: SparkSession, base_path: str) -> Any:
    """Open a table; Hudi rewrites `hoodie.properties` in place, so one that was just created may be empty yet."""
    jvm = spark._jvm
    conf = jvm.org.apache.hudi.storage.hadoop.HadoopStorageConfiguration(spark._jsc.hadoopConfiguration())
    builder = jvm.org.apache.hudi.common.table.HoodieTableMetaClient.builder().setConf(conf).setBasePath(base_path)
    for _ in range(LOOKS):
        try:
            return builder.build()
        except Py4JJavaError as error:
            causes = causes_of(error.java_exception)
            if not any(cause.class_name.endswith(".TableNotFoundException") for cause in causes):
                raise
            fs, properties = open_path(spark, f"{base_path}/.hoodie/hoodie.properties")
            if not fs.exists(properties):
                raise NoTableError(f"there is no Hudi table at {base_path}") from error
        time.sleep(LOOK_EVERY_S)
    raise NoTableError(f"{base_path}/.hoodie/hoodie.properties names no table: restore it, or remove the folder")


def _create_client(spark: SparkSession, base_path: str, settings: Mapping[str, str]) -> Any:
    jvm = spark._jvm
    java_settings = jvm.java.util.HashMap()
    for key, value in settings.items():
        java_settings.put(key, value)
    return jvm.org.apache.hudi.HoodieCLIUtils.createHoodieWriteClient(
        spark._jsparkSession, base_path, jvm.PythonUtils.toScalaMap(java_settings), jvm.scala.Option.empty()
    )


def _close(client: Any) -> None:
    try:
        client.close()
    except Py4JJavaError as error:
        # The service's outcome stands on the timeline already.
        print(f"lake: the Hudi client did not close: {describe(causes_of(error.java_exception))}", flush=True)
