"""The support matrix: a cell is tested when every named test's last recorded result is a pass, and not before."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools.support import find_missing, is_passed, merge, render

TEST = "tests/unit/tools/test_support.py"
MATRIX = {
    "title": "Engines",
    "columns": ["engine", "client", "cluster"],
    "rows": [["spark", f"{TEST}::test_cell", "refused: no such mode"]],
}


@pytest.mark.parametrize(
    ("results", "passed"),
    [
        pytest.param({}, False, id="never-recorded"),
        pytest.param({"a.py::test_x": "passed"}, True, id="passed"),
        pytest.param({"a.py::test_x[1]": "passed", "a.py::test_x[2]": "failed"}, False, id="one-parameter-failed"),
        pytest.param({"a.py::test_xy": "passed"}, False, id="another-test"),
    ],
)
def test_cell(results: dict[str, str], passed: bool) -> None:
    assert is_passed("a.py::test_x", results) is passed


def test_page_names_the_test_and_says_whether_it_passed() -> None:
    assert "| spark | *not recorded* (1) | *refused*: no such mode |" in render([MATRIX], {})
    page = render([MATRIX], {f"{TEST}::test_cell[passed]": "passed"})
    assert "| spark | **tested** (1) | *refused*: no such mode |" in page
    assert f"1. `{TEST}::test_cell`" in page


def test_cell_without_its_test_and_row_without_its_cells_are_named(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[3]
    assert find_missing([MATRIX], root) == []
    rows = [["spark", f"{TEST}::test_gone", "reasoned: as before"], ["flink"]]
    said = find_missing([MATRIX | {"rows": rows}], root)
    assert said == [f"spark: there is no test {TEST}::test_gone", "Engines: row 'flink' has 1 cells, not 3"]


def test_skipped_test_leaves_its_earlier_result(tmp_path: Path) -> None:
    (tmp_path / "1.json").write_text(json.dumps({"a": "skipped", "b": "failed"}), encoding="utf-8")
    assert merge({"a": "passed", "b": "passed"}, tmp_path) == {"a": "passed", "b": "failed"}
