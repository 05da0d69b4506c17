"""Airflow's options without Airflow, for programs that must start at once, or have none. Standard library only."""

from __future__ import annotations

import configparser
import os
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_lake_provider.config.manager_address import find_manager_url
from airflow_lake_provider.config.manager_trust import ManagerTrust, read_trust
from airflow_lake_provider.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping


class AirflowOptions:
    """Environment variables over airflow.cfg. It runs no `_cmd`, and reads no secrets backend."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Raise ConfigError when airflow.cfg cannot be read."""
        self._environ = environ
        home = Path(environ.get("AIRFLOW_HOME") or "~/airflow").expanduser()
        self._file = configparser.ConfigParser(interpolation=None, strict=False)
        try:
            self._file.read(Path(environ.get("AIRFLOW_CONFIG") or home / "airflow.cfg").expanduser())
        except (configparser.Error, UnicodeDecodeError) as error:
            raise ConfigError(f"airflow.cfg cannot be read: {error}") from error

    def get(self, section: str, name: str) -> str:
        """Return an option; empty where it is not set."""
        given = self._environ.get(f"AIRFLOW__{section.upper()}__{name.upper()}")
        text = given if given is not None else self._file.get(section, name, fallback="")
        return text.strip().replace("%%", "%")


def find_manager() -> tuple[str, str, ManagerTrust]:
    """Return the manager's URL, a service token, and which server to trust: from the environment and airflow.cfg.

    It reads no connection. Raises ConfigError when there is no token that this process may read.
    """
    options = AirflowOptions(os.environ)
    token = options.get("lake", "service_tokens").replace("\n", ",").split(",")[0].strip()
    if not token:
        raise ConfigError("[lake] service_tokens is empty")
    url = options.get("lake", "manager_url")
    if not url:
        url = find_manager_url(options.get("core", "execution_api_server_url"), options.get("api", "base_url"))
    return url.rstrip("/"), token, read_trust(options.get, os.environ)
