"""The percentile of all benchmarks."""

from __future__ import annotations

from benchmarks.ranks import rank, rank_if_any


def test_percentile_is_one_of_the_values() -> None:
    assert rank([float(value) for value in range(200, 0, -1)], 0.99) == 198.0
    assert rank([0.0] * 20 + [3.0], 0.99) == 3.0
    assert rank([7.0], 0.99) == 7.0


def test_nothing_measured_has_none() -> None:
    assert (rank_if_any([], 0.5), rank_if_any([2.0, 1.00049], 0.5)) == (None, 1.0)
