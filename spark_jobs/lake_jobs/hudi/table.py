"""Hudi's Java classes, as far as table services need them: the state of a table, and a client on it."""

from __future__ import annotations

import re
import time
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from py4j.protocol import Py4JJavaError

from airflow_lake_provider.instant_clock import HOUR_MS, ZONE_STEP_MS, describe_foreign, find_foreign, stamps_of
from airflow_lake_provider.job_contract import ENDED_BEAT_MS, METADATA_TABLE, FailureKind
from airflow_lake_provider.obstacles import (
    find_empty_plans,
    find_stopping,
    point_to_lost_metadata,
)
from airflow_lake_provider.shared.hudi_settings import BASE_PATH, MERGE_ON_READ, TABLE_NAME
from airflow_lake_provider.timeline_head import ArchivedBehind, TimelineInstant, find_archived_behind, needs_archive
from lake_jobs.driver.failure import causes_of, classify, describe
from lake_jobs.hudi.files import open_path
from lake_jobs.hudi.lock_file import keep_lock_file
from lake_jobs.hudi.store_clock import store_now_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pyspark.sql import SparkSession

MAX_READS = 20
POLL_INTERVAL_S = 0.1


class NoTableError(Exception):
    """There is no Hudi table at a base path."""


class PlanBusyError(Exception):
    """Another executor has the plan: its heartbeat has not expired, or it began the plan just now."""


class PlanGoneError(Exception):
    """The plan is not pending any more: another executor completed it, or removed it."""


class SettingLostError(Exception):
    """A setting that must hold has another value in the client that Hudi made."""


@dataclass(frozen=True, slots=True)
class LoadedTable:
    """A table's properties and active timeline at one moment; it does not refresh itself.

    `metadata_partitions` are the parts of the metadata table that are complete, such as `files` and `record_index`;
    `timeline` and `meta_client` are Hudi's own objects.
    """

    base_path: str
    table_type: str
    table_version: int
    metadata_partitions: frozenset[str]
    timeline: Any
    meta_client: Any


_INSTANT = re.compile(r"\[(?:==>)?(\d+)(?:__(\d+))?__([a-z]+)__([A-Z]+)\]")


class ListedInstant(NamedTuple):
    """An instant as Hudi prints it."""

    requested_time: str
    completed_time: str
    """Empty where Hudi knows none."""
    action: str
    state: str


def parse_instants(text: str, count: int) -> list[ListedInstant]:
    """Return the instants of a list as Hudi prints it. Raises ValueError when it has another form.

    `count` is how many there are: a list in another form must not pass for a shorter one.
    """
    found = [ListedInstant(*parts) for parts in _INSTANT.findall(text)]
    if len(found) != count:
        raise ValueError(f"Hudi prints instants in an unknown form: {text[:200]}")
    return found


def list_times(timeline: Any) -> list[tuple[str, str]]:
    """Return requested and completed time of a Hudi timeline's instants, in its order, by one call of Java.

    The completed time is empty where Hudi knows none. Raises ValueError when Hudi prints instants in another form.
    """
    instants = timeline.getInstants()
    found = parse_instants(str(instants.toString()), int(instants.size()))
    return [(instant.requested_time, instant.completed_time) for instant in found]


def requested_times(timeline: Any) -> tuple[str, ...]:
    """Return the requested times of a Hudi timeline's instants, oldest first."""
    return tuple(sorted(requested for requested, _ in list_times(timeline)))


def list_items(found: Any) -> list[Any]:
    """Return the items of a Java list. A loop over it would end with an exception of Java, which takes longer."""
    return [found.get(at) for at in range(int(found.size()))]


def find_instant(timeline: Any, requested_time: str) -> Any | None:
    """Return the instant of a Hudi timeline that was requested at this time; None when there is none."""
    found = (instant for instant in timeline.getInstants() if instant.requestedTime() == requested_time)
    return next(found, None)


def read_table_state(spark: SparkSession, base_path: str) -> LoadedTable:
    """Read the present state of a table. Raises NoTableError, or Py4JJavaError when the storage cannot be read."""
    meta_client = _open_meta_client(spark, base_path)
    table_config = meta_client.getTableConfig()
    return LoadedTable(
        base_path=base_path,
        table_type=meta_client.getTableType().name(),
        table_version=table_config.getTableVersion().versionCode(),
        metadata_partitions=frozenset(map(str, table_config.getMetadataPartitions().toArray())),
        timeline=meta_client.getActiveTimeline(),
        meta_client=meta_client,
    )


