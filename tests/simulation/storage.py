"""A lake in memory: files with times of the virtual clock, folder times that tick, and what writers and jobs leave."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC
from typing import Any, ClassVar

from airflow_lake_provider.instant_clock import format_instant_time
from airflow_lake_provider.shared.actions import Action
from airflow_lake_provider.storage.store import MAX_FILE_BYTES, FileEntry, Store, last_name
from airflow_lake_provider.storage.table_storage import Storage

TIMELINE = ".hoodie/timeline"
HEARTBEATS = ".hoodie/.heartbeat"
COMPLETES_AS = {
    Action.COMPACTION: Action.COMMIT,
    Action.CLUSTERING: Action.REPLACECOMMIT,
    Action.CLEAN: Action.CLEAN,
    Action.DELTACOMMIT: Action.DELTACOMMIT,
    Action.ROLLBACK: Action.ROLLBACK,
}
OPERATIONS = {Action.COMPACTION: "COMPACT", Action.CLUSTERING: "CLUSTER", Action.DELTACOMMIT: "UPSERT"}


@dataclass
class Disk:
    """Folders of files. A folder's time changes in ticks, as on file systems with coarse times."""

    now_ms: Callable[[], int]
    tick_ms: int = 1
    has_folder_times: bool = True
    folders: dict[str, dict[str, tuple[bytes, int]]] = field(default_factory=dict)
    times: dict[str, int] = field(default_factory=dict)

    def write(self, path: str, content: bytes = b"", modified_ms: int | None = None) -> None:
        folder, _, name = path.rpartition("/")
        files = self.folders.setdefault(folder, {})
        if name not in files:
            self._touch(folder)
        files[name] = (content, self.now_ms() if modified_ms is None else modified_ms)

    def remove(self, path: str) -> None:
        folder, _, name = path.rpartition("/")
        if self.folders.get(folder, {}).pop(name, None) is not None:
            self._touch(folder)

    def _touch(self, folder: str) -> None:
        self.times[folder] = self.now_ms() // self.tick_ms * self.tick_ms


class DiskStore(Store):
    """The provider's way to the disk; `before_call` may raise, or let time pass."""

    has_folder_times: ClassVar[bool] = True

    def __init__(self, disk: Disk, before_call: Callable[[str], None]) -> None:
        self._disk = disk
        self._before_call = before_call

    def list_entries(self, path: str) -> list[FileEntry]:
        self._before_call("list")
        files = self._disk.folders.get(path)
        if files is None:
            raise FileNotFoundError(path)
        return [FileEntry(name, len(content), time_ms) for name, (content, time_ms) in files.items()]

    def list_names(self, path: str) -> list[str]:
        self._before_call("list")
        files = self._disk.folders.get(path)
        if files is None:
            raise FileNotFoundError(path)
        return list(files)

    def read_bytes(self, path: str, limit_bytes: int = MAX_FILE_BYTES) -> bytes:
        self._before_call("read")
        folder, _, name = path.rpartition("/")
        try:
            return self._disk.folders[folder][name][0]
        except KeyError:
            raise FileNotFoundError(path) from None

    def stat(self, path: str) -> FileEntry:
        self._before_call("stat")
        if path in self._disk.folders:
            return FileEntry(last_name(path), 0, self._disk.times[path], is_folder=True)
        folder, _, name = path.rpartition("/")
        try:
            content, time_ms = self._disk.folders[folder][name]
        except KeyError:
            raise FileNotFoundError(path) from None
        return FileEntry(name, len(content), time_ms)


class ObjectStore(DiskStore):
    """The same without folder times, as S3."""

    has_folder_times: ClassVar[bool] = False


def open_on(disk: Disk, base_path: str, before_call: Callable[[str], None]) -> Storage:
    """Open a table for one reader."""
    kind = DiskStore if disk.has_folder_times else ObjectStore
    return Storage(base_path, kind(disk, before_call), base_path)


