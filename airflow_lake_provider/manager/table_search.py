"""Find tables in the registry as people ask for them: by a part of the name or path, by what is the matter."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from sqlalchemy import func, or_, select

from airflow_lake_provider.manager.schema import lake_table
from airflow_lake_provider.planner.decision import Verdict

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, RowMapping

    from airflow_lake_provider.manager.registry import Registry

PAGE_SIZE = 100


class Show(StrEnum):
    """Which tables are shown."""

    ALL = "all"
    DUE = "due"
    BLOCKED = "blocked"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Search:
    """What somebody asks for. `page` counts from 1."""

    text: str = ""
    show: Show = Show.ALL
    page: int = 1


@dataclass(frozen=True, slots=True)
class Found:
    """One page of rows, at most PAGE_SIZE, and how many there are on all pages."""

    rows: tuple[RowMapping, ...]
    total: int

    @property
    def pages(self) -> int:
        """Return how many pages there are, at least one."""
        return max(1, -(-self.total // PAGE_SIZE))


def search_tables(registry: Registry, search: Search) -> Found:
    """Return a page of the tables that match, by name."""
    matches = [*_text_clauses(search.text), *_show_clauses(search.show)]
    page = (
        select(lake_table)
        .where(*matches)
        .order_by(lake_table.c.table_name, lake_table.c.table_id)
        .limit(PAGE_SIZE)
        .offset((search.page - 1) * PAGE_SIZE)
    )
    with registry.transaction() as session:
        total = session.execute(select(func.count()).select_from(lake_table).where(*matches)).scalar_one()
        return Found(tuple(session.execute(page).mappings().all()), total)


def _text_clauses(text: str) -> list[ColumnElement[bool]]:
    wanted = text.strip().lower()
    if not wanted:
        return []
    columns = (lake_table.c.table_name, lake_table.c.base_path, lake_table.c.database_name)
    return [or_(*(func.lower(column).contains(wanted, autoescape=True) for column in columns))]


def _show_clauses(show: Show) -> list[ColumnElement[bool]]:
    if show is Show.PROBLEM:
        return [lake_table.c.problem != ""]
    if show is Show.ALL:
        return []
    verdict = Verdict.DUE if show is Show.DUE else Verdict.BLOCKED
    # The loop keeps decisions as json.dumps writes them.
    return [lake_table.c.decisions.contains(f'"verdict": "{verdict.value}"', autoescape=True)]
