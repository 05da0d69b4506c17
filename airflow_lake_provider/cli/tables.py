"""Commands on the registered tables, by Airflow's database: run, forget, replication, simulate, timeline-server.

Only `run`, `forget` and `replication verify`, which starts a run, change something.
"""

from __future__ import annotations

import getpass
import json
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.utils.cli import action_cli, suppress_logs_and_warning

from airflow_lake_provider.cli.command import (
    columns,
    duration,
    open_reports,
    print_document,
    print_plainly,
    print_rows,
    run_command,
    size,
    warn,
)
from airflow_lake_provider.config.own_settings import apply_own
from airflow_lake_provider.config.tables_file import load_tables_file
from airflow_lake_provider.doctor.repairs import ServiceCall
from airflow_lake_provider.errors import ConfigError, LakeError, RepairRefusedError, SinkUnknownError
from airflow_lake_provider.hooks.open_tables import open_with_connections
from airflow_lake_provider.hudi.base_path import require_allowed, table_id_of
from airflow_lake_provider.hudi.properties import load_table_properties
from airflow_lake_provider.job_contract import Mode, Service
from airflow_lake_provider.manager.db.rows import TableLease
from airflow_lake_provider.manager.db.sinks import Sinks
from airflow_lake_provider.manager.reports import reports
from airflow_lake_provider.manager.runs.airflow_runs import RunState
from airflow_lake_provider.manager.runs.dag_problems import find_dag_problems
from airflow_lake_provider.manager.scheduling.run_scheduler import ByHand, RunScheduler, decide_by_hand
from airflow_lake_provider.manager.scheduling.scheduling import StartVerdict, run_conf
from airflow_lake_provider.manager.scheduling.whatif import load_decisions, parse_span_ms, replay, to_svg, with_budgets
from airflow_lake_provider.manager.supervision.writers_and_sinks import (
    hold_ends_ms,
    hold_of,
    load_sink_state,
    problem_of,
    state_of,
)
from airflow_lake_provider.plugins.dag_runs import AirflowRunGateway
from airflow_lake_provider.plugins.lake_plugin import load_settings, open_registry, open_tables

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator

    from airflow_lake_provider.config.policies import TablePolicy
    from airflow_lake_provider.manager.db.registry import Registry
    from airflow_lake_provider.manager.db.typed_rows import SinkRow, TableRow
    from airflow_lake_provider.manager.scheduling.whatif import ReplayFigures
    from airflow_lake_provider.storage.table_storage import Storage


def find_table(table: str) -> str:
    """Return the base path of a table given by path, id, name, or database and name. Raises TableUnknownError."""
    return reports.find_table(open_registry(), table).base_path


@dataclass(frozen=True, slots=True)
class OpenedTable:
    """A table that a command names, with its store and its policy. The name in its hoodie.properties selects that."""

    base_path: str
    name: str
    storage: Storage
    policy: TablePolicy


def open_table(table: str) -> OpenedTable:
    """Return a table given as for `find_table`. Raises LakeError when it is not known or not readable."""
    base_path = find_table(table)
    settings = load_settings()
    storage = open_with_connections(settings.storage_conn_ids)(base_path)
    properties = load_table_properties(storage)
    policy = open_tables(settings).load().policy_for(base_path, properties.name)
    return OpenedTable(base_path, properties.name, storage, apply_own(policy, properties.raw).policy)


VERIFY_POLL_S = 2.0


def list_all_tables(registry: Registry) -> Iterator[TableRow]:
    """Return the rows of all tables, in the order of their ids."""
    after = ""
    while rows := registry.list_tables(1000, after):
        yield from rows
        after = rows[-1].table_id


# --- `airflow lake run`: a run of a service by hand, by the same rules as the manager's


def run(args: Namespace) -> None:
    """Start a run of a service, or print what it would be started with."""
    args.verbose = False  # Airflow prints its log on the output, where programs read the row
    run_command(args, _print_run if args.dry_run else _start_run)


