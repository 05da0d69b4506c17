"""Sinks by name: those of this package, and those that other packages name in the entry points `lake.sinks`.

Ours are listed here and not as entry points: this folder travels to Spark without its package's metadata.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

from airflow_lake_provider.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_lake_provider.replication.sink import Sink, SinkFactory, SinkSettings

GROUP = "lake.sinks"
_OURS = "airflow_lake_provider.replication.sinks"
BUILT_IN: Mapping[str, str] = MappingProxyType(
    {
        "kafka": f"{_OURS}.kafka:KafkaSink",
        "file": f"{_OURS}.file:FileSink",
        "database": f"{_OURS}.database:DatabaseSink",
        "noop": f"{_OURS}.noop:NoopSink",
    }
)


def sink_names() -> Mapping[str, str]:
    """Return each known sink's name and where it is. Raises ConfigError when two different sinks claim one name."""
    names = dict(BUILT_IN)
    for entry in entry_points(group=GROUP):
        if names.get(entry.name, entry.value) != entry.value:
            raise ConfigError(f"two sinks are named {entry.name!r}: {names[entry.name]} and {entry.value}")
        names[entry.name] = entry.value
    return names


def create_sink(kind: str, settings: SinkSettings) -> Sink:
    """Build a sink; nothing is opened yet. Raises ConfigError for an unknown name or refused settings."""
    names = sink_names()
    if kind not in names:
        raise ConfigError(f"there is no sink {kind!r}; known: {', '.join(sorted(names))} (entry points {GROUP!r})")
    module, _, name = names[kind].partition(":")
    factory = cast("SinkFactory", getattr(import_module(module), name))
    return factory(settings)
