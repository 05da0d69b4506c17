"""What the commands share: the table argument, rows in each format of `--output`, errors in one line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from airflow.cli.simple_table import AirflowConsole

from airflow_lake_provider.errors import LakeError, RepairRefusedError, TableUnknownError
from airflow_lake_provider.hudi.base_path import normalise_base_path, table_id_of
from airflow_lake_provider.manager.db.registry import TableLease
from airflow_lake_provider.manager.scheduling import StartVerdict, decide_start, find_runs_of, run_conf
from airflow_lake_provider.planner.decide import service_options
from airflow_lake_provider.planner.rules import Decision, Verdict
from airflow_lake_provider.plugins.dag_runs import AirflowRunGateway
from airflow_lake_provider.plugins.lake_plugin import open_registry

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterator, Sequence

    from sqlalchemy import RowMapping

    from airflow_lake_provider.config.policies import TablePolicy
    from airflow_lake_provider.doctor.repairs import ServiceCall
    from airflow_lake_provider.manager.db.registry import Registry


def run_command(args: Namespace, command: Callable[[Namespace], None]) -> None:
    """Run a command; an error of the provider ends it with its name and its sentence."""
    try:
        command(args)
    except LakeError as error:
        raise SystemExit(f"{type(error).__name__}: {error}") from error


def find_table(table: str) -> str:
    """Return the base path of a table given by path, registry id, or name. Raises TableUnknownError.

    The name in its hoodie.properties selects its policy.
    """
    if "/" in table:
        return normalise_base_path(table)
    registry = open_registry()
    by_id = registry.find(table)
    rows = [by_id] if by_id is not None else registry.find_by_name(table)
    if len(rows) != 1:
        found = ", ".join(row["base_path"] for row in rows) or "none"
        raise TableUnknownError(f"{table!r} names {len(rows)} tables of the registry ({found}); give a base path")
    return str(rows[0]["base_path"])


def list_all_tables(registry: Registry) -> Iterator[RowMapping]:
    """Return the rows of all tables, in the order of their ids."""
    after = ""
    while rows := registry.list_tables(1000, after):
        yield from rows
        after = rows[-1]["table_id"]


def print_rows(args: Namespace, rows: Sequence[dict[str, Any]], to_text: Callable[[dict[str, Any]], str]) -> None:
    """Print rows in the format of `--output`."""
    if args.output != "text":
        print_document(args, rows, rows)
        return
    for row in rows:
        print(to_text(row))


def print_document(args: Namespace, document: object, rows: Sequence[dict[str, Any]]) -> None:
    """Print a document as JSON or YAML, or its rows in columns (`table`, `plain`)."""
    if args.output == "json":
        print(json.dumps(document, indent=2, default=str))
        return
    # Without markup: `[lake]` in a message is a text, not a style.
    console = AirflowConsole(markup=False)
    if args.output == "yaml":
        console.print_as_yaml(json.loads(json.dumps(document, default=str)))
    else:
        console.print_as(rows, args.output)


# --- Start a run of a table service from the command line, by the same rules as the manager

_ANY_NUMBER = 1_000_000


def start_service_run(base_path: str, table_name: str, call: ServiceCall, policy: TablePolicy) -> str:
    """Create a DAG run for a service call and return its id; an active one of the same service counts as well.

    The id is the one that the manager would use, so that both together start one. Raises RepairRefusedError.
    """
    table_id, registry, gateway = table_id_of(base_path), open_registry(), AirflowRunGateway()
    decision = Decision(
        call.service,
        Verdict.DUE,
        "requested by airflow lake doctor",
        call.mode,
        key_instant=call.instants[0] if call.instants else f"{registry.now_ms()}",
        plan_instants=call.instants,
        # An existing plan itself names what it removes.
        options=service_options(call.service, policy) if not call.instants else {},
    )
    lease = TableLease(table_id, base_path, table_name, "", "", 0, 0, 0)
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
            conf = run_conf(lease, decision, policy)
            gateway.create_run(session, start.run_id, conf, note=decision.reason)
        elif start.verdict is not StartVerdict.ALREADY_ACTIVE:
            raise RepairRefusedError(f"no run of {call.service} was started: {start.reason}")
    return start.run_id
