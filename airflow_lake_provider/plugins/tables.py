"""The tables' settings of this process: the file of `[lake] tables_file`, and the Airflow Variable over it."""

from __future__ import annotations

from dataclasses import fields

from airflow.configuration import conf, ensure_secrets_loaded

from airflow_lake_provider.config.settings import LakeSettings, settings_from_options
from airflow_lake_provider.config.tables_source import TablesSource
from airflow_lake_provider.errors import ConfigError


def open_tables(settings: LakeSettings) -> TablesSource:
    """Return the source; for processes that may read Airflow's database (servers, commands), not for tasks."""
    name = settings.tables_variable
    if name.lower() == "off":
        return TablesSource(settings.tables_file)
    return TablesSource(settings.tables_file, lambda: read_variable(name), f"Variable {name}")


def read_variable(name: str) -> str:
    """Return the Variable's text from the first secrets backend that has it; "" when none has. Raises ConfigError.

    Airflow's own look-up takes a backend that fails for one that has no such Variable: a moment without database would
    take all overrides away.
    """
    for backend in ensure_secrets_loaded():
        try:
            text = backend.get_variable(key=name)
        except Exception as error:  # whatever a backend raises: the overrides that were read last stay in force
            raise ConfigError(
                f"Variable {name} cannot be read from {type(backend).__name__}: {type(error).__name__}: {error}"
            ) from error
        if text is not None:
            return str(text)
    return ""


# --- Read `[lake]` of Airflow's configuration into our settings


def load_settings() -> LakeSettings:
    """Return this process's settings; raises ConfigError that names the option."""
    options = {entry.name: conf.get("lake", entry.name, fallback="") or "" for entry in fields(LakeSettings)}
    return settings_from_options(options)
