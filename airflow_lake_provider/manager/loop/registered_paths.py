"""Which registered tables lie below a table's base path.

All paths in memory, asked for when a service is due that goes by them, and read once a minute at most. A database has
no index on them that is one for SQLite, PostgreSQL and MySQL.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from itertools import islice, takewhile
from typing import TYPE_CHECKING

from airflow_lake_provider.hudi.base_path import identity_of

if TYPE_CHECKING:
    from airflow_lake_provider.manager.db.registry import Registry

REFRESH_MS = 60_000
MAX_BELOW = 20
"""Tables that one question names: of a root that is a table itself the first ones say enough."""


class RegisteredPaths:
    """For any number of threads."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._lock = threading.Lock()
        self._identities: tuple[str, ...] = ()
        self._read_ms: int | None = None

    def list_below(self, base_path: str) -> tuple[str, ...]:
        """Return the folders of registered tables below a base path, relative to it, in their order."""
        own = f"{identity_of(base_path)}/"
        identities = self._load()
        after = islice(identities, bisect_right(identities, own), None)
        below = takewhile(lambda identity: identity.startswith(own), after)
        return tuple(identity.removeprefix(own).rstrip("/") for identity in islice(below, MAX_BELOW))

    def _load(self) -> tuple[str, ...]:
        now_ms = self._registry.now_ms()
        with self._lock:
            if self._read_ms is None or not 0 <= now_ms - self._read_ms < REFRESH_MS:
                self._identities = tuple(sorted(self._registry.list_identities()))
                self._read_ms = now_ms
            return self._identities
