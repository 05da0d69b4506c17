"""The real tables under tests/fixtures/tables, unpacked for a test."""

from __future__ import annotations

import json
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "fixtures" / "tables"
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.zip")))


@dataclass(frozen=True)
class FixtureTable:
    """One unpacked table, and what Hudi's own meta client said of it."""

    path: Path
    expected: list[dict[str, Any]]
    latest_write_without_holes: str | None


def unpack(name: str, folder: Path) -> FixtureTable:
    """Unpack a table; layout 1 lives by modification times, so they are restored to the millisecond."""
    path = folder / name
    answer = json.loads((FOLDER / f"{name}.expected.json").read_text(encoding="utf-8"))
    with zipfile.ZipFile(FOLDER / f"{name}.zip") as archive:
        archive.extractall(path)
    # The archives leave the metadata table out, which the properties list.
    metadata = path / ".hoodie" / "metadata" / ".hoodie"
    metadata.mkdir(parents=True)
    (metadata / "hoodie.properties").write_text("hoodie.table.name=left_out\n")
    for file_name, modified_ms in answer["modified_ms"].items():
        os.utime(path / ".hoodie" / file_name, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))
    return FixtureTable(path, answer["instants"], answer["latest_write_without_holes"])
