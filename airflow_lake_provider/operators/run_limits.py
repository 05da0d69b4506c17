"""The time-out of one try, as the run's Params say it: a DAG for all tables has no time-out of its own for each."""

from __future__ import annotations

from datetime import timedelta
from typing import Any


def set_time_out(context: Any) -> None:
    """`pre_execute` of the service's task: Airflow ends the try after the run's `timeout_s`, and retries it.

    A run by hand that was given none takes the table's.
    """
    task, given_s = context["ti"].task, context["params"]["timeout_s"]
    timeout_s = float(given_s) if given_s is not None else task.find_timeout_s()
    task.execution_timeout = timedelta(seconds=timeout_s)
