"""The tables' settings, for Airflow's tasks: the worker's tables file, and the Airflow Variable over it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import Variable
from airflow.sdk.configuration import conf

from airflow_lake_provider.config import settings_from_options
from airflow_lake_provider.tables_file import build_config, parse_tables, read_tables_file

if TYPE_CHECKING:
    from airflow_lake_provider.tables_config import TablesConfig

_OPTIONS = ("tables_file", "tables_variable")


def load_tables() -> TablesConfig:
    """Read the file of `[lake] tables_file` and the Variable over it, once. Raises ConfigError."""
    settings = settings_from_options({name: conf.get("lake", name, fallback="") or "" for name in _OPTIONS})
    name = settings.tables_variable
    over = "" if name.lower() == "off" else str(Variable.get(name, default=""))
    file = parse_tables(read_tables_file(settings.tables_file), settings.tables_file)
    return build_config(file, parse_tables(over, f"Variable {name}"))
