"""The timelines of one server process, from Airflow's configuration: in the API server, or a timeline server alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from airflow_lake_provider.config import TimelineServerMode
from airflow_lake_provider.hooks.open_tables import open_with_connections
from airflow_lake_provider.manager.timeline_feed import RegistryFeed
from airflow_lake_provider.manager.unannounced import UnannouncedCommits
from airflow_lake_provider.view.rhythm import HeartbeatLimits
from airflow_lake_provider.view.schedule import SharedLimits
from airflow_lake_provider.view.shared_timelines import SharedTimelines
from airflow_lake_provider.view.timeline_server import ServerOptions, TimelineServer

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_lake_provider.config import LakeSettings
    from airflow_lake_provider.manager.registry import Registry
    from airflow_lake_provider.tables_config import TablesConfig

_LEAST_PAUSE_S = 60.0


def build_timeline_server(
    settings: LakeSettings, registry: Registry, load_tables: Callable[[], TablesConfig], *, is_alone: bool = False
) -> TimelineServer:
    """Build the process's timeline server. `is_alone`: it is a process of its own, not part of an API server."""
    limits = SharedLimits(
        max_tables=settings.max_tables_in_memory,
        heartbeat=HeartbeatLimits(
            least_s=min(_LEAST_PAUSE_S, settings.heartbeat_timeout_s),
            most_s=settings.heartbeat_timeout_s,
            most_announced_s=max(settings.heartbeat_max_s, settings.heartbeat_timeout_s),
        ),
    )
    timelines = SharedTimelines(limits, open_with_connections(settings.storage_conn_ids))
    unannounced = UnannouncedCommits(registry)
    timelines.on_unannounced = unannounced.tell
    timelines.on_loaded = unannounced.compare
    options = ServerOptions(
        allowed_roots=settings.allowed_roots,
        service_tokens=settings.service_tokens,
        look_threads=settings.timeline_look_threads,
        verify_interval_s=settings.timeline_verify_interval_s,
        snapshot_path=_snapshot_path(settings, is_alone=is_alone),
        # With a timeline server of its own, the API servers leave the watching to it.
        is_watching=settings.timeline_server is not TimelineServerMode.OFF
        and (is_alone or not settings.timeline_server_url),
    )
    return TimelineServer(timelines, options, RegistryFeed(registry, load_tables, unannounced))


def _snapshot_path(settings: LakeSettings, *, is_alone: bool) -> Path | None:
    if settings.timeline_snapshot_file.lower() == "off" or settings.timeline_server is TimelineServerMode.OFF:
        return None
    if settings.timeline_snapshot_file:
        return Path(settings.timeline_snapshot_file)
    from airflow.configuration import AIRFLOW_HOME

    name = "timeline-server" if is_alone else "api-server"
    return Path(AIRFLOW_HOME) / "lake" / f"{name}.timelines"