def read_clean_plan(plan: Any) -> tuple[str, int]:
    """Return what a clean's plan keeps, empty when it does not count commits, and how much it deletes."""
    earliest = plan.getEarliestInstantToRetain()
    files = plan.getFilePathsToBeDeletedPerPartition() or {}
    partitions = plan.getPartitionsToBeDeleted() or []
    deletes = sum(len(found) for found in files.values()) + len(partitions)
    return (str(earliest.getTimestamp() or "") if earliest is not None else ""), deletes


@contextmanager
def open_client(
    spark: SparkSession,
    base_path: str,
    settings: Mapping[str, str],
    must_hold: Mapping[str, str],
    *,
    is_bare: bool = False,
) -> Iterator[Any]:
    """Open a Hudi write client and close it. Raises SettingLostError unless every setting in `must_hold` holds.

    Session and cluster defaults (`hoodie-defaults.conf`) go into the client as well, hence the check. So do settings
    that name a table, and over the path that the client is opened with: the table's own name and path are set last.
    A bare one takes neither them nor a schema, which a timeline of which all has moved lacks; it writes no rows.
    """
    identity = _identity_of(_open_meta_client(spark, base_path).getTableConfig(), base_path)
    create = _create_bare_client if is_bare else _create_client
    client = create(spark, base_path, {**settings, **identity})
    try:
        properties = client.getConfig().getProps()
        for key, value in {**must_hold, **identity}.items():
            if properties.getProperty(key) != value:
                raise SettingLostError(f"{key} is {properties.getProperty(key)} in Hudi's client, not {value}")
        yield client
    except Py4JJavaError as error:
        # FileSystemBasedLockProvider.close() deletes the lock file whichever process holds it. When this client did
        # not get it, that is a writer's lock, so this client stays open until its driver ends.
        if classify(causes_of(error.java_exception)) is not FailureKind.LOCK:
            _close(client)
        raise
    except BaseException:
        _close(client)
        raise
    else:
        _close(client)


def take_lock_once(spark: SparkSession, client: Any) -> None:
    """Acquire the table's lock and release it. Raises Py4JJavaError when the client's settings do not get it."""
    with hold_lock(spark, client):
        pass


@contextmanager
def hold_lock(spark: SparkSession, client: Any) -> Iterator[None]:
    """Hold the table's lock, for any time. Raises Py4JJavaError when the client's settings do not get it."""
    none = spark._jvm.org.apache.hudi.common.util.Option.empty()
    transactions = client.getTransactionManager()
    # Not inside the `try`: ending what never began deletes a lock file that another holds.
    transactions.beginStateChange(none, none)
    try:
        with keep_lock_file(spark, client):
            yield
    finally:
        transactions.endStateChange(none)


@contextmanager
def be_sole_executor(
    spark: SparkSession, client: Any, instant: str, require_due: Callable[[], object] = lambda: None
) -> Iterator[None]:
    """Beat for an instant while its plan is executed. Raises PlanBusyError when another executor's is fresh.

    `require_due` reads the timeline again under the table's lock, and raises when the plan must not be executed. The
    heartbeat lies in the table, so drivers that were given two names of one table meet here.

    Hudi beats for compactions only. Two executors of one clustering would roll back each other's files. When the
    execution fails an expired heartbeat stays behind, as a killed executor's does: it proves that this plan's executor
    has ended, which no heartbeat at all would not (`planner/left_behind.py`).
    """
    heartbeats = client.getHeartbeatClient()
    with hold_lock(spark, client):
        # Hudi's own `isHeartbeatExpired` compares the store's time with this machine's.
        if is_beating(spark, client, instant):
            raise PlanBusyError(instant)
        require_due()
        heartbeats.start(instant)
    try:
        yield
    except BaseException:
        heartbeats.stop(instant)
        leave_expired_heartbeat(spark, client.getConfig().getBasePath(), instant)
        raise
    heartbeats.stop(instant)


@contextmanager
def leave_mark_of_end(
    spark: SparkSession, client: Any, instant: str, require_due: Callable[[], object]
) -> Iterator[None]:
    """Execute a plan for which Hudi itself beats, and leave an expired heartbeat behind when that fails.

    Hudi removes its heartbeat where the client is closed, and without one nothing says that the executor has ended: the
    next one would wait for hours. Raises PlanBusyError when another executor's heartbeat is fresh, and what
    `require_due` does, which is called under the table's lock.
    """
    with hold_lock(spark, client):
        if is_beating(spark, client, instant):
            raise PlanBusyError(instant)
        require_due()
    try:
        yield
    except BaseException as error:
        kind = classify(causes_of(error.java_exception)) if isinstance(error, Py4JJavaError) else None
        # With these, this process has executed nothing.
        if kind not in {FailureKind.BUSY, FailureKind.LOCK, FailureKind.PLAN_GONE}:
            client.getTableServiceClient().getHeartbeatClient().stop(instant)
            leave_expired_heartbeat(spark, client.getConfig().getBasePath(), instant)
        raise


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
    """Return how many seconds ago an instant's executor beat last, by the store's clock; None without a heartbeat."""
    beat_ms = find_beat_ms(spark, base_path, instant)
    return None if beat_ms is None else (store_now_ms(spark, base_path) - beat_ms) / 1000


