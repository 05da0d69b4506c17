"""How large a statement with a record is on MySQL's servers, and what is said of one that is too large."""

from __future__ import annotations

import pymysql.converters
import pytest

from airflow_lake_provider.replication.sinks.database_packets import find_excess

VALUES = ["x" * 900_000, "'" * 500_000, "é\n" * 300_000, b"\0\xff" * 300_000, None, 7, 1.5]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: str(value)[:3])
def test_a_statement_is_no_larger_than_reckoned(value: object) -> None:
    """By the driver's own text of a value."""
    text = pymysql.converters.escape_item(value, "utf8mb4", mapping=None)
    size = len(str(text).encode("utf-8", "surrogateescape"))
    assert find_excess([value], size) != ""
    assert find_excess([value], size + 8192) == ""


def test_what_to_run_is_a_size_that_servers_have() -> None:
    assert "max_allowed_packet = 2097152, and" in find_excess(["x" * 1_100_000], 1_048_576)
    assert find_excess(["x" * 1_100_000], 0) == ""
