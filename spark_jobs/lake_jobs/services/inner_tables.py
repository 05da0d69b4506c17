"""Finds another Hudi table below a table's base path whose partitions Hudi takes for the table's own.

Hudi lists a table's partitions by walking down to the folders with `.hoodie_partition_metadata`, and passes a `.hoodie`
on its way. Their files count as committed once the table's own instants of that time are archived: readers see the
inner rows, a clustering writes them into the outer table, and a clean removes the inner files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError

from airflow_lake_provider.job_contract import TRAITS, Service
from airflow_lake_provider.obstacles import explain_inner_table
from lake_jobs.hudi.files import META_FOLDER
from lake_jobs.hudi.table import list_items
from lake_jobs.services.inner_table_rules import Folder, find_inner_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake_jobs.hudi.table import LoadedTable


def find_inner_problem(spark: SparkSession, state: LoadedTable, service: Service) -> str:
    """Return why a service would take another table's files for this one's; empty when nothing shows that.

    With a metadata table it is only archiving, for the readers without one, unless that lists the inner partitions,
    too. Raises Py4JJavaError.
    """
    if not TRAITS[service].lists_partitions:
        return ""
    store = _Store(spark, state)
    inner = find_inner_table(store.list_folders, store.kind_of)
    if not inner:
        return ""
    is_in_metadata = bool(state.metadata_partitions) and store.has_in_metadata(inner)
    is_met = service is Service.ARCHIVE or not state.metadata_partitions or is_in_metadata
    return explain_inner_table(inner, is_in_metadata=is_in_metadata) if is_met else ""


class _Store:
    """The folders of a table, by Hudi's own storage."""

    def __init__(self, spark: SparkSession, state: LoadedTable) -> None:
        self._spark = spark
        self._hudi = spark._jvm.org.apache.hudi
        self._state = state
        self._storage = state.meta_client.getStorage()

    def list_folders(self, folder: str) -> list[str]:
        """Return the names of the folders in a folder, but `.hoodie`."""
        try:
            entries = list_items(self._storage.listDirectEntries(self._path(folder)))
        except Py4JJavaError:
            # Gone, or not readable: then Hudi's own listing finds nothing there either.
            return []
        names = [str(entry.getPath().getName()) for entry in entries if entry.isDirectory()]
        return [name for name in names if name != META_FOLDER]

    def kind_of(self, folder: str) -> Folder:
        """Return what a folder is."""
        if self._storage.exists(self._path(f"{folder}/{META_FOLDER}")):
            return Folder.TABLE
        has_metadata = self._hudi.common.model.HoodiePartitionMetadata.hasPartitionMetadata
        return Folder.PARTITION if has_metadata(self._storage, self._path(folder)) else Folder.OTHER

    def has_in_metadata(self, inner: str) -> bool:
        """Return whether the metadata table has partitions in a folder."""
        engine = self._hudi.client.common.HoodieSparkEngineContext(self._spark.sparkContext._jsc)
        by_metadata = True
        listed = self._hudi.common.fs.FSUtils.getAllPartitionPaths(engine, self._state.meta_client, by_metadata)
        return any(f"{partition}/".startswith(f"{inner}/") for partition in list_items(listed))

    def _path(self, folder: str) -> Any:
        base_path = self._state.base_path
        return self._hudi.storage.StoragePath(f"{base_path}/{folder}" if folder else base_path)
