"""Commands on tables that read Airflow's database and the tables' stores: run, forget, conflicts, indexes, sinks.

Only `run` and `forget` change something.
"""

from __future__ import annotations

import getpass
import json
import time
from typing import TYPE_CHECKING, Any

from airflow.configuration import conf
from airflow.utils.cli import action_cli, suppress_logs_and_warning

from airflow_lake_provider.cli.command import duration, print_rows, run_command, size, warn
from airflow_lake_provider.config.tables_file import SCHEMA_FILE, find_mistakes, read_tables_file, schema_text
from airflow_lake_provider.conflict.activity import open_conflict_table
from airflow_lake_provider.conflict.contention import describe_activity, is_clear, print_line
from airflow_lake_provider.doctor.repairs import ServiceCall
from airflow_lake_provider.errors import ConfigError, LakeError, RepairRefusedError, SinkUnknownError
from airflow_lake_provider.hooks.open_tables import open_with_connections
from airflow_lake_provider.hudi.base_path import require_allowed, table_id_of
from airflow_lake_provider.hudi.heartbeat import heartbeat_rule
from airflow_lake_provider.hudi.properties import load_table_properties
from airflow_lake_provider.indexing.index_spec import find_changed, find_missing, find_setting_problems, parse_indexes
from airflow_lake_provider.indexing.table_indexes import load_definitions, load_table_indexes
from airflow_lake_provider.job_contract import Mode, Service
from airflow_lake_provider.manager import reports
from airflow_lake_provider.manager.db.marks import TableLease
from airflow_lake_provider.manager.db.sinks import Sinks
from airflow_lake_provider.manager.scheduling import (
    RunState,
    StartVerdict,
    decide_start,
    find_net_problems,
    find_runs_of,
    run_conf,
)
from airflow_lake_provider.manager.sink_state import hold_ends_ms, load_sink_state, problem_of, state_of
from airflow_lake_provider.planner.decide import service_options
from airflow_lake_provider.planner.rules import Decision, Verdict
from airflow_lake_provider.plugins.dag_runs import AirflowRunGateway
from airflow_lake_provider.plugins.lake_plugin import load_settings, open_registry, open_tables
from airflow_lake_provider.plugins.shipped import with_lake_bundle

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator, Mapping

    from sqlalchemy import RowMapping

    from airflow_lake_provider.config.policies import TablePolicy
    from airflow_lake_provider.manager.db.registry import Registry
    from airflow_lake_provider.storage.table_storage import Storage


def find_table(table: str) -> str:
    """Return the base path of a table given by path, registry id, name, or database and name. Raises TableUnknownError.

    The name in its hoodie.properties selects its policy.
    """
    return reports.find_table(open_registry(), table).base_path


VERIFY_POLL_S = 2.0


def list_all_tables(registry: Registry) -> Iterator[RowMapping]:
    """Return the rows of all tables, in the order of their ids."""
    after = ""
    while rows := registry.list_tables(1000, after):
        yield from rows
        after = rows[-1]["table_id"]


# --- `airflow lake run`: a run of a service by hand, by the same rules as the manager's

_ANY_NUMBER = 1_000_000


def run(args: Namespace) -> None:
    """Start a run of a service, or print what it would be started with."""
    args.verbose = False  # Airflow prints its log on the output, where programs read the row
    run_command(args, _print_run if args.dry_run else _start_run)


@action_cli  # type: ignore[untyped-decorator]
@suppress_logs_and_warning
def _start_run(args: Namespace) -> None:
    base_path, name, policy, service = _chosen(args)
    reason = f"requested by {getpass.getuser()} with airflow lake run"
    run_id = start_service_run(base_path, name, ServiceCall(service, Mode.SCHEDULE_AND_EXECUTE), policy, reason)
    rows = [{"run_id": run_id, "service": service.value, "base_path": base_path}]
    print_rows(args, rows, lambda row: f"run {row['run_id']} of lake_table_service; airflow lake runs {args.table}")
    registry = open_registry()
    with registry.transaction() as session:
        for problem in find_net_problems(AirflowRunGateway().find_net(session), registry.now_ms()):
            warn(f"! {problem}")


def _print_run(args: Namespace) -> None:
    base_path, name, policy, service = _chosen(args)
    call = ServiceCall(service, Mode.SCHEDULE_AND_EXECUTE)
    decision = _decision(call, policy, open_registry().now_ms(), "airflow lake run")
    settings = run_conf(_lease(base_path, name), decision, policy)
    rows = [{"setting": key, "value": value} for key, value in settings.items() if value not in ("", None, [], {})]
    print_rows(args, rows, lambda row: f"{row['setting']:<18} {_shown(row['value'])}")
    if args.output == "text":
        print("nothing was started; `airflow lake explain` says whether the service is due, and what is in its way")


def _shown(value: Any) -> str:
    if not isinstance(value, dict):
        return str(value)
    return f"\n{'':<19}".join(f"{key} {one}" for key, one in value.items())


def _chosen(args: Namespace) -> tuple[str, str, TablePolicy, Service]:
    base_path, settings = find_table(args.table), load_settings()
    require_allowed(base_path, settings.allowed_roots)
    name = load_table_properties(open_with_connections(settings.storage_conn_ids)(base_path)).name
    policy = open_tables(settings).load().policy_for(base_path, name)
    return base_path, name, policy, Service(args.service)


def _lease(base_path: str, table_name: str) -> TableLease:
    return TableLease(table_id_of(base_path), base_path, table_name, "", "", 0, 0, 0)


