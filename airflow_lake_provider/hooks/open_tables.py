"""Open tables with the Airflow connection that `[lake] storage_conn_ids` names for their root."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook, Variable
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowNotFoundException
from airflow.sdk.observability import stats
from cachetools import TTLCache

from airflow_lake_provider.config.settings import LakeSettings, TimelineServerMode
from airflow_lake_provider.config.tables_source import TablesSource
from airflow_lake_provider.conflict.activity import open_conflict_table
from airflow_lake_provider.conflict.contention import find_writer_rule
from airflow_lake_provider.conflict.guard_register import find_obstacles
from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.hooks.lake import address_of, airflow_trust
from airflow_lake_provider.http import MOUNT_PATH
from airflow_lake_provider.hudi.base_path import identity_of
from airflow_lake_provider.storage.store import StoreConnection, options_of
from airflow_lake_provider.storage.table_storage import Storage, open_storage
from airflow_lake_provider.timeline_server.client import TimelineEndpoint
from airflow_lake_provider.timeline_server.subscription import StreamOptions
from airflow_lake_provider.timeline_server.views import TimelineViewManager

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from airflow.sdk import Connection

    from airflow_lake_provider.config.policies import TablePolicy
    from airflow_lake_provider.config.tables_config import TablesConfig
    from airflow_lake_provider.conflict.activity import TableActivity

log = logging.getLogger(__name__)

# --- Storage options out of an Airflow connection


def storage_options_of(conn_id: str) -> dict[str, Any]:
    """Return the options of `open_storage` for the store of a connection: `aws`, `hdfs`, `webhdfs`, or any type with
    `storage_options` in its extra.

    Raises AirflowNotFoundException when there is no such connection, ConfigError when it cannot be parsed.
    """
    connection = BaseHook.get_connection(conn_id)
    extra = connection.extra_dejson
    if not isinstance(extra, dict):
        raise ConfigError(f"connection {conn_id!r}: its extra is not a JSON object")
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


_OPTIONS_FOR_S = 300.0


def open_with_connections(entries: Sequence[str]) -> Callable[[str], Storage]:
    """Return a function that opens tables. `entries` are `<root>=<connection id>`; the longest root wins.

    Without a root it uses no options. It reads a connection again after five minutes, for renewed credentials.
    """
    roots = {root.rstrip("/"): conn_id for root, _, conn_id in (entry.rpartition("=") for entry in entries)}
    if not roots:
        return open_storage
    lock = threading.Lock()
    known: TTLCache[str, dict[str, Any]] = TTLCache(len(roots), ttl=_OPTIONS_FOR_S)

    def options_for(conn_id: str) -> dict[str, Any]:
        with lock:
            if (options := known.get(conn_id)) is None:
                options = known[conn_id] = storage_options_of(conn_id)
            return options

    def open_table(base_path: str) -> Storage:
        conn_id = find_connection(base_path, roots)
        return open_storage(base_path, None if conn_id is None else options_for(conn_id))

    return open_table


def find_connection(base_path: str, roots: dict[str, str]) -> str | None:
    """Return the connection of the longest root that equals or contains the base path; None when there is none."""
    identity = identity_of(base_path)
    fitting = [root for root in roots if f"{identity}/".startswith(f"{identity_of(root)}/")]
    return roots[max(fitting, key=len)] if fitting else None


# --- The tables' settings, for Airflow's tasks: the worker's tables file, and the Airflow Variable over it


def load_tables() -> TablesConfig:
    """Read the file of `[lake] tables_file` and the Variable over it, once. Raises ConfigError."""
    return TablesSource.of(LakeSettings.from_conf(conf), lambda name: str(Variable.get(name, default=""))).load()


# --- The source of this process's timelines, by `[lake] timeline_server`: for tasks, and for triggers


def timeline_views(lake_conn_id: str, storage_options: Mapping[str, Any]) -> TimelineViewManager:
    """Return the views of a task. Raises ConfigError for a wrong setting."""
    connection = None
    if not storage_options:
        try:
            connection = BaseHook.get_connection(lake_conn_id)
        except AirflowNotFoundException:
            connection = None
    options = _options_of(lake_conn_id, connection, storage_options)
    return TimelineViewManager(options.mode, options.endpoint, options.open_table)


async def stream_options(lake_conn_id: str, storage_options: Mapping[str, Any]) -> StreamOptions:
    """Return the source of the triggers' stream, without blocking the event loop."""
    connection = None
    if not storage_options:
        try:
            connection = await BaseHook.aget_connection(lake_conn_id)
        except AirflowNotFoundException:
            connection = None
    return _options_of(lake_conn_id, connection, storage_options)


