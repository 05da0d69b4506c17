"""Which Avro schemas records may be decoded with. A schema comes out of the same file, and need not be Hudi's.

The decoder trusts a schema: one that contains itself overruns the process's stack, and elements of no size can be
promised in any number. Hudi's schemas have neither, so both are refused before anything is decoded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

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
