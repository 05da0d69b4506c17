"""A sink's settings from an Airflow connection, so that passwords stand in no file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_lake_provider.errors import ConfigError

if TYPE_CHECKING:
    from airflow.sdk import Connection


def options_with_connection(sink: str, options: dict[str, str]) -> dict[str, str]:
    """Return the options with `conn_id` replaced by what its connection says; what is set beside it wins.

    Raises ConfigError when there is no such connection.
    """
    options = dict(options)
    conn_id = options.pop("conn_id", "")
    if not conn_id:
        return options
    try:
        connection = BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as error:
        raise ConfigError(f"sink {sink}: there is no connection {conn_id!r}") from error
    return {**connection_options(sink, connection), **options}


def connection_options(sink: str, connection: Connection) -> dict[str, str]:
    """Return a connection as a sink's options: its URL for `database`, the client's settings for `kafka`."""
    extra = {str(key): str(value) for key, value in connection.extra_dejson.items()}
    if sink == "database":
        return {"url": connection.get_uri().replace("postgres://", "postgresql://", 1)}
    if sink == "kafka":
        servers = extra.pop("bootstrap.servers", "")
        client = {f"kafka.{key}": value for key, value in extra.items()}
        return client | ({"bootstrap_servers": servers} if servers else {})
    return extra
