"""Real archives, loaded and damaged for a test."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_lake_provider.errors import DamagedFileError, UnsupportedTableError
from airflow_lake_provider.hudi.archive import load_archive
from airflow_lake_provider.hudi.instant import ArchivedTimeline
from airflow_lake_provider.hudi.properties import load_table_properties
from airflow_lake_provider.storage.store import MAX_FILE_BYTES
from airflow_lake_provider.storage.table_storage import Storage, open_storage
from tests.support.fixture_tables import FOLDER, unpack

LSM, LOG, UPGRADED = "archived_v9", "archived_v6", "upgraded_v9"
EXPECTED = {
    name: json.loads((FOLDER / f"{name}.expected.json").read_text())["archived"] for name in (LSM, LOG, UPGRADED)
}


def load(path: Path, **options: Any) -> ArchivedTimeline:
    storage = open_storage(str(path))
    return load_archive(storage, load_table_properties(storage), **options)


def unpack_history(name: str, folder: Path) -> tuple[Path, Path]:
    """Unpack a table; return its path and the folder of its archive."""
    path = unpack(name, folder).path
    return path, path / load_table_properties(open_storage(str(path))).history_path


def completed(name: str) -> list[dict[str, Any]]:
    """Return what Hudi's own archived timeline says is completed."""
    return [instant for instant in EXPECTED[name] if instant["state"] == "COMPLETED"]


def seen(archive: ArchivedTimeline) -> list[tuple[str, str, str | None]]:
    return [(instant.requested_time, instant.action.value, instant.completed_time) for instant in archive.instants]


def outcome(path: Path, **options: Any) -> tuple[ArchivedTimeline | None, list[str]]:
    """Return the archive, if it loads, and what is said to be wrong with it."""
    try:
        archive = load(path, **options)
    except (DamagedFileError, UnsupportedTableError) as error:
        return None, [str(error)]
    return archive, [f"{problem.file_name}: {problem.reason}" for problem in archive.problems]


def before_reads(monkeypatch: pytest.MonkeyPatch, act: Callable[[str], object]) -> None:
    """Do something, as a writer would, before any file is read; `act` gets its name."""
    read_bytes = Storage.read_bytes

    def racing(self: Storage, path: str, limit_bytes: int = MAX_FILE_BYTES) -> bytes:
        act(path.rsplit("/", 1)[-1])
        return read_bytes(self, path, limit_bytes)

    monkeypatch.setattr(Storage, "read_bytes", racing)
