"""Wait for a new completed commit of a Hudi table."""

from __future__ import annotations

from airflow_lake_provider.sensors.timeline_sensor import TimelineSensor
from airflow_lake_provider.view.watch import WatchKind


class HudiCommitSensor(TimelineSensor):
    """Succeeds when a commit completed after `after` (exclusive); empty `after` means any completed commit.

    :param base_path: the table's base path (templated).
    :param after: requested time of an instant on the timeline, or a completed time (templated). Commits are ordered
        by completion, so a slow writer's commit that was requested earlier is not missed. To wait for the next one,
        pass the `after` of the last result.
    :param tables: instead of one table, a list of mappings with `base_path` and `after` (templated).
    :param actions: timeline actions that count; without them `commit`, `deltacommit` and `replacecommit`.
    :param storage_options: how to open the store; the task then reads it itself. Without them the timeline server is
        asked, else `[lake] storage_conn_ids` names the connection.
    :param deferrable: wait in the triggerer instead of a worker.
    """

    kind = WatchKind.COMMIT
