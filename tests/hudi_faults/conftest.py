"""Probes of Hudi's own faults: stock Hudi writes, serves and reads; the provider has no part in what fails."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT)]
# Tables of which a test keeps the rows. Behind all others: there is another `conftest` there.
sys.path.append(str(ROOT / "tests" / "field" / "tables"))

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
    require_rows,
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
    "require_rows",
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
