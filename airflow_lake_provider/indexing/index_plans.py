"""Pending index plans as they lie on the timeline. Source: Avro schema `HoodieIndexPlan`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_lake_provider.errors import DamagedFileError
from airflow_lake_provider.timeline.content import decode
from airflow_lake_provider.timeline.instant import Action, State

if TYPE_CHECKING:
    from airflow_lake_provider.timeline.properties import TableProperties
    from airflow_lake_provider.timeline.storage import Storage
    from airflow_lake_provider.timeline.timeline import Timeline


@dataclass(frozen=True, slots=True)
class PendingIndexPlan:
    """A plan that is not completed; `partitions` are folders of the metadata table."""

    instant: str
    is_inflight: bool
    partitions: tuple[str, ...]
    up_to: str = ""


def load_pending_plans(
    storage: Storage, properties: TableProperties, timeline: Timeline
) -> tuple[PendingIndexPlan, ...]:
    """Read the pending plans, oldest first. Raises DamagedFileError, StorageError.

    A plan that goes away while it is read was completed or removed, and is left out.
    """
    plans = []
    for instant in timeline.pending(Action.INDEXING):
        name = f"{instant.requested_time}.{Action.INDEXING}.requested"
        try:
            record = decode(storage.read_bytes(f"{properties.timeline_path}/{name}"), name)
        except FileNotFoundError:
            continue
        infos = (record or {}).get("indexPartitionInfos")
        if not infos:
            raise DamagedFileError(f"{name}: an index plan must name what it builds")
        plans.append(
            PendingIndexPlan(
                instant=instant.requested_time,
                is_inflight=instant.state is State.INFLIGHT,
                partitions=tuple(str(info["metadataPartitionPath"]) for info in infos),
                up_to=str(infos[0].get("indexUptoInstant") or ""),
            )
        )
    return tuple(plans)
