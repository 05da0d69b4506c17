"""Decode the content of a timeline file by what it is, not by what its name promises: empty, Avro container, JSON."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
from fastavro.schema import SchemaParseException

from airflow_lake_provider.errors import DamagedFileError
from airflow_lake_provider.timeline.avro_schema import check_schema

AVRO_MAGIC = b"Obj\x01"


def decode(content: bytes, file_name: str) -> dict[str, Any] | None:
    """Return the one record of a timeline file; None for an empty file.

    Raises DamagedFileError that names the file: half written, not of either format, or not exactly one record.
    """
    if not content:
        return None
    if content.startswith(AVRO_MAGIC):
        return _decode_avro(content, file_name)
    if content.lstrip()[:1] == b"{":
        return _decode_json(content, file_name)
    raise DamagedFileError(f"{file_name}: neither an Avro container nor JSON (begins with {content[:8]!r})")


def _decode_avro(content: bytes, file_name: str) -> dict[str, Any]:
    try:
        reader = fastavro.reader(io.BytesIO(content))
        # Hudi compresses none of its timeline files. Another codec is damage, and could unpack to any size.
        if reader.codec != "null":
            raise DamagedFileError(f"{file_name}: Avro container with codec {reader.codec!r}")
        # A schema that contains itself makes the decoder's C code recurse until the process dies (tried).
        check_schema(reader.writer_schema)
        records = list(reader)
    except (ValueError, EOFError, IndexError, KeyError, TypeError, OverflowError, MemoryError) as error:
        raise DamagedFileError(f"{file_name}: damaged Avro container: {type(error).__name__} {error}") from error
    except SchemaParseException as error:
        raise DamagedFileError(f"{file_name}: Avro container with a damaged schema: {error}") from error
    if len(records) != 1 or not isinstance(records[0], dict):
        raise DamagedFileError(f"{file_name}: expected one record in the Avro container, found {len(records)}")
    return records[0]


def _decode_json(content: bytes, file_name: str) -> dict[str, Any]:
    try:
        body = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(f"{file_name}: damaged JSON: {error}") from error
    return dict(body)
