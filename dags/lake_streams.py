"""One driver for many streams of replication: one run is one driver, which serves the sinks that are due."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG
from airflow.sdk.configuration import conf

from airflow_lake_provider.config.settings import LakeSettings
from airflow_lake_provider.operators.replication import HudiStreamsOperator

SETTINGS = LakeSettings.from_conf(conf)

DOC = """
### Many streams in one driver

With `[lake] streams_at_once` above 0 each minute a run asks the manager whether a sink is due. If so it starts one
Spark driver, which asks every second from then on, and brings that many sinks up to date side by side: those first that
have lacked something for the longest. It ends when nothing was due for `[lake] warm_idle_s`, and takes no more work
after `[lake] warm_max_age_s`; the next run goes on.

* **What fails** in one stream is that sink's problem: it is retried with growing pauses, and the others go on.
* **When the driver dies**, the streams that were running are retried from their sinks' checkpoints.
* `lake_replication` has the actions by hand, and the sinks of tables that have Spark settings of their own.
"""

with DAG(
    dag_id="lake_streams",
    description="Replicates many tables' changes to their sinks, in one Spark driver",
    schedule=timedelta(minutes=1),
    # A backfill would run for times that mean nothing here.
    allowed_run_types=["scheduled", "manual"],
    catchup=False,
    # One driver; a run of the next minute waits for its end.
    max_active_runs=1,
    # It is off until a user enables it, as replication is.
    is_paused_upon_creation=True,
    # Its runs have nothing to do with each other: a deployment's limit would pause it for all tables.
    max_consecutive_failed_dag_runs=0,
    tags=["lake", "hudi", "replication"],
    default_args={"owner": "lake"},
    doc_md=DOC,
) as dag:
    HudiStreamsOperator(
        task_id="streams",
        at_once=max(1, SETTINGS.streams_at_once),
        idle_s=SETTINGS.warm_idle_s,
        max_age_s=SETTINGS.warm_max_age_s,
        retries=2,
        retry_delay=timedelta(seconds=SETTINGS.retry_delay_s),
        # The driver ends by itself when it is old; its last streams end before.
        execution_timeout=timedelta(seconds=SETTINGS.warm_max_age_s) + timedelta(hours=24),
    )
