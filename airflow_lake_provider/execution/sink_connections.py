"""What an Airflow connection means to a sink: its fields and its extra as the sink's options."""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.sink_options.registry import (
    REGISTRY,
    REGISTRY_CA,
    REGISTRY_CONNECTION,
    REGISTRY_PASSWORD,
    REGISTRY_TOKEN,
    REGISTRY_USER,
)
from airflow_lake_provider.storage.store import StoreConnection, options_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow.sdk import Connection


def options_with_connection(sink: str, options: Mapping[str, str]) -> dict[str, str]:
    """Return the options with each id of a connection replaced by its settings; other options override them.

    Raises ConfigError when there is no such connection, and for one that the sink cannot use.
    """
    own = dict(options)
    theirs: dict[str, str] = {}
    for setting in ("conn_id", REGISTRY_CONNECTION) if sink == "kafka" else ("conn_id",):
        conn_id = own.pop(setting, "")
        if not conn_id:
            continue
        try:
            connection = BaseHook.get_connection(conn_id)
        except AirflowNotFoundException as error:
            raise ConfigError(f"sink {sink}: {setting}: there is no connection {conn_id!r}") from error
        theirs |= connection_options(sink, connection, setting)
    return {**theirs, **own}


def connection_options(sink: str, connection: Connection, setting: str = "conn_id") -> dict[str, str]:
    """Return the connection that a setting names as a sink's options. Raises ConfigError for what it cannot use."""
    extra = connection.extra_dejson
    if not isinstance(extra, dict):
        raise ConfigError(f"connection {connection.conn_id!r}: its extra is not a JSON object")
    rule = _registry_options if setting == REGISTRY_CONNECTION else _RULES.get(sink, _plain_options)
    return rule(connection, extra)


def _plain_options(connection: Connection, extra: Mapping[str, Any]) -> dict[str, str]:
    return {name: _text(connection, name, value) for name, value in extra.items()}


def _text(connection: Connection, name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float)):
        return str(value)
    raise ConfigError(
        f"connection {connection.conn_id!r}: {name} in its extra is no text and no number, which a sink's setting is"
    )


# --- Kafka: the extra has the client's settings


def _kafka_options(connection: Connection, extra: Mapping[str, Any]) -> dict[str, str]:
    if "oauth_cb" in extra:
        raise ConfigError(
            f"connection {connection.conn_id!r}: oauth_cb names a function of Airflow's, and Spark's driver logs in: "
            "set sasl.oauthbearer.method: oidc and its settings"
        )
    # Functions of Airflow's own hooks, which log.
    settings = {name: value for name, value in extra.items() if not name.endswith("_cb")}
    client = _plain_options(connection, settings)
    servers = client.pop("bootstrap.servers", "")
    return {f"kafka.{name}": text for name, text in client.items()} | (
        {"bootstrap_servers": servers} if servers else {}
    )


# --- A schema registry: a connection of Airflow's HTTP provider, whose extra has headers, and what requests takes

_BEARER = "Bearer "


def _registry_options(connection: Connection, extra: Mapping[str, Any]) -> dict[str, str]:
    what = f"connection {connection.conn_id!r} of the schema registry"
    rest = dict(extra)
    verify = rest.pop("verify", True)
    authorization = str(rest.pop("Authorization", ""))
    if rest:
        raise ConfigError(
            f"{what}: {min(rest)} in its extra, allowed: verify (the path of a file with the certificate's authority), "
            "and Authorization (Bearer and a token)"
        )
    if verify is False or str(verify).lower() == "false":
        raise ConfigError(f"{what}: verify is false: set it to the path of a file with the certificate's authority")
    if authorization and not authorization.startswith(_BEARER):
        raise ConfigError(f"{what}: its Authorization does not begin with {_BEARER!r}: set login and password instead")
    host = connection.host or ""
    # As the HTTP provider reads it: an address, or a host whose protocol is in the field for a schema.
    address = host if "://" in host else f"{connection.schema or 'http'}://{host}"
    if connection.port:
        scheme, _, rest_of_host = address.partition("://")
        name, slash, path = rest_of_host.partition("/")
        address = f"{scheme}://{name}:{connection.port}{slash}{path}"
    found = {
        REGISTRY: address,
        REGISTRY_USER: connection.login or "",
        REGISTRY_PASSWORD: connection.password or "",
        REGISTRY_TOKEN: authorization.removeprefix(_BEARER).strip(),
        REGISTRY_CA: "" if verify is True or str(verify).lower() == "true" else str(verify),
    }
    return {name: text for name, text in found.items() if text}


