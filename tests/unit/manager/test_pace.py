"""How often one table may be evaluated."""

from __future__ import annotations

import pytest

from airflow_lake_provider.manager.loop.pace import EvaluationPace

PACE = {"at_once": 3, "every_s": 5.0}


def test_first_evaluations_follow_each_other_and_later_ones_rest() -> None:
    pace = EvaluationPace(**PACE)  # type: ignore[arg-type]
    for _ in range(2):
        pace.count("a", 100)
        assert pace.find_resting(100) == {}
    pace.count("a", 100)
    assert pace.find_resting(100) == {"a": 105}
    assert pace.find_resting(104.9) == {"a": 105}
    assert pace.find_resting(105) == {}
    pace.count("a", 105)
    assert pace.find_resting(105) == {"a": 110}


@pytest.mark.parametrize(("gap_s", "rests"), [(5.0, False), (4.0, True)])
def test_only_what_is_faster_than_the_pace_comes_to_rest(gap_s: float, rests: bool) -> None:
    pace = EvaluationPace(**PACE)  # type: ignore[arg-type]
    seen = []
    for number in range(40):
        seen.append(bool(pace.find_resting(number * gap_s)))
        pace.count("a", number * gap_s)
    assert any(seen) is rests


def test_over_time_a_table_is_evaluated_at_the_pace() -> None:
    pace = EvaluationPace(**PACE)  # type: ignore[arg-type]
    count = 0
    for tick in range(10_000):
        if "a" not in pace.find_resting(tick / 10):
            pace.count("a", tick / 10)
            count += 1
    assert count == 3 + 1000 / 5 - 1


def test_each_table_has_its_own_pace_and_something_due_ends_its_rest() -> None:
    pace = EvaluationPace(**PACE)  # type: ignore[arg-type]
    for _ in range(3):
        pace.count("a", 0)
        pace.count("b", 0)
    pace.forget("a")
    assert list(pace.find_resting(0)) == ["b"]


def test_tables_that_have_rested_are_not_kept() -> None:
    pace = EvaluationPace(**PACE)  # type: ignore[arg-type]
    for number in range(10_000):
        pace.count(f"t{number}", float(number))
    assert len(pace._rested_s) <= 1025
