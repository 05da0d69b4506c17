"""A table of PostgreSQL that refuses some records."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from typing import Any

from airflow_lake_provider.replication.change import Change, ChangeMode, Op
from airflow_lake_provider.replication.sink import Sink, SinkSettings, create_sink
from airflow_lake_provider.replication.sink_contract import batch, checkpoint
from local_stack.postgres import LocalPostgres
from tests.support.plain_sql import run_sql


class Target:
    """One table of PostgreSQL with a stream of its own."""

    def __init__(self, server: LocalPostgres, columns: str) -> None:
        self.url, self.name = server.url, f"t{uuid.uuid4().hex[:12]}"
        self.sent = 0
        self.sql(f"create table {self.name} ({columns})")

    def sink(self, **options: str) -> Sink:
        settings = {"url": self.url, "table": self.name, **options}
        return create_sink("database", SinkSettings(f"{self.name}.s", "t", ChangeMode.LATEST, settings))

    def send(self, *changes: tuple[str, dict[str, Any], dict[str, Any] | None], **options: str) -> None:
        """Send one commit of `(op, key, row)`."""
        made = [
            Change(Op(op), json.dumps(key), None, None if row is None else json.dumps(key | row))
            for op, key, row in changes
        ]
        sink = self.sink(**options)
        try:
            sink.open()
            self.sent += 1
            sink.write(replace(batch(self.sent, made), schema=""))
            sink.commit(checkpoint(f"{self.name}.s", self.sent))
        finally:
            sink.close()

    def rows(self, columns: str = "*") -> list[tuple[Any, ...]]:
        return sorted(self.sql(f"select {columns} from {self.name}"), key=str)

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        return run_sql(self.url, statement)
