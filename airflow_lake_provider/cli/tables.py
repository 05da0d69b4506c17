"""`airflow lake tables`: the registry's tables. Nothing is changed."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

from airflow.configuration import conf

from airflow_lake_provider.cli.command import find_table, list_all_tables, print_rows, run_command
from airflow_lake_provider.config.tables_file import (
    SCHEMA_FILE,
    schema_text,
)
from airflow_lake_provider.conflict.activity import open_conflict_table
from airflow_lake_provider.conflict.report import describe_activity, is_clear, print_line
from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.hooks.open_tables import open_with_connections
from airflow_lake_provider.hudi.base_path import table_id_of
from airflow_lake_provider.hudi.heartbeat import heartbeat_rule
from airflow_lake_provider.hudi.properties import load_table_properties
from airflow_lake_provider.indexing.index_spec import find_missing, find_setting_problems, parse_indexes
from airflow_lake_provider.indexing.table_indexes import load_table_indexes
from airflow_lake_provider.manager.instances import load_instances, moment, next_evaluation_ms
from airflow_lake_provider.manager.scheduling import find_net_problems
from airflow_lake_provider.planner.table_view import TableViewCache
from airflow_lake_provider.plugins.dag_bundle import with_lake_bundle
from airflow_lake_provider.plugins.dag_runs import AirflowInstanceGateway, AirflowRunGateway
from airflow_lake_provider.plugins.lake_plugin import load_settings, open_registry, open_tables
from airflow_lake_provider.timeline_server.cache import SharedTimelines

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Mapping


def tables(args: Namespace) -> None:
    """Print the registry, one table per line, and on the error output what is wrong with the tables' settings."""
    run_command(args, _tables)


def forget(args: Namespace) -> None:
    """Remove a table from the registry; servers stop watching it when they find it missing."""
    run_command(args, _forget)


def _forget(args: Namespace) -> None:
    base_path = open_registry().forget(table_id_of(find_table(args.table)))
    print(f"the registry forgot {base_path}; a notice, the tables file or discovery may register it again")


def _tables(args: Namespace) -> None:
    problem = find_config_problem()
    if problem:
        print(f"the tables' settings are wrong; servers keep the last good ones: {problem}", file=sys.stderr)
    registry = open_registry()
    with registry.transaction() as session:
        net = AirflowRunGateway().find_net(session)
    for net_problem in find_net_problems(net, registry.now_ms()):
        print(net_problem, file=sys.stderr)
    now_ms = registry.now_ms()
    print_rows(args, [_row(row, now_ms) for row in list_all_tables(registry)], _line)


def find_config_problem() -> str:
    """Return what is wrong with the tables file or the Variable, as this process reads them; empty when nothing is."""
    source = open_tables(load_settings())
    try:
        source.load()
    except ConfigError as error:
        return str(error)
    return source.problem


def _row(row: Mapping[Any, Any], now_ms: int) -> dict[str, Any]:
    return {
        "table_id": row["table_id"],
        "table": row["table_name"],
        "base_path": row["base_path"],
        "last_notice": moment(row["last_notice_ms"]),
        "evaluated": moment(row["evaluated_ms"]),
        "next_evaluation": moment(next_evaluation_ms(row, now_ms)),
        "due": ", ".join(d["service"] for d in json.loads(row["decisions"]) if d["verdict"] == "due"),
        "problem": row["problem"],
    }


def _line(row: dict[str, Any]) -> str:
    line = (
        f"{row['table']:<24} {row['base_path']}  evaluated {row['evaluated']}  next {row['next_evaluation']}  "
        f"due: {row['due'] or '-'}"
    )
    return f"{line}  problem: {row['problem']}" if row["problem"] else line


# --- `airflow lake runs`: the instances of a table's services, with their states, deadlines and reasons

MOST_ENDED = 20


def runs(args: Namespace) -> None:
    """Print what is requested, scheduled, running or retrying, then the newest ended instances."""
    run_command(args, _runs)


def _runs(args: Namespace) -> None:
    base_path = find_table(args.table)
    registry = open_registry()
    views = TableViewCache(SharedTimelines(open_table=open_with_connections(load_settings().storage_conn_ids)))
    found = load_instances(registry, AirflowInstanceGateway(), views, table_id_of(base_path), MOST_ENDED)
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
        print(f"no service of {base_path} was ever requested")


