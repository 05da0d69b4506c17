"""Commands that examine one table: `airflow lake doctor`, `check-writer`, `conflicts` and `indexes`.

Only `doctor --repair` changes something.
"""

from __future__ import annotations

import getpass
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_lake_provider.cli.command import moment, print_rows, run_command
from airflow_lake_provider.cli.lake_reports import warn_of_all_tables
from airflow_lake_provider.cli.tables import find_table, list_all_tables, open_table, start_service_run
from airflow_lake_provider.config.policies import StuckKind
from airflow_lake_provider.conflict.activity import open_conflict_table
from airflow_lake_provider.conflict.activity_report import describe_activity, is_clear, print_line
from airflow_lake_provider.doctor.repairs import STILL_STUCK, load_records
from airflow_lake_provider.doctor.table_doctor import TableDoctor
from airflow_lake_provider.errors import ConfigError, RepairRefusedError
from airflow_lake_provider.hooks.open_tables import open_with_connections
from airflow_lake_provider.hudi.active_writes import heartbeat_rule
from airflow_lake_provider.hudi.base_path import table_id_of
from airflow_lake_provider.indexing.index_spec import find_changed, find_missing, find_setting_problems, parse_indexes
from airflow_lake_provider.indexing.table_indexes import load_definitions, load_table_indexes
from airflow_lake_provider.manager.supervision.writers_and_sinks import (
    WriterChecks,
    recorded_report,
    report_requirement,
)
from airflow_lake_provider.planner.conformance import Conformity
from airflow_lake_provider.planner.table_view import TableViewCache
from airflow_lake_provider.plugins.lake_plugin import load_settings, open_registry, open_tables
from airflow_lake_provider.plugins.run_history import AirflowInstanceGateway
from airflow_lake_provider.timeline_server.cache import SharedTimelines

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_lake_provider.doctor.diagnosis import Finding
    from airflow_lake_provider.doctor.repairs import Record, Repair, ServiceCall
    from airflow_lake_provider.manager.db.typed_rows import TableRow
    from airflow_lake_provider.manager.read_model import ReportedRequirement
    from airflow_lake_provider.storage.table_storage import Storage


def doctor(args: Namespace) -> None:
    """Print every problem of a table, or repair one; exit code 1 when something is (still) stuck.

    What stops all tables comes first, on the error output: a paused DAG, a loop that makes no pass, refused notices.
    """
    run_command(args, _doctor)


def _doctor(args: Namespace) -> None:
    if args.history:
        # Also of a table whose properties are damaged.
        _print_history(args, open_with_connections(load_settings().storage_conn_ids)(find_table(args.table)))
        return
    table = open_table(args.table)

    def start(call: ServiceCall) -> str:
        return start_service_run(table, call, "requested by airflow lake doctor")

    repairer = TableDoctor(
        table.storage,
        table.policy,
        by=f"{getpass.getuser()}@{socket.gethostname()}",
        now_ms=lambda: int(time.time() * 1000),
        start_service=start,
        reads_all=True,
    )
    warn_of_all_tables()
    found = repairer.examine()
    if args.repair:
        _repair(args, repairer, found)
        return
    print_rows(args, [_row(finding, repair, table.policy.doctor.repairs) for finding, repair in found], _finding_text)
    if found:
        raise SystemExit(1)
    if args.output == "text":
        print(f"nothing is stuck at {table.base_path}")


def _repair(args: Namespace, repairer: TableDoctor, found: tuple[tuple[Finding, Repair], ...]) -> None:
    kind = _kind_of(args.repair)
    wanted = [repair for finding, repair in found if finding.kind is kind and args.instant in {None, finding.instant}]
    if not wanted:
        raise RepairRefusedError(f"there is no problem of kind {kind} to repair")
    if args.dry_run:
        rows = [WantedRepair(repair.kind, repair.instant, _plan_text(repair)) for repair in wanted]
        print_rows(args, rows, lambda row: f"{row.kind} {row.instant}: would {row.would}")
        return
    records = [repairer.repair(repair) for repair in wanted]
    print_rows(args, records, _record_text)
    if any(record.result == STILL_STUCK for record in records):
        raise SystemExit(1)