def _decision(call: ServiceCall, policy: TablePolicy, now_ms: int, reason: str) -> Decision:
    return Decision(
        call.service,
        Verdict.DUE,
        reason,
        call.mode,
        key_instant=call.instants[0] if call.instants else f"{now_ms}",
        plan_instants=call.instants,
        # An existing plan itself names what it removes.
        options=service_options(call.service, policy) if not call.instants else {},
    )


def start_service_run(
    base_path: str,
    table_name: str,
    call: ServiceCall,
    policy: TablePolicy,
    reason: str = "requested by airflow lake doctor",
) -> str:
    """Create a DAG run for a service call and return its id; an active one of the same service counts as well.

    The id is the one that the manager would use, so that both together start one. Raises RepairRefusedError.
    """
    table_id, registry, gateway = table_id_of(base_path), open_registry(), AirflowRunGateway()
    decision = _decision(call, policy, registry.now_ms(), reason)
    with registry.transaction() as session:
        start = decide_start(
            table_id,
            decision,
            find_runs_of(gateway, session, table_id, decision),
            now_ms=registry.now_ms(),
            max_attempts=_ANY_NUMBER,
            backoff_s=0,
        )
        if start.verdict is StartVerdict.START:
            settings = run_conf(_lease(base_path, table_name), decision, policy)
            gateway.create_run(session, start.run_id, settings, note=decision.reason)
        elif start.verdict is not StartVerdict.ALREADY_ACTIVE:
            raise RepairRefusedError(f"no run of {call.service} was started: {start.reason}")
    return start.run_id


# --- `airflow lake forget`


def forget(args: Namespace) -> None:
    """Remove a table from the registry; servers stop watching it when they find it missing."""
    run_command(args, _forget)


def _forget(args: Namespace) -> None:
    base_path = open_registry().forget(table_id_of(find_table(args.table)))
    print(f"the registry forgot {base_path}; a notice, the tables file or discovery may register it again")


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
    mistakes = find_mistakes(read_tables_file(path), path)
    if mistakes:
        raise ConfigError("\n".join([f"{len(mistakes)} mistakes:", *mistakes] if len(mistakes) > 1 else mistakes))
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
    changed = find_changed(wanted, found.properties, load_definitions(storage, found.properties))
    rows = [
        {
            "index": one.partition,
            "ready": "yes" if one.is_ready else "no",
            "reason": "; ".join(part for part in (one.reason, changed.get(one.partition)) if part),
        }
        for one in known
    ]
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


# --- `airflow lake replication`: how far each sink of a table is behind, and what it holds back. Changes nothing


def replication(args: Namespace) -> None:
    """Print one line for each sink; exit code 1 when one has a problem or needs a snapshot."""
    run_command(args, _replication)


def _replication(args: Namespace) -> None:
    match args.words:
        case ["verify", table, sink]:
            _verify(table, sink)
        case ["verify", *_] | [_, _, *_]:
            raise ConfigError("give nothing, or a table, or: verify TABLE SINK")
        case words:
            _list_sinks(args, words[0] if words else "")


def _verify(table: str, name: str) -> None:
    base_path, settings, registry, gateway = find_table(table), load_settings(), open_registry(), AirflowRunGateway()
    table_id = table_id_of(base_path)
    table_name = load_table_properties(open_with_connections(settings.storage_conn_ids)(base_path)).name
    policy = open_tables(settings).load().policy_for(base_path, table_name)
    sink = next((sink for sink in policy.replication if sink.name == name), None)
    if sink is None:
        raise SinkUnknownError(f"the tables file gives table {base_path} no sink {name!r}")
    run_id = f"verify__{table_id}.{name}__{registry.now_ms()}"
    entry = {"sink": sink.sink, "name": name, "mode": sink.mode, "key": list(sink.key), "options": dict(sink.options)}
    conf = {"action": "verify", "base_path": base_path, "ttl_s": sink.ttl_s, "spark_conf": dict(policy.spark_conf)}
    with registry.transaction() as session:
        gateway.start_replication(session, run_id, conf | entry)
    warn(f"run {run_id} of lake_replication compares sink {name} with table {base_path}; it goes on if you leave")
    while True:
        with registry.transaction() as session:
            state = gateway.find_replication(session, run_id)
        if state not in {RunState.QUEUED, RunState.RUNNING}:
            break
        time.sleep(VERIFY_POLL_S)
    if state is RunState.SUCCESS:
        print(f"sink {name} has the rows of table {base_path}, and no others")
        return
    problem = Sinks(registry).get(table_id, name)["problem"]
    print(f"sink {name} of table {base_path}: {problem or f'the run ended as {state}: its log has the reason'}")
    raise SystemExit(1)


def _list_sinks(args: Namespace, wanted: str) -> None:
    registry = open_registry()
    only = table_id_of(find_table(wanted)) if wanted else None
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
    print_rows(args, rows, _sink_line)
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


def _sink_line(row: dict[str, Any]) -> str:
    lag = "lag ?" if row["lag_commits"] is None else f"lag {row['lag_commits']} commits, {duration(row['lag_s'])}"
    hold = f"holds from {row['hold']}" if row["hold"] else "holds nothing"
    if row["hold"] and row["hold_age_s"] is not None:
        age, ends = duration(row["hold_age_s"]), duration(max(0, row["hold_ends_in_s"]))
        hold += f" ({age}, {size(row['held_bytes'])}, released in {ends})"
    line = f"{row['table']:<24} {row['sink']:<16} {row['state']:<15} at {row['checkpoint'] or '-':<17}  {lag}  {hold}"
    return f"{line}  problem: {row['problem']}" if row["problem"] else line


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
