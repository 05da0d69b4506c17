"""The summary at the end of `make test`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.durations import Durations, describe, read_cpu_s


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


def test_cpu_seconds_are_those_of_this_process_and_of_its_children_alive_or_not() -> None:
    busy = "import time, sys\nwhile time.process_time() < 0.3: pass\nprint(1, flush=True)\nsys.stdin.read()"
    before_s = read_cpu_s()
    with subprocess.Popen([sys.executable, "-c", busy], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        alive_s = read_cpu_s() - before_s
    ended_s = read_cpu_s() - before_s
    assert 0.25 < alive_s <= ended_s < 5
