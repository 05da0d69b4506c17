"""The support matrix: a cell is tested when every named test's last recorded result is a pass, and not before."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from airflow_lake_provider.execution.engines.engine import BUILT_IN
from airflow_lake_provider.job_contract import Service
from tools.support import CELLS, find_missing, is_passed, merge, render

ROOT = Path(__file__).resolve().parents[3]

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


def test_page_links_to_the_test_and_says_whether_it_passed() -> None:
    assert f"| spark | [*not recorded*](../{TEST}) | *refused*: no such mode |" in render([MATRIX], {})
    page = render([MATRIX], {f"{TEST}::test_cell[passed]": "passed"})
    assert f"| spark | [**tested**](../{TEST}) | *refused*: no such mode |" in page


def test_sentence_of_several_cells_is_a_note() -> None:
    cells = [f"reasoned: as before ({TEST})", f"reasoned: as before ({TEST})"]
    page = render([MATRIX | {"rows": [["spark", *cells], ["flink", "reasoned:", "refused: no"]]}], {})
    assert "| spark | *reasoned* (1) | *reasoned* (1) |\n| flink | *reasoned* | *refused*: no |" in page
    assert f"\n1. as before ([test](../{TEST}))\n" in page


def test_cell_without_its_test_and_row_without_its_cells_are_named() -> None:
    assert find_missing([MATRIX], ROOT, {}) == []
    rows = [["spark", f"{TEST}::test_gone", "reasoned: as before"], ["flink"]]
    said = find_missing([MATRIX | {"rows": rows}], ROOT, {})
    assert said == [f"spark: there is no test {TEST}::test_gone", "Engines: row 'flink' has 1 cells, not 3"]


def test_test_in_a_sentence_and_parameter_that_no_result_names_are_missed() -> None:
    rows = [["spark", f"{TEST}::test_cell[passed] {TEST}::test_cell[typo]", "refused: so (tests/unit/test_gone.py)"]]
    results = {f"{TEST}::test_cell[passed]": "failed"}
    gone = ["spark: there is no test tests/unit/test_gone.py"]
    assert find_missing([MATRIX | {"rows": rows}], ROOT, results) == [
        f"spark: there is no test {TEST}::test_cell[typo]",
        *gone,
    ]
    assert find_missing([MATRIX | {"rows": rows}], ROOT, {}) == gone


LABELS = {
    Service.LOGCOMPACTION: "log compaction",
    Service.TTL: "partition TTL",
    Service.METACOMPACTION: "metadata table's compaction",
    Service.INDEXING: "index builds",
    Service.ORPHANS: "orphan files",
    Service.SYNC: "catalog sync",
    Service.INTEGRITY: "integrity checks",
}


@pytest.fixture(scope="module")
def matrices() -> dict[str, dict[str, Any]]:
    return {matrix["title"]: matrix for matrix in tomllib.loads(CELLS.read_text(encoding="utf-8"))["matrix"]}


def first_cells(matrix: dict[str, Any]) -> set[str]:
    """Return the names of a matrix's rows; two rows of one thing differ in what follows a comma."""
    return {row[0].partition(",")[0] for row in matrix["rows"]}


def test_every_matrix_of_services_has_every_service(matrices: dict[str, dict[str, Any]]) -> None:
    services = {LABELS.get(service, str(service)) for service in Service} | {"replication"}
    found = {title: first_cells(matrix) for title, matrix in matrices.items() if title.startswith("Services")}
    assert len(found) == 4
    assert found == dict.fromkeys(found, services)


def test_matrices_have_every_engine_and_every_python_of_the_package(matrices: dict[str, dict[str, Any]]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    engines = {entry.name for entry in BUILT_IN}
    assert {name.partition(" (")[0] for name in first_cells(matrices["Engines by mode"])} == engines
    prefix = "Programming Language :: Python :: 3."
    pythons = {f"Python 3.{line.removeprefix(prefix)}" for line in project["classifiers"] if line.startswith(prefix)}
    assert first_cells(matrices["Airflow"]) == pythons


def test_skipped_test_leaves_its_earlier_result(tmp_path: Path) -> None:
    (tmp_path / "1.json").write_text(json.dumps({"a": "skipped", "b": "failed"}), encoding="utf-8")
    assert merge({"a": "passed", "b": "passed"}, tmp_path) == {"a": "passed", "b": "failed"}
