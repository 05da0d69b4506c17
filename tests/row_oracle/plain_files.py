"""Reads the rows of a copy-on-write table with pyarrow alone: names of files, the timeline's names, no code of Hudi.

The newest base file of each file group whose commit is completed counts, but for groups that a completed replacecommit
names. What is older than the active timeline is completed: a write that failed leaves no file once it is rolled back.
"""

from __future__ import annotations

import json
from pathlib import Path

import fastavro
import pyarrow.parquet as pq

BLOOM_TYPE = b"hoodie_bloom_filter_type_code"
"""Hudi names the type of a dynamic filter only."""
REPLACED = "partitionToReplaceFileIds"


def read_rows(path: Path, version: int) -> list[tuple[int, str, float, int]]:
    """Return (id, city, amount, ts) of each row, sorted."""
    timeline = path / ".hoodie" / ("timeline" if version >= 8 else "")
    names = [entry.name for entry in timeline.iterdir() if entry.is_file() and entry.name[:1].isdigit()]
    ended = {name.split(".")[0].split("_")[0] for name in names if _is_completed(name)}
    completed = {name.split(".")[0].split("_")[0] for name in names if name.endswith((".commit", ".replacecommit"))}
    pending = {name.split(".")[0] for name in names} - ended
    first = min(completed, default="")
    gone = {file_id for name in names if name.endswith(".replacecommit") for file_id in _replaced(timeline / name)}
    newest: dict[str, tuple[str, Path]] = {}
    for file in path.glob("*/*.parquet"):
        file_id, _, instant = file.stem.split("_")
        is_visible = instant in completed or (instant < first and instant not in pending)
        if is_visible and file_id not in gone:
            newest[file_id] = max(newest.get(file_id, ("", file)), (instant, file))
    rows: list[tuple[int, str, float, int]] = []
    for _, file in newest.values():
        table = pq.ParquetFile(file).read(columns=["id", "city", "amount", "ts"])
        rows += [tuple(row.values()) for row in table.to_pylist()]
    return sorted(rows)


def read_format(file: Path) -> tuple[str, str] | None:
    """Return codec and type of bloom filter of a base file; None for one without rows, which shows no codec."""
    metadata = pq.ParquetFile(file).metadata
    if not metadata.num_row_groups:
        return None
    footer = dict(metadata.metadata or {})
    return metadata.row_group(0).column(0).compression.lower(), footer.get(BLOOM_TYPE, b"SIMPLE").decode()


def _is_completed(name: str) -> bool:
    return name.count(".") == 1 and not name.endswith(".inflight")


def _replaced(file: Path) -> set[str]:
    with file.open("rb") as stream:
        if stream.read(4) != b"Obj\x01":
            found = json.loads(file.read_text(encoding="utf-8")).get(REPLACED) or {}
        else:
            stream.seek(0)
            (record,) = fastavro.reader(stream)
            found = record[REPLACED] or {}
    return {file_id for ids in found.values() for file_id in ids}