def _text(row: dict[str, Any]) -> str:
    late = " LATE" if row["overdue"] else ""
    until = f", until {row['until']}{late}: {row['owner']}" if row["owner"] else ""
    return f"{row['state']:<10} {row['service']:<14} since {row['since']}{until}  {row['run_id']}\n  {row['reason']}"


# --- `airflow lake tables-file`: check a tables file before it is used, and print its JSON schema


def tables_file(args: Namespace) -> None:
    """Print the schema, or check the file together with the Variable over it; exit code 1 if wrong."""
    if args.schema:
        print(schema_text(), end="")
        return
    run_command(args, _check)


def _check(args: Namespace) -> None:
    settings = load_settings()
    path = args.check or settings.tables_file
    source = open_tables(settings.replace(tables_file=path))
    tables = source.load()
    if source.problem:
        raise ConfigError(source.problem)
    print(f"{path or 'no tables file: the defaults'} is right: {len(tables.entries)} entries")
    if source.has_overrides:
        print(f"Variable {settings.tables_variable} over it is right: {len(tables.overrides)} entries")
    for discovery in tables.discoveries:
        print(f"tables are searched for below {discovery.root}, {discovery.depth} levels down")
    print(f"schema for editors: {SCHEMA_FILE}")


# --- `airflow lake conflicts`: live writers, their file groups, clashes, dead heartbeats. Nothing is changed


def conflicts(args: Namespace) -> None:
    """Print the activity on a table; exit code 1 when something clashes, or when that is unknown."""
    run_command(args, _conflicts)


def _conflicts(args: Namespace) -> None:
    base_path = find_table(args.table)
    settings = load_settings()
    storage = open_with_connections(settings.storage_conn_ids)(base_path)
    policy = open_tables(settings).load().policy_for(base_path, load_table_properties(storage).name)
    table = open_conflict_table(storage, policy.hudi_options)
    activity = table.read_activity(int(time.time() * 1000))
    rows = describe_activity(activity, lambda claim: table.find_commits(claim, activity.snapshot))
    print_rows(args, rows, print_line)
    if not rows and args.output == "text":
        print(f"no writer or service is active on {base_path}")
    if not is_clear(rows):
        raise SystemExit(1)


# --- `airflow lake indexes`: which indexes a table has, which are being built, what is in the way. Changes nothing


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
        {
            "index": spec.partition,
            "ready": "no",
            "reason": "requested by the tables file (indexing.indexes), not planned",
        }
        for spec in find_missing(wanted, found.properties)
        if spec.partition not in {one.partition for one in known}
    ]
    if args.output == "text":
        print(f"{found.properties.name} at {base_path}, version {found.properties.version}")
        for line in (*found.holes.explain(), *find_setting_problems(wanted, policy.hudi_options)):
            print(line)
    print_rows(args, rows, lambda row: f"{row['index']:<28} {row['ready']:<4} {row['reason']}")


# --- `airflow lake dag-bundles`: the setting that adds the shipped DAGs to Airflow's bundles. Changes nothing


def dag_bundles(args: Namespace) -> None:
    """Print this installation's `[dag_processor] dag_bundle_config_list` with the shipped DAGs added."""
    configured = conf.getjson("dag_processor", "dag_bundle_config_list") or []
    lines = [f"    {json.dumps(bundle)}" for bundle in with_lake_bundle(list(configured))]  # type: ignore[arg-type]
    print("[dag_processor]\ndag_bundle_config_list = [\n" + ",\n".join(lines) + "\n    ]")


def timeline_server(args: Namespace) -> None:
    """`airflow lake timeline-server`: serve until stopped."""
    import uvicorn

    from airflow_lake_provider.plugins.lake_plugin import open_timeline_server
    from airflow_lake_provider.timeline_server.routes import create_timeline_app

    open_timeline_server()  # a wrong setting ends the command here, with one line
    uvicorn.run(create_timeline_app(open_timeline_server), host=args.host, port=args.port, log_level="info")
