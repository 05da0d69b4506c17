"""Avro schemas that records may be decoded with.

A schema comes out of the same file as the records, and need not be Hudi's. The decoder trusts it: a schema that
contains itself overruns the process's stack, and elements without size can be promised in any number. Hudi's schemas
have neither, so both are refused before anything is decoded.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import fastavro

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MAX_DEPTH = 64
MAX_NODES = 20_000
"""Types in a schema with every named one written out; Hudi 1.2 has a few hundred."""
MAX_SCHEMA_BYTES = 512 * 1024
"""Maximum length of a schema's text; Hudi's longest has 25 KB."""


@dataclass(frozen=True, slots=True)
class RecordSchema:
    """A schema that was checked. `memory_per_byte`: at most this many bytes of Python objects come out of one byte."""

    parsed: Any
    memory_per_byte: int


@lru_cache(16)
def parse_record_schema(text: bytes) -> RecordSchema:
    """Return the schema of a record. Raises ValueError, RecursionError and what the parser of Avro raises."""
    if len(text) > MAX_SCHEMA_BYTES:
        raise ValueError(f"a schema of {len(text)} bytes, more than {MAX_SCHEMA_BYTES}")
    plain = _without_logical_types(json.loads(text))
    memory_per_byte = check_schema(plain)
    return RecordSchema(fastavro.parse_schema(plain), memory_per_byte)


def _without_logical_types(schema: Any) -> Any:
    # A decoder turns those into dates and decimals, in a time that grows with the square of a number's length. Hudi's
    # timeline has none.
    if isinstance(schema, dict):
        return {key: _without_logical_types(value) for key, value in schema.items() if key != "logicalType"}
    return [_without_logical_types(part) for part in schema] if isinstance(schema, list) else schema


def check_schema(schema: Any) -> int:
    """Return how many bytes of Python objects one byte can become; raise ValueError for a schema that is refused."""
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise ValueError("not the schema of a record")
    walk = _Walk()
    root = walk.measure(schema, 0)
    if root.size_bytes == 0:
        raise ValueError("records without size")
    return walk.memory_per_byte


@dataclass(frozen=True, slots=True)
class _Measure:
    """The least bytes that a value takes, its memory in Python, and the number of types written out."""

    size_bytes: int
    memory_bytes: int
    nodes: int = 1


# Sizes of small objects in CPython 3.12, and of the pointer that holds each.
_POINTER_BYTES = 8
_DICT_BYTES = 184
_DICT_ENTRY_BYTES = 56
_PRIMITIVES = {
    "null": _Measure(0, _POINTER_BYTES),
    "boolean": _Measure(1, _POINTER_BYTES),
    "int": _Measure(1, 40),
    "long": _Measure(1, 40),
    "float": _Measure(4, 32),
    "double": _Measure(8, 32),
    "bytes": _Measure(1, 40),
    "string": _Measure(1, 40),
}
_OPEN = _Measure(-1, 0)


class _Walk:
    """One walk through a schema."""

    def __init__(self) -> None:
        self._named: dict[str, _Measure] = {}
        self.memory_per_byte = 1

    def measure(self, schema: Any, depth: int) -> _Measure:
        if depth > MAX_DEPTH:
            raise ValueError(f"types within types, deeper than {MAX_DEPTH}")
        if isinstance(schema, list):
            measure = self._measure_union(schema, depth)
        elif isinstance(schema, str):
            measure = self._measure_name(schema)
        else:
            measure = self._measure_object(schema, depth)
        if measure.nodes > MAX_NODES:
            raise ValueError(f"more than {MAX_NODES} types")
        return measure

    def _measure_union(self, branches: Iterable[Any], depth: int) -> _Measure:
        measures = [self.measure(branch, depth + 1) for branch in branches]
        # The branch that makes the most of its bytes; the smallest value of a union has one byte.
        densest = max((one.memory_bytes // (1 + one.size_bytes) for one in measures), default=0)
        return _Measure(1, max(densest, _POINTER_BYTES), 1 + sum(one.nodes for one in measures))

    def _measure_name(self, name: str) -> _Measure:
        if name in _PRIMITIVES:
            return _PRIMITIVES[name]
        # Two types of one short name in two namespaces would be one here; Hudi has none, and at worst a schema is
        # refused.
        measure = self._named.get(name.rsplit(".", 1)[-1])
        if measure is None or measure is _OPEN:
            raise ValueError(f"type {name[:80]!r} contains itself" if measure else f"unknown type {name[:80]!r}")
        return measure

    def _measure_object(self, schema: Mapping[str, Any], depth: int) -> _Measure:
        kind = schema["type"]
        if kind == "array" or kind == "map":
            return self._measure_repeated(schema, kind, depth)
        if kind not in ("record", "enum", "fixed"):
            return self.measure(kind, depth + 1)
        name = schema["name"].rsplit(".", 1)[-1]
        if name in self._named:
            raise ValueError(f"two types of the name {name[:80]!r}")
        if kind != "record":
            size = int(schema["size"]) if kind == "fixed" else 1
            if size < 0:
                raise ValueError("a type of negative size")
            self._named[name] = _Measure(size, 40)
            return self._named[name]
        self._named[name] = _OPEN
        self._named[name] = self._measure_record(schema["fields"], depth)
        return self._named[name]

    def _measure_repeated(self, schema: Mapping[str, Any], kind: str, depth: int) -> _Measure:
        element = self.measure(schema["items" if kind == "array" else "values"], depth + 1)
        if kind == "array" and element.size_bytes == 0:
            raise ValueError("an array of elements without size")
        size = element.size_bytes
        memory = element.memory_bytes + _POINTER_BYTES
        if kind == "map":
            size, memory = size + 1, memory + _DICT_ENTRY_BYTES + 60
        self.memory_per_byte = max(self.memory_per_byte, -(-memory // size))
        return _Measure(1, _DICT_BYTES if kind == "map" else 64, element.nodes + 1)

    def _measure_record(self, fields: Iterable[Mapping[str, Any]], depth: int) -> _Measure:
        measures = [self.measure(entry["type"], depth + 1) for entry in fields]
        memory = _DICT_BYTES + sum(_DICT_ENTRY_BYTES + one.memory_bytes for one in measures)
        return _Measure(sum(one.size_bytes for one in measures), memory, 1 + sum(one.nodes for one in measures))
