"""What a replication run tells Airflow's metrics when it has ended, well or not."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.hooks.timeline import table_opener
from airflow_lake_provider.manager.sink_state import load_sink_state, report_state
from airflow_lake_provider.metrics import (
    REPLICATED_COMMITS,
    REPLICATED_ROWS,
    REPLICATION_BYTES_PER_S,
    REPLICATION_ROWS_PER_S,
)
from airflow_lake_provider.table_id import normalise_base_path, table_id_of

if TYPE_CHECKING:
    from airflow_lake_provider.hooks.lake import LakeHook
    from airflow_lake_provider.metrics import Metrics
    from airflow_lake_provider.replication.job import ReplicationResult

log = logging.getLogger(__name__)


def report_result(metrics: Metrics, result: ReplicationResult) -> None:
    """Count what a run replicated, and how fast."""
    metrics.incr(REPLICATED_COMMITS, result.commits)
    metrics.incr(REPLICATED_ROWS, result.rows)
    if result.rows and result.seconds:
        metrics.gauge(REPLICATION_ROWS_PER_S, result.rows / result.seconds)
        metrics.gauge(REPLICATION_BYTES_PER_S, result.bytes / result.seconds)


def report_sink(metrics: Metrics, hook: LakeHook, base_path: str, name: str) -> None:
    """Set the gauges of lag and hold, as the manager and the timeline have them now. A failure is only logged."""
    try:
        base_path = normalise_base_path(base_path)
        sink = next((sink for sink in hook.list_sinks(table_id_of(base_path)) if sink["name"] == name), None)
        if sink is not None:
            hold = "" if sink["needs_snapshot"] else sink["hold"]
            storage = table_opener(None)(base_path)
            report_state(metrics, load_sink_state(storage, sink["checkpoint_text"], hold, time.time()))
    except (LakeError, OSError) as error:
        # What was replicated stays so, whoever counts it.
        log.warning("sink %s of %s was not measured: %s", name, base_path, error)
