"""Reads a table's files twice: as its metadata table lists them, and as the store has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError

from airflow_lake_provider.shared.actions import COMPLETED_WRITE_ACTIONS, Action
from lake_jobs.driver.failure import causes_of
from lake_jobs.hudi.files import path_below
from lake_jobs.hudi.table import read_table_state
from lake_jobs.replication.file_slices import FIRST_VERSION_OF_OWN_LOGS, parse_entries, parse_name
from lake_jobs.replication.slice_reader import list_entries
from lake_jobs.services.integrity_rules import PartitionReadings, TimelineNames, find_listing_damage
from lake_jobs.services.orphan_evidence import TimelineTexts, read_write
from lake_jobs.services.orphan_rules import Names

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from pyspark.sql import SparkSession

    from airflow_lake_provider.job_contract import Damage
    from lake_jobs.hudi.table import LoadedTable
    from lake_jobs.replication.slice_reader import ListingEntry

NEWEST_WRITES = 10
"""So many of the newest writes say which partitions there are besides those that the metadata table lists."""
_REMOVERS = frozenset({Action.CLEAN, Action.ROLLBACK, Action.RESTORE})


class Listings:
    """Lists a table's partitions and files; each call reads them again."""

    def __init__(self, spark: SparkSession, state: LoadedTable) -> None:
        self._jvm: Any = spark._jvm
        self._state = state
        self._hudi = self._jvm.org.apache.hudi
        self.engine = self._hudi.common.engine.HoodieLocalEngineContext(state.meta_client.getStorageConf())

    @property
    def has_metadata_table(self) -> bool:
        """Whether a metadata table lists the files."""
        return "files" in self._state.metadata_partitions

    def partitions(self) -> frozenset[str]:
        """Return the table's partitions: those that are listed, and those that the newest writes wrote to."""
        metadata = self._open(lists=self.has_metadata_table)
        try:
            listed = self._jvm.java.lang.String.join("\n", metadata.getAllPartitionPaths())
        finally:
            metadata.close()
        return frozenset([*str(listed).split("\n"), *self._newly_written()])

    def _newly_written(self) -> Iterator[str]:
        writes = self._state.timeline.getCommitsTimeline().filterCompletedInstants()
        for instant in list(writes.getReverseOrderedInstants().limit(NEWEST_WRITES).toArray()):
            yield from map(str, writes.readCommitMetadata(instant).getWritePartitionPaths())

    def listed(self, partitions: Iterable[str]) -> dict[str, dict[str, int]]:
        """Return name and size of each file that the metadata table has, by partition."""
        wanted = self._jvm.java.util.ArrayList()
        found: dict[str, dict[str, int]] = {}
        base_path = self._state.base_path
        for partition in partitions:
            found[partition] = {}
            wanted.add(f"{base_path}/{partition}".rstrip("/"))
        metadata = self._open(lists=True)
        try:
            for files in metadata.getAllFilesInPartitions(wanted).values():
                for path, size in parse_entries(str(files.toString()), int(files.size())):
                    partition, _, name = path_below(base_path, path).rpartition("/")
                    found[partition][name] = size
        finally:
            metadata.close()
        return found

    def stored(self, partition: str) -> list[ListingEntry]:
        """Return what a partition's folder has; nothing when it is not there."""
        folder = f"{self._state.base_path}/{partition}".rstrip("/")
        try:
            storage = self._state.meta_client.getStorage()
            return list_entries(storage.listDirectEntries(self._hudi.storage.StoragePath(folder)))
        except Py4JJavaError as error:
            if is_file_missing(error):
                return []
            raise

    def stored_sizes(self, partition: str) -> dict[str, int]:
        """Return name and size of what a partition's folder has."""
        return {entry.path.rpartition("/")[2]: entry.length for entry in self.stored(partition)}

    def latest_groups(self, partitions: Iterable[str]) -> dict[str, list[str]]:
        """Return the ids of the file groups that are not replaced, by partition, by the store's own listing."""
        config = self._hudi.common.config.HoodieMetadataConfig.newBuilder().enable(False).build()  # noqa: FBT003 - Java's
        manager = self._hudi.common.table.view.FileSystemViewManager
        view = manager.createInMemoryFileSystemView(self.engine, self._state.meta_client, config)
        try:
            return {
                partition: [str(each.getFileId()) for each in view.getLatestFileSlices(partition).toArray()]
                for partition in partitions
            }
        finally:
            view.close()

    def _open(self, *, lists: bool) -> Any:
        metadata = self._hudi.metadata
        storage = self._state.meta_client.getStorage()
        if not lists:
            return metadata.FileSystemBackedTableMetadata(self.engine, storage, self._state.base_path)
        config = self._hudi.common.config.HoodieMetadataConfig.newBuilder().enable(True).build()  # noqa: FBT003 - Java's
        return metadata.HoodieBackedTableMetadata(self.engine, storage, config, self._state.base_path)


def compare_listings(spark: SparkSession, base_path: str, partitions: Sequence[str]) -> tuple[Damage, ...]:
    """Return in what the metadata table's list of some partitions differs from the store. Raises Py4JJavaError.

    The order of the readings is that of `integrity_rules.find_listing_damage`.
    """
    listings = Listings(spark, read_table_state(spark, base_path))
    listed = listings.listed(partitions)
    first = [PartitionReadings(each, listed[each], listings.stored_sizes(each)) for each in partitions]
    suspects = [each for each in first if each.gone or each.unlisted]
    if not suspects:
        return ()
    state = read_table_state(spark, base_path)
    names = _load_names(spark, state, {name for each in suspects for name in each.unlisted})
    later = Listings(spark, state)
    if not later.has_metadata_table:
        return ()
    listed = later.listed(each.partition for each in suspects)
    read_twice = [
        PartitionReadings(
            each.partition, each.listed, each.stored, listed[each.partition], later.stored_sizes(each.partition)
        )
        for each in suspects
    ]
    return tuple(damage for each in read_twice for damage in find_listing_damage(each, names))


def _load_names(spark: SparkSession, state: LoadedTable, unlisted: Collection[str]) -> TimelineNames:
    texts = TimelineTexts(spark, state)
    names = TimelineNames(Names(), Names(), Names())
    files = [file for name in unlisted if (file := parse_name(name)) is not None]
    writers = {file.instant for file in files}
    # Before version 8 the name of a log file does not say which write made it.
    reads_all = state.table_version < FIRST_VERSION_OF_OWN_LOGS and any(file.is_log for file in files)
    for instant in state.timeline.getInstants():
        action = str(instant.getAction())
        requested = str(instant.requestedTime())
        if action in _REMOVERS:
            where = names.removed if instant.isCompleted() else names.being_removed
            for content in texts.contents_of(requested):
                where.add(content)
        elif action in COMPLETED_WRITE_ACTIONS and instant.isCompleted() and (reads_all or requested in writers):
            read_write(state.timeline, instant, names.written)
    return names


def is_file_missing(error: Py4JJavaError) -> bool:
    """Whether a call of Java failed because a file or folder is not there."""
    return any(cause.class_name.endswith("FileNotFoundException") for cause in causes_of(error.java_exception))
