"""Each fault of Hudi in docs/limitations.md and in the oracles has one entry, whose probes exist."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tools.hudi_faults import Fault, find_wrong, list_known, list_rows, load_faults

ROOT = Path(__file__).resolve().parents[3]


def test_page_oracles_and_probes_are_in_step() -> None:
    assert list(find_wrong(load_faults(), ROOT)) == []


def test_each_probe_of_a_folder_belongs_to_a_fault() -> None:
    named = {probe.partition("[")[0] for fault in load_faults() for probe in fault.probes}
    for path in (ROOT / "tests" / "hudi_faults").glob("test_*.py"):
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("def test_"):
                name = line.removeprefix("def ").partition("(")[0]
                assert f"{path.relative_to(ROOT)}::{name}" in named


@pytest.mark.parametrize("missing", ["row", "entry", "known", "probe", "why"])
def test_what_is_on_one_side_only_is_named(tmp_path: Path, missing: str) -> None:
    for file in ("docs/limitations.md", "tests/oracle/judge.py", "tests/oracle/known.py", "tests/row_oracle/known.py"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / file, tmp_path / file)
    first, *others = load_faults()
    assert set(find_wrong((first, *others), tmp_path)) >= {f"there is no test {first.probes[0]}"}
    shutil.copytree(ROOT / "tests", tmp_path / "tests", dirs_exist_ok=True)
    changed = {
        "row": (first, *others, Fault("A row that is not there", why="none")),
        "entry": tuple(others),
        "known": tuple(replace(fault, known=()) for fault in (first, *others)),
        "probe": (replace(first, probes=("tests/oracle/test_oracle.py::test_none",)), *others),
        "why": (replace(first, probes=()), *others),
    }[missing]
    assert list(find_wrong((first, *others), tmp_path)) == []
    assert list(find_wrong(changed, tmp_path))


def test_rows_are_those_of_the_tables_of_faults() -> None:
    rows = list_rows("# A\n\n## Faults of Hudi\n\n| fault | way |\n|---|---|\n| x fails | y |\n\n## B\n\n| z | y |\n")
    assert rows == ["x fails | y |"]
    assert len(list_rows((ROOT / "docs" / "limitations.md").read_text(encoding="utf-8"))) >= 30


def test_oracles_name_their_expected_differences() -> None:
    assert {"oracle:content-record_index", "row_oracle:Found pending restore in active timeline"} <= {*list_known(ROOT)}


def test_fault_is_expected_from_the_version_that_has_it_to_the_one_that_fixes_it() -> None:
    fault = Fault("x", since="1.1.1", until="1.10.0")
    assert [fault.is_expected_in(version) for version in ("1.0.2", "1.1.1", "1.9.0", "1.10.0-rc1", "2.0.0")] == [
        None, True, True, False, False,
    ]  # fmt: skip
