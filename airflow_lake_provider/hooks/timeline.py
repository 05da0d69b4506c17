"""Where this process's readers take timelines from, by `[lake] timeline_server`: for tasks, and for triggers."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_lake_provider.app_path import MOUNT_PATH
from airflow_lake_provider.config import LakeSettings, TimelineServerMode, settings_from_options
from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.hooks.lake import address_of
from airflow_lake_provider.hooks.open_tables import open_with_connections
from airflow_lake_provider.timeline.storage import Storage, open_storage
from airflow_lake_provider.view.client import TimelineEndpoint
from airflow_lake_provider.view.timeline_stream import StreamOptions
from airflow_lake_provider.view.view_manager import TimelineViewManager

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow.sdk import Connection

log = logging.getLogger(__name__)

_OPTIONS = ("timeline_server", "timeline_server_url", "storage_conn_ids")


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
    """Return where the triggers' stream reads from, without blocking the event loop."""
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
        # The server opens tables with its own credentials: who brings his own asks the store himself.
        return StreamOptions(TimelineServerMode.OFF, None, open_table)
    settings = _settings()
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
    return TimelineEndpoint(url.rstrip("/") + MOUNT_PATH, token)


def table_opener(storage_options: Mapping[str, Any] | None) -> Callable[[str], Storage]:
    """Return what opens tables for a task: with its own options, else with `[lake] storage_conn_ids`."""
    if storage_options:
        own = dict(storage_options)
        return lambda base_path: open_storage(base_path, own)
    return open_with_connections(_settings().storage_conn_ids)


def _settings() -> LakeSettings:
    return settings_from_options({name: conf.get("lake", name, fallback="") or "" for name in _OPTIONS})
