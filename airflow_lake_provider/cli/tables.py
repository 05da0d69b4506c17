"""`airflow lake tables` and `explain`: what is known of tables, and why. Nothing is changed."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.cli.command import MOST_ROWS, find_table, print_rows, run_command
from airflow_lake_provider.hooks.open_tables import open_with_connections
from airflow_lake_provider.manager.tables_source import TablesSource
from airflow_lake_provider.planner.decide import decide_now
from airflow_lake_provider.plugins.airflow_settings import load_settings
from airflow_lake_provider.plugins.lake_plugin import open_registry
from airflow_lake_provider.view.shared_timelines import SharedTimelines
from airflow_lake_provider.view.snapshot import problems_text
from airflow_lake_provider.view.view_cache import TableViewCache

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_lake_provider.policies import TablePolicy


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
        for row in open_registry().list_tables(MOST_ROWS)
    ]
    print_rows(
        args,
        rows,
        lambda row: f"{row['table']:<24} {row['base_path']}  looked {row['looked']}  due: {row['due'] or '-'}",
    )


def _table_line(row: dict[str, Any]) -> str:
    line = f"{row['table']:<24} {row['base_path']}  looked {row['looked']}  due: {row['due'] or '-'}"
    return f"{line}  {row['problem']}" if row["problem"] else line


def explain(args: Namespace) -> None:
    """Print every service of a table with its rule, the actual values, and what blocks it."""
    run_command(args, _explain)


def _explain(args: Namespace) -> None:
    base_path, name = find_table(args.table)
    settings = load_settings()
    policy: TablePolicy = TablesSource(settings.tables_file).load().policy_for(base_path, name)
    timelines = SharedTimelines(open_table=open_with_connections(settings.storage_conn_ids))
    views = TableViewCache(timelines)
    view = views.refresh(base_path)
    rows: list[dict[str, Any]] = [
        {
            "service": decision.service.value,
            "verdict": decision.verdict.value,
            "reason": decision.reason,
            "evidence": dict(decision.evidence),
        }
        for decision in decide_now(views, view, policy, int(time.time() * 1000))
    ]
    if args.output == "text":
        properties = view.properties
        print(f"{properties.name or name} at {base_path}: {properties.table_type}, version {properties.version}")
        latest = view.timeline.latest_completed()
        shown = "nothing completed" if latest is None else f"last completed {latest.action} {latest.requested_time}"
        print(f"{len(view.timeline.instants)} instants, {len(view.timeline.pending())} pending, {shown}")
        if view.problems:
            print(f"damaged or unknown files: {problems_text(view.problems)}")
    print_rows(args, rows, lambda row: f"{row['service']:<14} {row['verdict']:<8} {row['reason']}")


def _moment(time_ms: int | None) -> str:
    return "-" if time_ms is None else datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
