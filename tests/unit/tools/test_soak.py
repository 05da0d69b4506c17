"""`make soak` reaches every test that is marked for it alone, goes on after a failure and where it was stopped."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tools import soak
from tools.soak import RANDOM_SEED, STEPS, Step, Which, draw_seeds, find_left, run_steps

ROOT = Path(__file__).resolve().parents[3]
OWN = {Path(__file__).resolve(), ROOT / "tests" / "unit" / "test_soak_marks.py"}
"""What tests the marks themselves."""


def find_unreached(marked: list[str], paths: list[str]) -> list[str]:
    return [test for test in marked if not any(test == path or test.startswith(f"{path}/") for path in paths)]


def test_soak_runs_every_file_with_a_marked_test() -> None:
    paths = [path for step in STEPS if step.tests is not Which.SHORT for path in step.paths]
    assert all((ROOT / path).exists() for path in paths), paths
    marked = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if "mark.soak" in path.read_text(encoding="utf-8") and path not in OWN
    ]
    assert len(marked) > 20
    assert find_unreached(marked, paths) == []


def test_file_in_no_step_is_found() -> None:
    assert find_unreached(["tests/a/test_x.py", "tests/ab/test_y.py"], ["tests/a"]) == ["tests/ab/test_y.py"]


def test_each_step_has_a_name_of_its_own() -> None:
    assert len({step.name for step in STEPS}) == len(STEPS)


def test_each_variable_of_a_step_is_read_by_a_test() -> None:
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py") if path not in OWN]
    for name in {name for step in STEPS for name in step.environment}:
        assert any(name in text for text in texts), name


def test_seed_is_drawn_where_one_is_asked_for() -> None:
    drawn = [draw_seeds({"A": RANDOM_SEED, "B": "2"}) for _ in range(5)]
    assert {each["B"] for each in drawn} == {"2"}
    assert len({each["A"] for each in drawn}) > 1


def test_step_that_fails_keeps_no_other_from_running_and_what_passed_is_left_out_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = {"tests/bad": "raise SystemExit(1)", "tests/good": "import os; raise SystemExit(os.environ['X'] != '1')"}
    monkeypatch.setattr(soak.Step, "command", lambda step: [sys.executable, "-c", ends[step.paths[0]]])
    steps = [Step(("tests/bad",)), Step(("tests/good",), {"X": "1"}, Which.MARKED)]
    record = tmp_path / "soak" / "abc.json"
    assert run_steps(steps, [], record) == ["tests/bad"]
    passed = json.loads(record.read_text(encoding="utf-8"))
    assert passed == ["X=1 tests/good (marked)"]
    assert find_left(steps, passed) == steps[:1]
