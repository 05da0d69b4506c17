"""Read `[lake]` of Airflow's configuration into our settings."""

from __future__ import annotations

from dataclasses import fields

from airflow.configuration import conf

from airflow_lake_provider.config import LakeSettings, settings_from_options


def load_settings() -> LakeSettings:
    """Return this process's settings; raises ConfigError that names the option."""
    options = {entry.name: conf.get("lake", entry.name, fallback="") or "" for entry in fields(LakeSettings)}
    return settings_from_options(options)
