from __future__ import annotations

import pytest

from airflow_lake_provider.errors import LockNotConfiguredError, WriterUnguardedError
from airflow_lake_provider.planner.rules import (
    CONCURRENCY_MODE,
    LOCK_PROVIDER,
    find_lock_problem,
    require_guarded_writers,
    require_lock,
)

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


@pytest.mark.parametrize(
    ("beats", "refused"),
    [
        pytest.param((), True, id="without-heartbeat"),
        pytest.param(("1",), False, id="with-heartbeat"),
        pytest.param(("2",), True, id="only-another-ones-heartbeat"),
    ],
)
def test_require_guarded_writers_asks_for_a_heartbeat_and_names_the_remedies(
    beats: tuple[str, ...], *, refused: bool
) -> None:
    if not refused:
        return require_guarded_writers({"1"}, beats, "/lake/orders")
    with pytest.raises(
        WriterUnguardedError, match="/lake/orders: the write 1 is in flight without a heartbeat"
    ) as reported:
        require_guarded_writers({"1"}, beats, "/lake/orders")
    for word in (CONCURRENCY_MODE, LOCK_PROVIDER, "failed.writes.policy=LAZY", "rollback by hand"):
        assert word in str(reported.value)
    return None
