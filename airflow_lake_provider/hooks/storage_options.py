"""Storage options out of an Airflow connection."""

from __future__ import annotations

from typing import Any

from airflow.sdk import BaseHook

from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.timeline.connection_options import StoreConnection, options_of


def storage_options_of(conn_id: str) -> dict[str, Any]:
    """Return what `open_storage` needs for the store that a connection describes: `aws`, `hdfs`, `webhdfs` or any type
    with `storage_options` in its extra.

    Raises AirflowNotFoundException when there is no such connection, ConfigError when it cannot be understood.
    """
    connection = BaseHook.get_connection(conn_id)
    extra = connection.extra_dejson
    if not isinstance(extra, dict):
        raise ConfigError(f"connection {conn_id!r}: its extra is no JSON object")
    return options_of(
        StoreConnection(
            conn_id=conn_id,
            conn_type=connection.conn_type or "",
            host=connection.host or "",
            port=connection.port,
            schema=connection.schema or "",
            login=connection.login or "",
            password=connection.password or "",
            extra=extra,
        )
    )
