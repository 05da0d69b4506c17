"""The trigger that waits until the backlog of table services fits its budgets."""

from __future__ import annotations

from typing import Any

from airflow_lake_provider.hooks.lake import LakeHook
from airflow_lake_provider.planner.ranking import parse_pressure, worst
from airflow_lake_provider.triggers.polling import PollingTrigger


class BackpressureTrigger(PollingTrigger):
    """Fires when the pressure on a table's budgets, or on all, is at most `allow`; its event has the `pressure`."""

    def __init__(self, table: str, allow: str, poll_interval_s: float, lake_conn_id: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.table = table
        self.allow = allow
        self.poll_interval_s = poll_interval_s
        self.lake_conn_id = lake_conn_id

    def ask(self) -> dict[str, Any] | None:
        """Compare the pressure with what is allowed."""
        allowed = parse_pressure(self.allow)
        found = LakeHook(self.lake_conn_id).find_backpressure(self.table)
        pressure = parse_pressure(str(found.get("pressure")))
        self.log.info("the pressure is %s (allowed: %s) %s", pressure, allowed, found.get("text", ""))
        return {"pressure": pressure.value} if worst((pressure, allowed)) is allowed else None
