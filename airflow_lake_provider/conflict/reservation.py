"""Claim file groups where stock writers see them: markers and a heartbeat under an instant of our own.

Hudi's early conflict detection takes any folder below `.hoodie/.temp` for a writer's, when its name is smaller than the
checking writer's instant, the timeline has no pending service of that name, and its heartbeat lives
(`MarkerUtils.getCandidateInstants`). A reservation whose owner dies ends when its heartbeat is too old.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from airflow_lake_provider.errors import ConfigError, StorageError
from airflow_lake_provider.timeline.heartbeat import HEARTBEAT_FOLDER
from airflow_lake_provider.timeline.markers import MARKER_FOLDER, split_file_group_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from airflow_lake_provider.timeline.storage import Storage

LOCK_FOLDER = ".hoodie/.locks/file_groups"


class ReservedError(StorageError):
    """Somebody else holds the lock on a file group; the holder is about to write its marker."""


class Reservation:
    """The markers and the heartbeat of one instant, on this machine's disk or one that is mounted on it.

    Raises ConfigError for any other store: there neither exclusive creation nor modification times can be relied on.
    """

    def __init__(self, storage: Storage, instant: str) -> None:
        if not storage.is_local:
            raise ConfigError(f"table {storage.base_path!r}: file groups can be reserved on a local file system only")
        self._root = storage.root
        self.instant = instant
        self._folder = f"{storage.root}/{MARKER_FOLDER}/{instant}"
        self._heartbeat = f"{storage.root}/{HEARTBEAT_FOLDER}/{instant}"

    def beat(self) -> None:
        """Begin the heartbeat, or renew it; due once per interval of the table's heartbeat rule."""
        os.makedirs(os.path.dirname(self._heartbeat), exist_ok=True)
        with open(self._heartbeat, "wb"):
            os.utime(self._heartbeat)

    def plant(self, file_groups: Iterable[bytes]) -> None:
        """Write one marker per file group (keys)."""
        for partition, file_id in map(split_file_group_key, file_groups):
            folder = f"{self._folder}/{partition}" if partition else self._folder
            os.makedirs(folder, exist_ok=True)
            # As of a base file that is merged; the write token says that no Spark task writes it.
            with open(f"{folder}/{file_id}_0-0-0_{self.instant}.parquet.marker.MERGE", "wb"):
                pass

    def release(self) -> None:
        """Remove the markers, then the heartbeat. Nothing happens where there are none."""
        shutil.rmtree(self._folder, ignore_errors=True)
        with suppress(FileNotFoundError):
            os.unlink(self._heartbeat)

    @contextmanager
    def lock(self, file_groups: Iterable[bytes], now_ms: int, expires_ms: int = 60_000) -> Iterator[None]:
        """Hold a lock on each file group, taken in one order by everybody. Raises ReservedError when one is held.

        Hudi's own strategy needs ZooKeeper for it; this is the rule of its `FileSystemBasedLockProvider`: a file that
        is created exclusively, and that counts no more when it is old.
        """
        folder = f"{self._root}/{LOCK_FOLDER}"
        os.makedirs(folder, exist_ok=True)
        held: list[str] = []
        try:
            for key in sorted(file_groups):
                path = f"{folder}/{hashlib.sha256(key).hexdigest()}"
                _take(path, key, now_ms - expires_ms)
                held.append(path)
            yield
        finally:
            for path in held:
                # Somebody may have taken an old one for dead.
                with suppress(FileNotFoundError):
                    os.unlink(path)


def _take(path: str, key: bytes, expired_before_ms: int) -> None:
    for _ in range(2):
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            try:
                if os.stat(path).st_mtime * 1000 >= expired_before_ms:
                    break
                os.unlink(path)
            except FileNotFoundError:
                continue
        else:
            return
    raise ReservedError(f"{path}: another claim on file group {key!r} is being made")
