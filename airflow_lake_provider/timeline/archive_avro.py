"""Decode Avro records whose schema comes out of the same file, which need not be written by Hudi."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro

from airflow_lake_provider.errors import DamagedFileError
from airflow_lake_provider.timeline.avro_schema import check_schema


class RecordReader:
    """Reads records of one schema: a few of their fields, which is quick, or all."""

    def __init__(self, schema: bytes, fields: frozenset[str], where: str) -> None:
        try:
            parsed = json.loads(schema)
            check_schema(parsed)
            self._schema = fastavro.parse_schema(parsed)
            few = [entry for entry in parsed["fields"] if entry["name"] in fields]
            self._few = fastavro.parse_schema({**parsed, "fields": few})
        except Exception as error:  # what the parser raises depends on what is wrong in the schema
            raise DamagedFileError(f"{where}: damaged Avro schema: {type(error).__name__} {error}") from error

    def read_fields(self, record: bytes, where: str) -> dict[str, Any]:
        """Return the few fields of a record. Raises DamagedFileError."""
        return self._read(record, self._few, where)

    def read_all(self, record: bytes, where: str) -> dict[str, Any]:
        """Return a whole record. Raises DamagedFileError."""
        return self._read(record, None, where)

    def _read(self, record: bytes, reader_schema: Any, where: str) -> dict[str, Any]:
        stream = io.BytesIO(record)
        try:
            value = fastavro.schemaless_reader(stream, self._schema, reader_schema)
        except Exception as error:  # decoders raise whatever a wrong byte makes them do
            raise DamagedFileError(f"{where}: damaged Avro record: {type(error).__name__} {error}") from error
        if stream.tell() != len(record) or not isinstance(value, dict):
            raise DamagedFileError(f"{where}: damaged Avro record: {len(record) - stream.tell()} bytes too many")
        return value


def to_json(value: Any, where: str) -> bytes:
    """Print a decoded value. Raises DamagedFileError."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise DamagedFileError(f"{where}: an Avro value that is not plain data: {error}") from error
