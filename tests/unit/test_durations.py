"""The summary at the end of `make test`."""

from __future__ import annotations

from pathlib import Path

from tests.support.durations import Durations, describe


def test_slowest_tests_of_all_runs_are_named_first_and_each_tier_has_its_sum(tmp_path: Path) -> None:
    quick = {f"tests/unit/test_a.py::test_{number}": 0.5 for number in range(20)}
    slow = {"tests/integration/spark/test_b.py::test_b[x::y]": 40.0, "tests/integration/storage/test_c.py::test_c": 2.0}
    for run, seconds in enumerate((quick, slow)):
        Durations(tmp_path).save(seconds, run)
    text = describe(Durations(tmp_path).load()).splitlines()
    assert [line.split() for line in text[1:4]] == [
        ["40.0", "tests/integration/spark"],
        ["10.0", "tests/unit"],
        ["2.0", "tests/integration/storage"],
    ]
    shown = [line.split()[1] for line in text[5:]]
    assert (shown[:2], len(shown)) == (list(slow), 10)
