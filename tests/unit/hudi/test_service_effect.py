from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_lake_provider.hudi import pending as service_effect
from airflow_lake_provider.hudi.pending import ServiceEffect, read_effect
from airflow_lake_provider.storage.table_storage import open_storage
from tests.support.tables import HandMadeTable

T = "20261121120005000"


@pytest.fixture
def table(tmp_path: Path) -> HandMadeTable:
    return HandMadeTable.create(tmp_path / "orders")


def complete(table: HandMadeTable, action: str, body: dict[str, Any], plan: dict[str, Any] | None = None) -> None:
    timeline = table.path / ".hoodie" / "timeline"
    (timeline / f"{T}_20261121120006000.{action}").write_text(json.dumps(body))
    if plan is not None:
        (timeline / f"{T}.clustering.requested").write_text(json.dumps(plan))


def put(table: HandMadeTable, name: str, size: int) -> None:
    file = table.path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"x" * size)


def effect(table: HandMadeTable) -> ServiceEffect:
    return read_effect(open_storage(str(table.path)), [T])


def test_compaction_reads_base_files_and_their_logs(table: HandMadeTable) -> None:
    put(table, "p/old.parquet", 700)
    stat = {
        "partitionPath": "p",
        "path": "p/new.parquet",
        "prevBaseFile": "old.parquet",
        "totalLogFilesCompacted": 3,
        "totalLogSizeCompacted": 50,
        "totalWriteBytes": 720,
        "numWrites": 9,
    }
    complete(table, "commit", {"operationType": "COMPACT", "partitionToWriteStats": {"p": [stat]}})
    assert effect(table) == ServiceEffect(4, 1, 750, 720, 9)


def test_clustering_reads_the_files_of_its_plan(table: HandMadeTable) -> None:
    put(table, "p/a.parquet", 10)
    put(table, "p/b.parquet", 20)
    slices = [
        {"partitionPath": "p", "fileId": name, "dataFilePath": f"{table.path}/p/{name}.parquet", "deltaFilePaths": []}
        for name in "ab"
    ]
    stats = {"p": [{"partitionPath": "p", "totalWriteBytes": 25, "numWrites": 5}]}
    body = {"operationType": "CLUSTER", "partitionToWriteStats": stats}
    complete(table, "replacecommit", body, {"clusteringPlan": {"inputGroups": [{"slices": slices}]}})
    assert effect(table) == ServiceEffect(2, 1, 30, 25, 5)


@pytest.mark.parametrize("gone", ["cleaned", "too-many"])
def test_bytes_that_are_unknown_are_not_reported(
    table: HandMadeTable, gone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if gone == "too-many":
        put(table, "p/old.parquet", 700)
        monkeypatch.setattr(service_effect, "MAX_STATS", 0)
    stat = {"partitionPath": "p", "prevBaseFile": "old.parquet", "totalWriteBytes": 1, "numWrites": 1}
    complete(table, "commit", {"partitionToWriteStats": {"p": [stat]}})
    assert (effect(table).read_bytes, effect(table).files_before) == (None, 1)


def test_clean_and_rollback_delete_files(table: HandMadeTable) -> None:
    complete(table, "clean", {"totalFilesDeleted": 24})
    assert effect(table) == ServiceEffect(files_deleted=24)


def test_effects_add_up_by_what_is_known() -> None:
    assert ServiceEffect(1, 1, None, 5).plus(ServiceEffect(2, 3, 7, None)) == ServiceEffect(3, 4, 7, 5)
