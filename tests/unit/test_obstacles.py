"""States of a table in which Hudi fails each time."""

from __future__ import annotations

import pytest

from airflow_lake_provider.obstacles import find_emptied_logs


@pytest.mark.parametrize(
    ("version", "rollback", "says"),
    [
        pytest.param(6, "20260101000000000", "20260101000000000", id="blocks stay in their log file"),
        pytest.param(6, "", "", id="nothing was rolled back"),
        pytest.param(8, "20260101000000000", "", id="a rollback deletes log files"),
    ],
)
def test_log_files_that_a_rollback_may_have_emptied(version: int, rollback: str, says: str) -> None:
    assert says in find_emptied_logs(version, rollback)
    assert bool(says) == bool(find_emptied_logs(version, rollback))
