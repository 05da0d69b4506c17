"""A task that runs for as long as the benchmark of Airflow's own routes: its heartbeats and XComs are sent for it."""

from __future__ import annotations

import time

from airflow.sdk import DAG
from airflow.sdk import task as airflow_task

with DAG(dag_id="standing_task", schedule=None, is_paused_upon_creation=False) as dag:

    @airflow_task
    def stand() -> None:
        """Run until the benchmark stops the server."""
        time.sleep(3600)

    stand()
