"""Rows as JSON text, turned into values of the types in the table's Avro schema.

Spark wrote the JSON: dates and timestamps ISO 8601, bytes base64, decimals as numbers, with all of their digits.
"""

from __future__ import annotations

import base64
import json
from datetime import date, datetime
from decimal import Decimal
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.errors import RecordRefusedError, SourceRefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

META_PREFIX = "_hoodie_"
Schema = Any
"""An Avro schema in its JSON form: a name, a list (union), or an object."""

_LOGICAL: Mapping[str, Callable[[Any], Any]] = MappingProxyType(
    {
        "date": date.fromisoformat,
        "timestamp-millis": datetime.fromisoformat,
        "timestamp-micros": datetime.fromisoformat,
        "local-timestamp-millis": datetime.fromisoformat,
        "local-timestamp-micros": datetime.fromisoformat,
        "decimal": lambda value: Decimal(value) if isinstance(value, (int, str)) else value,
    }
)


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError("not true or false")
    return value


def _integer(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError("not an integer")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value


def _bytes(value: Any) -> bytes:
    return base64.b64decode(value, validate=True)


_SCALARS: Mapping[str, Callable[[Any], Any]] = MappingProxyType(
    {
        "boolean": _boolean,
        "int": _integer,
        "long": _integer,
        "float": float,
        "double": float,
        "bytes": _bytes,
        "fixed": _bytes,
        "string": _text,
        "enum": _text,
    }
)


class RowTypes:
    """The types of one table as one commit wrote it. `pairs` returns maps as lists of pairs, for Arrow."""

    def __init__(self, schema: str, *, pairs: bool = False) -> None:
        self._pairs = pairs
        self._named: dict[str, Schema] = {}
        try:
            body = json.loads(schema)
            fields = [field for field in body["fields"] if not field["name"].startswith(META_PREFIX)]
        except (ValueError, TypeError, KeyError) as error:
            raise SourceRefusedError(
                f"the commit names no Avro schema of the table's rows, only {schema[:200]!r}: use format json"
            ) from error
        self.record: dict[str, Any] = {**body, "fields": fields}
        self._collect(self.record, "")

    def resolve(self, schema: Schema) -> tuple[Schema, bool]:
        """Return a schema without null, with named types resolved, and whether null is allowed."""
        is_nullable = False
        if isinstance(schema, list):
            others = [branch for branch in schema if branch != "null"]
            is_nullable = len(others) < len(schema)
            if len(others) > 1:
                raise SourceRefusedError(f"a union of several types, {schema}, has no form here: use format json")
            schema = others[0] if others else "null"
        if isinstance(schema, str) and schema in self._named:
            schema = self._named[schema]
        return schema, is_nullable or schema == "null"

    def key_record(self, key: str) -> dict[str, Any]:
        """Return the schema of the key's fields; the table's own types where it has the field."""
        types = {field["name"]: field["type"] for field in self.record["fields"]}
        fields = [{"name": name, "type": types.get(name, ["null", "string"])} for name in _load(key)]
        return {"type": "record", "name": "lake_key", "fields": fields}

    def row(self, text: str | None, schema: Schema = None) -> dict[str, Any] | None:
        """Return the values of a row, or of a key with its own schema. Raises RecordRefusedError, naming the field."""
        if text is None:
            return None
        record = schema or self.record
        values: dict[str, Any] = self._record(_load(text), record, "")
        return values

    def _value(self, value: Any, schema: Schema, path: str) -> Any:
        kind, is_nullable = self.resolve(schema)
        if value is None:
            if not is_nullable:
                raise RecordRefusedError(f"field {path} is null, and its type in the table's schema is {kind}")
            return None
        name = kind if isinstance(kind, str) else kind["type"]
        nested: Mapping[str, Callable[[Any, Schema, str], Any]]
        nested = {"record": self._record, "array": self._array, "map": self._map}
        if name in nested:
            return nested[name](value, kind, path)
        logical = kind.get("logicalType") if isinstance(kind, dict) else None
        parse = _LOGICAL.get(logical or "") or _SCALARS.get(name)
        if parse is None:
            raise SourceRefusedError(f"field {path} is of type {kind}, which has no form here: use format json")
        try:
            return parse(value)
        except (ValueError, TypeError, ArithmeticError) as error:
            raise RecordRefusedError(f"field {path}: {value!r} is not of type {kind}") from error

    def _record(self, value: dict[str, Any], schema: Schema, path: str) -> dict[str, Any]:
        path = f"{path}." if path else ""
        names = {field["name"] for field in schema["fields"]}
        # Rows are read with the table's newest schema: fields that were added later are null in earlier commits.
        later = next((name for name, part in value.items() if name not in names and part is not None), None)
        if later is not None:
            raise RecordRefusedError(f"field {path}{later} has a value and is not in the commit's schema")
        return {
            field["name"]: self._value(value.get(field["name"]), field["type"], f"{path}{field['name']}")
            for field in schema["fields"]
        }

    def _array(self, value: list[Any], schema: Schema, path: str) -> list[Any]:
        return [self._value(item, schema["items"], f"{path}[]") for item in value]

    def _map(self, value: dict[str, Any], schema: Schema, path: str) -> Any:
        pairs = [(key, self._value(item, schema["values"], f"{path}[{key}]")) for key, item in value.items()]
        return pairs if self._pairs else dict(pairs)

    def _collect(self, schema: Schema, space: str) -> None:
        """Store the named types: a schema may define one and name it again later."""
        if isinstance(schema, list):
            for branch in schema:
                self._collect(branch, space)
        if not isinstance(schema, dict):
            return
        space = schema.get("namespace", space)
        if schema["type"] in {"record", "fixed", "enum"}:
            self._named |= {schema["name"]: schema, f"{space}.{schema['name']}".lstrip("."): schema}
        for part in (*schema.get("fields", ()), schema.get("items"), schema.get("values")):
            inner = part.get("type") if isinstance(part, dict) and "name" in part and "fields" not in part else part
            self._collect(inner, space)


def _load(text: str) -> Any:
    # A decimal has more digits than a float keeps.
    return json.loads(text, parse_float=Decimal)
