"""The rows' classes have the columns of the schema, and what a column may be."""

from __future__ import annotations

from dataclasses import fields
from types import NoneType, UnionType
from typing import Any, get_args, get_type_hints

import pytest
from sqlalchemy import Table

from airflow_lake_provider.manager.db.schema import (
    lake_executor,
    lake_hold,
    lake_search,
    lake_sink,
    lake_spent,
    lake_table,
)
from airflow_lake_provider.manager.db.typed_rows import (
    ExecutorRow,
    HoldRow,
    SearchRow,
    SinkRow,
    SpentRow,
    TableNames,
    TableRow,
)
from airflow_lake_provider.manager.loop.timeline_feed import FeedRow
from airflow_lake_provider.manager.supervision.repair_round import RepairRow

WHOLE = [
    (TableRow, lake_table),
    (SinkRow, lake_sink),
    (HoldRow, lake_hold),
    (ExecutorRow, lake_executor),
    (SpentRow, lake_spent),
]
PARTS = [(TableNames, lake_table), (SearchRow, lake_search), (RepairRow, lake_table), (FeedRow, lake_table)]


@pytest.mark.parametrize(("kind", "table"), [*WHOLE, *PARTS])
def test_fields_have_the_types_of_their_columns(kind: type[Any], table: Table) -> None:
    for name, hint in get_type_hints(kind).items():
        column = table.c[name]
        wanted: type[Any] | UnionType = column.type.python_type
        assert set(get_args(hint) or (hint,)) == {wanted, *([NoneType] if column.nullable else [])}, name


@pytest.mark.parametrize(("kind", "table"), WHOLE)
def test_whole_rows_have_each_column(kind: type[Any], table: Table) -> None:
    assert {field.name for field in fields(kind)} == set(table.c.keys())
