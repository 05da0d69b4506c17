"""Which indexes a table should have by policy and has not. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_lake_provider.indexing.index_spec import NEEDS
from airflow_lake_provider.timeline.instant import Layout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_lake_provider.indexing.index_spec import IndexSpec
    from airflow_lake_provider.timeline.properties import TableProperties
    from airflow_lake_provider.timeline.timeline import Timeline


def find_missing(wanted: Sequence[IndexSpec], properties: TableProperties) -> tuple[IndexSpec, ...]:
    """Return the wanted indexes that the properties do not list as complete, in the order of `wanted`.

    Partition statistics do not exist for tables without partitions.
    """
    have = frozenset(properties.metadata_partitions)
    impossible = frozenset() if properties.partition_fields else frozenset({"partition_stats"})
    return tuple(spec for spec in wanted if spec.partition not in have | impossible)


def find_buildable(
    wanted: Sequence[IndexSpec], properties: TableProperties, timeline: Timeline
) -> tuple[IndexSpec, ...]:
    """Return the missing indexes that Hudi would plan now: from table version 8 on, and not before a first write."""
    if properties.layout is Layout.V1 or timeline.latest_write_without_holes() is None:
        return ()
    return find_missing(wanted, properties)


def find_unmet_need(wanted: Sequence[IndexSpec], properties: TableProperties) -> str | None:
    """Say which index is wanted without the one it is built on; None when none is."""
    kinds = {spec.kind for spec in wanted}
    for spec in wanted:
        need = NEEDS.get(spec.kind)
        if need is not None and need not in kinds and need.value not in properties.metadata_partitions:
            return f"{spec.partition} needs {need}, which the table has not; ask for both"
    return None
