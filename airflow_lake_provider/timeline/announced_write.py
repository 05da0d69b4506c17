"""What a write in flight says of itself before its first file: the profile of its rows, by partition and file group.

Source: Hudi `BaseCommitActionExecutor.saveWorkloadProfileMetadataToInflight`. Upserts, inserts and deletes leave it in
their inflight file (Avro, JSON in layout 1), with a file id for each file group that is updated, and without one for
rows that are new: those may go into any small file group of their partition. A bulk insert leaves an empty file.
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


@dataclass(frozen=True, slots=True)
class AnnouncedWrite:
    """All partitions that a write will touch, and the file groups (partition, file id) that it will update."""

    partitions: frozenset[str]
    updated_file_groups: frozenset[tuple[str, str]]


def load_announced_write(storage: Storage, properties: TableProperties, instant: Instant) -> AnnouncedWrite | None:
    """Return what an inflight commit or deltacommit announces; None when it announces nothing (yet).

    Raises FileNotFoundError, StorageError, DamagedFileError.
    """
    if instant.state is not State.INFLIGHT or instant.action not in {Action.COMMIT, Action.DELTACOMMIT}:
        return None
    record = decode(storage.read_bytes(f"{properties.timeline_path}/{instant.file_name}"), instant.file_name)
    if record is None:
        return None
    stats = parse_commit_metadata(record, instant.file_name).stats
    if not stats:
        return None
    return AnnouncedWrite(
        frozenset(stat.partition for stat in stats),
        frozenset((stat.partition, stat.file_id) for stat in stats if stat.file_id),
    )
