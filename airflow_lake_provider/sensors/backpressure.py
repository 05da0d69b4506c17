"""A sensor that waits while the backlog of table services outgrows its budgets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator

from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.execution.rendering import RendersOwnText
from airflow_lake_provider.hooks.lake import DEFAULT_CONN_ID, LakeHook, as_airflow_error
from airflow_lake_provider.planner.ranking import Pressure, worst
from airflow_lake_provider.sensors.replication_lag import parse_pressure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context


class HudiBackpressureSensor(RendersOwnText, BaseSensorOperator):
    """Succeeds while the table services' backlog fits its budgets: a DAG that writes waits here while it does not.

    Without budgets in the tables file it always succeeds. `mode="reschedule"` frees the worker between two answers.

    :param table: base path, id or name of the table to be written (templated); empty: all budgets count.
    :param allow: up to which pressure the sensor succeeds: `ok`, or `slow`, which stops a writer at `stop` alone.
    """

    template_fields: Sequence[str] = ("table",)

    def __init__(
        self, *, table: str = "", allow: str = Pressure.OK.value, lake_conn_id: str = DEFAULT_CONN_ID, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.table = table
        self.allow = allow
        self.lake_conn_id = lake_conn_id

    def poke(self, context: Context) -> bool:
        """Compare the pressure on the budgets with what is allowed."""
        try:
            allowed = parse_pressure(self.allow)
            found = LakeHook(self.lake_conn_id).find_backpressure(self.table)
            pressure = parse_pressure(str(found.get("pressure")))
        except LakeError as error:
            raise as_airflow_error(error) from error
        self.log.info("the pressure is %s (allowed: %s) %s", pressure, allowed, found.get("text", ""))
        return worst((pressure, allowed)) is allowed
