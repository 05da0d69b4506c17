from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_lake_provider.shared.hudi_settings import TTL_DAYS, TTL_MAX_PARTITIONS
from lake_jobs.services.ttl_rules import STRATEGY, STRATEGY_CLASS, TtlRules, TtlSettingError, find_expired, read_rules

NOW = datetime(2026, 11, 21, 12, 0, 0)  # noqa: DTZ001 - instant times have no zone


def days_ago(days: float) -> str:
    return (NOW - timedelta(days=days)).strftime("%Y%m%d%H%M%S") + "000"


@given(
    ages=st.dictionaries(st.text("abc", min_size=1, max_size=3), st.integers(0, 200)),
    days=st.integers(1, 4000),
    most=st.integers(1, 5),
)
def test_exactly_the_oldest_expired_partitions_go(ages: dict[str, int], days: int, most: int) -> None:
    """50 days are 50 days: counted in 32 bits of milliseconds, as Hudi 1.2 does, they would be 7 hours."""
    expired = find_expired({p: days_ago(age) for p, age in ages.items()}, days_ago(0), TtlRules(days, most))
    old = [age for age in ages.values() if age > days]
    assert sorted((ages[p] for p in expired), reverse=True) == sorted(old, reverse=True)[:most]


def test_a_second_decides_and_days_without_end_expire_nothing() -> None:
    last_writes = {"a": days_ago(30), "b": days_ago(30 + 1 / 86_400)}
    assert find_expired(last_writes, days_ago(0), TtlRules(30, 10)) == ("b",)
    # 14 digits: written by a Hudi before 0.10.
    assert find_expired({"a": "20200101000000"}, days_ago(0), TtlRules(30, 10)) == ("a",)
    assert find_expired(last_writes, days_ago(0), TtlRules(10_000_000, 10)) == ()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        pytest.param({}, f"{TTL_DAYS} is not set", id="no-days"),
        pytest.param({TTL_DAYS: "-1"}, f"{TTL_DAYS} is -1", id="hudis-default"),
        pytest.param({TTL_DAYS: "0"}, f"{TTL_DAYS} is 0", id="zero"),
        pytest.param({TTL_DAYS: "5", TTL_MAX_PARTITIONS: "none"}, f"{TTL_MAX_PARTITIONS} is none", id="most"),
        pytest.param({TTL_DAYS: "5", STRATEGY: "KEEP_BY_CREATION_TIME"}, "KEEP_BY_CREATION_TIME is not", id="strategy"),
        pytest.param({TTL_DAYS: "5", STRATEGY_CLASS: "com.acme.Mine"}, "com.acme.Mine is not", id="class"),
    ],
)
def test_settings_that_do_not_say_what_expires_are_refused(settings: dict[str, str], says: str) -> None:
    with pytest.raises(TtlSettingError, match="table t") as refused:
        read_rules(settings, "table t")
    assert says in str(refused.value)


def test_rules_are_read_from_hudis_own_settings() -> None:
    assert read_rules({TTL_DAYS: "365"}, "t") == TtlRules(365, 1000)
    assert read_rules({TTL_DAYS: "7", TTL_MAX_PARTITIONS: "3", STRATEGY: "keep_by_time"}, "t") == TtlRules(7, 3)
