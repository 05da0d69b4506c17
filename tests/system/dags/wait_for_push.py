"""A user's DAG whose sensor would poll once an hour: only a push can wake it."""

from __future__ import annotations

from airflow.sdk import DAG, Param

from airflow_lake_provider.sensors.commit import HudiCommitSensor

with DAG(dag_id="wait_for_push", schedule=None, params={"base_path": Param(type="string")}) as dag:
    HudiCommitSensor(
        task_id="wait", base_path="{{ params.base_path }}", poke_interval=3600, timeout=120, deferrable=True
    )
