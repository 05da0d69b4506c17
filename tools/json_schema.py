"""JSON schema in words, for the tables of the reference: what a value may be, and which values an object has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Schema = dict[str, Any]

_SHOWN_LIMITS = (
    ("minimum", "≥ {}"),
    ("exclusiveMinimum", "> {}"),
    ("maximum", "≤ {}"),
    ("exclusiveMaximum", "< {}"),
    ("maxLength", "of at most {} characters"),
)
# A pattern that only lists words; other patterns are left to the schema, which editors read.
_WORDS = re.compile(r"\^\(\?:(\w+(?:\|\w+)*)\)\$")


@dataclass(frozen=True)
class Property:
    """One value of an object, as a reader of the reference needs it."""

    name: str
    kind: str
    default: str
    meaning: str
    is_required: bool


def resolve(schema: Schema, root: Schema) -> Schema:
    """Return the schema that `$ref` names, with what stands next to `$ref` laid over it."""
    while "$ref" in schema:
        found: Any = root
        for part in schema["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        schema = found | {key: value for key, value in schema.items() if key != "$ref"}
    if len(schema.get("allOf", ())) == 1:
        schema = resolve(schema["allOf"][0], root) | {key: value for key, value in schema.items() if key != "allOf"}
    return schema


def describe_kind(schema: Schema, root: Schema) -> str:
    """Return what the value may be: type, limits, allowed values."""
    name = schema.get("$ref", "").rpartition("/")[2]
    schema = resolve(schema, root)
    choices = schema.get("anyOf") or schema.get("oneOf")
    if choices:
        return " or ".join(dict.fromkeys(describe_kind(choice, root) for choice in choices))
    if "enum" in schema:
        return " or ".join(f"`{_plain(value)}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{_plain(schema['const'])}`"
    kinds = schema.get("type", "any")
    return " or ".join(
        _describe_type(kind, name, schema, root) for kind in ([kinds] if isinstance(kinds, str) else kinds)
    )


def _describe_type(kind: str, name: str, schema: Schema, root: Schema) -> str:
    if kind == "array":
        kind = f"list of {describe_kind(schema.get('items', {}), root)}"
    elif kind == "object":
        values = schema.get("additionalProperties")
        kind = (
            name
            or schema.get("title")
            or (f"mapping to {describe_kind(values, root)}" if isinstance(values, dict) else "mapping")
        )
    if words := _WORDS.fullmatch(schema.get("pattern", "")):
        return " or ".join(f"`{word}`" for word in words[1].split("|"))
    limits = [text.format(schema[key]) for key, text in _SHOWN_LIMITS if key in schema and kind != "null"]
    return " ".join([kind, ", ".join(limits)]) if limits else kind


def list_properties(schema: Schema, root: Schema) -> Iterator[Property]:
    """Yield the values of an object, in the order of the schema."""
    schema = resolve(schema, root)
    required = set(schema.get("required", ()))
    for name, value in schema.get("properties", {}).items():
        whole = resolve(value, root)
        yield Property(
            name=name,
            kind=describe_kind(value, root),
            default=f"`{_plain(whole['default'])}`" if "default" in whole else "",
            meaning=one_line(value.get("description") or whole.get("description", "")),
            is_required=name in required,
        )


def find_object(schema: Schema, root: Schema) -> Schema | None:
    """Return the object with named values that the schema is, holds as one of several kinds, or lists; None if none."""
    schema = resolve(schema, root)
    if schema.get("properties"):
        return schema
    inner = [*schema.get("anyOf", ()), *schema.get("oneOf", ()), *([schema["items"]] if "items" in schema else [])]
    return next((found for part in inner if (found := find_object(part, root))), None)


def one_line(text: str) -> str:
    """Return the text without line breaks, safe inside a table of Markdown."""
    return " ".join(text.split()).replace("|", "\\|")


def _plain(value: object) -> str:
    return value if isinstance(value, str) and value else json.dumps(value)
