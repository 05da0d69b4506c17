"""The list of tables: one line each, from the registry alone, so that ten thousand tables cost one query."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_lake_provider.manager.moments import distance, next_look_ms
from airflow_lake_provider.planner.decision import Verdict

if TYPE_CHECKING:
    from sqlalchemy import RowMapping


@dataclass(frozen=True, slots=True)
class TableLine:
    """One table as the list shows it. `due` and `blocked` are services with their reasons."""

    table_id: str
    name: str
    database: str
    base_path: str
    due: tuple[tuple[str, str], ...]
    blocked: tuple[tuple[str, str], ...]
    looked: str
    next_look: str
    problem: str


def to_line(row: RowMapping, now_ms: int) -> TableLine:
    """Return the line of a registry's row."""
    decisions = json.loads(row["decisions"])
    by_verdict = {
        verdict: tuple((d["service"], d["reason"]) for d in decisions if d["verdict"] == verdict.value)
        for verdict in (Verdict.DUE, Verdict.BLOCKED)
    }
    next_ms = next_look_ms(row, now_ms)
    return TableLine(
        table_id=row["table_id"],
        name=row["table_name"],
        database=row["database_name"],
        base_path=row["base_path"],
        due=by_verdict[Verdict.DUE],
        blocked=by_verdict[Verdict.BLOCKED],
        looked=distance(row["looked_ms"], now_ms),
        next_look="now" if next_ms == now_ms else distance(next_ms, now_ms),
        problem=row["problem"],
    )
