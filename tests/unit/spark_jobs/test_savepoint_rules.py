"""Which write gets a savepoint, and which savepoints of the service go: by number and by age, but for the newest."""

from __future__ import annotations

import pytest

from lake_jobs.services.savepoint_rules import Savepoint, choose_expired, choose_write

OWN = [Savepoint(str(day), "airflow-lake-provider", day * 1000) for day in (3, 1, 4, 2)]


@pytest.mark.parametrize(
    ("keep", "made_before_ms", "gone"),
    [
        pytest.param(7, None, (), id="fewer-than-may-stay"),
        pytest.param(2, None, ("1", "2"), id="the-oldest-go"),
        pytest.param(0, None, ("1", "2", "3", "4"), id="none-is-kept"),
        pytest.param(7, 2500, ("1", "2"), id="too-old"),
        pytest.param(7, 99_000, ("1", "2", "3"), id="the-newest-stays-however-old"),
        pytest.param(3, 2500, ("1", "2"), id="both"),
    ],
)
def test_expired_savepoints(keep: int, made_before_ms: int | None, gone: tuple[str, ...]) -> None:
    assert choose_expired(OWN, keep, made_before_ms) == gone


def test_no_savepoint_no_choice() -> None:
    assert choose_expired([], 0, None) == choose_expired([], 3, 5) == ()


@pytest.mark.parametrize(
    ("writes", "until", "chosen"),
    [
        pytest.param([], "", "", id="no-write"),
        pytest.param([("1", "2"), ("3", "4")], "3", "3", id="one-after-the-other"),
        pytest.param([("1", "2"), ("3", "6"), ("4", "5")], "4", "1", id="the-last-one-completed-first"),
        pytest.param([("1", "2"), ("3", "5"), ("4", "6")], "4", "4", id="in-the-same-order"),
        pytest.param([("1", "6"), ("3", "4")], "3", "", id="all-overlap"),
        pytest.param([("1", "6"), ("3", "4"), ("7", "8")], "7", "7", id="the-next-one-is-right"),
        pytest.param([("1", "2"), ("3", "9"), ("5", "6")], "3", "1", id="behind-a-pending-one-a-write-overlaps"),
        pytest.param([("1", "2"), ("5", "6")], "1", "1", id="behind-a-pending-one"),
    ],
)
def test_a_savepoint_stands_where_requests_and_completions_agree(
    writes: list[tuple[str, str]], until: str, chosen: str
) -> None:
    assert choose_write(writes, until) == chosen