def is_beating(spark: SparkSession, client: Any, instant: str) -> bool:
    """Return whether the heartbeat of an instant is fresh, by the store's clock and the client's settings."""
    config = client.getConfig()
    age_s = find_heartbeat_age_s(spark, str(config.getBasePath()), instant)
    interval_ms = int(config.getHoodieClientHeartbeatIntervalInMs())
    misses = int(config.getHoodieClientHeartbeatTolerableMisses())
    return age_s is not None and age_s * 1000 <= interval_ms * misses


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
    configuration, client = _meta_client_classes(spark._jvm)
    conf = configuration(spark._jsc.hadoopConfiguration())
    builder = client.builder().setConf(conf).setBasePath(base_path)
    for _ in range(MAX_READS):
        try:
            return builder.build()
        except Py4JJavaError as error:
            causes = causes_of(error.java_exception)
            if not any(cause.class_name.endswith(".TableNotFoundException") for cause in causes):
                raise
            fs, properties = open_path(spark, f"{base_path}/.hoodie/hoodie.properties")
            if not fs.exists(properties):
                raise NoTableError(f"there is no Hudi table at {base_path}") from error
        time.sleep(POLL_INTERVAL_S)
    raise NoTableError(f"{base_path}/.hoodie/hoodie.properties names no table: restore it, or remove the folder")


@cache
def _meta_client_classes(jvm: Any) -> tuple[Any, Any]:
    """Return two of Hudi's classes. To find one the JVM searches all jars for each part of its name, each time."""
    hudi = jvm.org.apache.hudi
    return hudi.storage.hadoop.HadoopStorageConfiguration, hudi.common.table.HoodieTableMetaClient


def _identity_of(table_config: Any, base_path: str) -> dict[str, str]:
    """Return the settings by which Hudi's client finds its table."""
    return {BASE_PATH: base_path, TABLE_NAME: str(table_config.getTableName())}


def _create_client(spark: SparkSession, base_path: str, settings: Mapping[str, str]) -> Any:
    jvm = spark._jvm
    java_settings = jvm.java.util.HashMap()
    for key, value in settings.items():
        java_settings.put(key, value)
    return jvm.org.apache.hudi.HoodieCLIUtils.createHoodieWriteClient(
        spark._jsparkSession, base_path, jvm.PythonUtils.toScalaMap(java_settings), jvm.scala.Option.empty()
    )


def _create_bare_client(spark: SparkSession, base_path: str, settings: Mapping[str, str]) -> Any:
    jvm: Any = spark._jvm
    hudi = jvm.org.apache.hudi
    properties = jvm.java.util.Properties()
    for key, value in settings.items():
        properties.setProperty(key, value)
    config = hudi.config.HoodieWriteConfig.newBuilder().withPath(base_path).withProperties(properties).build()
    return hudi.client.SparkRDDWriteClient(hudi.client.common.HoodieSparkEngineContext(spark._jsc), config)


def _close(client: Any) -> None:
    try:
        client.close()
    except Py4JJavaError as error:
        # The service's outcome stands on the timeline already.
        print(f"lake: the Hudi client did not close: {describe(causes_of(error.java_exception))}", flush=True)


# --- The zone in which this driver names instants: the table's, and refused where the writers take another one.

UTC = "UTC"


def take_zone_of_table(spark: SparkSession, state: LoadedTable) -> None:
    """Let this JVM name instants in the zone that the table says, as writers do.

    Hudi keeps one zone per JVM, and sets it where a Spark writer begins or a table is created: a client made for a
    service leaves it at the JVM's own, also on a table that says UTC.
    """
    zone = state.meta_client.getTableConfig().getTimelineTimezone()
    spark._jvm.org.apache.hudi.common.table.timeline.HoodieInstantTimeGenerator.setCommitTimeZone(zone)


def find_zone(spark: SparkSession, base_path: str) -> str:
    """Return the zone in which a table's instants are named; empty for a table that cannot be read."""
    try:
        return str(_open_meta_client(spark, base_path).getTableConfig().getTimelineTimezone().name())
    except (NoTableError, Py4JJavaError):
        return ""  # the service says why


