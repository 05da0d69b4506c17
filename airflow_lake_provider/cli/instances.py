"""`airflow lake runs`: the instances of a table's services, with their states, deadlines and reasons."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_lake_provider.cli.command import find_table, print_rows, run_command
from airflow_lake_provider.hooks.open_tables import open_with_connections
from airflow_lake_provider.manager.moments import moment
from airflow_lake_provider.manager.table_instances import load_instances
from airflow_lake_provider.plugins.airflow_instances import AirflowInstanceDoor
from airflow_lake_provider.plugins.airflow_settings import load_settings
from airflow_lake_provider.plugins.lake_plugin import open_registry
from airflow_lake_provider.table_id import table_id_of
from airflow_lake_provider.view.shared_timelines import SharedTimelines
from airflow_lake_provider.view.view_cache import TableViewCache

if TYPE_CHECKING:
    from argparse import Namespace

MOST_ENDED = 20


def runs(args: Namespace) -> None:
    """Print what is requested, scheduled, running or retrying, then the newest ended instances."""
    run_command(args, _runs)


def _runs(args: Namespace) -> None:
    base_path = find_table(args.table)
    registry = open_registry()
    views = TableViewCache(SharedTimelines(open_table=open_with_connections(load_settings().storage_conn_ids)))
    found = load_instances(registry, AirflowInstanceDoor(), views, table_id_of(base_path), MOST_ENDED)
    now_ms = registry.now_ms()
    rows = [
        {
            "service": instance.service,
            "state": instance.state.value,
            "owner": instance.owner,
            "run_id": instance.run_id,
            "plans": list(instance.plans),
            "since": moment(instance.since_ms),
            "until": moment(instance.deadline_ms),
            "overdue": instance.is_overdue(now_ms),
            "tries": instance.tries,
            "reason": instance.reason,
        }
        for instance in found
    ]
    print_rows(args, rows, _text)
    if not rows and args.output == "text":
        print(f"no service of {base_path} was ever asked for")


def _text(row: dict[str, Any]) -> str:
    late = " LATE" if row["overdue"] else ""
    until = f", until {row['until']}{late}: {row['owner']}" if row["owner"] else ""
    return f"{row['state']:<10} {row['service']:<14} since {row['since']}{until}  {row['run_id']}\n  {row['reason']}"
