"""A user's DAGs that note the commits of the ranges that they were given: by the manager's events, and by watchers."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Asset, AssetWatcher
from airflow.sdk import task as airflow_task

from airflow_lake_provider.hooks.commit_ranges import find_ranges
from airflow_lake_provider.triggers.commits import HudiCommitTrigger

LAKE = Path(os.environ.get("LAKE_EVENTS_ROOT", "/lake"))
JOURNAL = os.environ.get("LAKE_EVENTS_JOURNAL", "/tmp/journal")


def instants_between(base_path: str, after: str, until: str) -> list[str]:
    """Return what completed in a range, by the names of the timeline's files alone."""
    names = os.listdir(f"{base_path}/.hoodie/timeline")
    times = [name.partition(".")[0].split("_") for name in names if name.endswith(".deltacommit")]
    return [requested for requested, completed in times if after < completed <= until]


def add_dag(dag_id: str, asset: Asset) -> None:
    """Add a DAG that begins with the asset's events; some of its runs are active at the same time."""
    with DAG(dag_id=dag_id, schedule=[asset], catchup=False, max_active_runs=2) as dag:

        @airflow_task(retries=8, retry_delay=timedelta(seconds=2))
        def note(run_id: Any = None, triggering_asset_events: Any = None) -> None:
            lines = [
                {"dag": dag_id, "run": run_id, "instants": instants_between(r.base_path, r.after, r.until)}
                | {"after": r.after, "until": r.until, "complete_until": r.complete_until}
                for r in find_ranges(triggering_asset_events.get(asset, ()))
            ]
            with open(JOURNAL, "a", encoding="utf-8") as stream:
                stream.write("".join(json.dumps(line) + "\n" for line in lines))

        note()
    globals()[dag_id] = dag


for number in range(2):
    add_dag(f"by_manager_{number}", Asset(f"file://{LAKE}/t{number}"))
    trigger = HudiCommitTrigger(str(LAKE / f"t{number}"), poll_interval_s=2.0)
    add_dag(
        f"by_watcher_{number}", Asset(f"watched-{number}", watchers=[AssetWatcher(name="commits", trigger=trigger)])
    )
