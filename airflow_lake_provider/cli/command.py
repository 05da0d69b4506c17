"""What the commands share: the table that is meant, rows as text or JSON, errors in one line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.errors import LakeError, RepairRefusedError, TableUnknownError
from airflow_lake_provider.hudi.base_path import normalise_base_path, table_id_of
from airflow_lake_provider.manager.db.registry import Claim
from airflow_lake_provider.manager.scheduling import StartVerdict, decide_start, run_conf, run_id_prefix
from airflow_lake_provider.planner.decide import service_options
from airflow_lake_provider.planner.rules import Decision, Verdict
from airflow_lake_provider.plugins.dag_runs import AirflowRunDoor
from airflow_lake_provider.plugins.lake_plugin import open_registry

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Sequence

    from airflow_lake_provider.config.policies import TablePolicy
    from airflow_lake_provider.doctor.repairs import ServiceCall

MOST_ROWS = 10_000


def run_command(args: Namespace, command: Callable[[Namespace], None]) -> None:
    """Run a command; an error of ours ends it with its name and its sentence."""
    try:
        command(args)
    except LakeError as error:
        raise SystemExit(f"{type(error).__name__}: {error}") from error


def find_table(table: str) -> str:
    """Return the base path of a table given by path, registry id, or name. Raises TableUnknownError.

    Its name, which selects its policy, is what its hoodie.properties say.
    """
    if "/" in table:
        return normalise_base_path(table)
    rows = [row for row in open_registry().list_tables(MOST_ROWS) if table in {row["table_id"], row["table_name"]}]
    if len(rows) != 1:
        found = ", ".join(row["base_path"] for row in rows) or "none"
        raise TableUnknownError(f"{table!r} names {len(rows)} tables of the registry ({found}); give a base path")
    return str(rows[0]["base_path"])


def print_rows(args: Namespace, rows: Sequence[dict[str, Any]], to_text: Callable[[dict[str, Any]], str]) -> None:
    """Print rows as `--output` says."""
    if args.output == "json":
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        print(to_text(row))


# --- Start a run of a table service from the command line, by the rules by which the manager starts one

_ANY_NUMBER = 1_000_000


def start_service_run(base_path: str, table_name: str, call: ServiceCall, policy: TablePolicy) -> str:
    """Create a DAG run for a service call and return its id; an active one of the same service is as good.

    The id is the one that the manager would give it, so that both together start one. Raises RepairRefusedError.
    """
    table_id, registry, door = table_id_of(base_path), open_registry(), AirflowRunDoor()
    decision = Decision(
        call.service,
        Verdict.DUE,
        "asked for by airflow lake doctor",
        call.mode,
        key_instant=call.instants[0] if call.instants else f"{registry.now_ms()}",
        plan_instants=call.instants,
        # A plan that is there already says itself what it removes.
        options=service_options(call.service, policy) if not call.instants else {},
    )
    claim = Claim(table_id, base_path, table_name, "", "", 0, 0, 0)
    with registry.transaction() as session:
        start = decide_start(
            table_id,
            decision,
            door.find_runs(session, run_id_prefix(table_id, call.service)),
            now_ms=registry.now_ms(),
            max_attempts=_ANY_NUMBER,
            backoff_s=0,
        )
        if start.verdict is StartVerdict.START:
            conf = run_conf(claim, decision, policy)
            door.create_run(session, start.run_id, conf, note=decision.reason)
        elif start.verdict is not StartVerdict.ALREADY_ACTIVE:
            raise RepairRefusedError(f"no run of {call.service} was started: {start.reason}")
    return start.run_id
