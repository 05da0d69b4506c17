"""The standing Spark application of the engine `warm`: one run is one application."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param, task
from airflow.sdk.configuration import conf

from airflow_lake_provider.config.settings import LakeSettings
from airflow_lake_provider.execution.arguments import optional, with_draft
from airflow_lake_provider.execution.job import run_standing_application
from airflow_lake_provider.hooks.lake import DEFAULT_CONN_ID

SETTINGS = LakeSettings.from_conf(conf)

DOC = """
### Warm Spark

The manager creates a run when work of the engine `warm` waits and no application pulls it: one for each queue,
connection and Spark configuration. The run's id is `<key>.<time>`.

* **What it does**: acquires the application's lease, submits Spark through the connection of its work, and stays until
  it had no work for `[lake] warm_idle_s` or is older than `[lake] warm_max_age_s`. The tables' own runs have the log
  and the verdict of each item.
* **When it fails**: what it was running is given to the next application, which the manager starts. An item that two
  applications did not survive runs by a spark-submit of its own.
* **To end it**: mark the run as failed. Its items wait for the next application.
"""

with DAG(
    dag_id="lake_warm",
    description="Runs a standing Spark application that serves many tables",
    schedule=None,
    # A backfill would run for times that mean nothing here, a materialised asset without a table.
    allowed_run_types=["manual", "operator_triggered"],
    catchup=False,
    is_paused_upon_creation=False,
    max_active_runs=64,
    # Its runs have nothing to do with each other: a deployment's limit would pause it for all tables.
    max_consecutive_failed_dag_runs=0,
    tags=["lake", "hudi", "table service"],
    default_args={"owner": "lake"},
    doc_md=DOC,
    params=with_draft(
        {
            "key": Param(
                type="string", minLength=1, title="Key", description="Which work it pulls; the manager sets it"
            ),
            "queue": optional("string", title="Queue", description="Queue of the executor"),
        }
    ),
) as dag:
    # The application ends by itself when it is old, and its last items have time-outs of their own.
    @task(task_id="application", execution_timeout=timedelta(seconds=SETTINGS.warm_max_age_s) + timedelta(hours=24))
    def run_application(params: dict[str, str] | None = None, run_id: str | None = None, ti: object = None) -> str:
        """Run the application to its end; return its Spark id."""
        key, try_number = (params or {})["key"], int(getattr(ti, "try_number", 1))
        return run_standing_application(key, str(run_id), try_number, DEFAULT_CONN_ID)

    run_application()
