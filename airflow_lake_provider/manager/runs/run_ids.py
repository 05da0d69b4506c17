"""The ids of runs that the manager creates: made and read here alone.

`orders.compaction.20261127192831123.e06a61924cc927c0`: Airflow's lists cut an id behind some twenty characters, so the
name for people, the service and the instant come first, and what makes the table unique last. An id is derived from
table, service and instant alone, so that Airflow's own unique key refuses a second run (G2).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_lake_provider.job_contract import Service

_RUN_ID = re.compile(
    r"(?P<name>[A-Za-z0-9_-]+)\.(?P<service>[a-z]+)\.(?P<instant>[0-9]+)"
    r"(\.r(?P<attempt>[2-9]|[1-9][0-9]+))?\.(?P<digest>[A-Za-z0-9]+)"
)
"""Only as `ManagerRun.run_id` writes it: a user may give a run any id."""


@dataclass(frozen=True, slots=True)
class ManagerRun:
    """What the id of a run says: the n-th run of a table's service for an instant, n from 1."""

    table_id: str
    service: str
    instant: str
    attempt: int = 1

    @property
    def run_id(self) -> str:
        """The id, within Airflow's pattern and 250 characters."""
        name, _, digest = self.table_id.rpartition("-")  # as `table_id_of` joins them
        attempt = "" if self.attempt == 1 else f".r{self.attempt}"
        return f"{name}.{self.service}.{self.instant}{attempt}.{digest}"


def run_id_of(table_id: str, service: Service, instant: str, attempt: int = 1) -> str:
    """Return the id of the n-th run of a service for an instant."""
    return ManagerRun(table_id, service.value, instant, attempt).run_id


def parse_run_id(run_id: str) -> ManagerRun | None:
    """Return what an id of the manager says; None for others (a run started by hand)."""
    found = _RUN_ID.fullmatch(run_id)
    if found is None:
        return None
    table_id = f"{found['name']}-{found['digest']}"
    return ManagerRun(table_id, found["service"], found["instant"], int(found["attempt"] or 1))


def is_manager_run(run_id: str) -> bool:
    """Whether the manager created the run, so that its conf holds the table's whole policy of that time."""
    return parse_run_id(run_id) is not None


def is_run_of(run_id: str, table_id: str, *services: Service) -> bool:
    """Whether the manager created the run for a table, and for one of these services; without services for any."""
    found = parse_run_id(run_id)
    return found is not None and found.table_id == table_id and (not services or found.service in services)
