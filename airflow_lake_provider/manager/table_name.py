"""The name that selects a table's policy: `hoodie.table.name`, never what a notice calls the table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_lake_provider.timeline.properties import load_table_properties

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import RowMapping

    from airflow_lake_provider.policies import TablePolicy
    from airflow_lake_provider.tables_config import TablesConfig
    from airflow_lake_provider.timeline.storage import Storage


def is_identified(row: RowMapping) -> bool:
    """Whether the row's name comes from hoodie.properties; otherwise it is only what a notice announced."""
    return row["identified_ms"] is not None


def policy_of(row: RowMapping, tables: TablesConfig, open_table: Callable[[str], Storage]) -> TablePolicy:
    """Return the policy of a table of the registry, for whatever may delete something or release a hold.

    The manager's evaluation keeps the name in the row. Before the first one the properties are read here; raises what
    reading them raises.
    """
    base_path = row["base_path"]
    name = row["table_name"] if is_identified(row) else load_table_properties(open_table(base_path)).name
    return tables.policy_for(base_path, name)
