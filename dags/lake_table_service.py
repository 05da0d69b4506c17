"""The instance DAG: one run is one table service of one table."""

from __future__ import annotations

from airflow.sdk import DAG, Param
from airflow.sdk.configuration import conf

from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.config.settings import LakeSettings
from airflow_lake_provider.execution.arguments import growing_pauses, optional, with_draft
from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.notifications.dispatch import notify_failure
from airflow_lake_provider.operators.table_service import HudiTableServiceOperator, set_time_out

POLICY = TablePolicy()

SETTINGS = LakeSettings.from_conf(conf)

# Sections of the form: the fields above them are what a run by hand needs.
OVER = "Instead of the table's settings"
LIMITS = "Slots and time limits"
MANAGER = "For the record"

# What the form shows in place of a value.
SERVICE_WORDS = {
    "compaction": "Compaction: merge log files",
    "logcompaction": "Log compaction: fewer log files",
    "clustering": "Clustering: fewer, larger files",
    "clean": "Clean: remove replaced files",
    "archive": "Archive: shorten the timeline",
    "rollback": "Rollback of failed writes",
    "ttl": "Remove expired partitions or rows",
    "metacompaction": "Compaction of the metadata table",
    "indexing": "Finish a planned index build",
    "savepoint": "Make a savepoint",
    "orphans": "Remove files that no commit knows",
    "sync": "Register the table in the catalog",
    "integrity": "Compare samples of files and keys",
}
MODE_WORDS = {
    "schedule_and_execute": "Execute what is planned, else plan and execute",
    "schedule": "Only plan",
    "execute": "Only execute what is planned",
    "withdraw": "Take a plan away",
    "undo": "Bring quarantined files back",
}

MAX_RUNS_BETWEEN_TRIES = 500
"""Runs that wait for a slot or for their next try. More would only make the scheduler's round over them longer."""

DOC = """
### One table service of one Hudi table

The manager creates a run when a service is due; the run's id is `<table>.<service>.<instant>`, so no state of a table
gets two runs. Start a run by hand with the form: give the table's base path and choose the service. Empty fields take
the table's settings in the tables file: lock provider, retention, Spark's settings, time-out.

* **What it does**: acquires the executor's lease, submits a PySpark job through `spark_default`, and succeeds only when
  a fresh read of the table's timeline shows the instant completed.
* **When it fails**: Airflow retries it with growing pauses. The next try resumes what is left inflight on the timeline.
  Clear the task to retry after the last one.
* **Why it ran**: see `reason` and `evidence` among the run's Params.
"""

