"""A table's indexes at one moment, read from storage: what is complete, planned, half built, and what is in the way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_lake_provider.indexing.holes import DEFAULT_RULE, Holes, find_holes
from airflow_lake_provider.indexing.index_plans import PendingIndexPlan, load_pending_plans
from airflow_lake_provider.indexing.index_spec import parse_index
from airflow_lake_provider.indexing.readiness import Readiness, readiness_of
from airflow_lake_provider.timeline.heartbeat import load_heartbeats
from airflow_lake_provider.timeline.loader import load_timeline
from airflow_lake_provider.timeline.properties import load_table_properties

if TYPE_CHECKING:
    from airflow_lake_provider.timeline.heartbeat import HeartbeatRule
    from airflow_lake_provider.timeline.properties import TableProperties
    from airflow_lake_provider.timeline.storage import Storage
    from airflow_lake_provider.timeline.timeline import Timeline


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
