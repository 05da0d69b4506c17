"""Wait for a pending index build of a Hudi table."""

from __future__ import annotations

from airflow_lake_provider.sensors.timeline_sensor import TimelineSensor
from airflow_lake_provider.view.watch import WatchKind


class HudiPendingIndexSensor(TimelineSensor):
    """Succeeds when the timeline has an `indexing` instant that is requested or inflight, whoever scheduled it.

    :param base_path: the table's base path (templated).
    :param tables: instead of one table, a list of mappings with `base_path` (templated).
    :param storage_options: how to open the store; the task then reads it itself. Without them the timeline server is
        asked, else `[lake] storage_conn_ids` names the connection.
    :param deferrable: wait in the triggerer instead of a worker.
    """

    kind = WatchKind.PENDING_INDEX
