"""Whether readers may use an index now. Pure.

The truth is the table's properties: Hudi's readers ask nothing else, and index instants need not be on the active
timeline for it, so the answer is the same after they were archived. One thing overrides it: Hudi lists an index as
complete as soon as its files are written, before its build has been checked. As long as a build that names the
index is in flight, it is not declared ready.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_lake_provider.indexing.index_plans import PendingIndexPlan
    from airflow_lake_provider.timeline.properties import TableProperties


@dataclass(frozen=True, slots=True)
class Readiness:
    """The answer for one index, with the reason in words."""

    partition: str
    is_ready: bool
    reason: str


def readiness_of(partition: str, properties: TableProperties, plans: Sequence[PendingIndexPlan]) -> Readiness:
    """Say whether readers may use an index, named by its folder in the metadata table."""
    building = next((plan for plan in plans if plan.is_inflight and partition in plan.partitions), None)
    if building is not None:
        return Readiness(partition, False, f"its build {building.instant} is not completed")  # noqa: FBT003
    if partition in properties.metadata_partitions_inflight:
        return Readiness(partition, False, "the table's properties list it as being built")  # noqa: FBT003
    if partition in properties.metadata_partitions:
        return Readiness(partition, True, "the table's properties list it as complete, and no build of it is in flight")  # noqa: FBT003
    planned = next((plan for plan in plans if partition in plan.partitions), None)
    if planned is not None:
        return Readiness(partition, False, f"it is planned ({planned.instant}) and not built")  # noqa: FBT003
    return Readiness(partition, False, "the table does not have it")  # noqa: FBT003
