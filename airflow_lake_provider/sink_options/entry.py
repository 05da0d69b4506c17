"""A whole entry of `replication`, as the tables file has it."""

from __future__ import annotations

from difflib import get_close_matches
from types import MappingProxyType
from typing import TYPE_CHECKING

from airflow_lake_provider.shared.hudi_settings import LOCK_PROVIDER
from airflow_lake_provider.sink_options.kafka import FORMATS, take_kafka
from airflow_lake_provider.sink_options.options import OptionError, TakenOptions
from airflow_lake_provider.sink_options.registry import REGISTRY, REGISTRY_CONNECTION
from airflow_lake_provider.sink_options.run import find_misfit, find_wrong_place, take_heartbeat, take_run
from airflow_lake_provider.sink_options.stores import FILE_FORMATS, take_database, take_file, take_hudi

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

BUILT_IN_FORMATS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"kafka": FORMATS, "file": FILE_FORMATS, "database": ("json",), "hudi": ("json",), "noop": ("json",)}
)
"""The formats of each built-in sink; those of others are for them to check."""
CONNECTION = "conn_id"
_BY_CONNECTION: Mapping[str, Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "kafka": {CONNECTION: frozenset({"bootstrap_servers"}), REGISTRY_CONNECTION: frozenset({REGISTRY})},
        "database": {CONNECTION: frozenset({"url"})},
        "file": {CONNECTION: frozenset({"path"})},
        "hudi": {CONNECTION: frozenset({"path", LOCK_PROVIDER})},
        "noop": {CONNECTION: frozenset()},
    }
)
"""What a connection may bring that the entry then lacks, by sink and by the setting that names the connection."""


def check_entry(
    sink: str, mode: str, options: Mapping[str, str], references: Collection[str], fields: Collection[str]
) -> None:
    """Build the options of an entry, and drop them. Raises OptionError for what the run would refuse.

    `references` are options whose values are secrets that only the run gets; `fields` are the entry's own settings.
    """
    if sink not in BUILT_IN_FORMATS:
        near = get_close_matches(sink, BUILT_IN_FORMATS, n=1, cutoff=0.7)
        if near:
            raise OptionError(f"there is no sink {sink!r}. Did you mean {near[0]!r}?", "sink")
        take_heartbeat(TakenOptions(options, f"the sink {sink}", references))
        return
    taken = _without_connections(sink, options, references)
    run = take_run(taken)
    if sink == "kafka":
        take_kafka(taken, mode)
    elif sink == "file":
        take_file(taken)
    elif sink == "database":
        take_database(taken)
    elif sink == "hudi":
        take_hudi(taken)
    if sink != "noop":  # which tries any entry out
        taken.end(fields)
    places = ((name, find_wrong_place(name, text)) for name, text in options.items())
    for name, wrong in (find_misfit(sink, run), *places):
        if wrong:
            raise OptionError(wrong, name)


def _without_connections(sink: str, options: Mapping[str, str], references: Collection[str]) -> TakenOptions:
    """Return the options of a built-in sink; those that name a connection are taken."""
    connections = _BY_CONNECTION[sink]
    brought = {option for setting in connections if setting in options for option in connections[setting]}
    taken = TakenOptions(options, f"the {sink} sink", {*references, *brought})
    for setting in connections:
        taken.text(setting)
    return taken
