"""Claims on file groups: a lock, and reservations that stock writers see.

The lock is made of nothing but whole files and listings: the same on disks, HDFS and object stores.
A claim puts an entry that names its file groups into one folder, then lists the folder. Of two claims, at least one
finds the other's entry there, because neither lists before its own is in place. The younger one leaves then; the older
one waits until the younger has left: either that one held the lock already, or it leaves. No entry's name is ever used
twice, so any process can remove an entry of a dead owner without hitting another one.

An owner that only slept too long finds its entry removed (`is_held`). The process that removed it did so before it read
markers. So every later holder sees what an owner wrote before it found its lock still held: ages decide how soon a dead
owner is passed by, never whether two hold the lock.
"""

from __future__ import annotations

import re
import threading
import uuid
from typing import TYPE_CHECKING
from urllib.parse import quote_from_bytes

from airflow_lake_provider.errors import ConfigError, StorageError
from airflow_lake_provider.hudi.active_writes import HEARTBEAT_FOLDER, MARKER_FOLDER
from airflow_lake_provider.hudi.commit_metadata import split_file_group_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

    from airflow_lake_provider.storage.store import FileEntry
    from airflow_lake_provider.storage.table_storage import Storage

LOCK_FOLDER = ".hoodie/.locks/file_groups"
EXPIRES_MS = 60_000
MAX_CLAIM_BYTES = 64 * 1024 * 1024
"""Limit of a claim's file: 500,000 file groups are about so much."""
PAUSE_S = 0.05
MAX_PAUSES = 40
_PAUSE = threading.Event().wait
_ENTRY = re.compile(r"\d+-[0-9a-f]{32}", re.ASCII)


class ReservedError(StorageError):
    """Another process holds the lock on a file group, and is about to write its marker."""


class ClaimLock:
    """The lock on some file groups (keys), for one `with` block, in the name of an instant.

    Entering raises ReservedError when an older claim on one of them is being made, or a younger one for longer than
    `MAX_PAUSES` of `PAUSE_S`. Only for stores that list at once.
    """

    def __init__(
        self,
        storage: Storage,
        instant: str,
        file_groups: Iterable[bytes],
        expires_ms: int = EXPIRES_MS,
        pause: Callable[[float], object] = _PAUSE,
    ) -> None:
        self._storage = storage
        # In a URL's spelling a key has neither blanks nor line ends.
        self._keys = {quote_from_bytes(key) for key in file_groups}
        self._name = f"{instant}-{uuid.uuid4().hex}"
        self._expires_ms = expires_ms
        self._pause = pause

    def __enter__(self) -> ClaimLock:
        self._storage.create(_path(self._name), "\n".join(sorted(self._keys)).encode())
        try:
            self._take()
        except BaseException:
            self._storage.remove(_path(self._name))
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._storage.remove(_path(self._name))

    def is_held(self) -> bool:
        """Whether no other process has taken this owner for dead."""
        return self._storage.stat(_path(self._name)) is not None

    def _take(self) -> None:
        entries = self._list()
        if self._name not in entries:
            raise ReservedError(
                f"{_path(self._name)} was removed by another process, or {LOCK_FOLDER} is listed too late"
            )
        # Ages by the store's own clock.
        oldest_ms = entries.pop(self._name).modified_ms - self._expires_ms
        dead = [name for name, entry in entries.items() if entry.modified_ms < oldest_ms]
        self._outlast({name for name in entries.keys() - dead if self._is_rival(name)})
        for name in dead:
            self._storage.remove(_path(name))

    def _outlast(self, rivals: set[str]) -> None:
        """Wait until all rivals have left. A later claim finds this entry, and follows the same rule."""
        for _ in range(MAX_PAUSES):
            if not rivals or min(rivals) < self._name:
                break
            self._pause(PAUSE_S)
            rivals &= self._list().keys()
        if rivals:
            raise ReservedError(f"{_path(min(rivals))}: another claim on the same file groups is being made")

    def _is_rival(self, name: str) -> bool:
        try:
            content = self._storage.read_bytes(_path(name), MAX_CLAIM_BYTES)
        except FileNotFoundError:
            return False
        return not self._keys.isdisjoint(content.decode("utf-8", "replace").split("\n"))

    def _list(self) -> dict[str, FileEntry]:
        try:
            entries = self._storage.list_entries(LOCK_FOLDER)
        except FileNotFoundError:  # an object store has no empty folder
            return {}
        return {entry.name: entry for entry in entries if _ENTRY.fullmatch(entry.name)}


def _path(name: str) -> str:
    return f"{LOCK_FOLDER}/{name}"


# --- Claim file groups where stock writers see them: markers and a heartbeat under an instant of its own
#
# Hudi's early conflict detection takes any folder below `.hoodie/.temp` for a writer's, when its name is smaller than
# the checking writer's instant, the timeline has no pending service of that name, and its heartbeat lives
# (`MarkerUtils.getCandidateInstants`). A reservation whose owner dies ends when its heartbeat is too old.


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
            # As of a base file that is merged; the write token shows that no Spark task writes it.
            self._storage.write(f"{folder}/{file_id}_0-0-0_{self.instant}.parquet.marker.MERGE")

    def release(self) -> None:
        """Remove the markers, then the heartbeat. Nothing happens where there are none."""
        self._storage.remove(self._folder)
        self._storage.remove(self._heartbeat)

    def lock(self, file_groups: Iterable[bytes], expires_ms: int = EXPIRES_MS) -> ClaimLock:
        """Return the lock under which these file groups (keys) are read and marked.

        Hudi's own strategy needs ZooKeeper for it. Its other providers lock whole tables, and would delay commits.
        """
        return ClaimLock(self._storage, self.instant, file_groups, expires_ms)
