"""Start a run of a table service from the command line, by the rules by which the manager starts one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_lake_provider.errors import RepairRefusedError
from airflow_lake_provider.manager.claim import Claim
from airflow_lake_provider.manager.runs import StartVerdict, decide_start, run_conf, run_id_prefix
from airflow_lake_provider.planner.decision import Decision, Verdict
from airflow_lake_provider.planner.service_options import service_options
from airflow_lake_provider.plugins.airflow_runs import AirflowRunDoor
from airflow_lake_provider.plugins.lake_plugin import open_registry
from airflow_lake_provider.table_id import table_id_of

if TYPE_CHECKING:
    from airflow_lake_provider.doctor.repairs import ServiceCall
    from airflow_lake_provider.policies import TablePolicy

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