with DAG(
    dag_id="lake_table_service",
    description="Runs one table service of one Hudi table",
    schedule=None,
    # A backfill would run for times that mean nothing here, a materialised asset without a table.
    allowed_run_types=["manual", "operator_triggered"],
    catchup=False,
    is_paused_upon_creation=False,
    # A run between two tries has no job: it must hold no slot of `max_active_services`, which the task below limits.
    max_active_runs=SETTINGS.max_active_services + MAX_RUNS_BETWEEN_TRIES,
    # Its runs have nothing to do with each other: a deployment's limit would pause it for all tables.
    max_consecutive_failed_dag_runs=0,
    tags=["lake", "hudi", "table service"],
    default_args={"owner": "lake"},
    doc_md=DOC,
    params=with_draft(
        {
            "base_path": Param(
                type="string",
                minLength=1,
                title="Table",
                description="Its base path, as its page in Lake shows it, such as s3://bucket/shop/orders",
            ),
            "service": Param(
                "compaction",
                type="string",
                enum=[service.value for service in Service],
                values_display=SERVICE_WORDS,
                title="Service",
            ),
            "mode": Param(
                "schedule_and_execute",
                type="string",
                enum=list(MODE_WORDS),
                values_display=MODE_WORDS,
                title="What to do",
                description="A new plan is made only when none is pending",
            ),
            "dry_run": Param(
                default=False,
                type="boolean",
                title="Dry run",
                description="Only show what would be submitted, in the task's log",
            ),
            "instants": Param(
                [],
                type="array",
                items={"type": "string"},
                section=OVER,
                title="Plans",
                description="Instants of the plans to execute, or quarantines to undo, one a line; none: all",
            ),
            "hudi_options": Param(
                {}, type="object", section=OVER, title="Hudi options", description="Over the table's in the tables file"
            ),
            "engine": optional(
                "string", section=OVER, title="Engine", description="What runs the job; empty: the table's"
            ),
            "spark_conn_id": optional(
                "string",
                section=OVER,
                title="Connection",
                description="The table's or [lake] spark_conn_id; empty: the table's",
            ),
            "spark_conf": Param({}, type="object", section=OVER, title="Spark conf", description="Over the table's"),
            "conflict": Param(
                {},
                type="object",
                section=OVER,
                title="Conflicts",
                description="Early conflict detection, over the table's settings",
            ),
            "table_name": optional("string", section=OVER, title="Table name", description="For people"),
            "pool": optional(
                "string", section=LIMITS, title="Pool", description="Airflow pool; empty: default_pool, not the table's"
            ),
            "queue": optional(
                "string",
                section=LIMITS,
                title="Queue",
                description="Queue of the executor; empty: its own, not the table's",
            ),
            "priority_weight": optional(
                "integer",
                minimum=1,
                section=LIMITS,
                title="Priority",
                description="Airflow's priority weight where slots are short, from 1 (mass work) to 6; empty: 1",
            ),
            "timeout_s": optional(
                "number",
                exclusiveMinimum=0,
                section=LIMITS,
                title="Time-out",
                description="Of one try, seconds; empty: the table's",
            ),
            "retries": optional(
                "integer",
                minimum=0,
                section=LIMITS,
                title="Retries",
                description=f"Tries after the first; empty: {POLICY.retries}",
            ),
            "start_within_s": optional(
                "number",
                exclusiveMinimum=0,
                section=LIMITS,
                title="Start within",
                description="A run that has not begun after so many seconds is reported; empty: the table's",
            ),
            "deadline_s": optional(
                "number",
                exclusiveMinimum=0,
                section=LIMITS,
                title="Deadline",
                description="A run that has not ended after so many seconds is ended as failed; empty: the table's",
            ),
            "table_owner": optional("string", section=MANAGER, title="Owner", description="Of the table"),
            "reason": Param(
                "started by hand", type="string", section=MANAGER, title="Reason", description="Shown with the run"
            ),
            "evidence": Param(
                {},
                type="object",
                section=MANAGER,
                title="Evidence",
                description="Of the manager's decision; leave it empty",
            ),
            "asset_events": Param(
                "services",
                type="string",
                enum=["services", "commits", "both"],
                section=MANAGER,
                title="Asset events",
                description="`commits`: the service adds no event to the table's asset",
            ),
        }
    ),
) as dag:
    HudiTableServiceOperator(
        task_id="run_service",
        on_failure_callback=notify_failure,
        base_path="{{ params.base_path }}",
        table_name="{{ params.table_name or '' }}",
        service="{{ params.service }}",
        mode="{{ params.mode }}",
        instants="{{ params.instants | join(',') }}",
        hudi_options="{{ params.hudi_options | tojson }}",
        engine="{{ params.engine or '' }}",
        spark_conn_id="{{ params.spark_conn_id or '' }}",
        spark_conf="{{ params.spark_conf | tojson }}",
        conflict="{{ params.conflict | tojson }}",
        is_dry_run="{{ params.dry_run }}",
        adds_event="{{ params.asset_events != 'commits' }}",
        deferrable=True,
        # plugins/cluster_policy.py sets pool, queue, retries and priority of a run, `set_time_out` the time-out before
        # the job begins.
        max_active_tis_per_dag=SETTINGS.max_active_services,
        retries=POLICY.retries,
        pre_execute=set_time_out,
        **growing_pauses(SETTINGS.retry_delay_s),
    )