@action_cli  # type: ignore[untyped-decorator]
@suppress_logs_and_warning
def _start_run(args: Namespace) -> None:
    table = _chosen(args)
    call = ServiceCall(Service(args.service), Mode.SCHEDULE_AND_EXECUTE)
    run_id = start_service_run(table, call, f"requested by {getpass.getuser()} with airflow lake run")
    row = StartedRun(run_id, call.service.value, table.base_path)
    print_rows(args, [row], lambda row: f"run {row.run_id} of lake_table_service; airflow lake runs {args.table}")
    registry = open_registry()
    with registry.transaction() as session:
        for problem in find_dag_problems(AirflowRunGateway().find_lake_dags(session), registry.now_ms()):
            warn(f"! {problem}")


def _print_run(args: Namespace) -> None:
    table = _chosen(args)
    call = ServiceCall(Service(args.service), Mode.SCHEDULE_AND_EXECUTE)
    decision = decide_by_hand(call, table.policy, open_registry().now_ms(), "airflow lake run")
    settings = run_conf(_lease(table), decision, table.policy)
    rows = [SettingOfRun(key, value) for key, value in settings.items() if value not in ("", None, [], {})]
    print_rows(args, rows, lambda row: f"{row.setting:<18} {_shown(row.value)}")
    if args.output == "text":
        print("nothing was started; `airflow lake explain` says whether the service is due, and what is in its way")


@dataclass(frozen=True, slots=True)
class StartedRun:
    """A run that was started, or was active already."""

    run_id: str
    service: str
    base_path: str


@dataclass(frozen=True, slots=True)
class SettingOfRun:
    """One setting of a run's conf, as JSON has it."""

    setting: str
    value: object


def _shown(value: object) -> str:
    if not isinstance(value, dict):
        return str(value)
    return f"\n{'':<19}".join(f"{key} {one}" for key, one in value.items())


def _chosen(args: Namespace) -> OpenedTable:
    require_allowed(find_table(args.table), load_settings().allowed_roots)
    return open_table(args.table)


def _lease(table: OpenedTable) -> TableLease:
    return TableLease(table_id_of(table.base_path), table.base_path, table.name, "", "", 0, 0, 0)


def start_service_run(table: OpenedTable, call: ServiceCall, reason: str) -> str:
    """Create a DAG run for a service call and return its id; an active one of the same service counts as well.

    The id is the one that the manager would use, so that both together start one. Raises RepairRefusedError.
    """
    scheduler = RunScheduler(open_registry(), AirflowRunGateway(), open_tables(load_settings()).load)
    start = scheduler.start_by_hand(_lease(table), table.policy, call, ByHand(getpass.getuser(), reason))
    if start.verdict not in {StartVerdict.START, StartVerdict.ALREADY_ACTIVE}:
        raise RepairRefusedError(f"no run of {call.service} was started: {start.reason}")
    return start.run_id


# --- `airflow lake forget`


def forget(args: Namespace) -> None:
    """Remove a table from the registry; servers stop watching it when they find it missing."""
    run_command(args, _forget)


def _forget(args: Namespace) -> None:
    base_path = open_registry().forget(table_id_of(find_table(args.table)))
    again = "a notice, the tables file or discovery may register it again"
    print_rows(args, [ForgottenTable(base_path)], lambda row: f"the registry forgot {row.base_path}; {again}")


@dataclass(frozen=True, slots=True)
class ForgottenTable:
    """A table that the registry had."""

    base_path: str


# --- `airflow lake replication`: how far each sink of a table is behind, and what it holds back; `verify` starts a run


def replication(args: Namespace) -> None:
    """Print one line for each sink; exit code 1 when one has a problem or needs a snapshot."""
    run_command(args, _replication)


def _replication(args: Namespace) -> None:
    match args.words:
        case ["verify", table, sink]:
            _verify(table, sink, "repair" if args.repair else "verify")
        case ["verify", *_] | [_, _, *_]:
            raise ConfigError("give nothing, or a table, or: verify TABLE SINK")
        case words:
            _list_sinks(args, words[0] if words else "")


