"""Which sinks have writes that a restore of their table takes back. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_lake_provider.errors import CheckpointDamagedError
from airflow_lake_provider.replication.change import CommitRef
from airflow_lake_provider.replication.checkpoint import from_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def find_ahead(sinks: Iterable[tuple[str, str]], taken: Iterable[tuple[str, str | None]]) -> Iterator[str]:
    """Yield the sinks that have one of these writes, and those of which that is not known.

    `sinks` are their names, each with the text of its checkpoint; `taken` are requested and completed times.
    """
    writes = [CommitRef(requested, completed) for requested, completed in taken if completed is not None]
    for name, text in sinks:
        if not text:
            continue
        try:
            checkpoint = from_text(text)
        except CheckpointDamagedError:
            yield name
            continue
        begun = checkpoint.commit if checkpoint.is_within_commit else None
        if any(checkpoint.has(write) or write == begun for write in writes):
            yield name
