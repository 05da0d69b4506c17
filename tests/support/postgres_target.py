"""A table of PostgreSQL that a stream makes, and schemas of the rows that are sent to it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any

from airflow_lake_provider.replication.change import Batch, Change, ChangeMode, Op
from airflow_lake_provider.replication.sink import Sink, SinkSettings, create_sink
from airflow_lake_provider.replication.sink_contract import checkpoint, commit_ref
from local_stack.postgres import LocalPostgres
from tests.support.plain_sql import run_sql

LONG, INT, TEXT = "long", "int", "string"
MICROS = {"type": "long", "logicalType": "timestamp-micros"}
NESTED = {"type": "record", "name": "st", "fields": [{"name": "a", "type": ["null", "long"]}]}


def schema_of(fields: Mapping[str, Any]) -> str:
    listed = [
        {"name": name, "type": ["null", *(kind if isinstance(kind, list) else [kind])], "default": None}
        for name, kind in fields.items()
    ]
    return json.dumps({"type": "record", "name": "r", "fields": listed})


class Target:
    """A table that need not exist, and a stream to it."""

    def __init__(self, server: LocalPostgres, name: str = "", **options: str) -> None:
        self.url, self.sent = server.url, 0
        self.name = name or f"t{uuid.uuid4().hex[:12]}"
        self.stream, self.options = f"{self.name}.s"[-60:], options

    def open(self, **options: str) -> Sink:
        settings = {"url": self.url, "table": self.name, **self.options, **options}
        sink = create_sink("database", SinkSettings(self.stream, "t", ChangeMode.LATEST, settings))
        sink.open()
        return sink

    def send(
        self, fields: Mapping[str, Any], *rows: Mapping[str, Any], key: tuple[str, ...] = ("id",), **options: str
    ) -> None:
        sink = self.open(**options)
        try:
            self.write(sink, fields, *rows, key=key)
        finally:
            sink.close()

    def write(
        self, sink: Sink, fields: Mapping[str, Any], *rows: Mapping[str, Any], key: tuple[str, ...] = ("id",)
    ) -> None:
        self.sent += 1
        changes = [
            Change(Op.UPDATE, json.dumps({name: row[name] for name in key}), None, json.dumps(row)) for row in rows
        ]
        sink.write(Batch(commit_ref(self.sent), changes, 1, schema=schema_of(fields)))
        sink.commit(checkpoint(self.stream, self.sent))

    def kinds(self) -> dict[str, str]:
        found = self.sql(
            "select attname, format_type(atttypid, atttypmod) from pg_attribute where attnum > 0 and not attisdropped "
            f"and attrelid = '{quoted(self.name)}'::regclass order by attnum"
        )
        return dict(found)  # type: ignore[arg-type]

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        return run_sql(self.url, statement.replace(":", r"\:"))


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
