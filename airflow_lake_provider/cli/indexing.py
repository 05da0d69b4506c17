"""`airflow lake indexes`: which indexes a table has, which are being built, and what is in the way. Changes nothing."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from airflow_lake_provider.cli.command import find_table, print_rows, run_command
from airflow_lake_provider.hooks.open_tables import open_with_connections
from airflow_lake_provider.indexing.index_spec import parse_indexes
from airflow_lake_provider.indexing.missing import find_missing
from airflow_lake_provider.indexing.table_indexes import load_table_indexes
from airflow_lake_provider.indexing.writer_settings import find_setting_problems
from airflow_lake_provider.plugins.airflow_settings import load_settings
from airflow_lake_provider.plugins.tables import open_tables
from airflow_lake_provider.timeline.heartbeat import heartbeat_rule
from airflow_lake_provider.timeline.properties import load_table_properties

if TYPE_CHECKING:
    from argparse import Namespace


def indexes(args: Namespace) -> None:
    """Print every index of a table with its readiness, and what holds up a build."""
    run_command(args, _indexes)


def _indexes(args: Namespace) -> None:
    base_path = find_table(args.table)
    settings = load_settings()
    storage = open_with_connections(settings.storage_conn_ids)(base_path)
    policy = open_tables(settings).load().policy_for(base_path, load_table_properties(storage).name)
    found = load_table_indexes(storage, int(time.time() * 1000), heartbeat_rule(policy.hudi_options))
    wanted = parse_indexes(policy.indexing.indexes)
    known = found.readiness()
    rows = [{"index": one.partition, "ready": "yes" if one.is_ready else "no", "reason": one.reason} for one in known]
    rows += [
        {"index": spec.partition, "ready": "no", "reason": "wanted by the tables file (indexing.indexes), not planned"}
        for spec in find_missing(wanted, found.properties)
        if spec.partition not in {one.partition for one in known}
    ]
    if args.output == "text":
        print(f"{found.properties.name} at {base_path}, version {found.properties.version}")
        for line in (*found.holes.explain(), *find_setting_problems(wanted, policy.hudi_options)):
            print(line)
    print_rows(args, rows, lambda row: f"{row['index']:<28} {row['ready']:<4} {row['reason']}")
