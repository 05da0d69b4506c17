"""A table's indexes at one moment, read from storage: what is complete, planned, half built, and what is in the way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_lake_provider.hudi.heartbeat import load_heartbeats
from airflow_lake_provider.hudi.plans import PendingIndexPlan, load_pending_plans
from airflow_lake_provider.hudi.properties import load_table_properties
from airflow_lake_provider.hudi.timeline import load_timeline
from airflow_lake_provider.indexing.holes import DEFAULT_RULE, Holes, find_holes
from airflow_lake_provider.indexing.index_spec import parse_index

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_lake_provider.hudi.heartbeat import HeartbeatRule
    from airflow_lake_provider.hudi.properties import TableProperties
    from airflow_lake_provider.hudi.timeline import Timeline
    from airflow_lake_provider.storage.table_storage import Storage

# --- Whether readers may use an index now. Pure
#
# The truth is the table's properties: Hudi's readers ask nothing else, and index instants need not be on the active
# timeline for it, so the answer is the same after they were archived. One thing overrides it: Hudi lists an index as
# complete as soon as its files are written, before its build has been checked. As long as a build that names the
# index is in flight, it is not declared ready.


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


@dataclass(frozen=True, slots=True)
class TableIndexes:
    """Properties, pending plans, and holes of one table."""

    properties: TableProperties
    plans: tuple[PendingIndexPlan, ...]
    holes: Holes

    def readiness(self) -> tuple[Readiness, ...]:
        """Return the readiness of every index that the table has, builds or plans, by name."""
        named = {*self.properties.metadata_partitions, *self.properties.metadata_partitions_inflight}
        named |= {partition for plan in self.plans for partition in plan.partitions}
        return tuple(readiness_of(partition, self.properties, self.plans) for partition in sorted(named))


def load_table_indexes(storage: Storage, now_ms: int, rule: HeartbeatRule = DEFAULT_RULE) -> TableIndexes:
    """Read a table's indexes. `now_ms` is by the store's clock, `rule` that of the table's Hudi settings.

    Raises what reading properties and timeline raises.
    """
    heartbeats = load_heartbeats(storage)
    properties = load_table_properties(storage)
    timeline = load_timeline(storage, properties)
    plans = load_pending_plans(storage, properties, timeline)
    touched_ms = _touched_ms(storage, properties, timeline)
    return TableIndexes(properties, plans, find_holes(timeline, touched_ms, heartbeats, now_ms, rule))


def load_holes(storage: Storage, now_ms: int, rule: HeartbeatRule = DEFAULT_RULE) -> Holes:
    """Read what is in the way of the last completed write. `now_ms` is by the store's clock, `rule` the table's.

    Raises what reading properties and timeline raises.
    """
    heartbeats = load_heartbeats(storage)
    properties = load_table_properties(storage)
    timeline = load_timeline(storage, properties)
    return find_holes(timeline, _touched_ms(storage, properties, timeline), heartbeats, now_ms, rule)


def load_readiness(storage: Storage, index: str) -> Readiness:
    """Answer "may readers use this index now"; `index` is written as in the tables file. Raises ConfigError.

    The plans are read before the properties: a build that completes in between is not taken for one that is not there.
    """
    timeline = load_timeline(storage, load_table_properties(storage))
    plans = load_pending_plans(storage, load_table_properties(storage), timeline)
    return readiness_of(parse_index(index).partition, load_table_properties(storage), plans)


def _touched_ms(storage: Storage, properties: TableProperties, timeline: Timeline) -> dict[str, int]:
    entries = {
        instant.requested_time: storage.stat(f"{properties.timeline_path}/{instant.file_name}")
        for instant in timeline.pending()
    }
    return {requested_time: entry.modified_ms for requested_time, entry in entries.items() if entry is not None}
