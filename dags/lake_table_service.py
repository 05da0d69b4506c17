"""The instance DAG: one run is one table service of one table."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param
from airflow.sdk.configuration import conf

from airflow_lake_provider.notifications.dispatch import notify_failure
from airflow_lake_provider.operators.table_service import HudiTableServiceOperator

DOC = """
### One table service of one Hudi table

The manager creates a run when a service is due; the run's id is `<table>.<service>.<instant>`, so no state of a table
gets two runs. Start a run by hand with the form: choose the table's base path and the service.

* **What it does**: takes the executor's lease, submits a PySpark job through `spark_default`, and succeeds only when a
  fresh look at the table's timeline shows the instant completed.
* **When it fails**: it is retried with growing pauses. What was left inflight on the timeline is taken up by the next
  try. Clear the task to try again after the last one.
* **Why it ran**: see `reason` and `evidence` among the run's Params.
"""

with DAG(
    dag_id="lake_table_service",
    description="Runs one table service of one Hudi table",
    schedule=None,
    catchup=False,
    max_active_runs=conf.getint("lake", "max_active_services", fallback=16),
    tags=["lake", "hudi", "table service"],
    doc_md=DOC,
    params={
        "base_path": Param(type="string", minLength=1, title="Base path", description="The table's base path"),
        "table_name": Param("", type="string", title="Table name", description="For people; may stay empty"),
        "service": Param(
            "compaction", type="string", enum=["compaction", "clustering", "clean", "archive"], title="Service"
        ),
        "mode": Param(
            "schedule_and_execute",
            type="string",
            enum=["schedule_and_execute", "schedule", "execute"],
            title="Mode",
            description="Pending plans are executed first; a new one is made only when none is pending",
        ),
        "instants": Param(
            [],
            type="array",
            items={"type": "string"},
            title="Plans",
            description="Instants to execute; none = all",
        ),
        "hudi_options": Param(
            {}, type="object", title="Hudi options", description="Must hold the writers' lock provider"
        ),
        "spark_conf": Param({}, type="object", title="Spark conf"),
        "dry_run": Param(default=False, type="boolean", title="Dry run", description="Show what would be submitted"),
        "reason": Param("started by hand", type="string", title="Reason"),
        "evidence": Param({}, type="object", title="Evidence"),
    },
) as dag:
    HudiTableServiceOperator(
        task_id="run_service",
        on_failure_callback=notify_failure,
        base_path="{{ params.base_path }}",
        table_name="{{ params.table_name }}",
        service="{{ params.service }}",
        mode="{{ params.mode }}",
        instants="{{ params.instants | join(',') }}",
        hudi_options="{{ params.hudi_options | tojson }}",
        spark_conf="{{ params.spark_conf | tojson }}",
        is_dry_run="{{ params.dry_run }}",
        retries=4,
        retry_delay=timedelta(seconds=conf.getint("lake", "retry_delay_s", fallback=30)),
        retry_exponential_backoff=2.0,
        max_retry_delay=timedelta(minutes=30),
        execution_timeout=timedelta(hours=12),
    )
