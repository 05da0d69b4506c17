"""The tables file as it is now; a broken file leaves the last good one in force."""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING

from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.tables_file import load_tables_file

if TYPE_CHECKING:
    from airflow_lake_provider.tables_config import TablesConfig

log = logging.getLogger(__name__)

Stamp = tuple[int, int, int]
"""Modification time in ns, size in bytes, inode."""


class TablesSource:
    """Loads the file when it changed; safe to call from many threads."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._stamp: Stamp | None = None
        self._tables: TablesConfig | None = None
        self.problem = ""

    def load(self) -> TablesConfig:
        """Return the tables. Raises ConfigError only while no good file was ever seen."""
        with self._lock:
            stamp = self._read_stamp()
            if self._tables is not None and stamp == self._stamp:
                return self._tables
            try:
                tables = load_tables_file(self._path)
            except ConfigError as error:
                if self._tables is None:
                    raise
                if str(error) != self.problem:
                    log.error("the tables file is not used, the last good one stays in force: %s", error)
                self.problem, self._stamp = str(error), stamp
                return self._tables
            self._tables, self._stamp, self.problem = tables, stamp, ""
            return tables

    def _read_stamp(self) -> Stamp | None:
        try:
            status = os.stat(self._path)
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino
