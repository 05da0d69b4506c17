"""The tables file with its overrides, as they are now; what is wrong leaves the last good configuration in force."""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import TYPE_CHECKING

from airflow_lake_provider.config.tables_file import ParsedTables, build_config, parse_tables, read_tables_file
from airflow_lake_provider.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_lake_provider.config.tables_file import TablesConfig

log = logging.getLogger(__name__)

Stamp = tuple[int, int, int]
"""Modification time in ns, size in bytes, inode."""

OVERRIDES_MAX_AGE_S = 15.0
"""How long the overrides are used before they are read again."""


class TablesSource:
    """Loads the file when it changed, and the overrides when they are old; safe to call from many threads.

    `read_overrides` returns the overrides' text, "" when there are none; it may be slow and may raise ConfigError. It
    is called by who looks at tables and never while a notice is answered.
    """

    def __init__(
        self,
        path: str,
        read_overrides: Callable[[], str] | None = None,
        overrides_name: str = "overrides",
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._read_overrides = read_overrides
        self._overrides_name = overrides_name
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._stamp: Stamp | None = None
        self._file: ParsedTables | None = None
        self._overrides_text: str | None = None if read_overrides is not None else ""
        self._overrides: ParsedTables | None = ParsedTables() if read_overrides is None else None
        self._read_s = float("-inf")
        self._tables: TablesConfig | None = None
        self._problems: dict[str, str] = {}

    @property
    def problem(self) -> str:
        """Say what is wrong with the file or the overrides now; empty when nothing is."""
        return "; ".join(self._problems.values())

    def load(self) -> TablesConfig:
        """Return the tables. Raises ConfigError only while no good configuration was ever seen."""
        with self._lock:
            if self._load_file() | self._load_overrides() or self._tables is None:
                self._build()
            if self._tables is None:
                raise ConfigError(self.problem)
            return self._tables

    def _load_file(self) -> bool:
        stamp = self._read_stamp()
        if stamp == self._stamp and self._file is not None:
            return False
        try:
            parsed = parse_tables(read_tables_file(self._path), self._path)
        except ConfigError as error:
            self._say("file", str(error))
            self._stamp = stamp
            return False
        self._file, self._stamp = parsed, stamp
        self._say("file", "")
        return True

    def _load_overrides(self) -> bool:
        now_s = self._monotonic_s()
        if self._read_overrides is None or now_s - self._read_s < OVERRIDES_MAX_AGE_S:
            return False
        self._read_s = now_s
        try:
            text = self._read_overrides()
            if text == self._overrides_text:
                return False
            parsed = parse_tables(text, self._overrides_name)
        except ConfigError as error:
            self._say("overrides", str(error))
            return False
        self._overrides, self._overrides_text = parsed, text
        self._say("overrides", "")
        return True

    def _build(self) -> None:
        if self._file is None or self._overrides is None:
            return
        try:
            self._tables = build_config(self._file, self._overrides)
        except ConfigError as error:
            self._say("both", str(error))
        else:
            self._say("both", "")

    def _say(self, what: str, problem: str) -> None:
        known = self._problems.pop(what, "")
        if problem:
            self._problems[what] = problem
        if problem and problem != known:
            in_force = (
                "the last good configuration stays in force" if self._tables is not None else "nothing is decided"
            )
            log.error("the tables' settings are wrong, %s: %s", in_force, problem)

    def _read_stamp(self) -> Stamp | None:
        try:
            status = os.stat(self._path)
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino
