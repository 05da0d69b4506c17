"""The trigger that waits until a sink has caught up with its table."""

from __future__ import annotations

import time
from typing import Any

from airflow_lake_provider.errors import SinkUnknownError
from airflow_lake_provider.hooks.lake import LakeHook
from airflow_lake_provider.hooks.open_tables import AirflowMetrics, policy_of, table_opener
from airflow_lake_provider.hudi.base_path import table_id_of
from airflow_lake_provider.manager.supervision.writers_and_sinks import hold_of, load_sink_state, report_state
from airflow_lake_provider.triggers.polling import PollingTrigger


class ReplicationLagTrigger(PollingTrigger):
    """Fires when a sink is no further behind its table than allowed; its event has `commits` and `lag_s`."""

    def __init__(
        self,
        base_path: str,
        sink: str,
        max_commits: int,
        max_lag_s: float | None,
        poll_interval_s: float,
        storage_options: dict[str, Any],
        lake_conn_id: str,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.base_path = base_path
        self.sink = sink
        self.max_commits = max_commits
        self.max_lag_s = max_lag_s
        self.poll_interval_s = poll_interval_s
        self.storage_options = storage_options
        self.lake_conn_id = lake_conn_id

    def ask(self) -> dict[str, Any] | None:
        """Compare the sink's checkpoint with the timeline, and report the lag as metrics."""
        sink = self._find_sink()
        storage = table_opener(self.storage_options)(self.base_path)
        spark_conf = policy_of(self.base_path).spark_conf
        hold = hold_of(sink["hold"], needs_snapshot=sink["needs_snapshot"])
        state = load_sink_state(storage, sink["checkpoint_text"], hold, time.time(), spark_conf)
        report_state(AirflowMetrics(), state)
        behind = state.lag.commits
        self.log.info("table %s, sink %s: %d commits, %.0f s behind", self.base_path, self.sink, behind, state.lag_s)
        has_caught_up = behind <= self.max_commits and (self.max_lag_s is None or state.lag_s <= self.max_lag_s)
        # Of the rows behind the last one it has none.
        has_caught_up = has_caught_up and state.lag.snapshot_rows is None
        return {"commits": behind, "lag_s": state.lag_s} if has_caught_up else None

    def _find_sink(self) -> dict[str, Any]:
        sinks = {sink["name"]: sink for sink in LakeHook(self.lake_conn_id).list_sinks(table_id_of(self.base_path))}
        if self.sink not in sinks:
            known = ", ".join(sorted(sinks)) or "none"
            raise SinkUnknownError(f"table {self.base_path} has no sink {self.sink!r}; its sinks: {known}")
        return sinks[self.sink]
