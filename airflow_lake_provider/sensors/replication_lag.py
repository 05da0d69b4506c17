"""Wait until what follows the writers has caught up: a sink has what its table has, or services fit their budgets."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator

from airflow_lake_provider.errors import ConfigError, LakeError, SinkUnknownError
from airflow_lake_provider.execution.rendering import RendersOwnText
from airflow_lake_provider.hooks.lake import DEFAULT_CONN_ID, LakeHook, as_airflow_error
from airflow_lake_provider.hooks.open_tables import AirflowMetrics, policy_of, table_opener
from airflow_lake_provider.hudi.base_path import normalise_base_path, table_id_of
from airflow_lake_provider.manager.writers_and_sinks import hold_of, load_sink_state, report_state
from airflow_lake_provider.planner.ranking import Pressure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context


class HudiReplicationLagSensor(RendersOwnText, BaseSensorOperator):
    """Succeeds when a sink is no further behind its table than allowed; fails immediately without such a sink.

    :param base_path: the table's base path (templated).
    :param sink: the stream's name (templated).
    :param max_commits: how many commits the sink may lack.
    :param max_lag_s: how old the oldest of them may be, in seconds since it completed; None: any age.
    """

    template_fields: Sequence[str] = ("base_path", "sink")

    def __init__(
        self,
        *,
        base_path: str,
        sink: str,
        max_commits: int = 0,
        max_lag_s: float | None = None,
        storage_options: dict[str, Any] | None = None,
        lake_conn_id: str = DEFAULT_CONN_ID,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.base_path = base_path
        self.sink = sink
        self.max_commits = max_commits
        self.max_lag_s = max_lag_s
        self.storage_options = storage_options
        self.lake_conn_id = lake_conn_id

    def poke(self, context: Context) -> bool:
        """Compare the sink's checkpoint with the timeline."""
        base_path = normalise_base_path(self.base_path)
        try:
            sink = self._find_sink(base_path)
            storage = table_opener(self.storage_options)(base_path)
            state = load_sink_state(
                storage, sink["checkpoint_text"], hold_of(sink), time.time(), policy_of(base_path).spark_conf
            )
        except LakeError as error:
            raise as_airflow_error(error) from error
        report_state(AirflowMetrics(), state)
        behind = state.lag.commits
        lag_s = state.lag_s
        self.log.info("table %s, sink %s: %d commits, %.0f s behind", base_path, self.sink, behind, lag_s)
        return behind <= self.max_commits and (self.max_lag_s is None or lag_s <= self.max_lag_s)

    def _find_sink(self, base_path: str) -> dict[str, Any]:
        sinks = {sink["name"]: sink for sink in LakeHook(self.lake_conn_id).list_sinks(table_id_of(base_path))}
        if self.sink not in sinks:
            known = ", ".join(sorted(sinks)) or "none"
            raise SinkUnknownError(f"table {base_path} has no sink {self.sink!r}; its sinks: {known}")
        return sinks[self.sink]


def parse_pressure(text: str) -> Pressure:
    """Return a pressure. Raises ConfigError that names the allowed ones."""
    try:
        return Pressure(text)
    except ValueError as error:
        raise ConfigError(f"pressure {text!r}, allowed: {', '.join(Pressure)}") from error
