"""Claim file groups where stock writers see them: markers and a heartbeat under an instant of our own.

Hudi's early conflict detection takes any folder below `.hoodie/.temp` for a writer's, when its name is smaller than the
checking writer's instant, the timeline has no pending service of that name, and its heartbeat lives
(`MarkerUtils.getCandidateInstants`). A reservation whose owner dies ends when its heartbeat is too old.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_lake_provider.conflict.claim_lock import EXPIRES_MS, ClaimLock
from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.timeline.heartbeat import HEARTBEAT_FOLDER
from airflow_lake_provider.timeline.markers import MARKER_FOLDER, split_file_group_key

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_lake_provider.timeline.storage import Storage


class Reservation:
    """The markers and the heartbeat of one instant. Methods raise StorageError.

    Raises ConfigError for a store whose listings may lag behind: there two could claim the same.
    """

    def __init__(self, storage: Storage, instant: str) -> None:
        if not storage.lists_at_once:
            raise ConfigError(
                f"table {storage.base_path!r}: file groups can be reserved on a local file system, HDFS and S3 only"
            )
        self._storage = storage
        self.instant = instant
        self._folder = f"{MARKER_FOLDER}/{instant}"
        self._heartbeat = f"{HEARTBEAT_FOLDER}/{instant}"

    def beat(self) -> None:
        """Begin the heartbeat, or renew it; due once per interval of the table's heartbeat rule."""
        self._storage.write(self._heartbeat)

    def plant(self, file_groups: Iterable[bytes]) -> None:
        """Write one marker per file group (keys)."""
        for partition, file_id in map(split_file_group_key, file_groups):
            folder = f"{self._folder}/{partition}" if partition else self._folder
            # As of a base file that is merged; the write token says that no Spark task writes it.
            self._storage.write(f"{folder}/{file_id}_0-0-0_{self.instant}.parquet.marker.MERGE")

    def release(self) -> None:
        """Remove the markers, then the heartbeat. Nothing happens where there are none."""
        self._storage.remove(self._folder)
        self._storage.remove(self._heartbeat)

    def lock(self, file_groups: Iterable[bytes], expires_ms: int = EXPIRES_MS) -> ClaimLock:
        """Return the lock under which these file groups (keys) are looked at and marked.

        Hudi's own strategy needs ZooKeeper for it. Its other providers lock whole tables, and would hold up commits.
        """
        return ClaimLock(self._storage, self.instant, file_groups, expires_ms)
