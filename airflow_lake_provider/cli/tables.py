"""`airflow lake tables`: what is known of every table. Nothing is changed."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.cli.command import MOST_ROWS, print_rows, run_command
from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.manager.moments import moment, next_look_ms
from airflow_lake_provider.manager.net import find_net_problems
from airflow_lake_provider.plugins.airflow_runs import AirflowRunDoor
from airflow_lake_provider.plugins.airflow_settings import load_settings
from airflow_lake_provider.plugins.lake_plugin import open_registry
from airflow_lake_provider.plugins.tables import open_tables

if TYPE_CHECKING:
    from argparse import Namespace


def tables(args: Namespace) -> None:
    """Print the registry, one table per line, and on the error output what is wrong with the tables' settings."""
    run_command(args, _tables)


def _tables(args: Namespace) -> None:
    problem = find_config_problem()
    if problem:
        print(f"the tables' settings are wrong; servers keep the last good ones: {problem}", file=sys.stderr)
    registry = open_registry()
    with registry.transaction() as session:
        net = AirflowRunDoor().find_net(session)
    for net_problem in find_net_problems(net, registry.now_ms()):
        print(net_problem, file=sys.stderr)
    now_ms = registry.now_ms()
    rows = [
        {
            "table_id": row["table_id"],
            "table": row["table_name"],
            "base_path": row["base_path"],
            "last_notice": moment(row["last_notice_ms"]),
            "looked": moment(row["looked_ms"]),
            "next_look": moment(next_look_ms(row, now_ms)),
            "due": ", ".join(d["service"] for d in json.loads(row["decisions"]) if d["verdict"] == "due"),
            "problem": row["problem"],
        }
        for row in registry.list_tables(MOST_ROWS)
    ]
    print_rows(args, rows, _line)


def find_config_problem() -> str:
    """Say what is wrong with the tables file or the Variable, as this process reads them; empty when nothing is."""
    source = open_tables(load_settings())
    try:
        source.load()
    except ConfigError as error:
        return str(error)
    return source.problem


def _line(row: dict[str, Any]) -> str:
    line = (
        f"{row['table']:<24} {row['base_path']}  looked {row['looked']}  next {row['next_look']}  "
        f"due: {row['due'] or '-'}"
    )
    return f"{line}  problem: {row['problem']}" if row["problem"] else line
