"""Finds engines by name: ours, and those that other packages register by entry point."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

from airflow_lake_provider.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_lake_provider.engines.engine import Engine

GROUP = "airflow_lake_provider.engines"
DEFAULT_ENGINE = "spark-submit"
_PACKAGE = "airflow_lake_provider.engines"
OURS = (
    EntryPoint(DEFAULT_ENGINE, f"{_PACKAGE}.spark_submit:SparkSubmitEngine", GROUP),
    EntryPoint("in-process", f"{_PACKAGE}.in_process:InProcessEngine", GROUP),
    EntryPoint("flink", f"{_PACKAGE}.flink:FlinkEngine", GROUP),
)


def create_engine(name: str, registered: Iterable[EntryPoint] | None = None) -> Engine:
    """Create the engine of a name; nothing is imported for the others.

    `registered` are the entry points of other packages, those that are installed unless given. Raises ConfigError for
    a name that nobody registered or that two packages registered, and when an engine cannot be imported.
    """
    theirs = entry_points(group=GROUP) if registered is None else registered
    known = [*OURS, *theirs]
    found = [entry for entry in known if entry.name == name]
    if not found:
        names = ", ".join(sorted({entry.name for entry in known}))
        raise ConfigError(f"engine {name!r} is not registered; registered are: {names}")
    if len({entry.value for entry in found}) > 1:
        claims = ", ".join(sorted(entry.value for entry in found))
        raise ConfigError(f"engine {name!r} is registered more than once: {claims}; remove all but one")
    try:
        engine: Engine = found[0].load()()
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"engine {name!r} ({found[0].value}) cannot be imported: {error}") from error
    return engine
