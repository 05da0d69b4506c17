"""Spark's tests: one session with real Hudi, and tables that a test may spoil (`tests/support/hudi_tables.py`)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(ROOT)]

from tests.support.hudi_tables import (  # noqa: E402
    LOCK,
    SPARK_JOBS,
    MakeTable,
    Table,
    content,
    file_groups,
    make_table,
    mark_integration,
    prepare_pytest,
    rows,
    rows_written,
    run,
    spark,
    template,
    write,
)

__all__ = [
    "LOCK",
    "SPARK_JOBS",
    "MakeTable",
    "Table",
    "content",
    "file_groups",
    "make_table",
    "rows",
    "rows_written",
    "run",
    "spark",
    "template",
    "write",
]


def pytest_configure(config: pytest.Config) -> None:
    prepare_pytest(config)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_integration(items, Path(__file__).parent)
