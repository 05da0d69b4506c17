"""Which file groups a pending plan of a table service will rewrite.

Source: Avro schemas `HoodieCompactionPlan`, `HoodieRequestedReplaceMetadata` and `HoodieClusteringPlan` of Hudi.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.errors import DamagedFileError
from airflow_lake_provider.timeline.commit_metadata import parse_compaction_plan
from airflow_lake_provider.timeline.content import decode
from airflow_lake_provider.timeline.instant import Action, Instant, Layout, State

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_lake_provider.timeline.properties import TableProperties
    from airflow_lake_provider.timeline.storage import Storage
    from airflow_lake_provider.timeline.timeline import Timeline


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