def _options_of(lake_conn_id: str, connection: Connection | None, storage_options: Mapping[str, Any]) -> StreamOptions:
    open_table = table_opener(storage_options)
    if storage_options:
        # The server opens tables with its own credentials; with explicit ones, the hook reads storage directly.
        return StreamOptions(TimelineServerMode.OFF, None, open_table)
    settings = LakeSettings.from_conf(conf)
    return StreamOptions(settings.timeline_server, _endpoint(lake_conn_id, connection, settings), open_table)


def _endpoint(lake_conn_id: str, connection: Connection | None, settings: LakeSettings) -> TimelineEndpoint | None:
    if settings.timeline_server is TimelineServerMode.OFF:
        return None
    try:
        manager_url, token = address_of(lake_conn_id, connection)
    except ConfigError as error:
        if settings.timeline_server is TimelineServerMode.REQUIRED:
            raise
        log.info("reading timelines from the file system: %s", error)
        return None
    url = settings.timeline_server_url or manager_url
    return TimelineEndpoint(url.rstrip("/") + MOUNT_PATH, token, airflow_trust())


def table_opener(storage_options: Mapping[str, Any] | None) -> Callable[[str], Storage]:
    """Return a function that opens tables for a task: with its own options, else with `[lake] storage_conn_ids`."""
    if storage_options:
        own = dict(storage_options)
        return lambda base_path: open_storage(base_path, own)
    return open_with_connections(LakeSettings.from_conf(conf).storage_conn_ids)


# --- Opens tables for early conflict detection in tasks and triggers


class Preflight:
    """Reads one table repeatedly, and only what changed; not to be shared by threads."""

    def __init__(
        self, base_path: str, partitions: Collection[str], hudi_options: Mapping[str, str], storage_options: Any
    ) -> None:
        self._storage = table_opener(storage_options)(base_path)
        self._table = open_conflict_table(self._storage, hudi_options, {})
        self._partitions = tuple(partitions)
        self._rule = find_writer_rule(hudi_options)

    def read_activity(self) -> TableActivity:
        """Return which instants are active now. Raises LakeError of a table that cannot be read."""
        return self._table.read_activity(int(time.time() * 1000))

    def obstacles(self) -> tuple[str, ...]:
        """Return the writers and services in the way now. Raises LakeError of a table that cannot be read."""
        return find_obstacles(self.read_activity(), self._partitions, self._rule)

    def find_missing_partitions(self) -> tuple[str, ...]:
        """Return the partitions that the table does not have: new ones, or misspelt ones. Raises StorageError."""
        return tuple(name for name in self._partitions if not self._has(name))

    def _has(self, partition: str) -> bool:
        try:
            return bool(self._storage.list_names(partition))
        except FileNotFoundError:
            return False


def policy_of(base_path: str) -> TablePolicy:
    """Return the policy of a table in the tables file. Raises ConfigError."""
    return load_tables().policy_for(base_path, base_path.rsplit("/", 1)[-1])


# --- Metrics through Airflow's own (`[metrics]`: StatsD, OpenTelemetry, ...)


class AirflowMetrics:
    """Implements `metrics.Metrics`."""

    def incr(self, name: str, count: int = 1) -> None:
        """Add to a counter of Airflow's metrics."""
        stats.incr(name, count)

    def gauge(self, name: str, value: float) -> None:
        """Set a gauge of Airflow's metrics."""
        stats.gauge(name, value)

    def timing(self, name: str, duration_ms: float) -> None:
        """Record a duration in Airflow's metrics."""
        stats.timing(name, duration_ms)
