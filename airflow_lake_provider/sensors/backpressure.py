"""A sensor that waits while the backlog of table services outgrows its budgets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_lake_provider.hooks.lake import DEFAULT_CONN_ID
from airflow_lake_provider.planner.ranking import Pressure
from airflow_lake_provider.sensors.deferrable import PollingSensor
from airflow_lake_provider.triggers.backpressure import BackpressureTrigger

if TYPE_CHECKING:
    from collections.abc import Sequence


class HudiBackpressureSensor(PollingSensor):
    """Succeeds while the table services' backlog fits its budgets: a DAG that writes waits here while it does not.

    Without budgets in the tables file it always succeeds. `mode="reschedule"` frees the worker between two answers, and
    `deferrable` for good.

    :param table: base path, id or name of the table to be written (templated); empty: all budgets count.
    :param allow: up to which pressure the sensor succeeds: `ok`, or `slow`, which stops a writer at `stop` alone.
    :param lake_conn_id: the connection to the manager.
    :param deferrable: wait in the triggerer instead of a worker.
    """

    template_fields: Sequence[str] = ("table",)

    def __init__(
        self, *, table: str = "", allow: str = Pressure.OK.value, lake_conn_id: str = DEFAULT_CONN_ID, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.table = table
        self.allow = allow
        self.lake_conn_id = lake_conn_id

    def build_trigger(self) -> BackpressureTrigger:
        """Return the trigger that asks the manager."""
        return BackpressureTrigger(
            table=self.table,
            allow=self.allow,
            poll_interval_s=float(self.poke_interval),
            lake_conn_id=self.lake_conn_id,
        )
