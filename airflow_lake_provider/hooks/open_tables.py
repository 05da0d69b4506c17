"""Open tables with the Airflow connection that `[lake] storage_conn_ids` names for their root."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.hooks.storage_options import storage_options_of
from airflow_lake_provider.timeline.storage import Storage, open_storage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_OPTIONS_FOR_S = 300.0


def open_with_connections(entries: Sequence[str]) -> Callable[[str], Storage]:
    """Return what opens a table. `entries` are `<root>=<connection id>`; the longest root wins, without one no options.

    A connection is read again after five minutes, so that renewed credentials reach tables that are opened later.
    """
    roots = {root.rstrip("/"): conn_id for root, _, conn_id in (entry.rpartition("=") for entry in entries)}
    if not roots:
        return open_storage
    lock = threading.Lock()
    known: dict[str, tuple[float, dict[str, Any]]] = {}

    def options_for(conn_id: str) -> dict[str, Any]:
        with lock:
            read_s, options = known.get(conn_id, (-_OPTIONS_FOR_S, {}))
            if time.monotonic() - read_s >= _OPTIONS_FOR_S:
                options = storage_options_of(conn_id)
                known[conn_id] = (time.monotonic(), options)
            return options

    def open_table(base_path: str) -> Storage:
        conn_id = find_connection(base_path, roots)
        return open_storage(base_path, None if conn_id is None else options_for(conn_id))

    return open_table


def find_connection(base_path: str, roots: dict[str, str]) -> str | None:
    """Return the connection of the longest root that the base path is or lies below; None when there is none."""
    fitting = [root for root in roots if base_path == root or base_path.startswith(root + "/")]
    return roots[max(fitting, key=len)] if fitting else None
