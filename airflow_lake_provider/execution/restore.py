"""The check before a restore as a task makes it: the table from its store, sinks and holds from the manager."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.doctor.restore_facts import load_restore_facts
from airflow_lake_provider.doctor.restore_plan import plan_restore
from airflow_lake_provider.errors import ServiceFailedError
from airflow_lake_provider.execution.arguments import require_allowed_table
from airflow_lake_provider.execution.job import manager_patience_s
from airflow_lake_provider.hooks.lake import LakeHook
from airflow_lake_provider.hooks.open_tables import policy_of, table_opener
from airflow_lake_provider.hudi.base_path import normalise_base_path, table_id_of
from airflow_lake_provider.indexing.table_indexes import load_definitions
from airflow_lake_provider.job_contract import FailureKind
from airflow_lake_provider.manager.db.holds import holder_of
from airflow_lake_provider.replication.restored import find_ahead

if TYPE_CHECKING:
    from airflow_lake_provider.doctor.restore_plan import RestorePlan


def check_table(hook: LakeHook, base_path: str, savepoint: str) -> RestorePlan:
    """Return what a restore to a savepoint would do, and what forbids it. Nothing is changed. Raises LakeError.

    Runs of services are not asked for: the restore's lease keeps them away.
    """
    path = normalise_base_path(base_path)
    require_allowed_table(path)
    storage = table_opener(None)(path)
    facts = load_restore_facts(storage, policy_of(path), savepoint, int(time.time() * 1000))
    table_id = table_id_of(path)
    sinks = ((str(sink["name"]), str(sink["checkpoint_text"] or "")) for sink in hook.list_sinks(table_id))
    known = replace(facts, streams=tuple(find_ahead(sinks, facts.taken_times)), holds=find_holds(hook, table_id))
    return plan_restore(known, load_definitions(storage, facts.evidence.properties))


def find_holds(hook: LakeHook, table_id: str) -> tuple[str, ...]:
    """Return the readers' holds of a table in words."""

    def of_reader(hold: dict[str, Any]) -> str:
        return holder_of(str(hold["reader"]), str(hold["reason"]))

    return tuple(map(of_reader, hook.list_holds(table_id)))


def require_no_hold(lake_conn_id: str, base_path: str) -> None:
    """Raise ServiceFailedError while a reader holds files of a table."""
    holds = find_holds(LakeHook(lake_conn_id, manager_patience_s()), table_id_of(base_path))
    if holds:
        raise ServiceFailedError(
            f"table {base_path}: {', '.join(holds)}: a reader holds files of this table", FailureKind.CONFLICT
        )
