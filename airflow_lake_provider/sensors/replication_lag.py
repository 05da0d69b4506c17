"""Wait until a sink has what its table has."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.hooks.lake import DEFAULT_CONN_ID, LakeHook
from airflow_lake_provider.hooks.metrics import AirflowMetrics
from airflow_lake_provider.hooks.timeline import table_opener
from airflow_lake_provider.metrics import REPLICATION_LAG, REPLICATION_LAG_COMMITS
from airflow_lake_provider.replication.change import CommitRef
from airflow_lake_provider.replication.checkpoint import from_text
from airflow_lake_provider.replication.feed import OPERATIONS_WITHOUT_CHANGES, Lag, Look, lag_of
from airflow_lake_provider.table_id import normalise_base_path, table_id_of
from airflow_lake_provider.timeline.commit_metadata import load_commit_metadata
from airflow_lake_provider.timeline.loader import load_timeline
from airflow_lake_provider.timeline.properties import load_table_properties

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context

    from airflow_lake_provider.timeline.storage import Storage


class HudiReplicationLagSensor(BaseSensorOperator):
    """Succeeds when a sink is no further behind its table than allowed.

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
            sinks = LakeHook(self.lake_conn_id).list_sinks(table_id_of(base_path))
            text = next((sink["checkpoint_text"] for sink in sinks if sink["name"] == self.sink), "")
            storage = table_opener(self.storage_options)(base_path)
            lag, time_zone = load_lag(storage, text)
        except LakeError as error:
            wrapped = AirflowException if error.retriable else AirflowFailException
            raise wrapped(str(error)) from error
        lag_s = age_s(lag.oldest_completed_time, time_zone, time.time()) if lag.commits else 0.0
        AirflowMetrics().gauge(REPLICATION_LAG_COMMITS, lag.commits)
        AirflowMetrics().gauge(REPLICATION_LAG, lag_s)
        self.log.info("table %s, sink %s: %d commits, %.0f s behind", base_path, self.sink, lag.commits, lag_s)
        return lag.commits <= self.max_commits and (self.max_lag_s is None or lag_s <= self.max_lag_s)


def load_lag(storage: Storage, checkpoint_text: str) -> tuple[Lag, str]:
    """Return how far a checkpoint is behind a table, and the table's time zone (`UTC` or `LOCAL`)."""
    checkpoint = from_text(checkpoint_text) if checkpoint_text else None
    properties = load_table_properties(storage)
    completed = []
    for instant in load_timeline(storage, properties).completed_writes_by_completion():
        commit = CommitRef(instant.requested_time, instant.completed_time or instant.requested_time)
        if checkpoint is not None and checkpoint.snapshot is None and checkpoint.has(commit):
            continue
        metadata = load_commit_metadata(storage, properties.timeline_path, instant)
        if metadata.operation not in OPERATIONS_WITHOUT_CHANGES:
            completed.append(commit)
    return lag_of(checkpoint, Look(tuple(completed))), properties.time_zone


def age_s(instant: str, time_zone: str, now_s: float) -> float:
    """Return how many seconds ago an instant time was, in the table's zone."""
    moment = datetime.strptime(instant[:14], "%Y%m%d%H%M%S")  # noqa: DTZ007 - the zone follows
    moment = moment.replace(tzinfo=UTC) if time_zone == "UTC" else moment.astimezone()
    return max(0.0, now_s - moment.timestamp() - int(instant[14:] or 0) / 1000)
