"""Storage options from an Airflow connection. Pure: a connection's fields go in by name.

`storage_options` in the extra is added last, for every type, and wins: it holds what has no field of its own.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

EXTRA_KEY = "storage_options"

# Fields of the Amazon provider's connection, and their names here.
_AWS_EXTRA = MappingProxyType(
    {
        "aws_access_key_id": "access_key",
        "aws_secret_access_key": "secret_key",
        "aws_session_token": "session_token",
        "region_name": "region",
        "role_arn": "role_arn",
        "external_id": "external_id",
    }
)
_KERBEROS_EXTRA = MappingProxyType(
    {"principal": "kerberos_principal", "keytab": "kerberos_keytab", "ticket_cache": "kerberos_cache"}
)


@dataclass(frozen=True, slots=True)
class StoreConnection:
    """The fields of an Airflow connection that matter to a store."""

    conn_id: str
    conn_type: str
    host: str = ""
    port: int | None = None
    schema: str = ""
    login: str = ""
    password: str = field(default="", repr=False)
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)


def options_of(connection: StoreConnection) -> dict[str, Any]:
    """Return the storage options; for other types, those of the extra alone.

    Raises ConfigError for a value that cannot be an option.
    """
    rule = _RULES.get(connection.conn_type, _generic_options)
    return {**rule(connection), **_extra_options(connection)}


def _extra_options(connection: StoreConnection) -> dict[str, Any]:
    options = connection.extra.get(EXTRA_KEY, {})
    if isinstance(options, str):  # a field of Airflow's form, which holds texts
        try:
            options = json.loads(options or "{}")
        except json.JSONDecodeError:
            options = None
    if not isinstance(options, dict):
        raise ConfigError(f"connection {connection.conn_id!r}: {EXTRA_KEY} in its extra is not a JSON object")
    return options


def _generic_options(_: StoreConnection) -> dict[str, Any]:
    return {}


def _aws_options(connection: StoreConnection) -> dict[str, Any]:
    if bool(connection.login) != bool(connection.password):
        raise ConfigError(f"connection {connection.conn_id!r} has only one of login and password, the two S3 keys")
    options: dict[str, Any] = {}
    if connection.login:
        options = {"access_key": connection.login, "secret_key": connection.password}
    for key, option in _AWS_EXTRA.items():
        if connection.extra.get(key):
            options.setdefault(option, connection.extra[key])
    endpoint = _s3_endpoint(connection.extra)
    if endpoint:
        scheme, separator, address = endpoint.partition("://")
        options["endpoint_override"] = address.rstrip("/") if separator else endpoint
        if separator:
            options["scheme"] = scheme.lower()
    return options


def _s3_endpoint(extra: Mapping[str, Any]) -> str:
    # The Amazon provider allows a separate endpoint for S3.
    services = extra.get("service_config") or {}
    return str((services.get("s3") or {}).get("endpoint_url") or extra.get("endpoint_url") or extra.get("host") or "")


def _hdfs_options(connection: StoreConnection) -> dict[str, Any]:
    options: dict[str, Any] = {
        # Only a name in the form of a Hadoop setting is one; the extra of such connections holds other things too.
        key: value
        for key, value in connection.extra.items()
        if "." in key or key in {"config_dir", "timeout_s"}
    }
    for key, option in _KERBEROS_EXTRA.items():
        if connection.extra.get(key):
            options[option] = connection.extra[key]
    if connection.host and "fs.defaultFS" not in options:
        # Of use to a base path without a NameNode (`hdfs:///table`); the others name theirs. A host without a port may
        # be a nameservice.
        port = f":{connection.port}" if connection.port else ""
        options["fs.defaultFS"] = f"hdfs://{connection.host}{port}"
    return options


def _webhdfs_options(connection: StoreConnection) -> dict[str, Any]:
    # The base path names host and port (`webhdfs://namenode:9870/table`); giving them twice would be refused.
    options: dict[str, Any] = {}
    if connection.login:
        options["user"] = connection.login
    if connection.password:
        options["password"] = connection.password
    if connection.extra.get("principal"):
        options["kerberos"] = True
    if str(connection.extra.get("use_ssl", "")).lower() == "true" or connection.schema == "https":
        options["use_https"] = True
    return options


_RULES: Mapping[str, Callable[[StoreConnection], dict[str, Any]]] = MappingProxyType(
    {"aws": _aws_options, "hdfs": _hdfs_options, "webhdfs": _webhdfs_options}
)