def _verify(given: str, name: str, action: str) -> None:
    table = open_table(given)
    registry = open_registry()
    gateway = AirflowRunGateway()
    base_path = table.base_path
    table_id = table_id_of(table.base_path)
    sink = next((sink for sink in table.policy.replication if sink.name == name), None)
    if sink is None:
        raise SinkUnknownError(f"the tables file gives table {base_path} no sink {name!r}")
    run_id = f"{action}__{table_id}.{name}__{registry.now_ms()}"
    entry = {"sink": sink.sink, "name": name, "mode": sink.mode, "key": list(sink.key), "options": dict(sink.options)}
    conf = {
        "action": action,
        "base_path": base_path,
        "ttl_s": sink.ttl_s,
        "spark_conf": dict(table.policy.spark_conf),
    }
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
    problem = Sinks(registry).get(table_id, name).problem
    print(f"sink {name} of table {base_path}: {problem or f'the run ended as {state}: its log has the reason'}")
    raise SystemExit(1)


def _list_sinks(args: Namespace, wanted: str) -> None:
    registry = open_registry()
    only = table_id_of(find_table(wanted)) if wanted else None
    tables = {row.table_id: row for row in list_all_tables(registry)}
    settings = load_settings()
    policies = open_tables(settings).load()
    opener = open_with_connections(settings.storage_conn_ids)
    now_s = registry.now_ms() / 1000
    rows = []
    for sink in Sinks(registry).list_all():
        table = tables.get(sink.table_id)
        if table is None or only not in {None, sink.table_id}:
            continue
        row = sink_line(sink, table, now_s)
        try:
            policy = policies.policy_for(table.base_path, table.table_name)
            row = _measure(row, opener(table.base_path), sink, policy)
        except (LakeError, OSError) as error:
            # One table that cannot be read must not hide the others.
            row = replace(row, problem=row.problem or f"the table cannot be read: {error}")
        rows.append(row)
    print_rows(args, rows, _sink_text)
    if not rows and args.output == "text":
        print("no table has a sink; `replication` in the tables file adds one")
    if any(row.problem or row.needs_snapshot for row in rows):
        raise SystemExit(1)


@dataclass(frozen=True, slots=True)
class SinkLine:
    """How far one sink is behind its table, and what it holds back. Ages are seconds; None: not measured."""

    table: str
    base_path: str
    sink: str
    state: str
    checkpoint: str
    """Requested time of the last commit that it has; empty: none."""
    sequence: int
    generation: int
    snapshot_rows: int
    snapshot_total: int | None
    lag_commits: int | None
    lag_s: int | None
    hold: str
    hold_age_s: int | None
    hold_ends_in_s: int
    held_bytes: int | None
    needs_snapshot: bool
    configured: bool
    failures: int
    problem: str


def sink_line(sink: SinkRow, table: TableRow, now_s: float) -> SinkLine:
    """Return the registry's data of one sink (a row of `lake_sink`), for people."""
    checkpoint = json.loads(sink.checkpoint) if sink.checkpoint else {}
    commit = checkpoint.get("commit") or {}
    snapshot = checkpoint.get("snapshot") or {}
    return SinkLine(
        table=table.table_name,
        base_path=table.base_path,
        sink=sink.sink,
        state=state_of(sink, checkpoint, now_s * 1000),
        checkpoint=commit.get("requested_time", ""),
        sequence=checkpoint.get("sequence", 0),
        generation=checkpoint.get("generation", 0),
        snapshot_rows=snapshot.get("rows", 0),
        snapshot_total=snapshot.get("total"),
        lag_commits=None,
        lag_s=None,
        hold=hold_of(sink.hold, needs_snapshot=sink.needs_snapshot),
        hold_age_s=None,
        hold_ends_in_s=round(hold_ends_ms(sink) / 1000 - now_s),
        held_bytes=None,
        needs_snapshot=bool(sink.needs_snapshot),
        configured=bool(sink.is_configured) and sink.retire_ms is None,
        failures=sink.failures,
        problem=problem_of(sink),
    )


