"""`make soak` reaches every test that is marked for it alone."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
OWN = {Path(__file__).resolve(), ROOT / "tests" / "unit" / "test_soak_marks.py"}
"""What tests the marks themselves."""
ALL = "-m ''"
"""The Makefile's `ALL`: also what is marked for the long form."""


def soak_paths(makefile: str) -> list[str]:
    """Return the folders and files whose marked tests the target `soak` runs."""
    recipe = re.search(r"^soak:.*##.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    assert recipe is not None, "the Makefile has no target soak"
    paths = []
    for line in recipe[1].splitlines():
        words = shlex.split(line.replace("$(ALL)", ALL))
        # One test by name, or an expression, would leave others out.
        is_whole = not {"-k", "--ignore", "--deselect"} & set(words)
        if "-m" in words and words[len(words) - words[::-1].index("-m")] in {"soak", ""} and is_whole:
            paths += [word for word in words if word.startswith("tests/") and "::" not in word]
    return paths


def find_unreached(marked: list[str], paths: list[str]) -> list[str]:
    return [test for test in marked if not any(test == path or test.startswith(f"{path}/") for path in paths)]


def test_soak_runs_every_file_with_a_marked_test() -> None:
    paths = soak_paths((ROOT / "Makefile").read_text(encoding="utf-8"))
    assert all((ROOT / path).exists() for path in paths), paths
    marked = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if "mark.soak" in path.read_text(encoding="utf-8") and path not in OWN
    ]
    assert len(marked) > 20
    assert find_unreached(marked, paths) == []


@pytest.mark.parametrize(
    ("line", "paths"),
    [
        (
            "\tA=1 $(BIN)/python -m pytest $(ALL) -s tests/system/test_a.py tests/oracle",
            ["tests/system/test_a.py", "tests/oracle"],
        ),
        ("\t$(BIN)/python -m pytest -m soak tests/system", ["tests/system"]),
        ("\t$(BIN)/python -m pytest tests/system", []),
        ("\t$(BIN)/python -m pytest -m soak tests/system -k kills", []),
        ("\t$(BIN)/python -m pytest -m soak tests/system/test_a.py::test_b", []),
    ],
)
def test_lines_that_reach_marked_tests(line: str, paths: list[str]) -> None:
    assert soak_paths(f"soak: install ## The long form\n{line}\n\nbench:\n\tx tests/other\n") == paths


def test_file_in_no_line_is_found() -> None:
    assert find_unreached(["tests/a/test_x.py", "tests/ab/test_y.py"], ["tests/a"]) == ["tests/ab/test_y.py"]
