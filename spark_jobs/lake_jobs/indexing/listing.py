"""Where a table lists its indexes: `hoodie.properties` and `index.json`, replaced whole and never rewritten in place.

Hudi 1.2.0 rewrites both in place, and its readers take a file that was created and not yet written for an empty one
(`ConfigUtils.fetchConfigs`): a writer that opens the table at that moment fails with "Table does not exist". So Hudi
writes them in a folder of their own below `.hoodie/.aux`, and what it wrote takes the place of the table's file in one
step, under the table's lock. Where files cannot be replaced so, Hudi writes in place: object stores show a file whole.
"""

from __future__ import annotations

from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.job_contract import METADATA_TABLE
from airflow_lake_provider.shared.hudi_settings import INDEX_DEFINITIONS, LOCK_PROVIDER, PROPERTIES_FILE
from lake_jobs.hudi.files import can_replace, copy_if_there, open_path, replace_file
from lake_jobs.hudi.metadata_writes import find_metadata_write_mode
from lake_jobs.hudi.settings import ALWAYS
from lake_jobs.hudi.table import class_of, hold_lock, open_client
from lake_jobs.indexing.hudi_internals import META_CLIENT_CLASS, META_PATH, find_field
from lake_jobs.indexing.rules import find_unaware_writers
from lake_jobs.indexing.state import load_index_state, remove_plan_files
from lake_jobs.indexing.writers import find_writers_in_flight

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lake_jobs.services.context import ServiceContext

FOLDER = ".hoodie/.aux/lake_index"
DEFINITIONS = "index.json"
SCHEMAS = ".schema"
NO_LOCK = "org.apache.hudi.client.transaction.lock.NoopLockProvider"


class Listing(StrEnum):
    """How a table lists an index."""

    ABSENT = "absent"
    INFLIGHT = "inflight"
    """Being built: writers update it."""
    COMPLETE = "complete"


def list_index(context: ServiceContext, partition: str, listing: Listing, definition: Any = None) -> None:
    """List an index so; the caller holds the table's lock. Raises NoTableError, or Py4JJavaError.

    `definition` is what Hudi's builder knows of the index, for an index that has a definition.
    """
    spark = context.spark
    meta_client = context.read_table_state().meta_client
    table = f"{context.job.base_path}/.hoodie/{PROPERTIES_FILE}"
    is_replaced = can_replace(spark, table)
    if definition is not None:
        _define(context, meta_client, partition, definition)
    with own_folder(context, f"listing-{partition}") as folder:
        if is_replaced:
            # A process that died may have left the file half written: Hudi repairs it before the copy.
            config_class = spark._jvm.org.apache.hudi.common.table.HoodieTableConfig
            config_class.recover(meta_client.getStorage(), meta_client.getMetaPath())
            copy_if_there(spark, table, f"{folder}/{PROPERTIES_FILE}")
            _redirect(context, meta_client, folder)
        _write(context, meta_client, partition, listing)
        if is_replaced:
            replace_file(spark, f"{folder}/{PROPERTIES_FILE}", table)
    if listing is Listing.ABSENT:
        _define(context, context.read_table_state().meta_client, partition, None)


def drop_index(context: ServiceContext, partition: str) -> None:
    """Remove an index as `remove_index` does, under the table's lock. Raises Py4JJavaError."""
    with (
        open_client(context.spark, context.job.base_path, context.settings, ALWAYS) as client,
        hold_lock(context.spark, client),
    ):
        remove_index(context, partition)


