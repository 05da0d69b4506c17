"""Load a table's archived timeline: what Hudi moved out of the active one. The layout decides on the format.

Layout 1 keeps log files of Avro records (`archive_log`), layout 2 a tree of Parquet files (`archive_lsm`). A table that
never archived has an empty archive; whatever is there and is not understood is an error, or a problem of the result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_lake_provider.hudi.archive.log import load_log_archive
from airflow_lake_provider.hudi.archive.timeline import ArchivedInstant, ArchivedTimeline, RequestedRange
from airflow_lake_provider.hudi.commit_metadata import CommitMetadata, decode, parse_commit_metadata
from airflow_lake_provider.hudi.instant import Layout

if TYPE_CHECKING:
    from airflow_lake_provider.hudi.properties import TableProperties
    from airflow_lake_provider.storage.table_storage import Storage

__all__ = ["ArchivedInstant", "ArchivedTimeline", "load_archive", "load_archived_commit"]

# Upgrading a table of layout 1, Hudi names files after the first and last instant that it happened to read, not after
# the least and greatest, and merging passes the names on. Such a table's files must all be read.
_INITIAL_VERSION = "hoodie.table.initial.version"
_BORN_IN_LAYOUT_2 = frozenset({"8", "9"})


def load_archive(
    storage: Storage,
    properties: TableProperties,
    *,
    after: str = "",
    until: str = "",
    with_content: bool = False,
) -> ArchivedTimeline:
    """Load the archived instants requested after `after` (exclusive) and until `until` (inclusive); empty: unbounded.

    `with_content` also loads metadata and plans. Raises StorageError, DamagedFileError, UnsupportedTableError.
    """
    requested = RequestedRange(after, until)
    if properties.layout is Layout.V1:
        return load_log_archive(storage, properties.history_path, requested, with_content=with_content)
    # Every task imports this module to run a service, and hardly any of them reads an archive: Arrow is half a second.
    from airflow_lake_provider.hudi.archive.lsm import load_lsm_archive

    return load_lsm_archive(
        storage,
        properties.history_path,
        requested,
        names_bound=properties.raw.get(_INITIAL_VERSION) in _BORN_IN_LAYOUT_2,
        with_content=with_content,
    )


def load_archived_commit(instant: ArchivedInstant) -> CommitMetadata:
    """Parse the metadata of an archived write, which must have been loaded with content. Raises DamagedFileError."""
    name = f"{instant.file_name}: {instant.requested_time}.{instant.action}"
    return parse_commit_metadata(decode(instant.metadata or b"", name), name)
