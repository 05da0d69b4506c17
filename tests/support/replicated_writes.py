"""Writes to a table that is replicated."""

from __future__ import annotations

from pathlib import Path

from airflow_lake_provider.replication.change import CommitRef


def writes(path: Path) -> list[CommitRef]:
    """The fixture's completed writes that are no compaction, by their names."""
    names = [name.name for name in (path / ".hoodie" / "timeline").glob("*commit")]
    times = [name.split(".")[0].split("_") for name in names]
    return sorted((CommitRef(requested, completed) for requested, completed in times), key=lambda commit: commit.order)
