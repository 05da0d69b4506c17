"""A user's DAG that waits for a commit without holding a worker."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param

from airflow_lake_provider.sensors.commit import HudiCommitSensor

with DAG(dag_id="wait_for_commit", schedule=None, params={"base_path": Param(type="string")}) as dag:
    HudiCommitSensor(
        task_id="wait",
        base_path="{{ params.base_path }}",
        poke_interval=0.5,
        timeout=120,
        deferrable=True,
        # Airflow 3.3 fails a task whose trigger fires before the scheduler has heard of its deferral.
        retries=1,
        retry_delay=timedelta(seconds=1),
    )
