"""Numbers of an operator that a template or another task has made."""

from __future__ import annotations

import pytest

from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.execution.arguments import find_number


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "-1", "0", 0, -5, "1e999", "abc", "1; drop", [1], {}, 10**400])
def test_what_is_no_number_above_0_is_refused_with_its_name(value: object) -> None:
    with pytest.raises(ConfigError, match=r"max_hold_s is .*number above 0"):
        find_number("max_hold_s", value)  # type: ignore[arg-type]


def test_numbers_are_taken_and_none_is_none() -> None:
    assert [find_number("x", value) for value in (None, "", "5", 2.5)] == [None, None, 5.0, 2.5]
