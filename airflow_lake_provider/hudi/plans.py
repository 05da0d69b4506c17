"""Which file groups a pending plan of a table service will rewrite.

Source: Avro schemas `HoodieCompactionPlan`, `HoodieRequestedReplaceMetadata` and `HoodieClusteringPlan` of Hudi.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.errors import DamagedFileError
from airflow_lake_provider.hudi.commit_metadata import decode, parse_compaction_plan
from airflow_lake_provider.hudi.instant import Action, Instant, Layout, State

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_lake_provider.hudi.properties import TableProperties
    from airflow_lake_provider.hudi.timeline import Timeline
    from airflow_lake_provider.storage.table_storage import Storage


@dataclass(frozen=True, slots=True)
class ServicePlan:
    """A plan's file groups (partition, file id). `is_clustering` tells it from a writer's `replacecommit`."""

    file_groups: tuple[tuple[str, str], ...]
    is_clustering: bool = False


def load_service_plan(storage: Storage, properties: TableProperties, instant: Instant) -> ServicePlan | None:
    """Return the plan of a pending compaction, log compaction, clustering or replacecommit; None of any other.

    A `replacecommit` that plans no clustering has no file groups. Raises FileNotFoundError, StorageError,
    DamagedFileError.
    """
    if instant.action not in {Action.COMPACTION, Action.LOGCOMPACTION, Action.CLUSTERING, Action.REPLACECOMMIT}:
        return None
    # In layout 1 a clustering's files have the action of an insert overwrite (see `tell_clusterings`).
    is_v1_clustering = properties.layout is Layout.V1 and instant.action is Action.CLUSTERING
    action = Action.REPLACECOMMIT if is_v1_clustering else instant.action
    requested = Instant(instant.requested_time, action, State.REQUESTED, None, "")
    name = properties.layout.file_name(requested)
    record = decode(storage.read_bytes(f"{properties.timeline_path}/{name}"), name)
    if instant.action in {Action.COMPACTION, Action.LOGCOMPACTION}:
        return ServicePlan(parse_compaction_plan(record, name).file_groups)
    return parse_clustering_plan(record, name)


def parse_clustering_plan(record: Mapping[str, Any] | None, file_name: str) -> ServicePlan:
    """Build the plan of a requested clustering or replacecommit; no record, no plan. Raises DamagedFileError."""
    plan = (record or {}).get("clusteringPlan")
    if plan is None:
        return ServicePlan(())
    try:
        slices = [part for group in plan["inputGroups"] or () for part in group["slices"] or ()]
        groups = tuple((str(part["partitionPath"] or ""), str(part["fileId"])) for part in slices)
    except (AttributeError, TypeError, KeyError) as error:
        raise DamagedFileError(f"{file_name}: not a clustering plan: {error}") from error
    return ServicePlan(groups, is_clustering=True)


def tell_clusterings(storage: Storage, properties: TableProperties, timeline: Timeline) -> Timeline:
    """Return the timeline with every pending clustering under that action.

    In layout 1 a plan has the action of an insert overwrite, and only its file tells them apart: it is read. What is
    damaged or vanishes meanwhile keeps its action. Raises StorageError.
    """
    if properties.layout is not Layout.V1 or not timeline.pending(Action.REPLACECOMMIT):
        return timeline
    pending = frozenset(timeline.pending(Action.REPLACECOMMIT))
    told = (_told(storage, properties, i) if i in pending else i for i in timeline.instants)
    return replace(timeline, instants=tuple(told))


def _told(storage: Storage, properties: TableProperties, instant: Instant) -> Instant:
    try:
        plan = load_service_plan(storage, properties, instant)
    except (FileNotFoundError, DamagedFileError):
        return instant
    is_clustering = plan is not None and plan.is_clustering
    return replace(instant, action=Action.CLUSTERING) if is_clustering else instant


# --- Pending index plans as they lie on the timeline. Source: Avro schema `HoodieIndexPlan`


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
