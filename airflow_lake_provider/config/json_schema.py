"""The JSON schema of the tables file, from the declarations that the parser itself uses.

    # yaml-language-server: $schema=<path of tables.schema.json>

What a schema cannot say is left to the parser: settings that contradict each other, names of time zones, keys that
stand twice.
"""

from __future__ import annotations

import ast
import inspect
import json
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from textwrap import dedent
from typing import Any

from airflow_lake_provider.config.kinds import Section, kinds_of
from airflow_lake_provider.config.tables_file import DEFAULT_DISCOVER_DEPTH, ENTRY_KINDS, LIMIT_KINDS, POLICY

SCHEMA_FILE = Path(__file__).with_name("tables.schema.json")
_ENTRY_DESCRIPTIONS = {
    "base_path": "Path of a table, or a glob pattern of paths",
    "name": "Glob pattern of hoodie.table.name",
    "discover": "A root to search for tables, instead of base_path; it must lie within [lake] allowed_roots",
    "discover_depth": f"How many levels below the root to search; {DEFAULT_DISCOVER_DEPTH} unless set",
}


def tables_schema() -> dict[str, Any]:
    """Return the schema (JSON schema, draft 2020-12)."""
    policy = _section_schema(POLICY)
    entry = {key: {**kind.schema(), "description": _ENTRY_DESCRIPTIONS[key]} for key, kind in ENTRY_KINDS.items()}
    limits = {
        key: {
            "type": "object",
            "additionalProperties": kind.schema(),
            "description": f"Most active runs of each of {key}",
        }
        for key, kind in LIMIT_KINDS.items()
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Tables file of airflow-lake-provider",
        "type": ["object", "null"],
        "additionalProperties": False,
        "properties": {
            "defaults": {**policy, "description": "What holds for every table"},
            "limits": {
                "type": "object",
                "properties": limits,
                "additionalProperties": False,
                "description": "How many service runs may be active at once, over all tables",
            },
            "tables": {
                "type": "array",
                "description": "The first entry that matches a table wins",
                "items": {
                    "type": "object",
                    "properties": {**entry, **policy["properties"]},
                    "additionalProperties": False,
                    "anyOf": [
                        {"required": ["discover"], "not": {"required": ["base_path"]}},
                        {
                            "anyOf": [_not_empty("base_path", "[^/]"), _not_empty("name", ".")],
                            "not": {"required": ["discover"]},
                        },
                    ],
                    "dependentRequired": {"discover_depth": ["discover"]},
                },
            },
        },
    }


def schema_text() -> str:
    """Return the schema as the shipped file has it."""
    return json.dumps(tables_schema(), indent=2) + "\n"


def _not_empty(key: str, pattern: str) -> dict[str, Any]:
    return {"required": [key], "properties": {key: {"pattern": pattern}}}


def _section_schema(section: Section) -> dict[str, Any]:
    """Return a section's schema with the descriptions and defaults of its settings."""
    cls = section.cls
    schema = section.schema()
    docs = _field_docs(cls)
    default = cls()
    for name, kind in kinds_of(cls).items():
        shape = _section_schema(kind) if isinstance(kind, Section) else schema["properties"][name]
        value = getattr(default, name)
        described: dict[str, Any] = {"description": docs[name]} if docs.get(name) else {}
        if isinstance(value, (bool, int, float, str)) or value is None:
            described["default"] = value
        schema["properties"][name] = {**described, **shape}
    return {"description": (cls.__doc__ or "").split("\n")[0], **schema}


def _field_docs(cls: type[Any]) -> dict[str, str]:
    """Return the texts that stand below the fields of a class."""
    tree = ast.parse(dedent(inspect.getsource(cls)))
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    known = {entry.name for entry in fields(cls)}
    docs = {}
    for statement, following in pairwise(body):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        is_text = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
        if is_text and statement.target.id in known:
            docs[statement.target.id] = inspect.cleandoc(str(following.value.value))  # type: ignore[attr-defined]
    return docs


def _write() -> None:
    SCHEMA_FILE.write_text(schema_text(), encoding="utf-8")


if __name__ == "__main__":
    _write()
