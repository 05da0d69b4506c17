"""Decode Avro records whose schema comes out of the same file, which need not be written by Hudi."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import fastavro

from airflow_lake_provider.errors import DamagedFileError

if TYPE_CHECKING:
    from collections.abc import Mapping

# --- Which Avro schemas records may be decoded with. A schema comes out of the same file, and need not be Hudi's
#
# The decoder trusts a schema: one that contains itself overruns the process's stack, and elements of no size can be
# promised in any number. Hudi's schemas have neither, so both are refused before anything is decoded.

MAX_DEPTH = 64
MAX_NODES = 20_000
"""Types in a schema with every named one written out; Hudi 1.2 has a few hundred."""

_SIZES = {"null": 0, "boolean": 1, "int": 1, "long": 1, "float": 4, "double": 8, "bytes": 1, "string": 1}
_OPEN = (-1, -1)


def check_schema(schema: Any) -> None:
    """Raise ValueError for a schema that records must not be decoded with."""
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise ValueError("not the schema of a record")
    _measure(schema, {}, 0)


def _measure(schema: Any, named: dict[str, tuple[int, int]], depth: int) -> tuple[int, int]:
    """Return the least bytes that a value of a type takes, and the number of types in it."""
    if depth > MAX_DEPTH:
        raise ValueError(f"types within types, deeper than {MAX_DEPTH}")
    if isinstance(schema, list):
        measures = [_measure(branch, named, depth + 1) for branch in schema]
        measure = (1, 1 + sum(nodes for _, nodes in measures))
    elif isinstance(schema, str):
        measure = _measure_name(schema, named)
    else:
        measure = _measure_object(schema, named, depth)
    if measure[1] > MAX_NODES:
        raise ValueError(f"more than {MAX_NODES} types")
    return measure


def _measure_name(name: str, named: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
    if name in _SIZES:
        return _SIZES[name], 1
    # Two types of one short name in two namespaces would be one here; Hudi has none, and at worst a schema is refused.
    measure = named.get(name.rsplit(".", 1)[-1])
    if measure is None or measure == _OPEN:
        raise ValueError(f"type {name[:80]!r} contains itself" if measure else f"unknown type {name[:80]!r}")
    return measure


def _measure_object(schema: Mapping[str, Any], named: dict[str, tuple[int, int]], depth: int) -> tuple[int, int]:
    kind = schema["type"]
    if kind == "array" or kind == "map":
        size, nodes = _measure(schema["items" if kind == "array" else "values"], named, depth + 1)
        if kind == "array" and size == 0:
            raise ValueError("an array of elements without size")
        return 1, nodes + 1
    if kind not in ("record", "enum", "fixed"):
        return _measure(kind, named, depth + 1)
    name = schema["name"].rsplit(".", 1)[-1]
    if name in named:
        raise ValueError(f"two types of the name {name[:80]!r}")
    if kind != "record":
        named[name] = (int(schema["size"]) if kind == "fixed" else 1, 1)
        return named[name]
    named[name] = _OPEN
    measures = [_measure(entry["type"], named, depth + 1) for entry in schema["fields"]]
    named[name] = (sum(size for size, _ in measures), 1 + sum(nodes for _, nodes in measures))
    return named[name]


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