# --- Databases: an address of SQLAlchemy's

_DIALECTS: Mapping[str, str] = MappingProxyType({"postgres": "postgresql"})
_HOOKS_OWN = frozenset({"cursor", "sqlalchemy_scheme", "sqlalchemy_query", "enable_log_db_messages"})
"""In the extra of a database's connection what Airflow's hooks alone use."""


def _database_options(connection: Connection, extra: Mapping[str, Any]) -> dict[str, str]:
    dialect = _DIALECTS.get(connection.conn_type or "", connection.conn_type or "")
    if dialect == "sqlite":
        return {"url": f"sqlite:///{connection.host or ''}"}
    if extra.get("iam"):
        raise ConfigError(
            f"connection {connection.conn_id!r}: with iam its password would be a token that ends within minutes: give "
            "the sink a login with a password"
        )
    query = [
        (name, text)
        for key, value in extra.items()
        if key not in _HOOKS_OWN | {"iam"}
        for name, text in _query_of(connection, key, value)
    ]
    host = connection.host or ""
    port = f":{connection.port}" if connection.port else ""
    if dialect == "postgresql" and ("," in host or host.startswith("/")):
        # Several servers, or a socket's folder, are no host of an address.
        query += [("host", f"{each.strip()}{port if ',' in host else ''}") for each in host.split(",")]
        host = ""
        port = ""
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    login = quote(connection.login or "", safe="")
    if connection.password:
        login = f"{login}:{quote(connection.password, safe='')}"
    address = f"{dialect}://{f'{login}@' if login else ''}{host}{port}/{quote(connection.schema or '', safe='')}"
    return {"url": f"{address}?{urlencode(query, quote_via=quote)}" if query else address}


def _query_of(connection: Connection, key: str, value: Any) -> list[tuple[str, str]]:
    """Return the address's parameters for a field of the extra; MySQL's connections keep TLS in one of objects."""
    if key == "ssl":
        try:
            parts = json.loads(value) if isinstance(value, str) else value
        except ValueError:
            parts = value
        if isinstance(parts, dict):
            return [(f"ssl_{name}", _text(connection, f"ssl.{name}", part)) for name, part in parts.items()]
    # Libpq's flags are numbers.
    return [(key, str(int(value)) if isinstance(value, bool) else _text(connection, key, value))]


# --- Folders: the options of fsspec's file system

_S3FS: Mapping[str, str] = MappingProxyType({"access_key": "key", "secret_key": "secret", "session_token": "token"})


def _file_options(connection: Connection, extra: Mapping[str, Any]) -> dict[str, str]:
    if connection.conn_type != "aws":
        return _plain_options(connection, extra)
    store = StoreConnection(
        connection.conn_id, "aws", login=connection.login or "", password=connection.password or "", extra=extra
    )
    found = {name: str(value) for name, value in options_of(store).items()}
    if "role_arn" in found:
        raise ConfigError(
            f"connection {connection.conn_id!r}: role_arn: the file sink takes on no role: give it to Spark's driver, "
            "or give the connection a user's keys"
        )
    options = {f"storage.{name}": found[theirs] for theirs, name in _S3FS.items() if theirs in found}
    if "endpoint_override" in found:
        options["storage.endpoint_url"] = f"{found.get('scheme', 'https')}://{found['endpoint_override']}"
    if "region" in found:
        options["storage.client_kwargs"] = json.dumps({"region_name": found["region"]})
    if "path" in extra:
        options["path"] = _text(connection, "path", extra["path"])
    return options


_RULES: Mapping[str, Callable[[Connection, Mapping[str, Any]], dict[str, str]]] = MappingProxyType(
    {"kafka": _kafka_options, "database": _database_options, "file": _file_options}
)
