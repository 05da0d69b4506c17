"""`airflow lake conflicts`: live writers, their file groups, clashes, dead heartbeats. Nothing is changed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from airflow_lake_provider.cli.command import find_table, print_rows, run_command
from airflow_lake_provider.conflict.conflict_table import open_conflict_table
from airflow_lake_provider.conflict.report import describe_activity, is_clear, print_line
from airflow_lake_provider.hooks.open_tables import open_with_connections
from airflow_lake_provider.plugins.airflow_settings import load_settings
from airflow_lake_provider.plugins.tables import open_tables
from airflow_lake_provider.timeline.properties import load_table_properties

if TYPE_CHECKING:
    from argparse import Namespace


def conflicts(args: Namespace) -> None:
    """Print who is at work on a table; exit code 1 when somebody clashes, or when that cannot be known."""
    run_command(args, _conflicts)


def _conflicts(args: Namespace) -> None:
    base_path = find_table(args.table)
    settings = load_settings()
    storage = open_with_connections(settings.storage_conn_ids)(base_path)
    policy = open_tables(settings).load().policy_for(base_path, load_table_properties(storage).name)
    table = open_conflict_table(storage, policy.hudi_options)
    activity = table.look(int(time.time() * 1000))
    rows = describe_activity(activity, lambda claim: table.find_commits(claim, activity.snapshot))
    print_rows(args, rows, print_line)
    if not rows and args.output == "text":
        print(f"nobody is at work on {base_path}")
    if not is_clear(rows):
        raise SystemExit(1)
