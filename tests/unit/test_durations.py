"""The summary at the end of `make test`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.durations import FAILED_FOLDER, MAX_OF_A_REASON, Durations, describe, describe_failures, read_cpu_s


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


FAILING = """
def test_wrong():
    found = "x" * 9000 + "the end"
    assert found == "other", found

def test_right():
    pass
"""


def reasons_of(folder: Path, source: str) -> dict[str, str]:
    """Return what a run of pytest in the folder keeps of a test file with this source, which must fail."""
    (folder / "test_it.py").write_text(source)
    plugin, durations = ("-p", "tests.conftest", "-p", "no:cacheprovider"), folder / "durations"
    environ = os.environ | {"LAKE_DURATIONS": str(durations), "PYTHONPATH": os.getcwd()}
    command = [sys.executable, "-m", "pytest", "-q", "--rootdir", str(folder), *plugin, str(folder / "test_it.py")]
    assert subprocess.run(command, env=environ, check=False, capture_output=True).returncode != 0
    return Durations(durations / FAILED_FOLDER).load()


def test_file_that_cannot_be_imported_counts_as_failed(tmp_path: Path) -> None:
    ((test, reason),) = reasons_of(tmp_path, "unknown.mark\n").items()
    assert test.endswith("test_it.py")
    assert "NameError: name 'unknown' is not defined" in reason


def test_reason_of_a_failure_is_kept_and_shown_with_both_of_its_ends(tmp_path: Path) -> None:
    reasons = reasons_of(tmp_path, FAILING)
    ((test, reason),) = reasons.items()
    assert test.endswith("::test_wrong")
    assert "test_it.py:4: AssertionError: xxx" in reason
    shown = describe_failures(reasons)
    assert shown.startswith(f"1 tests failed:\nFAILED {test}\n  ")
    assert "the end" in shown
    assert len(shown) < MAX_OF_A_REASON + 500
    assert describe_failures({}) == "0 tests failed"


def test_cpu_seconds_are_those_of_this_process_and_of_its_children_alive_or_not() -> None:
    busy = "import time, sys\nwhile time.process_time() < 0.3: pass\nprint(1, flush=True)\nsys.stdin.read()"
    before_s = read_cpu_s()
    with subprocess.Popen([sys.executable, "-c", busy], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        alive_s = read_cpu_s() - before_s
    ended_s = read_cpu_s() - before_s
    assert 0.25 < alive_s <= ended_s < 5
