"""Tokens of a team, and a request to each route of the manager."""

from __future__ import annotations

from typing import Any

import httpx

from airflow_lake_provider.hudi.base_path import table_id_of
from airflow_lake_provider.manager.db.registry import Registry
from tests.support.tables import HandMadeTable

TOKENS = {"writer": "writer-of-shop", "reader": "reader-of-shop", "operator": "operator-of-shop",
          "holder": "holder-of-shop"}  # fmt: skip
RIGHTS = {"writer": "notify", "reader": "read", "operator": "read, operate", "holder": "hold"}


def bearer(role: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {TOKENS[role]}"}


def routes(client: httpx.Client) -> list[tuple[str, str]]:
    document = client.get("/openapi.json").json()
    return [(method, path) for path, item in document["paths"].items() for method in item]


def body(table: HandMadeTable) -> dict[str, Any]:
    """Fit every route's body."""
    hint = {"base_path": str(table.path), "table_name": "x"}
    return {
        "commitTime": "20261121024807033",
        "tableName": "x",
        "basePath": str(table.path),
        "hints": [hint],
        "unchanged_table_ids": [table_id_of(str(table.path))],
        "run_id": "attacker",
        "try_number": 1,
        "token": "t",
        "ttl_s": 60,
        "reader": "attacker",
        "paused": True,
        "ended": False,
        "tables": [hint],
        "wait_s": 0,
    }


def send(client: httpx.Client, method: str, path: str, table: HandMadeTable, headers: dict[str, str]) -> httpx.Response:
    filled = path.format(table_id=table_id_of(str(table.path)), service="compaction", sink="kafka", hold_id="0" * 32)
    filled = filled.replace("/service/compaction", "/service/compact")
    token = headers.get("Authorization", "").removeprefix("Bearer ")
    params = {
        "base_path": str(table.path),
        "basepath": str(table.path),
        "table": str(table.path),
        "table_name": "x",
        "service": "clean",
        "extra_params": f"token={token}",
    }
    content = None
    sent = body(table)
    if path.endswith("/executors/{service}"):
        sent.pop("ended")
    if method in {"post", "put", "patch"}:
        content = sent
    return client.request(method.upper(), filled, params=params, json=content, headers=headers)


def state(registry: Registry) -> list[dict[str, Any]]:
    with registry.transaction() as session:
        connection = session.connection()
        return [
            dict(row)
            for table in ("lake_table", "lake_executor", "lake_sink", "lake_hold")
            for row in connection.exec_driver_sql(f"SELECT * FROM {table} ORDER BY table_id").mappings()
        ]