def _kind_of(text: str) -> StuckKind:
    try:
        return StuckKind(text)
    except ValueError as error:
        raise RepairRefusedError(f"{text!r} is not a kind of problem; known are {', '.join(StuckKind)}") from error


@dataclass(frozen=True, slots=True)
class WantedRepair:
    """What `--dry-run` shows of a repair."""

    kind: str
    instant: str
    would: str


@dataclass(frozen=True, slots=True)
class FindingRow:
    """A finding with its repair."""

    kind: str
    instant: str
    message: str
    holds_up: str
    blocks: tuple[str, ...]
    repair: str
    """What repairs it, in words."""
    doctor_can: str
    allowed: bool
    """Whether the tables file allows the repair."""


def _row(finding: Finding, repair: Repair, allowed: tuple[StuckKind, ...]) -> FindingRow:
    return FindingRow(
        kind=finding.kind.value,
        instant=finding.instant,
        message=finding.message,
        holds_up=finding.holds_up,
        blocks=tuple(finding.blocks),
        repair=finding.repair,
        doctor_can=_plan_text(repair),
        allowed=finding.kind in allowed,
    )


def _plan_text(repair: Repair) -> str:
    if repair.refusal:
        return f"do nothing: {repair.refusal}"
    if repair.call is not None:
        return f"{repair.does} (a run of {repair.call.service})"
    return f"{repair.does} ({', '.join(file.path for file in repair.files)})"


def _finding_text(row: FindingRow) -> str:
    lines = [f"{row.kind}: {row.message}", f"  holds up: {row.holds_up}"]
    lines += [f"  blocked:  {line}" for line in row.blocks]
    lines.append(f"  repair:   {row.repair}")
    hint = f"airflow lake doctor TABLE --repair {row.kind}"
    is_possible = not row.doctor_can.startswith("do nothing")
    first = "" if row.allowed else f"add {row.kind} to doctor.repairs of the tables file, then "
    lines.append(f"  doctor:   can {row.doctor_can}{f'; {first}{hint}' if is_possible else ''}")
    return "\n".join(lines)


def _print_history(args: Namespace, storage: Storage) -> None:
    records = list(load_records(storage))
    print_rows(args, records, _record_text)
    if not records and args.output == "text":
        print(f"there are no repairs of {storage.base_path}")


def _record_text(record: Record) -> str:
    result = record.result or "begun, and not ended: the repairer died"
    lines = [f"{record.at} {record.by}: {record.kind} {record.instant}".rstrip()]
    lines += [f"  evidence: {line}" for line in record.evidence]
    lines.append(f"  did:      {record.does}")
    lines += [f"  moved:    {file.path} to {file.kept_as}" for file in record.removed]
    return "\n".join([*lines, f"  result:   {result}"])


# --- `airflow lake check-writer`: what table and notices show of the writers' settings. Changes nothing


def check_writer(args: Namespace) -> None:
    """Print what a table requires of its writers and whether they meet it; exit code 1 when something is broken."""
    run_command(args, _check_all if args.all else _check_writer)


def _check_writer(args: Namespace) -> None:
    if not args.table:
        raise ConfigError("name a table (base path, name or id), or give --all")
    base_path = find_table(args.table)
    settings = load_settings()
    registry = open_registry()
    views = TableViewCache(SharedTimelines(open_table=open_with_connections(settings.storage_conn_ids)))
    view = views.refresh(base_path)
    policy = open_tables(settings).load().policy_for(base_path, view.properties.name)
    checks = WriterChecks(registry, views, AirflowInstanceGateway())
    report = checks.check(registry.find(table_id_of(base_path)), view, policy, registry.now_ms())
    print_rows(args, [report_requirement(row) for row in report.rows], _requirement_text)
    if report.broken():
        raise SystemExit(1)


