"""Read what the instances of one table follow from: its row, its runs, its plans on the timeline."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.manager.instances import Plans, instances_of

if TYPE_CHECKING:
    from airflow_lake_provider.manager.deadlines import InstanceDoor
    from airflow_lake_provider.manager.instances import Instance
    from airflow_lake_provider.manager.registry import Registry
    from airflow_lake_provider.view.view_cache import TableViewCache

log = logging.getLogger(__name__)


def load_instances(
    registry: Registry, door: InstanceDoor, views: TableViewCache, table_id: str, most_ended: int
) -> tuple[Instance, ...]:
    """Return a table's instances. Raises TableUnknownError; a table that cannot be read has instances all the same."""
    row = registry.get(table_id)
    with registry.transaction() as session:
        runs = door.list_runs(session, f"{table_id}.", most_ended)
    return instances_of(row, runs, _load_plans(views, row["base_path"]), most_ended)


def _load_plans(views: TableViewCache, base_path: str) -> Plans:
    try:
        timeline = views.refresh(base_path).timeline
    except LakeError as error:
        log.warning("the instances of %s are told without its timeline: %s", base_path, error)
        return Plans()
    return Plans(
        frozenset(instant.requested_time for instant in timeline.pending()),
        frozenset(instant.requested_time for instant in timeline.completed()),
    )
