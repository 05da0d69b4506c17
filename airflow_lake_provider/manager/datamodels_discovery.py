"""Wire types of discovery: which roots to search, and what was found."""

from __future__ import annotations

from pydantic import BaseModel, Field

from airflow_lake_provider.manager.datamodels import BasePath, TableName  # noqa: TC001 - pydantic reads them


class RootAnswer(BaseModel):
    """A root to search for tables."""

    root: str
    depth: int = Field(description="How many levels below the root")
    problem: str = Field(description="Why it must not be searched; empty when it may")


class RootsAnswer(BaseModel):
    """The roots of the tables' settings."""

    roots: list[RootAnswer]


class DiscoveredTable(BaseModel):
    """A table that was found."""

    base_path: BasePath
    table_name: TableName


class DiscoveredBody(BaseModel):
    """Tables that were found below a root."""

    tables: list[DiscoveredTable] = Field(max_length=10_000)


class DiscoveredAnswer(BaseModel):
    """How many tables are new to the registry; they are looked at next."""

    registered: int
    known: int
