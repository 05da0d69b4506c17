"""One replication run as a process of its own: the real pump and the real sink, over a table made of a JSON file.

`python runner.py request.json`: {"table": path, "kind": "kafka", "options": {...}, "stream": "t.kafka", "die": {...}}.
`die` is {"call": "write", "number": 2, "when": "before|after"}, or {"after_s": 0.3}: kill -9 of this very process.
A `call` may also be what a statement begins with by which rows are copied into PostgreSQL: `copy`, `insert into`.
The table's file has {"commits": [[requested, completed, {key: value or null}], ...]}, in any order;
commits of more than `most_rows` are written in parts.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_lake_provider.replication.change import ChangeMode
from airflow_lake_provider.replication.pump import Pump
from airflow_lake_provider.replication.sink import Sink, SinkSettings, create_sink
from airflow_lake_provider.replication.sinks import database_columns, database_copy
from airflow_lake_provider.replication.transactions import Order
from tests.unit.replication.table_model import ModelTable


def load_table(path: Path) -> ModelTable:
    body = json.loads(path.read_text(encoding="utf-8"))
    table = ModelTable()
    for requested, completed, rows in body["commits"]:
        table.complete(requested, completed, {int(key): value for key, value in rows.items()})
    for requested in body["pending"]:
        table.begin(requested)
    table.most_rows = body.get("most_rows", math.inf)
    fields = [{"name": name, "type": ["null", "long"]} for name in ("id", "value")]
    table.schemas = dict.fromkeys(table.commits, json.dumps({"type": "record", "name": "r", "fields": fields}))
    return table


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_at_statement(plan: dict[str, Any]) -> None:
    """Kill the process before or after one of the statements that make the table, and copy and merge rows."""
    use, calls = database_columns.use_cursor, itertools.count(1)

    def counted(connection: Any, statement: str, call: Any) -> None:
        hit = statement.startswith(plan["call"]) and next(calls) == plan["number"]
        if hit and plan["when"] == "before":
            die()
        use(connection, statement, call)
        if hit:
            die()

    database_columns.use_cursor = database_copy.use_cursor = counted  # type: ignore[assignment]


class DyingSink:
    """Passes calls on, and kills the process before or after one of them took effect."""

    def __init__(self, inner: Sink, plan: dict[str, Any]) -> None:
        self._inner = inner
        self._plan = plan
        self._calls = 0

    def open(self) -> str | None:
        return self._do("open")

    def write(self, batch: Any) -> None:
        self._do("write", batch)

    def commit(self, checkpoint: Any) -> None:
        self._do("commit", checkpoint)

    def close(self) -> None:
        self._inner.close()

    def _do(self, call: str, *arguments: Any) -> Any:
        hit = False
        if self._plan.get("call") == call:
            self._calls += 1
            hit = self._calls == self._plan["number"]
        if hit and self._plan["when"] == "before":
            die()
        result = getattr(self._inner, call)(*arguments)
        if hit:
            die()
        return result


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    plan = request.get("die") or {}
    if "after_s" in plan:
        timer = threading.Timer(plan["after_s"], die)
        timer.daemon = True
        timer.start()
    elif plan.get("call", "open") not in {"open", "write", "commit"}:
        die_at_statement(plan)
    table = load_table(Path(request["table"]))
    mode = ChangeMode.LATEST if request["kind"] == "database" else ChangeMode.CHANGES
    settings = SinkSettings(request["stream"], "orders", mode, request["options"])
    sink = DyingSink(create_sink(request["kind"], settings), plan)
    order = Order(request["stream"], batch_rows=3, snapshot_part_rows=7)
    if table.most_rows != math.inf:
        order = replace(order, max_transaction_rows=int(table.most_rows))
    report = Pump(table, sink, order).run()
    print(json.dumps({"commits": report.commits, "rows": report.rows}), flush=True)


if __name__ == "__main__":
    main()
