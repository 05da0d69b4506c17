"""`airflow lake tables`, `explain` and `doctor`: what is known of tables, and why. Nothing is changed."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.doctor.diagnosis import diagnose
from airflow_lake_provider.doctor.evidence import collect_evidence
from airflow_lake_provider.errors import LakeError, TableUnknownError
from airflow_lake_provider.hooks.open_tables import open_with_connections
from airflow_lake_provider.manager.tables_source import TablesSource
from airflow_lake_provider.planner.decide import decide
from airflow_lake_provider.plugins.airflow_settings import load_settings
from airflow_lake_provider.plugins.lake_plugin import open_registry
from airflow_lake_provider.table_id import normalise_base_path
from airflow_lake_provider.view.shared_timelines import SharedTimelines
from airflow_lake_provider.view.snapshot import problems_text
from airflow_lake_provider.view.view_cache import TableViewCache

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Sequence

    from airflow_lake_provider.policies import TablePolicy

_MOST_ROWS = 10_000


def tables(args: Namespace) -> None:
    """Print the registry, one table per line."""
    rows = [
        {
            "table": row["table_name"],
            "base_path": row["base_path"],
            "last_notice": _moment(row["last_notice_ms"]),
            "looked": _moment(row["looked_ms"]),
            "next_look": _moment(row["next_look_ms"]),
            "due": ", ".join(d["service"] for d in json.loads(row["decisions"]) if d["verdict"] == "due"),
            "problem": row["problem"],
        }
        for row in open_registry().list_tables(_MOST_ROWS)
    ]
    _print(
        args,
        rows,
        lambda row: f"{row['table']:<24} {row['base_path']}  looked {row['looked']}  due: {row['due'] or '-'}",
    )


def _table_line(row: dict[str, Any]) -> str:
    line = f"{row['table']:<24} {row['base_path']}  looked {row['looked']}  due: {row['due'] or '-'}"
    return f"{line}  {row['problem']}" if row["problem"] else line


def explain(args: Namespace) -> None:
    """Print every service of a table with its rule, the actual values, and what blocks it."""
    _run(args, _explain)


def doctor(args: Namespace) -> None:
    """Print every stuck shape of a table; exit code 1 when there is one."""
    _run(args, _doctor)


def _explain(args: Namespace) -> None:
    base_path, name = _find_table(args.table)
    settings = load_settings()
    policy: TablePolicy = TablesSource(settings.tables_file).load().policy_for(base_path, name)
    timelines = SharedTimelines(open_table=open_with_connections(settings.storage_conn_ids))
    view = TableViewCache(timelines).refresh(base_path)
    rows: list[dict[str, Any]] = [
        {
            "service": decision.service.value,
            "verdict": decision.verdict.value,
            "reason": decision.reason,
            "evidence": dict(decision.evidence),
        }
        for decision in decide(view, policy)
    ]
    if args.output == "text":
        properties = view.properties
        print(f"{properties.name or name} at {base_path}: {properties.table_type}, version {properties.version}")
        latest = view.timeline.latest_completed()
        shown = "nothing completed" if latest is None else f"last completed {latest.action} {latest.requested_time}"
        print(f"{len(view.timeline.instants)} instants, {len(view.timeline.pending())} pending, {shown}")
        if view.problems:
            print(f"damaged or unknown files: {problems_text(view.problems)}")
    _print(args, rows, lambda row: f"{row['service']:<11} {row['verdict']:<8} {row['reason']}")


def _doctor(args: Namespace) -> None:
    base_path, _ = _find_table(args.table)
    storage = open_with_connections(load_settings().storage_conn_ids)(base_path)
    findings = diagnose(collect_evidence(storage, int(time.time() * 1000)))
    rows = [
        {
            "shape": finding.shape,
            "instant": finding.instant,
            "says": finding.says,
            "holds_up": finding.holds_up,
            "repair": finding.repair,
        }
        for finding in findings
    ]
    _print(
        args,
        rows,
        lambda row: f"{row['shape']}: {row['says']}\n  holds up: {row['holds_up']}\n  repair:   {row['repair']}",
    )
    if not rows and args.output == "text":
        print(f"nothing is stuck at {base_path}")
    if rows:
        raise SystemExit(1)


def _run(args: Namespace, command: Callable[[Namespace], None]) -> None:
    try:
        command(args)
    except LakeError as error:
        raise SystemExit(f"{type(error).__name__}: {error}") from error


def _find_table(table: str) -> tuple[str, str]:
    """Return base path and name of a table given by path, registry id, or name."""
    if "/" in table:
        base_path = normalise_base_path(table)
        return base_path, base_path.rsplit("/", 1)[-1]
    rows = [row for row in open_registry().list_tables(_MOST_ROWS) if table in {row["table_id"], row["table_name"]}]
    if len(rows) != 1:
        found = ", ".join(row["base_path"] for row in rows) or "none"
        raise TableUnknownError(f"{table!r} names {len(rows)} tables of the registry ({found}); give a base path")
    return rows[0]["base_path"], rows[0]["table_name"]


def _print(args: Namespace, rows: Sequence[dict[str, Any]], to_line: Callable[[dict[str, Any]], str]) -> None:
    if args.output == "json":
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        print(to_line(row))


def _moment(time_ms: int | None) -> str:
    return "-" if time_ms is None else datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
