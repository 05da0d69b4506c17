"""The peer of the notice benchmark: an asset whose events come through Airflow's own REST API."""

from __future__ import annotations

from airflow.sdk import DAG, Asset
from airflow.sdk import task as airflow_task

PEER = Asset(name="lake_peer", uri="x-lake://peer")

with DAG(dag_id="asset_peer", schedule=[PEER], catchup=False, is_paused_upon_creation=True) as dag:

    @airflow_task
    def consume() -> None:
        """Do nothing: only the events' acceptance is measured."""

    consume()
