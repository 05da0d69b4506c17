"""Erasure of keys from the tables of reports, and a search of every file of its own that judges it."""

from __future__ import annotations

import io
import json
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from kept_rows import KeptTable, run

from airflow_lake_provider.job_contract import ERASE_FOLDER, ERASE_STEP, EraseStep, Mode, Service, ServiceResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

PARQUET = b"PAR1"
GZIP = b"\x1f\x8b\x08"


def keys_of_files(table: Path) -> set[str]:
    """Return the record keys in base files, old or new; without Hudi."""
    column = "_hoodie_record_key"
    found = (path for path in table.rglob("*.parquet") if ".hoodie" not in path.parts)
    return {key for path in found for key in pq.ParquetFile(path).read([column])[column].to_pylist()}


def files_with(table: Path, text: str) -> list[str]:
    """Return the files that have a text: as bytes, packed by gzip, or in Parquet, which log files may hold."""
    found = []
    for path in sorted(path for path in table.rglob("*") if path.is_file() and path.suffix != ".crc"):
        content = path.read_bytes()
        parts = [content]
        for at in _places(content, GZIP):
            with suppress(zlib.error):
                parts.append(zlib.decompressobj(wbits=31).decompress(content[at:]))
        marks = _places(content, PARQUET)
        for begin, end in zip(marks[::2], marks[1::2], strict=False):
            with suppress(pa.ArrowInvalid):
                rows = pq.ParquetFile(io.BytesIO(content[begin : end + len(PARQUET)])).read().to_pylist()
                parts.append(repr(rows).encode())
        if any(text.encode() in part for part in parts):
            found.append(str(path.relative_to(table)))
    return found


def _places(content: bytes, mark: bytes) -> list[int]:
    places, at = [], content.find(mark)
    while at >= 0:
        places.append(at)
        at = content.find(mark, at + 1)
    return places


def erase(kept: KeptTable, folder: Path, keys: Iterable[Mapping[str, str]]) -> tuple[ServiceResult, list[dict]]:
    """Run every step of an erasure up to the first that fails; return its result, and the receipt's keys."""
    folder.mkdir()
    lines = "".join(json.dumps(key) + "\n" for key in keys)
    (folder / "keys.jsonl").write_text(lines, encoding="utf-8")
    for step in EraseStep:
        options = {ERASE_STEP: step.value, ERASE_FOLDER: str(folder)}
        done = run(kept.spark, kept.table.request(Mode.ERASE, service=Service.TTL, service_options=options))
        if done.failure_kind is not None:
            return done, []
    return done, json.loads((folder / "receipt.json").read_text(encoding="utf-8"))["keys"]
