"""Erase record keys from a table: checked, approved by a person, deleted, rewritten, and proved by a search."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Param, get_current_context, task
from airflow.sdk.configuration import conf

from airflow_lake_provider.config.settings import LakeSettings
from airflow_lake_provider.execution.arguments import step_retries, with_draft
from airflow_lake_provider.operators.approval import ASKED_AGAIN, MAX_SHOWN, LakeApprovalOperator
from airflow_lake_provider.operators.erasure import HudiEraseOperator

SETTINGS = LakeSettings.from_conf(conf)

STEP: dict[str, Any] = {
    "base_path": "{{ params.base_path }}",
    "folder": "{{ params.folder }}",
    **step_retries(SETTINGS.retry_delay_s),
}

DOC = """
### Erase record keys from a Hudi table, with a receipt

Write the keys into `keys.jsonl` of a folder outside of every table, and name that folder. A run's conf has no keys,
because Airflow keeps it in its database.

1. `check` searches every file, and says in its log which files have the keys and what keeps them. A dry run ends here.
2. `approve` waits for a person (*Required Actions*), unless *Ask a person* is off.
3. `delete` deletes the keys in one commit, next to writers. Keys that a writer has deleted already are only followed.
4. `rewrite` compacts the table, and removes every older version of the partitions that had keys, and of the metadata
   table. Queries that began before may fail: a reader that must not holds its files (`airflow lake hold`).
5. `prove` searches every file again and writes `receipt.json` into the folder. It fails while a file has a key, and
   names the file and what keeps it.

**When it fails**, do what it says and clear the task that it names: each step goes on where it was interrupted.

    airflow dags trigger lake_erase -c '{"base_path": "/lake/orders", "folder": "/lake/erasures/4711"}'
"""

with DAG(
    dag_id="lake_erase",
    description="Erases record keys from a table, and proves it",
    schedule=None,
    # A backfill would run for times that mean nothing here, a materialised asset without a table.
    allowed_run_types=["manual", "operator_triggered"],
    catchup=False,
    is_paused_upon_creation=False,
    max_active_runs=16,
    # Its runs have nothing to do with each other: a deployment's limit would pause it for all tables.
    max_consecutive_failed_dag_runs=0,
    tags=["lake", "hudi", "erase"],
    default_args={"owner": "lake"},
    doc_md=DOC,
    params=with_draft(
        {
            "base_path": Param(
                type="string", minLength=1, title="Table", description="Base path, as its page in Lake shows it"
            ),
            "folder": Param(
                type="string",
                minLength=1,
                title="Folder of the keys",
                description="It has keys.jsonl, and gets the receipt",
            ),
            "approval": Param(
                default=True, type="boolean", title="Ask a person", description="Wait for approval after the check"
            ),
            "dry_run": Param(
                default=False, type="boolean", title="Dry run", description="Only check, and show which files have keys"
            ),
        }
    ),
) as dag:

    @task.short_circuit(execution_timeout=timedelta(minutes=15))
    def go_on() -> bool:
        """End a dry run."""
        return not get_current_context()["params"]["dry_run"]

    approve = LakeApprovalOperator(
        task_id="approve",
        subject="Erase keys from {{ params.base_path }}?",
        body="```\n{{ ti.xcom_pull(task_ids='check')['reason'][:" + str(MAX_SHOWN) + "] }}\n```",
        is_asked="{{ params.approval }}",
        **ASKED_AGAIN,
    )
    check, delete, rewrite, prove = (
        HudiEraseOperator(task_id=step, step=step, **STEP) for step in ("check", "delete", "rewrite", "prove")
    )
    check >> go_on() >> approve >> delete >> rewrite >> prove
