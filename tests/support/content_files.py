"""Files of each kind with content that is made by hand."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator

import pytest

from airflow_lake_provider.hudi.file_content import AVRO_MAGIC
from tests.support.fixture_tables import FOLDER


def files_of_each_kind(table: str) -> Iterator[tuple[str, bytes]]:
    """Yield one file with content of each action and state of a real table."""
    seen = set()
    with zipfile.ZipFile(FOLDER / f"{table}.zip") as archive:
        for path in sorted(archive.namelist()):
            name = path.rpartition("/")[2]
            kind = name.partition(".")[2]
            content = archive.read(path)
            if name[0].isdigit() and not name.endswith(".parquet") and content and kind not in seen:
                seen.add(kind)
                yield name, content


FILES = [
    pytest.param(name, content, id=f"{table}-{name.partition('.')[2]}")
    for table in ("mor_v9", "mor_v6", "cow_v9")
    for name, content in files_of_each_kind(table)
]


def number(value: int) -> bytes:
    """Print a zigzag number of Avro."""
    left, printed = (value << 1) ^ (value >> 63), b""
    while left > 0x7F:
        printed, left = printed + bytes([left & 0x7F | 0x80]), left >> 7
    return printed + bytes([left])


def sized(content: bytes) -> bytes:
    return number(len(content)) + content


def hand_made(schema: object, count: int, block: bytes) -> bytes:
    """Return a container whose block announces what its bytes need not hold."""
    text = schema if isinstance(schema, bytes) else json.dumps(schema).encode()
    header = number(2) + sized(b"avro.schema") + sized(text) + sized(b"avro.codec") + sized(b"null") + number(0)
    return AVRO_MAGIC + header + b"S" * 16 + number(count) + sized(block) + b"S" * 16


def record(*types: object) -> dict[str, object]:
    return {"type": "record", "name": "r", "fields": [{"name": f"f{n}", "type": t} for n, t in enumerate(types)]}
