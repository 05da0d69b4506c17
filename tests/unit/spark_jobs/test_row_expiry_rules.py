"""Which rows are expired, and which file groups go first."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_lake_provider.job_contract import (
    TTL_COLUMN,
    TTL_COLUMN_DAYS,
    TTL_COLUMN_MODE,
    TTL_COLUMN_UNIT,
    TTL_MAX_FILE_GROUPS,
    TTL_MAX_ROWS,
)
from lake_jobs.services.row_expiry_rules import ExpiredGroup, RowRules, choose_groups, find_expiry, read_row_rules
from lake_jobs.services.ttl_rules import TtlSettingError

NOW_MS = int(datetime(2026, 11, 28, 12, 30, tzinfo=UTC).timestamp() * 1000)
BY_SEEN = {TTL_COLUMN: "seen", TTL_COLUMN_DAYS: "30"}


def rules(unit: str = "", days: int = 30, max_rows: int = 100, max_file_groups: int = 3) -> RowRules:
    return RowRules("seen", days, unit, True, max_rows, max_file_groups)


@pytest.mark.parametrize(
    ("column_type", "unit", "days", "condition"),
    [
        # 30 days before noon: of the day in which the limit lies, half is younger.
        ("date", "", 30, "`seen` < DATE'2026-10-29'"),
        ("timestamp", "", 30, "`seen` < TIMESTAMP'2026-10-29 12:30:00 UTC'"),
        ("timestamp_ntz", "", 30, "`seen` < TIMESTAMP_NTZ'2026-10-29 12:30:00'"),
        ("bigint", "ms", 30, "`seen` > 0 AND `seen` < 1793277000000"),
        ("int", "s", 30, "`seen` > 0 AND `seen` < 1793277000"),
        ("bigint", "us", 30, "`seen` > 0 AND `seen` < 1793277000000000"),
        ("date", "", 10_000_000, "`seen` < DATE'0001-01-01'"),
        ("bigint", "ms", 10_000_000, "false"),
    ],
)
def test_limit_is_written_in_the_columns_own_type(column_type: str, unit: str, days: int, condition: str) -> None:
    assert find_expiry(column_type, rules(unit, days), NOW_MS, "table t").is_expired == condition


@pytest.mark.parametrize(
    ("column_type", "unit", "says"),
    [
        ("bigint", "", "set ttl.column_unit"),
        ("date", "s", "ttl.column_unit is of columns of whole numbers: remove it"),
        ("string", "", "seen is a string, and rows expire by a date"),
        ("struct<a:int>", "ms", "seen is a struct<a:int>"),
    ],
)
def test_column_of_another_type_is_refused(column_type: str, unit: str, says: str) -> None:
    with pytest.raises(TtlSettingError, match="table t") as refused:
        find_expiry(column_type, rules(unit), NOW_MS, "table t")
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({TTL_COLUMN: ""}, f"{TTL_COLUMN} is ''"),
        ({TTL_COLUMN: "_hoodie_commit_time"}, "a column of the table's own"),
        ({TTL_COLUMN: "a` OR true --"}, "a column of the table's own"),
        ({TTL_COLUMN_DAYS: "0"}, f"{TTL_COLUMN_DAYS} is 0"),
        ({TTL_COLUMN_DAYS: ""}, f"{TTL_COLUMN_DAYS} is not set"),
        ({TTL_COLUMN_UNIT: "days"}, "allowed: s, ms, us"),
        ({TTL_COLUMN_MODE: "move"}, "allowed: delete, report"),
        ({TTL_MAX_ROWS: "-1"}, f"{TTL_MAX_ROWS} is -1"),
        ({TTL_MAX_FILE_GROUPS: "some"}, f"{TTL_MAX_FILE_GROUPS} is some"),
    ],
)
def test_options_that_do_not_say_what_expires_are_refused(more: dict[str, str], says: str) -> None:
    with pytest.raises(TtlSettingError, match="table t") as refused:
        read_row_rules(BY_SEEN | more, "table t")
    assert says in str(refused.value)


def test_rules_are_read_from_the_options() -> None:
    found = read_row_rules({**BY_SEEN, TTL_COLUMN_MODE: "report", TTL_COLUMN_UNIT: "ms", TTL_MAX_ROWS: "5"}, "t")
    assert found == RowRules("seen", 30, "ms", False, 5, 100)


@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(-5, 5)), max_size=8),
    st.integers(1, 100),
    st.integers(1, 4),
)
def test_oldest_file_groups_go_whole_and_within_the_limits(
    found: list[tuple[int, int]], max_rows: int, max_file_groups: int
) -> None:
    groups = [ExpiredGroup("p", f"f{at}", rows, oldest) for at, (rows, oldest) in enumerate(found)]
    limits = rules(max_rows=max_rows, max_file_groups=max_file_groups)
    chosen = choose_groups(groups, limits)
    assert len(chosen) <= max_file_groups
    assert bool(chosen) == bool(groups)
    assert len(chosen) == 1 or sum(group.rows for group in chosen) <= max_rows
    left = set(groups) - set(chosen)
    assert all(one.oldest <= other.oldest for one in chosen for other in left)
    following = min(left, key=lambda group: (group.oldest, group.file_id), default=None)
    if following is not None and len(chosen) < max_file_groups:
        assert sum(group.rows for group in chosen) + following.rows > max_rows
