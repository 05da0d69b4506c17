"""The place in the documentation that explains a problem: for pages and commands, which show it next to the remedy."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from airflow_lake_provider.manager.health.health import FoundBy, TableState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_lake_provider.manager.health.health import Problem

_BY_SOURCE: Mapping[FoundBy, str] = MappingProxyType(
    {
        FoundBy.EVALUATION: "operations#stores",
        FoundBy.SERVICE: "services#rules",
        FoundBy.RUN: "operations#when-a-run-fails",
        FoundBy.DOCTOR: "doctor",
        FoundBy.DEADLINE: "operations#instances-and-deadlines",
        FoundBy.SETTINGS: "tables-file#what-a-table-sets-itself",
        FoundBy.WRITERS: "writers#is-a-writer-configured-right",
        FoundBy.SINK: "replication#when-it-fails",
    }
)
"""Page and heading of `docs/`."""


def help_place(problem: Problem) -> str:
    """Return page and anchor of `docs/` about a problem, such as `doctor#lost_files`."""
    if problem.source is FoundBy.DOCTOR:
        return finding_place(problem.subject.partition(" ")[0])
    if problem.source is FoundBy.SERVICE and problem.state is TableState.FAILING:
        return _BY_SOURCE[FoundBy.RUN]
    return _BY_SOURCE[problem.source]


def finding_place(kind: str) -> str:
    """Return page and anchor about a kind of the doctor's findings."""
    return f"doctor#{kind}"


def help_address(place: str, docs_url: str) -> str:
    """Return the address of a place where `[lake] docs_url` says it is served; else its file: `docs/doctor.md#x`."""
    page, hash_sign, anchor = place.partition("#")
    address = docs_url.replace("{page}", page) if docs_url else f"docs/{page}.md"
    return f"{address}{hash_sign}{anchor}"
