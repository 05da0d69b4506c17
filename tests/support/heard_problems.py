"""A notifier that keeps the problems of the doctor."""

from __future__ import annotations

from collections.abc import Callable

from airflow_lake_provider.manager.health.health import FoundBy
from airflow_lake_provider.manager.health.table_problems import TableProblem
from airflow_lake_provider.manager.supervision.notifications import NoNotifier


class Heard(NoNotifier):
    def __init__(self) -> None:
        self.problems: list[TableProblem] = []

    def problem(self, problem: TableProblem, on_notified: Callable[[], None]) -> None:
        if problem.source is FoundBy.DOCTOR:
            self.problems.append(problem)
        on_notified()
