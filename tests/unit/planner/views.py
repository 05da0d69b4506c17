"""Hand-made table views for the planner's tests."""

from __future__ import annotations

from types import MappingProxyType

from airflow_lake_provider.hudi.commit_metadata import CommitMetadata, WriteStat
from airflow_lake_provider.hudi.instant import Instant, Layout
from airflow_lake_provider.hudi.properties import TableProperties
from airflow_lake_provider.hudi.timeline import Timeline
from airflow_lake_provider.planner.table_view import TableView
from airflow_lake_provider.shared.actions import Action, State

NOON_MS = 1_795_262_400_000
NOW_MS = NOON_MS + 60_000
"""After every instant of these tests: they are less than a minute after noon."""


def at(second: int) -> str:
    """Return an instant time that many seconds after noon."""
    return f"202611211200{second:02d}000"


def completed(second: int, action: Action = Action.DELTACOMMIT, took_s: int = 1) -> Instant:
    name = f"{at(second)}_{at(second + took_s)}.{action.value}"
    return Instant(at(second), action, State.COMPLETED, at(second + took_s), name)


def pending(second: int, action: Action, state: State = State.REQUESTED) -> Instant:
    return Instant(at(second), action, state, None, f"{at(second)}.{action.value}.{state.value.lower()}")


def log(file_id: str, size_bytes: int, partition: str = "p") -> WriteStat:
    return WriteStat(partition, file_id, f"{partition}/.{file_id}_0.log.1_0-1-0", size_bytes, size_bytes)


def base(file_id: str, size_bytes: int, partition: str = "p", *, is_new: bool = False) -> WriteStat:
    path = f"{partition}/{file_id}_0-1-0_0.parquet"
    return WriteStat(partition, file_id, path, size_bytes, size_bytes, is_new_group=is_new)


def commit(*stats: WriteStat, operation: str = "UPSERT", replaced: tuple[tuple[str, str], ...] = ()) -> CommitMetadata:
    return CommitMetadata(operation, stats, replaced)


def view(
    *writes: tuple[Instant, CommitMetadata],
    plans: tuple[Instant, ...] = (),
    table_type: str = "MERGE_ON_READ",
    metadata_partitions: tuple[str, ...] = (),
) -> TableView:
    instants = sorted([*(instant for instant, _ in writes), *plans], key=lambda instant: instant.sort_key)
    properties = TableProperties(
        name="orders",
        database="",
        table_type=table_type,
        version=9,
        layout=Layout.V2,
        time_zone="UTC",
        timeline_path=".hoodie/timeline",
        history_path=".hoodie/timeline/history",
        record_key_fields=("id",),
        partition_fields=("p",),
        metadata_partitions=metadata_partitions,
        metadata_partitions_inflight=(),
        raw=MappingProxyType({}),
    )
    commits = {instant.requested_time: metadata for instant, metadata in writes}
    return TableView("/lake/orders", properties, Timeline(tuple(instants)), MappingProxyType(commits), "v1")
