"""The time-out of one try, as the run's Params say it: a DAG for all tables has no time-out of its own for each."""

from __future__ import annotations

from datetime import timedelta
from typing import Any


def set_time_out(context: Any) -> None:
    """`pre_execute` of the service's task: Airflow ends the try after the run's `timeout_s`, and retries it."""
    timeout_s = float(context["params"]["timeout_s"])
    context["ti"].task.execution_timeout = timedelta(seconds=timeout_s)
