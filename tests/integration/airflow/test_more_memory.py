"""Airflow's own store of a task's state brings the memory of a try to the task's next one, and to no other task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.integration


def test_next_try_of_a_task_knows_what_the_first_one_had(tmp_path: Path) -> None:
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
    from airflow.sdk import DAG, task

    from airflow_lake_provider.execution.engines.job_files import JobFolder
    from airflow_lake_provider.execution.more_memory import find_shortage, keep_shortage
    from airflow_lake_provider.job_contract import JobResult

    had, seen = {"spark.driver.memory": "3g"}, dict[str, Any]()

    with DAG("tries", schedule=None) as dag:

        @task
        def runs_out(**context: Any) -> None:
            keep_shortage(context, had)  # type: ignore[arg-type]
            # As its next try does, on a worker whose disk has no result of this one.
            seen["next"] = find_shortage(context, JobFolder(str(tmp_path), "run", 2), JobResult)  # type: ignore[arg-type]

        @task
        def is_another(**context: Any) -> None:
            seen["other"] = find_shortage(context, JobFolder(str(tmp_path), "run", 2), JobResult)  # type: ignore[arg-type]

        runs_out() >> is_another()

    bag = DagBag(dag_folder=str(tmp_path))
    bag.bag_dag(dag)
    sync_bag_to_db(bag, "lake", None)
    assert dag.test().state == "success"
    assert seen == {"next": had, "other": None}
