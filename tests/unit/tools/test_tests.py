"""`make test` runs each test once, and a tier that fails keeps no other one back."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tools.links import ROOT
from tools.tests import CHECK, GROUPS, QUICK, Commands, make_tiers, run_side_by_side, run_tier

TIERS = make_tiers(ROOT)


def files_of(command: tuple[str, ...]) -> set[Path]:
    words = command[command.index("pytest") + 1 :]
    ignored = [ROOT / word.removeprefix("--ignore=") for word in words if word.startswith("--ignore=")]
    given = [ROOT / word for word in words if word.startswith("tests/")]
    found = {file for path in given for file in ([path] if path.is_file() else path.rglob("test_*.py"))}
    return {file for file in found if not any(file.is_relative_to(folder) for folder in ignored)}


def test_every_test_is_in_one_tier_of_make_test() -> None:
    """Those of `tests/clusters` and `tests/hudi_faults` are soak tests; `tests/spark4` has its own environment."""
    counts: Counter[Path] = Counter()
    for name, commands in TIERS.items():
        if name != "quick-others":
            counts.update(file for one in commands if "pytest" in one for file in files_of(one))
    others = {"clusters", "hudi_faults", "spark4"}
    everything = {file for file in (ROOT / "tests").rglob("test_*.py") if others.isdisjoint(file.parts)}
    assert set(counts) == everything
    assert [file for file, count in counts.items() if count != 1] == []


def test_each_interpreter_runs_what_it_can_import() -> None:
    for commands in TIERS.values():
        for command in (one for one in commands if "pytest" in one):
            needs_spark = any(
                word.startswith(("tests/integration/spark", "tests/oracle", "tests/field/tables")) for word in command
            )
            assert command[0] == (".venv-spark/bin/python" if needs_spark else ".venv/bin/python")


def test_groups_name_tiers() -> None:
    assert {*QUICK, *(name for names in GROUPS.values() for name in names)} <= set(TIERS)
    assert TIERS["check"] == CHECK


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def test_tier_that_fails_keeps_no_other_one_back(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    tiers: dict[str, Commands] = {
        "bad": (python("print('of bad'); raise SystemExit(3)"), python("print('not this')")),
        "good": (python("print('of good')"), python("print('and this')")),
    }
    ended = {one.name: one.returncode for one in run_side_by_side(tiers, 1, os.environ)}
    assert ended == {"bad": 3, "good": 0}
    printed = capfdbinary.readouterr().out.decode()
    assert printed.index("of bad") < printed.index("of good") < printed.index("and this")
    assert "\nnot this\n" not in printed


def test_tier_counts_the_time_of_its_processes() -> None:
    with open(os.devnull, "w+b") as output:
        code = "import time; end = time.process_time() + 0.2\nwhile time.process_time() < end: pass"
        ended = run_tier("one", (python(code),), output, os.environ)
    assert ended.took_s >= ended.cpu_s * 0.5
    assert 0.2 <= ended.cpu_s < 5


def test_unknown_tier_is_refused_with_the_known_ones() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tools.tests", "unit-test"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, "no tier unit-test; known are all, quick, unit, spark, system" in done.stderr) == (2, True)
