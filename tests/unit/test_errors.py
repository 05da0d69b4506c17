from __future__ import annotations

import math

import pytest

from airflow_lake_provider.errors import backoff


@pytest.mark.parametrize(
    ("failures", "pause_s"), [(0, 2), (1, 2), (2, 4), (3, 8), (9, 512), (10, 600), (11, 600), (100_000, 600)]
)
def test_pause_doubles_from_the_first_one_to_the_longest(failures: int, pause_s: float) -> None:
    assert backoff(2.0, failures, 600.0) == pause_s


def test_pause_without_a_longest_one_is_finite_after_any_number_of_failures() -> None:
    assert backoff(60.0, 4) == 480.0
    assert math.isfinite(backoff(60.0, 1_000_000))
