"""Which indexes a table should have by policy and has not. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_lake_provider.indexing.index_spec import NEEDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_lake_provider.indexing.index_spec import IndexSpec
    from airflow_lake_provider.timeline.properties import TableProperties


def find_missing(wanted: Sequence[IndexSpec], properties: TableProperties) -> tuple[IndexSpec, ...]:
    """Return the wanted indexes that the properties do not list as complete, in the order of `wanted`.

    Partition statistics do not exist for tables without partitions.
    """
    have = frozenset(properties.metadata_partitions)
    impossible = frozenset() if properties.partition_fields else frozenset({"partition_stats"})
    return tuple(spec for spec in wanted if spec.partition not in have | impossible)


def find_unmet_need(wanted: Sequence[IndexSpec], properties: TableProperties) -> str | None:
    """Say which index is wanted without the one it is built on; None when none is."""
    kinds = {spec.kind for spec in wanted}
    for spec in wanted:
        need = NEEDS.get(spec.kind)
        if need is not None and need not in kinds and need.value not in properties.metadata_partitions:
            return f"{spec.partition} needs {need}, which the table has not; ask for both"
    return None
