"""The fallback for lost notices: once a minute, drain left marks and read tables that are silent for too long."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, task

from airflow_lake_provider.hooks.lake import LakeHook
from airflow_lake_provider.sensors.commit import HudiCommitSensor
from airflow_lake_provider.sensors.indexing import HudiPendingIndexSensor

DOC = """
### Fallback for lost notices

Writers announce their commits by a callback that may get lost. This DAG repairs that, once a minute and for all tables:

1. `silent_tables` reads from the manager which tables were silent past their heartbeat (or never announce anything).
   Without any, it has the manager drain marks that a stopped loop left behind, and the other tasks are skipped;
2. `new_commits` and `pending_indexes` read those tables' timelines;
3. `hint` notifies the manager of the tables that changed, postpones the others, and drains marks.

While it is paused a lost notice waits for the table's next commit, nothing enforces deadlines, and no notifier reports
what is stuck; `GET /v1/hoodie/health`, the page *Lake* and `airflow lake tables` show it.
"""

with DAG(
    dag_id="lake_watch",
    description="Repairs lost notices and watches silent tables",
    schedule=timedelta(minutes=1),
    # A backfill would run for times that mean nothing here.
    allowed_run_types=["scheduled", "manual", "operator_triggered"],
    catchup=False,
    is_paused_upon_creation=False,
    max_active_runs=1,
    # Its runs have nothing to do with each other: a deployment's limit would pause it for all tables.
    max_consecutive_failed_dag_runs=0,
    tags=["lake", "hudi"],
    doc_md=DOC,
    dagrun_timeout=timedelta(minutes=15),
    default_args={
        "owner": "lake",
        "retries": 2,
        "retry_delay": timedelta(seconds=5),
        "retry_exponential_backoff": 2.0,
        "execution_timeout": timedelta(minutes=15),
    },
) as dag:
    # A process for each task, once a minute and with nothing to do, would be what a quiet lake costs most.
    @task.short_circuit
    def silent_tables() -> list[dict[str, str]]:
        """Return id, path, name and cursor of the silent tables; without any, do what `hint` would."""
        hook = LakeHook()
        tables = hook.list_silent_tables()
        if not tables:
            hook.sweep()
        return [
            {
                "table_id": table["table_id"],
                "base_path": table["base_path"],
                "table_name": table["table_name"],
                "after": table["completed_time"],
            }
            for table in tables
        ]

    silent = silent_tables()
    # One poke each, which succeeds also without a finding: the next run finds what is not there yet. The timeline
    # server's own heartbeat may just have refreshed the table, which is good enough.
    one_poke = {"once": True, "deferrable": False, "max_age_s": 90, "soft_fail": True, "retries": 0}
    new_commits = HudiCommitSensor(task_id="new_commits", tables=silent, **one_poke)
    pending_indexes = HudiPendingIndexSensor(task_id="pending_indexes", tables=silent, **one_poke)

    @task(trigger_rule="all_done")
    def hint(silent: list[dict[str, str]] | None, *found: list[dict[str, Any]] | None) -> dict[str, int]:
        """Notify the manager which tables changed and which are unchanged, and drain the rest."""
        hook = LakeHook()
        changed: dict[str, list[str]] = {}
        for findings in found:
            for finding in findings or []:
                instants = [instant["requested_time"] for instant in finding["instants"]]
                changed.setdefault(finding["base_path"], []).extend(instants)
        tables = silent or []
        names = {table["base_path"]: table["table_name"] for table in tables}
        hints = [
            {"base_path": path, "table_name": names[path], "instants": sorted(set(instants))}
            for path, instants in changed.items()
        ]
        unchanged = [table["table_id"] for table in tables if table["base_path"] not in changed]
        answer = hook.send_hints(hints, unchanged)
        return {"silent": len(tables), "changed": answer["marked"], "waiting": hook.sweep()}

    hint(silent, new_commits.output, pending_indexes.output)