def instant_time_hours_ago(spark: SparkSession, hours: int) -> str:
    """Return the instant time of so many hours before now, in the zone that `take_zone_of_table` has set."""
    return instant_time_of(spark, int(time.time() * 1000) - hours * HOUR_MS)


def instant_time_of(spark: SparkSession, time_ms: int) -> str:
    """Return the instant time of ms since the epoch, in the zone that `take_zone_of_table` has set."""
    then = spark._jvm.java.util.Date(time_ms)
    return str(spark._jvm.org.apache.hudi.common.table.timeline.HoodieInstantTimeGenerator.formatDate(then))


OLDEST_OF_LAYOUT_2 = 8


def slices_by_completion(state: LoadedTable) -> bool:
    """Return whether Hudi finds the file slice of a log file by when its write completed."""
    return state.table_type == MERGE_ON_READ and state.table_version >= OLDEST_OF_LAYOUT_2


def list_active(state: LoadedTable) -> list[TimelineInstant]:
    """Return all instants of the active timeline, by one call of Java."""
    instants = state.timeline.getInstants()
    found = parse_instants(str(instants.toString()), int(instants.size()))
    return [TimelineInstant(instant.requested_time, instant.action, instant.state) for instant in found]


def find_behind(state: LoadedTable) -> ArchivedBehind | None:
    """Return which archived writes Hudi takes for uncommitted, or for never completed; None when there are none.

    An archive of layout 1 has to be read whole, and is only where there is a savepoint.
    """
    active = list_active(state)
    by_completion = slices_by_completion(state)
    is_sound = not needs_archive(active, slices_by_completion=by_completion)
    if not active or (state.table_version < OLDEST_OF_LAYOUT_2 and is_sound):
        return None
    first = min(active).requested_time
    archived = state.meta_client.getArchivedTimeline(first).getCommitsTimeline().findInstantsAfter(first)
    return find_archived_behind(active, requested_times(archived), slices_by_completion=by_completion)


class TimelineFile(NamedTuple):
    """A file of a table's active timeline."""

    name: str
    size_bytes: int
    modified_ms: int


def list_timeline(spark: SparkSession, state: LoadedTable) -> tuple[TimelineFile, ...]:
    """Return the files of a table's active timeline; one listing."""
    fs, folder = open_path(spark, state.meta_client.getTimelinePath().toString())
    return tuple(
        TimelineFile(str(file.getPath().getName()), int(file.getLen()), int(file.getModificationTime()))
        for file in fs.listStatus(folder)
        if file.isFile()
    )


def find_obstacle(spark: SparkSession, state: LoadedTable, service: str, files: Iterable[TimelineFile]) -> str:
    """Return why a service would fail each time until the table is repaired; empty when nothing shows that."""
    if state.metadata_partitions and is_metadata_lost(spark, state):
        return point_to_lost_metadata(state.metadata_partitions)
    return find_stopping(service, find_empty_plans((file.name, file.size_bytes) for file in files))


def find_restores(state: LoadedTable) -> tuple[str, ...]:
    """Return the requested times of the restores that are pending, oldest first."""
    return requested_times(state.timeline.getRestoreTimeline().filterInflightsAndRequested())


def is_metadata_lost(spark: SparkSession, state: LoadedTable) -> bool:
    """Whether there is no metadata table where the properties list one."""
    fs, properties = open_path(spark, f"{state.base_path}/{METADATA_TABLE}/.hoodie/hoodie.properties")
    return bool(state.metadata_partitions) and not fs.exists(properties)


def find_zone_problem(spark: SparkSession, state: LoadedTable, files: Iterable[TimelineFile]) -> str:
    """Return which instants were not named in this JVM's zone, and what to do; empty when all were."""
    table_zone = str(state.meta_client.getTableConfig().getTimelineTimezone().name())
    jvm_zone = spark._jvm.java.util.TimeZone.getDefault()

    @cache
    def offset_of_step(step: int) -> int:
        return 0 if table_zone == UTC else int(jvm_zone.getOffset(step * ZONE_STEP_MS))

    # Zones change at full quarters of an hour, so one question for each is enough.
    foreign = find_foreign(
        stamps_of((f.name, f.modified_ms) for f in files),
        lambda ms: offset_of_step(ms // ZONE_STEP_MS),
        int(time.time() * 1000),
    )
    if foreign is None:
        return ""
    return describe_foreign(foreign, UTC if table_zone == UTC else str(jvm_zone.getID()), table_zone)
