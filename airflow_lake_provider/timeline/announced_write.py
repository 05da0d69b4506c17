"""What a write in flight says of itself before its first file: the profile of its rows, by partition and file group.

Source: Hudi `BaseCommitActionExecutor.saveWorkloadProfileMetadataToInflight`. Upserts, inserts and deletes leave it in
their inflight file (Avro, JSON in layout 1), with a file id for each file group that is updated, and without one for
rows that are new: those may go into any small file group of their partition. A bulk insert leaves an empty file.

Insert overwrites (action `replacecommit`) leave it too, for the rows that they bring: what they take out is all that
lies in those partitions, and with a static overwrite in others as well, and is named at the commit only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_lake_provider.timeline.commit_metadata import parse_commit_metadata
from airflow_lake_provider.timeline.content import decode
from airflow_lake_provider.timeline.instant import Action, State

if TYPE_CHECKING:
    from airflow_lake_provider.timeline.instant import Instant
    from airflow_lake_provider.timeline.properties import TableProperties
    from airflow_lake_provider.timeline.storage import Storage

_WRITES = frozenset({Action.COMMIT, Action.DELTACOMMIT, Action.REPLACECOMMIT})


@dataclass(frozen=True, slots=True)
class AnnouncedWrite:
    """All partitions that a write will put rows into, and the file groups (partition, file id) that it will update.

    `operation` is Hudi's WriteOperationType, for example `INSERT_OVERWRITE`.
    """

    partitions: frozenset[str]
    updated_file_groups: frozenset[tuple[str, str]]
    operation: str


def load_announced_write(storage: Storage, properties: TableProperties, instant: Instant) -> AnnouncedWrite | None:
    """Return what an inflight commit, deltacommit or replacecommit announces; None when it announces nothing (yet).

    Raises FileNotFoundError, StorageError, DamagedFileError.
    """
    if instant.state is not State.INFLIGHT or instant.action not in _WRITES:
        return None
    record = decode(storage.read_bytes(f"{properties.timeline_path}/{instant.file_name}"), instant.file_name)
    if record is None:
        return None
    metadata = parse_commit_metadata(record, instant.file_name)
    if not metadata.stats:
        return None
    return AnnouncedWrite(
        frozenset(stat.partition for stat in metadata.stats),
        frozenset((stat.partition, stat.file_id) for stat in metadata.stats if stat.file_id),
        metadata.operation,
    )
