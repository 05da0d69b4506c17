"""Settings and writes of a table that has indexes."""

from __future__ import annotations

from airflow_lake_provider.hudi.instant import Instant
from airflow_lake_provider.hudi.properties import TableProperties, build_table_properties
from airflow_lake_provider.shared.actions import Action, State

LOCK = {"hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider"}


def write(number: int, *, done: bool, action: Action = Action.DELTACOMMIT) -> Instant:
    time = f"2026112110{number:02}00000"
    state = State.COMPLETED if done else State.INFLIGHT
    return Instant(time, action, state, f"2026112110{number:02}30000" if done else None, f"{time}.x")


def properties(partitions: str = "files", inflight: str = "", fields: str = "city") -> TableProperties:
    values = {
        "hoodie.table.name": "orders",
        "hoodie.table.version": "9",
        "hoodie.table.partition.fields": fields,
        "hoodie.table.metadata.partitions": partitions,
        "hoodie.table.metadata.partitions.inflight": inflight,
    }
    return build_table_properties(values, "/lake/orders")
