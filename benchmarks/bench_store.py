"""The stores `bench://store0` to `bench://store9`: folders of this machine's disk, of which one can be made to hang.

`install` makes them known to fsspec in each process that has the folder on its path. While the file `hanging` exists,
no call for `store0` returns.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from fsspec import AbstractFileSystem

from benchmarks.detection import instant_time

STORES = 10
ROOT_VARIABLE = "LAKE_BENCH_STORES"
HANGING = "hanging"
_ENTRY_POINT = "[fsspec.specs]\nbench = benchmarks.bench_store:BenchStore\n"


def install(folder: Path) -> None:
    """Write what makes fsspec find the stores, into a folder that belongs on PYTHONPATH."""
    described = folder / "lake_bench_store-1.0.dist-info"
    described.mkdir(parents=True)
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: lake-bench-store\nVersion: 1.0\n")
    (described / "entry_points.txt").write_text(_ENTRY_POINT)


def local_path(base_path: str) -> str:
    """Return where a path of such a store lies on the disk."""
    return str(Path(os.environ[ROOT_VARIABLE]) / base_path.partition("://")[2].strip("/"))


class BenchStore(AbstractFileSystem):  # type: ignore[misc]
    """What the provider calls of fsspec's file systems."""

    protocol = "bench"
    cachable = True

    def _open_path(self, path: str) -> Path:
        root = Path(os.environ[ROOT_VARIABLE])
        relative = self._strip_protocol(path).strip("/")
        while relative.startswith("store0/") and (root / HANGING).exists():
            time.sleep(0.5)
        return root / relative

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        folder = self._open_path(path)
        with os.scandir(folder) as entries:
            found = [self._describe(f"{path.rstrip('/')}/{entry.name}", entry.stat()) for entry in entries]
        return found if detail else [entry["name"] for entry in found]

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        return self._describe(path, self._open_path(path).stat())

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        return self._open_path(path).read_bytes()[start:end]

    @staticmethod
    def _describe(name: str, status: os.stat_result) -> dict[str, Any]:
        kind = "directory" if status.st_mode & 0o040000 else "file"
        return {"name": name, "size": status.st_size, "type": kind, "mtime": status.st_mtime}


def write_commit(table: Path, number: int, completed_s: float) -> None:
    """Add a completed delta commit that appended a log file."""
    stat = {
        "fileId": "00000000-0000-0000-0000-000000000000-0",
        "path": f"p/.00000000-0000-0000-0000-000000000000-0_20261121120000000.log.{number}_0-1-0",
        "prevCommit": "20261121120000000",
        "totalWriteBytes": 1000,
        "fileSizeInBytes": 1000,
    }
    body = {"operationType": "UPSERT", "partitionToWriteStats": {"p": [stat]}}
    name = f"{instant_time(completed_s - 2)}_{instant_time(completed_s)}.deltacommit"
    (table / ".hoodie" / "timeline" / name).write_text(json.dumps(body), encoding="utf-8")
