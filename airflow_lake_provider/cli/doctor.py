"""`airflow lake doctor`: what is stuck on a table, what it holds up, and its repair."""

from __future__ import annotations

import getpass
import socket
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.cli.command import find_table, print_rows, run_command, start_service_run
from airflow_lake_provider.config.policies import Shape
from airflow_lake_provider.doctor.repairs import load_records
from airflow_lake_provider.doctor.treatment import TableDoctor
from airflow_lake_provider.errors import RepairRefusedError
from airflow_lake_provider.hooks.open_tables import open_with_connections
from airflow_lake_provider.hudi.properties import load_table_properties
from airflow_lake_provider.plugins.tables import load_settings, open_tables

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_lake_provider.doctor.diagnosis import Finding
    from airflow_lake_provider.doctor.repairs import Repair, ServiceCall
    from airflow_lake_provider.storage.table_storage import Storage


def doctor(args: Namespace) -> None:
    """Print every stuck shape of a table, or repair one; exit code 1 when something is (still) stuck."""
    run_command(args, _doctor)


def _doctor(args: Namespace) -> None:
    base_path = find_table(args.table)
    settings = load_settings()
    storage = open_with_connections(settings.storage_conn_ids)(base_path)
    if args.history:
        _print_history(args, storage)
        return
    name = load_table_properties(storage).name
    policy = open_tables(settings).load().policy_for(base_path, name)

    def start(call: ServiceCall) -> str:
        return start_service_run(base_path, name, call, policy)

    surgeon = TableDoctor(
        storage,
        policy,
        by=f"{getpass.getuser()}@{socket.gethostname()}",
        now_ms=lambda: int(time.time() * 1000),
        start_service=start,
        reads_all=True,
    )
    found = surgeon.examine()
    if args.repair:
        _repair(args, surgeon, found)
        return
    print_rows(args, [_row(finding, repair, policy.doctor.repairs) for finding, repair in found], _finding_text)
    if found:
        raise SystemExit(1)
    if args.output == "text":
        print(f"nothing is stuck at {base_path}")


def _repair(args: Namespace, surgeon: TableDoctor, found: tuple[tuple[Finding, Repair], ...]) -> None:
    shape = _shape_of(args.repair)
    wanted = [repair for finding, repair in found if finding.shape is shape and args.instant in {None, finding.instant}]
    if not wanted:
        raise RepairRefusedError(f"nothing of shape {shape} is there to repair")
    if args.dry_run:
        rows = [{"shape": r.shape, "instant": r.instant, "would": _plan_text(r)} for r in wanted]
        print_rows(args, rows, lambda row: f"{row['shape']} {row['instant']}: would {row['would']}")
        return
    records = [asdict(surgeon.repair(repair)) for repair in wanted]
    print_rows(args, records, _record_text)
    if any(record["result"] == "still so" for record in records):
        raise SystemExit(1)


def _shape_of(text: str) -> Shape:
    try:
        return Shape(text)
    except ValueError as error:
        raise RepairRefusedError(f"{text!r} is no shape; known are {', '.join(Shape)}") from error


def _row(finding: Finding, repair: Repair, allowed: tuple[Shape, ...]) -> dict[str, Any]:
    return {
        "shape": finding.shape.value,
        "instant": finding.instant,
        "says": finding.says,
        "holds_up": finding.holds_up,
        "blocks": list(finding.blocks),
        "repair": finding.repair,
        "doctor_can": _plan_text(repair),
        "allowed": finding.shape in allowed,
    }


def _plan_text(repair: Repair) -> str:
    if repair.refusal:
        return f"do nothing: {repair.refusal}"
    if repair.call is not None:
        return f"{repair.does} (a run of {repair.call.service})"
    return f"{repair.does} ({', '.join(file.path for file in repair.files)})"


def _finding_text(row: dict[str, Any]) -> str:
    lines = [f"{row['shape']}: {row['says']}", f"  holds up: {row['holds_up']}"]
    lines += [f"  blocked:  {line}" for line in row["blocks"]]
    lines.append(f"  repair:   {row['repair']}")
    hint = f"airflow lake doctor TABLE --repair {row['shape']}"
    is_possible = not row["doctor_can"].startswith("do nothing")
    first = "" if row["allowed"] else f"add {row['shape']} to doctor.repairs of the tables file, then "
    lines.append(f"  doctor:   can {row['doctor_can']}{f'; {first}{hint}' if is_possible else ''}")
    return "\n".join(lines)


def _print_history(args: Namespace, storage: Storage) -> None:
    records = [asdict(record) for record in load_records(storage)]
    print_rows(args, records, _record_text)
    if not records and args.output == "text":
        print(f"no repair was ever done at {storage.base_path}")


def _record_text(record: dict[str, Any]) -> str:
    result = record["result"] or "begun, and never ended: whoever did it died"
    lines = [f"{record['at']} {record['by']}: {record['shape']} {record['instant']}".rstrip()]
    lines += [f"  evidence: {line}" for line in record["evidence"]]
    lines.append(f"  did:      {record['does']}")
    lines += [f"  moved:    {file['path']} to {file['kept_as']}" for file in record["removed"]]
    return "\n".join([*lines, f"  result:   {result}"])
