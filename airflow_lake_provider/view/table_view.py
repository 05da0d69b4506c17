"""Everything that deciding needs to know of one table, as one value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_lake_provider.timeline.commit_metadata import CommitMetadata
    from airflow_lake_provider.timeline.properties import TableProperties
    from airflow_lake_provider.timeline.timeline import Timeline, TimelineProblem


@dataclass(frozen=True, slots=True)
class TableView:
    """A table at one moment. `version` changes when, and only when, its timeline does."""

    base_path: str
    properties: TableProperties
    timeline: Timeline
    """As `tell_clusterings` returns it: a pending clustering has that action in every layout."""
    commits: Mapping[str, CommitMetadata]
    """Metadata of completed writes on the active timeline, by requested time; damaged ones are in `problems`."""
    version: str
    problems: tuple[TimelineProblem, ...] = ()
    heartbeats_ms: Mapping[str, int] | None = None
    """Last beat of each instant that has one, ms since the epoch; None when it was not asked for."""
    touched_ms: Mapping[str, int] | None = None
    """When pending plans in question, or their markers, last changed, ms since the epoch; None when not asked for."""
    metadata_timeline: Timeline | None = None
    """The metadata table's own timeline; None when it was not asked for, or when there is none."""
