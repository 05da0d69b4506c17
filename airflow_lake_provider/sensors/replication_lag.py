"""A sensor that waits until a sink has what its table has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_lake_provider.hooks.lake import DEFAULT_CONN_ID
from airflow_lake_provider.hudi.base_path import normalise_base_path
from airflow_lake_provider.sensors.deferrable import PollingSensor
from airflow_lake_provider.triggers.replication_lag import ReplicationLagTrigger

if TYPE_CHECKING:
    from collections.abc import Sequence


class HudiReplicationLagSensor(PollingSensor):
    """Succeeds when a sink is no further behind its table than allowed; fails immediately without such a sink.

    :param base_path: the table's base path (templated).
    :param sink: the stream's name (templated).
    :param max_commits: how many commits the sink may lack.
    :param max_lag_s: how old the oldest of them may be, in seconds since it completed; None: any age.
    :param storage_options: how to open the store; without them the connection in `[lake] storage_conn_ids`.
    :param lake_conn_id: the connection to the manager.
    :param deferrable: wait in the triggerer instead of a worker.
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

    def build_trigger(self) -> ReplicationLagTrigger:
        """Return the trigger that compares the sink with its table."""
        return ReplicationLagTrigger(
            base_path=normalise_base_path(self.base_path),
            sink=self.sink,
            max_commits=self.max_commits,
            max_lag_s=self.max_lag_s,
            poll_interval_s=float(self.poke_interval),
            storage_options=dict(self.storage_options or {}),
            lake_conn_id=self.lake_conn_id,
        )
