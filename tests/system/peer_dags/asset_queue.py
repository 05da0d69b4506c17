"""What one would write without the provider: a DAG that is scheduled on an asset, and consumes its events."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Asset
from airflow.sdk import task as airflow_task

COMMITS = Asset(name="lake_commits", uri="x-lake://commits")

with DAG(dag_id="asset_queue", schedule=[COMMITS], catchup=False, max_active_runs=16) as dag:

    @airflow_task(retries=4, retry_delay=timedelta(seconds=3))
    def consume(triggering_asset_events: Any = None) -> None:
        """Note the commits that this run was given."""
        given = [event.extra["commit"] for events in triggering_asset_events.values() for event in events]
        with open(os.environ["LAKE_PEER_JOURNAL"], "a", encoding="utf-8") as stream:
            stream.write("".join(json.dumps(commit) + "\n" for commit in given))

    consume()
