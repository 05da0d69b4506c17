"""`airflow lake replication`: how far each sink of a table is behind, and what it holds back. Changes nothing."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.cli.command import find_table, list_all_tables, print_rows, run_command
from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.hooks.open_tables import open_with_connections
from airflow_lake_provider.hudi.base_path import table_id_of
from airflow_lake_provider.manager.db.sinks import Sinks
from airflow_lake_provider.manager.sink_state import hold_ends_ms, load_sink_state, problem_of, state_of
from airflow_lake_provider.plugins.lake_plugin import load_settings, open_registry

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Mapping

    from airflow_lake_provider.storage.table_storage import Storage


def replication(args: Namespace) -> None:
    """Print one line for each sink; exit code 1 when one has a problem or needs a snapshot."""
    run_command(args, _replication)


def _replication(args: Namespace) -> None:
    registry = open_registry()
    only = table_id_of(find_table(args.table)) if args.table else None
    tables = {row["table_id"]: row for row in list_all_tables(registry)}
    opener, now_s = open_with_connections(load_settings().storage_conn_ids), registry.now_ms() / 1000
    rows = []
    for sink in Sinks(registry).list_all():
        table = tables.get(sink["table_id"])
        if table is None or only not in {None, sink["table_id"]}:
            continue
        row = sink_row(sink, table, now_s)
        try:
            row |= _measured(opener(table["base_path"]), sink)
        except (LakeError, OSError) as error:
            # One table that cannot be read must not hide the others.
            row["problem"] = row["problem"] or f"the table cannot be read: {error}"
        rows.append(row)
    print_rows(args, rows, _line)
    if not rows and args.output == "text":
        print("no table has a sink; `replication` in the tables file adds one")
    if any(row["problem"] or row["needs_snapshot"] for row in rows):
        raise SystemExit(1)


def sink_row(sink: Mapping[Any, Any], table: Mapping[Any, Any], now_s: float) -> dict[str, Any]:
    """Return the registry's data of one sink (a row of `lake_sink`), for people. Ages are seconds."""
    checkpoint = json.loads(sink["checkpoint"]) if sink["checkpoint"] else {}
    commit = checkpoint.get("commit") or {}
    return {
        "table": table["table_name"],
        "base_path": table["base_path"],
        "sink": sink["sink"],
        "state": state_of(sink, checkpoint, now_s * 1000),
        "checkpoint": commit.get("requested_time", ""),
        "sequence": checkpoint.get("sequence", 0),
        "generation": checkpoint.get("generation", 0),
        "snapshot_rows": (checkpoint.get("snapshot") or {}).get("rows", 0),
        "lag_commits": None,
        "lag_s": None,
        "hold": "" if sink["needs_snapshot"] else sink["hold"],
        "hold_age_s": None,
        "hold_ends_in_s": round(hold_ends_ms(sink) / 1000 - now_s),
        "held_bytes": None,
        "needs_snapshot": bool(sink["needs_snapshot"]),
        "configured": bool(sink["is_configured"]) and sink["retire_ms"] is None,
        "failures": sink["failures"],
        "problem": problem_of(sink),
    }


def _measured(storage: Storage, sink: Mapping[Any, Any]) -> dict[str, Any]:
    hold = "" if sink["needs_snapshot"] else sink["hold"]
    state = load_sink_state(storage, sink["checkpoint"], hold, time.time())
    return {
        "lag_commits": state.lag.commits,
        "lag_s": round(state.lag_s),
        "hold_age_s": round(state.hold_age_s),
        "held_bytes": state.held_bytes,
    }


def _line(row: dict[str, Any]) -> str:
    lag = "lag ?" if row["lag_commits"] is None else f"lag {row['lag_commits']} commits, {row['lag_s']} s"
    hold = f"holds from {row['hold']}" if row["hold"] else "holds nothing"
    if row["hold"] and row["hold_age_s"] is not None:
        hold += f" ({row['hold_age_s']} s, {row['held_bytes'] / 2**20:.1f} MiB, released in {row['hold_ends_in_s']} s)"
    line = f"{row['table']:<24} {row['sink']:<16} {row['state']:<15} at {row['checkpoint'] or '-':<17}  {lag}  {hold}"
    return f"{line}  problem: {row['problem']}" if row["problem"] else line
