"""A notice: somebody says that a table changed. It makes us look and is never believed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Source(StrEnum):
    """Who sent the notice."""

    COMMIT_CALLBACK = "commit_callback"
    SERVICE_MANAGER_CLIENT = "service_manager_client"
    HINT = "hint"
    """Our own tasks: a service ended, or a sensor saw a commit that nobody announced."""
    CONFIG = "config"
    DISCOVERY = "discovery"
    """The search of a root found the table."""
    HEARTBEAT = "heartbeat"
    """The timeline server pulled a silent table and found a commit that nobody announced."""


@dataclass(frozen=True, slots=True)
class Notice:
    """One table changed, as somebody says.

    `base_path` is normalised. `instants` are requested times, oldest first, and may be empty. `files` and
    `written_bytes` sum up the write statistics that came along.
    """

    base_path: str
    table_name: str
    source: Source
    instants: tuple[str, ...] = ()
    database: str = ""
    owner: str = ""
    files: int = 0
    written_bytes: int = 0
