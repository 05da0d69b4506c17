"""A table in memory, with writers that a test moves step by step; what it writes is what Hudi writes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from airflow_lake_provider.conflict.activity import ConflictTable
from airflow_lake_provider.hudi.active_writes import HeartbeatRule
from airflow_lake_provider.hudi.instant import Layout
from airflow_lake_provider.hudi.properties import build_table_properties
from airflow_lake_provider.hudi.timeline import build_timeline
from airflow_lake_provider.storage.store import MAX_FILE_BYTES, FileEntry, Store
from airflow_lake_provider.storage.table_storage import Storage
from airflow_lake_provider.timeline_server.snapshot import TimelineSnapshot

BASE = "/lake/orders"
PROPERTIES = {"hoodie.table.name": "orders", "hoodie.table.version": "9", "hoodie.table.type": "MERGE_ON_READ"}
RULE = HeartbeatRule(interval_ms=60_000, tolerable_misses=2)
SERVER_FILES = 3


@dataclass
class FakeStore(Store):
    """Files in memory: path, content, modification time. Folders are what paths imply."""

    has_folder_times: ClassVar[bool] = False
    files: dict[str, tuple[bytes, int]] = field(default_factory=dict)

    def list_entries(self, path: str) -> list[FileEntry]:
        prefix, found = f"{path}/", {}
        for name, (content, modified_ms) in self.files.items():
            if name.startswith(prefix):
                child, _, rest = name.removeprefix(prefix).partition("/")
                found[child] = FileEntry(child, 0 if rest else len(content), modified_ms, bool(rest))
        if not found:
            raise FileNotFoundError(path)
        return list(found.values())

    def read_bytes(self, path: str, limit_bytes: int = MAX_FILE_BYTES) -> bytes:
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path][0]

    def stat(self, path: str) -> FileEntry:
        content, modified_ms = self.files.get(path, (b"", 0))
        if path not in self.files and not any(name.startswith(f"{path}/") for name in self.files):
            raise FileNotFoundError(path)
        return FileEntry(path.rsplit("/", 1)[-1], len(content), modified_ms)


@dataclass
class FakeTable:
    """One table, whose files lie as those of table version 9 whatever its version is."""

    store: FakeStore = field(default_factory=FakeStore)
    now_ms: int = 1_800_000_000_000
    properties: dict[str, str] = field(default_factory=lambda: dict(PROPERTIES))
    version: int = 9

    def open(self, hudi_options: Mapping[str, str] | None = None) -> ConflictTable:
        return ConflictTable(Storage(BASE, self.store, BASE), self.snapshot, RULE, hudi_options)

    def snapshot(self) -> TimelineSnapshot:
        names = [name.rsplit("/", 1)[-1] for name in self.store.files if "/.hoodie/timeline/" in name]
        timeline = build_timeline(Layout.V2, names)
        properties = replace(build_table_properties(self.properties, BASE), version=self.version)
        return TimelineSnapshot(BASE, "", properties, timeline, self.now_ms)

    def write(self, path: str, content: bytes = b"") -> None:
        self.store.files[f"{BASE}/.hoodie/{path}"] = (content, self.now_ms)

    def remove(self, path: str) -> None:
        gone = [name for name in self.store.files if name.startswith(f"{BASE}/.hoodie/{path}")]
        for name in gone:
            del self.store.files[name]

    def beat(self, instant: str, ago_ms: int = 0) -> None:
        self.store.files[f"{BASE}/.hoodie/.heartbeat/{instant}"] = (b"", self.now_ms - ago_ms)

    def begin(self, instant: str, action: str = "deltacommit") -> None:
        self.beat(instant)
        self.write(f"timeline/{instant}.{action}.requested")

    def announce(self, instant: str, groups: list[tuple[str, str]], inserts: tuple[str, ...] = ()) -> None:
        self.write(f"timeline/{instant}.deltacommit.inflight", commit_body(groups, inserts))

    def begin_overwrite(self, instant: str, operation: str = "", partitions: tuple[str, ...] = ()) -> None:
        self.begin(instant, "replacecommit")
        if operation:
            self.write(f"timeline/{instant}.replacecommit.inflight", commit_body([], partitions, operation))

    def mark_direct(self, instant: str, groups: list[tuple[str, str]], *, is_log: bool = False) -> None:
        for partition, file_id in groups:
            self.write(f".temp/{instant}/{marker(instant, partition, file_id, is_log=is_log)}")

    def mark_by_server(self, instant: str, groups: list[tuple[str, str]], cut: int = 0) -> None:
        """Write all markers again, as the server does; the last file without its last bytes."""
        self.write(f".temp/{instant}/MARKERS.type", b"TIMELINE_SERVER_BASED")
        for index in range(min(SERVER_FILES, len(groups))):
            lines = "".join(f"{marker(instant, *group)}\n" for group in groups[index::SERVER_FILES]).encode()
            self.write(f".temp/{instant}/MARKERS{index}", lines[: len(lines) - cut] if index == 0 else lines)

    def plan(self, instant: str, groups: list[tuple[str, str]]) -> None:
        slices = [{"partitionPath": partition, "fileId": file_id} for partition, file_id in groups]
        body = {"clusteringPlan": {"inputGroups": [{"slices": slices}]}}
        self.write(f"timeline/{instant}.clustering.requested", json.dumps(body).encode())

    def plan_compaction(self, instant: str, groups: list[tuple[str, str]], action: str = "compaction") -> None:
        operations = [{"partitionPath": partition, "fileId": file_id} for partition, file_id in groups]
        self.write(f"timeline/{instant}.{action}.requested", json.dumps({"operations": operations}).encode())

    def commit(self, instant: str, completed: str, groups: list[tuple[str, str]], operation: str = "UPSERT") -> None:
        self.write(f"timeline/{instant}_{completed}.deltacommit", commit_body(groups, operation=operation))
        self.remove(f".temp/{instant}")
        self.remove(f".heartbeat/{instant}")


def commit_body(groups: list[tuple[str, str]], inserts: tuple[str, ...] = (), operation: str = "UPSERT") -> bytes:
    stats: dict[str, list[dict[str, str]]] = {}
    for partition, file_id in [*groups, *((partition, "") for partition in inserts)]:
        stats.setdefault(partition, []).append({"fileId": file_id, "path": ""})
    return json.dumps({"operationType": operation, "partitionToWriteStats": stats}).encode()


def marker(instant: str, partition: str, file_id: str, *, is_log: bool = False) -> str:
    name = f".{file_id}_{instant}.log.1_0-1-2" if is_log else f"{file_id}_0-1-2_{instant}.parquet"
    path = f"{name}.marker.{'CREATE' if is_log else 'MERGE'}"
    return f"{partition}/{path}" if partition else path


def keys(groups: list[tuple[str, str]]) -> frozenset[bytes]:
    return frozenset((f"{partition}/{file_id}" if partition else file_id).encode() for partition, file_id in groups)