def _requirement_text(row: ReportedRequirement) -> str:
    lines = [f"{row.requirement:<16} {row.state:<8} {row.evidence}"]
    if row.state != Conformity.MET and row.settings:
        lines.append(f"{'':<16} set      {', '.join(row.settings)}")
    if row.state == Conformity.BROKEN:
        blocked = f"; blocks {', '.join(row.blocks)}" if row.blocks else ""
        lines.append(f"{'':<16} endangers {row.endangers}{blocked}")
    return "\n".join(lines)


def _check_all(args: Namespace) -> None:
    rows = [_line_of(row) for row in list_all_tables(open_registry())]
    print_rows(args, rows, _line_text)
    if any(row.broken for row in rows):
        raise SystemExit(1)
    if not rows and args.output == "text":
        print("no table is registered; `airflow lake check-writer PATH` checks one that is not")


@dataclass(frozen=True, slots=True)
class CheckedTable:
    """The last check of a table's writers."""

    table: str
    base_path: str
    checked: str
    """When; `-`: not yet."""
    broken: str
    settings: str
    """What to set in the writers."""


def _line_of(row: TableRow) -> CheckedTable:
    report, checked_ms = recorded_report(row)
    broken = report.broken()
    return CheckedTable(
        table=row.table_name,
        base_path=row.base_path,
        checked=moment(checked_ms or None),
        broken=", ".join(found.requirement for found in broken),
        settings=", ".join(dict.fromkeys(setting for found in broken for setting in found.settings)),
    )


def _line_text(row: CheckedTable) -> str:
    state = f"broken: {row.broken}; set {row.settings}" if row.broken else "nothing is broken"
    if row.checked == "-":
        state = "not checked yet"
    return f"{row.table:<24} {row.base_path}  checked {row.checked}  {state}"


# --- `airflow lake conflicts`: live writers, their file groups, clashes, dead heartbeats. Nothing is changed


def conflicts(args: Namespace) -> None:
    """Print the activity on a table; exit code 1 when something clashes, or when that is unknown."""
    run_command(args, _conflicts)


def _conflicts(args: Namespace) -> None:
    opened = open_table(args.table)
    table = open_conflict_table(opened.storage, opened.policy.hudi_options, opened.policy.spark_conf)
    activity = table.read_activity(int(time.time() * 1000))
    rows = describe_activity(activity, lambda claim: table.find_commits(claim, activity.snapshot))
    print_rows(args, rows, print_line)
    if not rows and args.output == "text":
        print(f"no writer or service is active on {opened.base_path}")
    if not is_clear(rows):
        raise SystemExit(1)


# --- `airflow lake indexes`: which indexes a table has, which are being built, what is in the way. Changes nothing


@dataclass(frozen=True, slots=True)
class IndexRow:
    """An index with its readiness."""

    index: str
    ready: str
    reason: str


def indexes(args: Namespace) -> None:
    """Print every index of a table with its readiness, and what holds up a build."""
    run_command(args, _indexes)


def _indexes(args: Namespace) -> None:
    table = open_table(args.table)
    policy = table.policy
    found = load_table_indexes(table.storage, int(time.time() * 1000), heartbeat_rule(policy.hudi_options))
    wanted = parse_indexes(policy.indexing.indexes)
    known = found.readiness()
    changed = find_changed(wanted, found.properties, load_definitions(table.storage, found.properties))
    rows = [
        IndexRow(
            one.partition,
            "yes" if one.is_ready else "no",
            "; ".join(part for part in (one.reason, changed.get(one.partition)) if part),
        )
        for one in known
    ]
    rows += [
        IndexRow(spec.partition, "no", "requested by the tables file (indexing.indexes), not planned")
        for spec in find_missing(wanted, found.properties)
        if spec.partition not in {one.partition for one in known}
    ]
    if args.output == "text":
        print(f"{found.properties.name} at {table.base_path}, version {found.properties.version}")
        problems = found.problems(spec.partition for spec in wanted)
        for line in (*found.holes.explain(), *problems, *find_setting_problems(wanted, policy.hudi_options)):
            print(line)
    print_rows(args, rows, lambda row: f"{row.index:<28} {row.ready:<4} {row.reason}")