class SimTable:
    """A merge-on-read table of version 9, and every change that writers and services make to its timeline."""

    def __init__(self, disk: Disk, base_path: str) -> None:
        self.disk = disk
        self.base_path = base_path
        self.name = last_name(base_path)
        self.archived: set[str] = set()
        self.rollbacks: dict[str, str] = {}
        """Which write each planned rollback is for, as its plan says."""
        self._last_ms = 0
        self._used_ms: set[int] = set()
        self._writes = 0
        properties = {
            "hoodie.table.name": self.name,
            "hoodie.table.type": "MERGE_ON_READ",
            "hoodie.table.version": "9",
            "hoodie.timeline.layout.version": "2",
            "hoodie.table.checksum": str(zlib.crc32(f".{self.name}".encode())),
        }
        text = "\n".join(f"{key}={value}" for key, value in properties.items())
        disk.write(f"{base_path}/.hoodie/hoodie.properties", text.encode())
        disk.write(f"{base_path}/{TIMELINE}/history/_", b"")
        disk.folders[f"{base_path}/{TIMELINE}"] = {}
        disk.times[f"{base_path}/{TIMELINE}"] = disk.now_ms()

    def request(self, action: Action, offset_ms: int = 0, *, beats: bool = True) -> str:
        """Begin an instant; return its requested time, by a clock that is so far ahead."""
        time = self._next_time(offset_ms)
        if action is Action.DELTACOMMIT and beats:
            self.beat(time)
        # The plan of a service is never empty; the request of a write always is.
        self._put(f"{time}.{action.value}.requested", b"" if action is Action.DELTACOMMIT else b"{}")
        return time

    def beat(self, time: str, modified_ms: int | None = None) -> None:
        """Say that the writer of an instant lives, or leave a heartbeat of another time."""
        self.disk.write(f"{self.base_path}/{HEARTBEATS}/{time}", b"", modified_ms)

    def find_pending(self, action: Action) -> list[str]:
        """Return the requested times of an action's pending instants."""
        names = self.disk.folders[f"{self.base_path}/{TIMELINE}"]
        times = {name.split(".")[0] for name in names if name.split(".")[1:2] == [action.value]}
        return sorted(time for time in times if self.is_pending(time))

    def is_begun(self, time: str) -> bool:
        """Whether an executor has begun a plan."""
        names = self.disk.folders[f"{self.base_path}/{TIMELINE}"]
        return any(name.startswith(time) and name.endswith(".inflight") for name in names)

    def is_pending(self, time: str) -> bool:
        """Whether an instant is on the timeline, and not completed."""
        names = [name for name in self.disk.folders[f"{self.base_path}/{TIMELINE}"] if name.startswith(time)]
        return bool(names) and not any("_" in name for name in names)

    def plan_rollback(self, write: str) -> str:
        """Plan the rollback of a write, or take up the one that is planned; return its requested time."""
        for time, planned in self.rollbacks.items():
            if planned == write and self.is_pending(time):
                return time
        time = self.request(Action.ROLLBACK)
        self.rollbacks[time] = write
        return time

    def begin(self, time: str, action: Action) -> None:
        self._put(f"{time}.{action.value}.inflight")

    def complete(self, time: str, action: Action, offset_ms: int = 0) -> None:
        self._writes += 1
        body = json.dumps(
            {"operationType": OPERATIONS.get(action, ""), "partitionToWriteStats": {"p": [self._stat(action)]}}
        )
        self._put(f"{time}_{self._next_time(offset_ms)}.{COMPLETES_AS[action].value}", body.encode())
        self.disk.remove(f"{self.base_path}/{HEARTBEATS}/{time}")

    def remove_instant(self, time: str) -> None:
        """What a rollback does to a dead writer's instant, and archiving to an old one."""
        for name in [name for name in self.disk.folders[f"{self.base_path}/{TIMELINE}"] if name.startswith(time)]:
            self.disk.remove(f"{self.base_path}/{TIMELINE}/{name}")
        self.disk.remove(f"{self.base_path}/{HEARTBEATS}/{time}")
        self.archived.add(time)

    def _put(self, name: str, content: bytes = b"") -> None:
        self.disk.write(f"{self.base_path}/{TIMELINE}/{name}", content)

    def _stat(self, action: Action) -> dict[str, Any]:
        is_log = action is Action.DELTACOMMIT
        path = f"p/.a_0.log.{self._writes}_0-1-0" if is_log else f"p/a_{self._writes}.parquet"
        return {"fileId": "a", "path": path, "totalWriteBytes": 100, "fileSizeInBytes": 100}

    def _next_time(self, offset_ms: int = 0) -> str:
        if offset_ms:
            time_ms = self.disk.now_ms() + offset_ms
            while time_ms in self._used_ms:
                time_ms += 1
        else:
            time_ms = self._last_ms = max(self._last_ms + 1, self.disk.now_ms())
            while time_ms in self._used_ms:
                time_ms = self._last_ms = time_ms + 1
        self._used_ms.add(time_ms)
        return format_instant_time(time_ms, UTC)
