"""Registers a table in a catalog, and keeps columns and partitions there as they are, by Hudi's own sync tools.

Neither takes the table's lock: only completed writes are read, and nothing is written to the table. Each step finds
what is there already, so a run that was killed is done by the next one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from py4j.java_gateway import get_field
from py4j.protocol import Py4JJavaError

from airflow_lake_provider.errors import ServiceRefusedError
from airflow_lake_provider.job_contract import JobRequest, Mode, Outcome, Service, ServiceRequest, ServiceResult
from airflow_lake_provider.shared.catalog_names import HIVE_SYNC_TOOL, names_of
from airflow_lake_provider.shared.hudi_settings import MERGE_ON_READ, TABLE_FILE_FORMAT
from lake_jobs.driver.failure import causes_of
from lake_jobs.driver.files import log_progress
from lake_jobs.hudi.table import LoadedTable, list_items, read_table_state
from lake_jobs.services.context import refuse_scheduling, require_version
from lake_jobs.services.sync_rules import (
    CLIENT_LIMITS,
    Registration,
    explain_failure,
    find_stranger,
    read_registration,
    tool_settings,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import SparkSession

METASTORE_URIS = "hive.metastore.uris"


def run_sync(spark: SparkSession, job: JobRequest, request: ServiceRequest) -> ServiceResult:
    """Run one sync request. A second run finds nothing to do.

    Raises ServiceRefusedError when the request only schedules, for what is no name, or when the name in the catalog is
    another table's; NoTableError; or Py4JJavaError when the table cannot be read.
    """
    if request.mode is Mode.SCHEDULE:
        raise refuse_scheduling(job, "a table is registered in one step")
    registration = read_registration(job.base_path, {**job.hudi_options, **request.options})
    state = read_table_state(spark, job.base_path)
    require_version(spark, job, state)
    settings = tool_settings(registration, _properties_of(state))
    conf = _configuration(spark, registration)
    try:
        if registration.tool != HIVE_SYNC_TOOL:
            _run_tool(spark, registration, settings, conf)
            message = f"{registration.tool} ran for {registration.where}; what it did is not compared"
            return ServiceResult(Service.SYNC, Outcome.COMPLETED, message=message)
        return _sync_with_hive(_Catalog(spark, registration, state, settings, conf))
    except Py4JJavaError as error:
        kind, message = explain_failure(registration, causes_of(error.java_exception))
        return ServiceResult(Service.SYNC, Outcome.FAILED, failure_kind=kind, message=message)


@dataclass(frozen=True, slots=True)
class _Catalog:
    """A Hive metastore, and a table that is registered there."""

    spark: SparkSession
    registration: Registration
    state: LoadedTable
    settings: dict[str, str]
    conf: Any

    def open(self) -> Any:
        hive = self.spark._jvm.org.apache.hudi.hive
        return hive.HoodieHiveSyncClient(
            hive.HiveSyncConfig(_properties(self.spark, self.settings), self.conf), self.state.meta_client
        )

    def names(self, client: Any) -> list[str]:
        """Return which of the table's names the catalog has."""
        is_mor = self.state.table_type == MERGE_ON_READ
        return [name for name in names_of(self.registration.name, is_merge_on_read=is_mor) if client.tableExists(name)]


def _sync_with_hive(catalog: _Catalog) -> ServiceResult:
    before = catalog.open()
    try:
        names = catalog.names(before)
        _refuse_strangers(catalog, before, names)
        columns = {name: str(before.getMetastoreSchema(name).toString()) for name in names}
        events = _differences(catalog, before, names)
    finally:
        before.close()
    _run_tool(catalog.spark, catalog.registration, catalog.settings, catalog.conf)
    after = catalog.open()
    try:
        names = catalog.names(after)
        changed = [name for name in names if str(after.getMetastoreSchema(name).toString()) != columns.get(name)]
        _apply(after, _differences(catalog, after, names))
        partitions = max((int(after.getAllPartitions(name).size()) for name in names), default=0)
    finally:
        after.close()
    where = f"{catalog.registration.where}, as {', '.join(names)}"
    done = ["registered"] if set(names) - set(columns) else ["columns changed"] if changed else []
    done += [f"{len(found)} partitions {_DONE[kind]}" for kind, found in _by_kind(events).items() if kind in _DONE]
    if not done:
        message = f"{where}, has all columns and {partitions} partitions"
        return ServiceResult(Service.SYNC, Outcome.NOTHING_TO_DO, message=message)
    message = f"{where}: {', '.join(done)}; {partitions} partitions now"
    log_progress(catalog.registration.name, message)
    return ServiceResult(Service.SYNC, Outcome.COMPLETED, message=message)