def _measure(row: SinkLine, storage: Storage, sink: SinkRow, policy: TablePolicy) -> SinkLine:
    state = load_sink_state(storage, sink.checkpoint, row.hold, time.time(), policy.spark_conf)
    return replace(
        row,
        lag_commits=state.lag.commits,
        lag_s=round(state.lag_s),
        hold_age_s=round(state.hold_age_s),
        held_bytes=state.held_bytes,
    )


def _sink_text(row: SinkLine) -> str:
    lag = "lag ?" if row.lag_s is None else f"lag {row.lag_commits} commits, {duration(row.lag_s)}"
    if row.snapshot_rows:
        total = "" if row.snapshot_total is None else f" of {row.snapshot_total:,}"
        lag = f"snapshot: {row.snapshot_rows:,}{total} rows, after its instant {lag.removeprefix('lag ')}"
    hold = f"holds from {row.hold}" if row.hold else "holds nothing"
    if row.hold and row.hold_age_s is not None:
        ends = duration(max(0, row.hold_ends_in_s))
        hold += f" ({duration(row.hold_age_s)}, {size(row.held_bytes)}, released in {ends})"
    line = f"{row.table:<24} {row.sink:<16} {row.state:<15} at {row.checkpoint or '-':<17}  {lag}  {hold}"
    return f"{line}  problem: {row.problem}" if row.problem else line


# --- `airflow lake simulate`: what would have happened under other budgets. Changes nothing


@print_plainly
def simulate(args: Namespace) -> None:
    """Replay the recorded decisions under other settings; print cost, backlog and waits next to those of today's."""
    reports = open_reports()
    tables = reports.tables.load()
    now_ms = reports.registry.now_ms()
    other = load_tables_file(args.policy) if args.policy else tables
    other = with_budgets(other, args.budget or [])
    found = load_decisions(reports.registry, now_ms - parse_span_ms(args.since, "--since"))
    replays = [("settings in force", replay(found, tables, now_ms)), ("simulated", replay(found, other, now_ms))]
    if args.plot:
        Path(args.plot).write_text(to_svg(replays), encoding="utf-8")
    figures = [(name, one.figures()) for name, one in replays]
    if args.output != "text":
        rows = [{"settings": name, **asdict(one)} for name, one in figures]
        print_document(args, rows, rows)
        return
    print(f"{len(found):,} decisions of the last {args.since}")
    for line in columns([_simulated_line(name, one) for name, one in figures], gap="  ", ruler=""):
        print(line)


def _simulated_line(settings: str, one: ReplayFigures) -> dict[str, Any]:
    return {
        "settings": settings,
        "decided": one.decided,
        "started": one.started,
        "waiting": one.waiting,
        "never start": one.never_start,
        "core hours": one.core_hours,
        "written": size(one.bytes),
        "benefit": one.benefit,
        "wait p50": duration(one.wait_p50_s),
        "wait p95": duration(one.wait_p95_s),
        "wait most": duration(one.wait_most_s),
        "most core hours waiting": one.most_core_hours_waiting,
    }


# --- `airflow lake timeline-server`


def timeline_server(args: Namespace) -> None:
    """`airflow lake timeline-server`: serve until stopped."""
    import uvicorn

    from airflow_lake_provider.plugins.lake_plugin import open_timeline_server, shows_api_description
    from airflow_lake_provider.timeline_server.routes import create_timeline_app
    from airflow_lake_provider.timeline_server.server import use_one_heap

    use_one_heap()
    open_timeline_server()  # a wrong setting ends the command here, with one line
    app = create_timeline_app(open_timeline_server, is_described=shows_api_description())
    uvicorn.run(app, host=args.host, port=args.port, log_level="info")
