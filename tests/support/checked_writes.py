"""Writes with and without the settings that a check of writers requires."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

from tests.support.tables import HandMadeTable

MULTI_WRITER = "hoodie.write.concurrency.mode=optimistic_concurrency_control"


def stamp(path: Path, instant_time: str, after_s: float = 0.0) -> None:
    seconds = datetime.strptime(instant_time[:14], "%Y%m%d%H%M%S").replace(tzinfo=UTC).timestamp() + after_s
    os.utime(path, (seconds, seconds))


def write(table: HandMadeTable, second: int, *, is_guarded: bool) -> str:
    """Commit as a writer does, with the files' times; `is_guarded`: with a heartbeat and under the lock."""
    requested, meta = table.commit(second), table.path / ".hoodie"
    request = meta / "timeline" / f"{requested}.deltacommit.requested"
    request.write_bytes(b"")
    stamp(request, requested)
    completed = next((meta / "timeline").glob(f"{requested}_*"))
    stamp(completed, requested, 0.6)
    if is_guarded:
        (meta / ".heartbeat").mkdir(exist_ok=True)
        stamp(meta / ".heartbeat", requested, 0.7)
        stamp(meta, requested, 0.8)
    elif (meta / ".heartbeat").exists():
        stamp(meta / ".heartbeat", requested, -10)
        stamp(meta, requested, -10)
    return requested