_DONE = {"ADD": "added", "UPDATE": "moved", "DROP": "dropped"}


def _refuse_strangers(catalog: _Catalog, client: Any, names: Iterable[str]) -> None:
    """Raise ServiceRefusedError when a name in the catalog is another table's."""
    own = _path_of(catalog, str(catalog.state.meta_client.getBasePath().toString()))
    for name in names:
        location = _path_of(catalog, str(client.getTableLocation(name)))
        problem = find_stranger(catalog.registration, name, location, own)
        if problem:
            raise ServiceRefusedError(problem)


def _path_of(catalog: _Catalog, location: str) -> str:
    path = catalog.spark._jvm.org.apache.hadoop.fs.Path
    return str(path.getPathWithoutSchemeAndAuthority(path(location)).toString())


_Events = dict[str, list[tuple[str, str]]]
"""By name in the catalog: what to do (`ADD`, `UPDATE`, `DROP`), and the partition's path in the table."""


def _differences(catalog: _Catalog, client: Any, names: Iterable[str]) -> _Events:
    """Return in what the catalog's partitions differ from those that have rows, or had until they were deleted."""
    if not catalog.state.meta_client.getTableConfig().isTablePartitioned():
        return {}
    living = catalog.spark._jvm.java.util.ArrayList()
    for partition in _living_partitions(catalog, client):
        living.add(partition)
    found: _Events = {}
    for name in names:
        events = list_items(client.getPartitionEvents(client.getAllPartitions(name), living))
        found[name] = [(_field(event, "eventType"), _field(event, "storagePartition")) for event in events]
    return found


def _field(event: Any, name: str) -> str:
    value = get_field(event, name)
    return value if isinstance(value, str) else str(value.toString())


def _living_partitions(catalog: _Catalog, client: Any) -> Iterator[str]:
    """Yield the partitions with a file slice; the folder of one that was deleted stays until it is cleaned."""
    common = catalog.spark._jvm.org.apache.hudi.common
    meta_client = read_table_state(catalog.spark, catalog.registration.base_path).meta_client
    engine = common.engine.HoodieLocalEngineContext(meta_client.getStorageConf())
    has_metadata = "files" in catalog.state.metadata_partitions
    metadata = common.config.HoodieMetadataConfig.newBuilder().enable(has_metadata).build()
    view = common.table.view.FileSystemViewManager.createInMemoryFileSystemView(engine, meta_client, metadata)
    try:
        for partition in list_items(client.getAllPartitionPathsOnStorage()):
            if view.getLatestFileSlices(partition).findAny().isPresent():
                yield str(partition)
    finally:
        view.close()


def _apply(client: Any, events: _Events) -> None:
    """Do what Hudi's tool left undone."""
    actions = {
        "ADD": client.addPartitionsToTable,
        "UPDATE": client.updatePartitionsToTable,
        "DROP": client.dropPartitions,
    }
    for name, found in events.items():
        for kind, partitions in _by_kind({name: found}).items():
            if kind in actions:
                actions[kind](name, partitions)


def _by_kind(events: _Events) -> dict[str, list[str]]:
    kinds: dict[str, list[str]] = {}
    for found in events.values():
        for kind, partition in found:
            if partition not in kinds.setdefault(kind, []):
                kinds[kind].append(partition)
    return kinds


def _run_tool(spark: SparkSession, registration: Registration, settings: dict[str, str], conf: Any) -> None:
    jvm = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path(registration.base_path)
    format = settings.get(TABLE_FILE_FORMAT, "PARQUET")
    jvm.org.apache.hudi.sync.common.util.SyncUtilHelpers.runHoodieMetaSync(
        registration.tool, _properties(spark, settings), conf, path.getFileSystem(conf), registration.base_path, format
    )


def _configuration(spark: SparkSession, registration: Registration) -> Any:
    # Hudi takes the metastore of the session's configuration before the one that it is given.
    conf = spark._jvm.org.apache.hadoop.conf.Configuration(spark._jsc.hadoopConfiguration())
    for name, value in CLIENT_LIMITS.items():
        conf.setIfUnset(name, value)
    if registration.metastore:
        conf.set(METASTORE_URIS, registration.metastore)
    return conf


def _properties(spark: SparkSession, settings: dict[str, str]) -> Any:
    properties = spark._jvm.org.apache.hudi.common.config.TypedProperties()
    for key, value in settings.items():
        properties.setProperty(key, value)
    return properties


def _properties_of(state: LoadedTable) -> dict[str, str]:
    properties = state.meta_client.getTableConfig().getProps()
    return {str(key): str(properties.getProperty(key)) for key in properties.stringPropertyNames()}
