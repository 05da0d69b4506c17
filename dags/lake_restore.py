"""Take a table back to a savepoint: checked, approved by a person, verified."""

from __future__ import annotations

import logging
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Param, get_current_context, task
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowFailException

from airflow_lake_provider.config.settings import LakeSettings
from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.execution.arguments import step_retries, with_draft
from airflow_lake_provider.execution.restore import check_table
from airflow_lake_provider.hooks.lake import LakeHook, as_airflow_error
from airflow_lake_provider.operators.approval import ASKED_AGAIN, MAX_SHOWN, LakeApprovalOperator
from airflow_lake_provider.operators.restore import HudiRestoredIndexOperator, HudiRestoreOperator

log = logging.getLogger(__name__)
SETTINGS = LakeSettings.from_conf(conf)

RETRIES = step_retries(SETTINGS.retry_delay_s)
CHECKED = "ti.xcom_pull(task_ids='check')"

DOC = """
### Take a Hudi table back to a savepoint

**Before**: stop the table's writers and pause the table.

1. `check` shows in its log what is lost, and fails where something forbids the restore. A dry run ends here.
2. `approve` waits for a person (*Required Actions*), unless *Ask a person* is off.
3. `drop_indexes` drops indexes that are younger than the savepoint.
4. `restore` takes back what the check has named, and no more. It compares what readers see then with the savepoint.
5. `build_indexes` builds those indexes again.

**When it fails**, clear the failed task: each step goes on where it was interrupted. Until the restore has completed,
Hudi refuses each write. Sinks that had what is taken back begin again with a snapshot.

    airflow dags trigger lake_restore -c '{"base_path": "/lake/orders", "savepoint": "20261121120001000"}'
"""

with DAG(
    dag_id="lake_restore",
    description="Takes a Hudi table back to a savepoint",
    schedule=None,
    # A backfill would run for times that mean nothing here, a materialised asset without a table.
    allowed_run_types=["manual", "operator_triggered"],
    catchup=False,
    is_paused_upon_creation=False,
    max_active_runs=16,
    # Its runs have nothing to do with each other: a deployment's limit would pause it for all tables.
    max_consecutive_failed_dag_runs=0,
    tags=["lake", "hudi", "restore"],
    default_args={"owner": "lake"},
    doc_md=DOC,
    params=with_draft(
        {
            "base_path": Param(
                type="string", minLength=1, title="Table", description="Base path, as its page in Lake shows it"
            ),
            "savepoint": Param(
                type="string",
                pattern="^[0-9]{14,17}$",
                title="Savepoint",
                description="Its instant, as `CALL show_savepoints` and the table's page show it",
            ),
            "approval": Param(
                default=True, type="boolean", title="Ask a person", description="Wait for approval after the check"
            ),
            "dry_run": Param(
                default=False, type="boolean", title="Dry run", description="Only check, and show what would be lost"
            ),
        }
    ),
) as dag:

    @task.short_circuit(execution_timeout=timedelta(minutes=15))
    def check() -> dict[str, Any]:
        """Return what the steps after this one do; nothing for a dry run."""
        params = get_current_context()["params"]
        try:
            plan = check_table(LakeHook(), str(params["base_path"]), str(params["savepoint"]))
        except LakeError as error:
            raise as_airflow_error(error) from error
        for line in plan.report.splitlines():
            log.info("%s", line)
        if params["dry_run"]:
            return {}
        if plan.refused:
            raise AirflowFailException("the restore is refused: see the lines above")
        return asdict(plan) | {"report": plan.report[-MAX_SHOWN:]}

    approve = LakeApprovalOperator(
        task_id="approve",
        subject="Take {{ params.base_path }} back to savepoint {{ params.savepoint }}?",
        body="```\n{{ " + CHECKED + "['report'] }}\n```",
        is_asked="{{ params.approval }}",
        **ASKED_AGAIN,
    )
    drop = HudiRestoredIndexOperator(
        task_id="drop_indexes",
        base_path="{{ params.base_path }}",
        indexes="{{ " + CHECKED + "['drops'] | tojson }}",
        drop=True,
        **RETRIES,
    )
    restore = HudiRestoreOperator(
        task_id="restore",
        base_path="{{ params.base_path }}",
        savepoint="{{ params.savepoint }}",
        takes_back="{{ " + CHECKED + "['takes_back'] | join(',') }}",
        without_metadata="{{ " + CHECKED + "['without_metadata'] }}",
        **RETRIES,
    )
    build = HudiRestoredIndexOperator(
        task_id="build_indexes",
        base_path="{{ params.base_path }}",
        indexes="{{ " + CHECKED + "['builds'] | tojson }}",
        **RETRIES,
    )
    check() >> approve >> drop >> restore >> build
