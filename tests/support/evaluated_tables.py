"""Tables of the registry as an evaluation leaves them."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import insert

from airflow_lake_provider.hudi.base_path import table_id_of
from airflow_lake_provider.manager.db.health import refresh_health
from airflow_lake_provider.manager.db.registry import Registry
from airflow_lake_provider.manager.db.schema import lake_search, lake_table
from airflow_lake_provider.manager.db.search import (
    search_names,
    search_sizes,
)


def decided(service: str, verdict: str, **more: Any) -> dict[str, Any]:
    return {"service": service, "verdict": verdict, "reason": "because", **more}


def evaluated(registry: Registry, path: str, *decisions: dict[str, Any], problem: str = "") -> str:
    """Register a table with the result of an evaluation, as `Registry.release` records it."""
    found, name = json.dumps(decisions), path.rsplit("/", 1)[-1]
    with registry.transaction() as session:
        session.execute(
            insert(lake_table).values(
                table_id=table_id_of(path), base_path=path, table_name=name, registered_ms=0, problem=problem,
                evaluated_ms=registry.now_ms(), next_evaluation_ms=registry.now_ms() + 600_000, decisions=found,
            )
        )  # fmt: skip
        short = {**search_names(name, "", path), **search_sizes(found)}
        session.execute(insert(lake_search).values(table_id=table_id_of(path), **short))
        refresh_health(session, table_id_of(path), registry.now_ms())
    return table_id_of(path)
