from __future__ import annotations

import pytest

from airflow_lake_provider.errors import LockNotConfiguredError
from airflow_lake_provider.planner.lock_rule import CONCURRENCY_MODE, LOCK_PROVIDER, find_lock_problem, require_lock

PACKAGE = "org.apache.hudi.client.transaction.lock."


@pytest.mark.parametrize(
    ("options", "words"),
    [
        pytest.param({}, "no hoodie.write.lock.provider is configured", id="none"),
        pytest.param({LOCK_PROVIDER: " "}, "no hoodie.write.lock.provider is configured", id="blank"),
        pytest.param(
            {LOCK_PROVIDER: PACKAGE + "InProcessLockProvider"}, "does not reach beyond one process", id="in-process"
        ),
        pytest.param({LOCK_PROVIDER: PACKAGE + "NoopLockProvider"}, "does not reach beyond one process", id="noop"),
        pytest.param(
            {LOCK_PROVIDER: PACKAGE + "FileSystemBasedLockProvider", CONCURRENCY_MODE: "SINGLE_WRITER"},
            "takes no lock",
            id="single-writer",
        ),
    ],
)
def test_require_lock_of_unsafe_options_names_table_and_setting(options: dict[str, str], words: str) -> None:
    with pytest.raises(LockNotConfiguredError, match="table /lake/orders: ") as caught:
        require_lock(options, "/lake/orders")
    assert words in str(caught.value)


@pytest.mark.parametrize("mode", ["optimistic_concurrency_control", "NON_BLOCKING_CONCURRENCY_CONTROL", None])
def test_find_lock_problem_of_a_shared_provider_finds_none(mode: str | None) -> None:
    options = {LOCK_PROVIDER: PACKAGE + "ZookeeperBasedLockProvider"} | ({CONCURRENCY_MODE: mode} if mode else {})
    assert find_lock_problem(options) is None
