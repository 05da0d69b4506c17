"""A lock on file groups, made of nothing but whole files and listings: the same on disks, HDFS and object stores.

Who claims file groups puts an entry that names them into one folder, then lists the folder. Of two, at least one finds
the other's entry there, because neither lists before its own is in place. The younger one leaves then; the older one
waits until the younger is gone: either it held the lock already, or it leaves. No entry's name is ever used twice, so
that an entry of a dead owner can be removed by anybody without hitting another one.

An owner that only slept too long finds its entry removed (`is_held`). Whoever removed it did so before it looked for
markers. So what an owner wrote before it found its lock still held is seen by everybody who holds it later: ages decide
how soon a dead owner is passed by, never whether two hold the lock.
"""

from __future__ import annotations

import re
import threading
import uuid
from typing import TYPE_CHECKING
from urllib.parse import quote_from_bytes

from airflow_lake_provider.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

    from airflow_lake_provider.timeline.storage import Storage
    from airflow_lake_provider.timeline.store import FileEntry

LOCK_FOLDER = ".hoodie/.locks/file_groups"
EXPIRES_MS = 60_000
PAUSE_S = 0.05
MAX_PAUSES = 40
_PAUSE = threading.Event().wait
_ENTRY = re.compile(r"\d+-[0-9a-f]{32}", re.ASCII)


class ReservedError(StorageError):
    """Somebody else holds the lock on a file group; the holder is about to write its marker."""


class ClaimLock:
    """The lock on some file groups (keys), for one `with` block, in the name of an instant.

    Entering raises ReservedError when an older claim on one of them is being made, or a younger one for longer than
    `MAX_PAUSES` of `PAUSE_S`. For stores that list at once only.
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
        """Whether nobody has taken this owner for dead."""
        return self._storage.stat(_path(self._name)) is not None

    def _take(self) -> None:
        entries = self._list()
        if self._name not in entries:
            raise ReservedError(f"{_path(self._name)} was removed by somebody, or {LOCK_FOLDER} is listed too late")
        # Ages by the store's own clock.
        oldest_ms = entries.pop(self._name).modified_ms - self._expires_ms
        dead = [name for name, entry in entries.items() if entry.modified_ms < oldest_ms]
        self._outlast({name for name in entries.keys() - dead if self._is_rival(name)})
        for name in dead:
            self._storage.remove(_path(name))

    def _outlast(self, rivals: set[str]) -> None:
        """Wait until all rivals are gone. Whoever comes later finds this entry, and goes by the same rule."""
        for _ in range(MAX_PAUSES):
            if not rivals or min(rivals) < self._name:
                break
            self._pause(PAUSE_S)
            rivals &= self._list().keys()
        if rivals:
            raise ReservedError(f"{_path(min(rivals))}: another claim on the same file groups is being made")

    def _is_rival(self, name: str) -> bool:
        try:
            content = self._storage.read_bytes(_path(name))
        except FileNotFoundError:
            return False
        return not self._keys.isdisjoint(content.decode().split("\n"))

    def _list(self) -> dict[str, FileEntry]:
        try:
            entries = self._storage.list_entries(LOCK_FOLDER)
        except FileNotFoundError:  # an object store has no empty folder
            return {}
        return {entry.name: entry for entry in entries if _ENTRY.fullmatch(entry.name)}


def _path(name: str) -> str:
    return f"{LOCK_FOLDER}/{name}"
