"""Which savepoints of the service go: by number and by age, but for the newest."""

from __future__ import annotations

import pytest

from lake_jobs.services.savepoint_rules import Savepoint, choose_expired

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