def remove_index(context: ServiceContext, partition: str) -> None:
    """Remove an index, complete or half built, and plans of it that no builder has begun; the caller holds the lock.

    As Hudi's `dropIndex`, which rewrites the properties in place, and starts a metadata writer, which builds others.
    The files stay while a write in flight may have settled on updating them; Hudi clears them when it rebuilds them.
    Raises Py4JJavaError.
    """
    if partition == "files":
        # Hudi would acquire the lock that is held here.
        settings = {**context.settings, LOCK_PROVIDER: NO_LOCK}
        with open_client(context.spark, context.job.base_path, settings, ALWAYS) as client:
            names = context.spark._jvm.java.util.ArrayList()
            names.add(partition)
            client.dropIndex(names)
        return
    list_index(context, partition, Listing.ABSENT)
    indexes = load_index_state(context)
    for plan in indexes.plans:
        # A plan of several indexes is still the request for the others.
        if plan.partitions == (partition,) and not plan.is_inflight:
            remove_plan_files(indexes.table, plan.instant)
    writers = find_unaware_writers(
        find_writers_in_flight(context, indexes.table), find_metadata_write_mode(context.spark, indexes.table)
    )
    if writers:
        context.log_progress(f"index {partition}: its files stay for {', '.join(map(str, writers))}")
        return
    fs, path = open_path(context.spark, f"{context.job.base_path}/{METADATA_TABLE}/{partition}")
    recursive = True
    fs.delete(path, recursive)


@contextmanager
def own_folder(context: ServiceContext, name: str) -> Iterator[str]:
    """Give an empty folder to write in, and remove it; the next one of its name removes what a dead builder left."""
    folder = f"{context.job.base_path}/{FOLDER}/{name}"
    fs, path = open_path(context.spark, folder)
    recursive = True
    fs.delete(path, recursive)
    fs.mkdirs(path)
    try:
        yield folder
    finally:
        fs.delete(path, recursive)


def write_aside(context: ServiceContext, meta_client: Any, folder: str) -> None:
    """Let a build's meta client write properties and definitions into a folder of its own, not into the table's.

    It finds there what it reads by the same path: the properties, and the schemas that schema evolution keeps.
    """
    for name in (PROPERTIES_FILE, SCHEMAS):
        copy_if_there(context.spark, f"{context.job.base_path}/.hoodie/{name}", f"{folder}/{name}")
    meta_client.getTableConfig().setValue(INDEX_DEFINITIONS, f"{folder[folder.index(FOLDER) :]}/{DEFINITIONS}")
    _redirect(context, meta_client, folder)


def _redirect(context: ServiceContext, meta_client: Any, folder: str) -> None:
    """Let a meta client of Hudi write the properties into another folder; timeline and data stay the table's."""
    field = find_field(class_of(context.spark, META_CLIENT_CLASS, meta_client), META_PATH)
    field.set(meta_client, context.spark._jvm.org.apache.hudi.storage.StoragePath(folder))


def _write(context: ServiceContext, meta_client: Any, partition: str, listing: Listing) -> None:
    config = meta_client.getTableConfig()
    if listing is Listing.INFLIGHT:
        names = context.spark._jvm.java.util.ArrayList()
        names.add(partition)
        config.setMetadataPartitionsInflight(meta_client, names)
    else:
        config.setMetadataPartitionState(meta_client, partition, listing is Listing.COMPLETE)


def _define(context: ServiceContext, meta_client: Any, partition: str, definition: Any) -> None:
    """Replace a definition, or remove it; the next write of the properties adds the path of the file."""
    found = meta_client.getIndexMetadata()
    metadata = (
        found.get() if found.isPresent() else context.spark._jvm.org.apache.hudi.common.model.HoodieIndexMetadata()
    )
    before = str(metadata.toJson())
    if definition is None:
        metadata.getIndexDefinitions().remove(partition)
    else:
        metadata.getIndexDefinitions().put(partition, definition)
    if str(metadata.toJson()) == before:
        return
    config = meta_client.getTableConfig()
    target = str(meta_client.getIndexDefinitionPath())
    with own_folder(context, f"definition-{partition}") as folder:
        written = f"{folder}/{DEFINITIONS}" if can_replace(context.spark, target) else target
        meta_client.writeIndexMetadataToStorage(meta_client.getStorage(), written, metadata, config.getTableVersion())
        if written != target:
            replace_file(context.spark, written, target)
    config.setValue(INDEX_DEFINITIONS, target.removeprefix(f"{meta_client.getBasePath().toString()}/"))
