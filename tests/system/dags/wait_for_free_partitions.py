"""A user's DAG that waits, without holding a worker, until no writer stands in the way of a write."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param

from airflow_lake_provider.sensors.conflict import HudiConflictSensor

with DAG(dag_id="wait_for_free_partitions", schedule=None, params={"base_path": Param(type="string")}) as dag:
    HudiConflictSensor(
        task_id="wait",
        base_path="{{ params.base_path }}",
        partitions=["Aachen"],
        poke_interval=0.5,
        timeout=600,
        deferrable=True,
        # Airflow 3.3 fails a task whose trigger fires before the scheduler has heard of its deferral.
        retries=1,
        retry_delay=timedelta(seconds=1),
    )
