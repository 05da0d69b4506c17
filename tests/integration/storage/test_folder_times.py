"""The gate: where a folder's time shows that nothing changed, a refresh costs a stat and no listing."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_lake_provider.storage.table_storage import Storage
from airflow_lake_provider.timeline_server.snapshot import SETTLED_AFTER_MS, Depth, refresh
from local_stack.hdfs import namenode_operations
from tests.integration.storage.lakes import HdfsLake, S3Lake, upload
from tests.support.fixture_tables import unpack

FOLDER = "/gate/folder"


def time_of(storage: Storage) -> int:
    found = storage.stat("folder")
    assert found is not None
    return found.modified_ms


def create(lake: HdfsLake) -> None:
    lake.put(f"{FOLDER}/new", b"content")


def rename_within(lake: HdfsLake) -> None:
    lake.client.rename(f"{FOLDER}/old", f"{FOLDER}/renamed")


def rename_into(lake: HdfsLake) -> None:
    lake.put("/gate/elsewhere", b"")
    lake.client.rename("/gate/elsewhere", f"{FOLDER}/arrived")


def rename_away(lake: HdfsLake) -> None:
    lake.client.rename(f"{FOLDER}/old", "/gate/gone")


def delete(lake: HdfsLake) -> None:
    lake.client.delete(f"{FOLDER}/old")


def make_folder(lake: HdfsLake) -> None:
    lake.client.mkdirs(f"{FOLDER}/sub")


@pytest.mark.parametrize("change", [create, rename_within, rename_into, rename_away, delete, make_folder])
def test_folder_time_on_hdfs_changes_with_its_children(hdfs_lake: HdfsLake, change: Callable[[HdfsLake], None]) -> None:
    storage = hdfs_lake.open("/gate")
    assert storage.has_folder_times
    hdfs_lake.client.delete("/gate", recursive=True)
    hdfs_lake.put(f"{FOLDER}/old", b"")
    before = time_of(storage)
    time.sleep(0.01)
    change(hdfs_lake)
    assert time_of(storage) > before


def test_folder_time_on_hdfs_does_not_change_when_a_file_is_only_written(hdfs_lake: HdfsLake) -> None:
    """A file that grows or closes under its final name passes the gate: Hudi's writers rename on HDFS instead."""
    storage = hdfs_lake.open("/grow")
    stream = hdfs_lake.client.create("/grow/folder/file")
    before = time_of(storage)
    time.sleep(0.01)
    stream.write(b"content")
    stream.close()
    assert time_of(storage) == before


def test_object_store_has_no_folder_times(s3_lake: S3Lake) -> None:
    s3_lake.put("/gate/folder/x", b"")
    storage = s3_lake.open("/gate")
    assert not storage.has_folder_times
    assert time_of(storage) == 0


@pytest.mark.parametrize("name", ["cow_v6", "cow_v9"])
def test_refresh_of_an_unchanged_table_on_hdfs_lists_nothing(hdfs_lake: HdfsLake, tmp_path: Path, name: str) -> None:
    """Counted by the NameNode itself: 50 refreshes are 50 stats."""
    reads = 50
    path = f"/looks/{name}"
    upload(hdfs_lake, unpack(name, tmp_path).path, path)
    storage = hdfs_lake.open(path)
    later_ms = int(time.time() * 1000) + SETTLED_AFTER_MS + 60_000
    known = refresh(storage, None, Depth.FULL, later_ms)
    before = namenode_operations(hdfs_lake.cluster.http_url)
    for _ in range(reads):
        known = refresh(storage, known, Depth.GATE, later_ms)
    after = namenode_operations(hdfs_lake.cluster.http_url)
    asked = {key: after[key] - before.get(key, 0) for key in after if key.startswith("rpc.")}
    assert {key: count for key, count in asked.items() if count} == {"rpc.GetFileInfo": reads}
    assert after["GetListingOps"] == before["GetListingOps"]

    hdfs_lake.put(f"{path}/{known.snapshot.properties.timeline_path}/unknown.txt", b"")
    known = refresh(storage, known, Depth.GATE, later_ms)
    assert [problem.file_name for problem in known.snapshot.timeline.problems] == ["unknown.txt"]
