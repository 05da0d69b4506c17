"""`make next-hudi` prints what another Hudi changes, and nothing else; an interrupted run goes on."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest

from local_stack import hudi_bundle
from tools import next_hudi
from tools.hudi_faults import Fault, load_faults
from tools.next_hudi import (
    Ending,
    NextStep,
    find_lost_settings,
    judge,
    list_named_settings,
    list_settings,
    make_steps,
    read_endings,
    run_steps,
    version_of,
)

ROOT = Path(__file__).resolve().parents[3]
PROBE = "tests/hudi_faults/test_a.py::test_rows_are_hidden"
FAULT = Fault("**Rows are hidden**", since="1.1.1", until="1.4.0", probes=(PROBE,))
PASSED, FAILED = Ending("passed"), Ending("failed", "AssertionError:\n  assert 1 == 2")


def changes(version: str, endings: dict[str, Ending]) -> list[str]:
    return list(judge(version, [FAULT], endings))


@pytest.mark.parametrize(
    ("version", "ending", "begin"),
    [
        ("1.2.0", PASSED, ""),
        ("1.3.0", FAILED, "fixed? **Rows are hidden**"),
        ("1.4.0", FAILED, ""),
        ("1.4.0", PASSED, "there again"),
        ("1.0.2", PASSED, "there before it was known"),
        ("1.2.0", Ending("skipped"), "not seen"),
    ],
)
def test_probe_that_ends_otherwise_than_its_version_says_is_printed(version: str, ending: Ending, begin: str) -> None:
    found = changes(version, {f"{PROBE}[MOR]": ending})
    assert len(found) == bool(begin)
    assert all(change.startswith(begin) for change in found)


def test_probe_without_a_result_and_another_test_that_fails_are_printed() -> None:
    missing, failed = changes("1.2.0", {f"{PROBE}_more": FAILED})
    assert missing == f"not seen: no result of {PROBE}"
    assert failed == f"fails: {PROBE}_more\n    AssertionError: assert 1 == 2"


def test_each_probe_and_each_oracle_is_in_a_step_whose_tests_have_one_conftest() -> None:
    faults = load_faults()
    steps = make_steps(faults, 60)
    tests = {test for step in steps for test in step.tests}
    assert {probe for fault in faults for probe in fault.probes} <= tests
    assert {"tests/field/tables", "tests/oracle", "tests/row_oracle"} <= tests
    for step in steps:
        assert len({Path(test.partition("::")[0]).parent for test in step.tests}) == 1


def test_only_settings_that_the_other_bundle_has_lost_are_printed(tmp_path: Path) -> None:
    jars = []
    for number, settings in enumerate((b"hoodie.a.b\x00hoodie.c.d", b"..hoodie.c.d..hoodie.new.one")):
        jars.append(tmp_path / f"hudi-spark3.5-bundle_2.12-1.{number}.0.jar")
        with zipfile.ZipFile(jars[-1], "w") as archive:
            archive.writestr("org/apache/hudi/X.class", b"\xca\xfe" + settings)
            archive.writestr("org/other/X.class", b"hoodie.of.others")
    ours, theirs = map(list_settings, jars)
    assert ours == {"hoodie.a.b", "hoodie.c.d"}
    assert find_lost_settings({"hoodie.a.b", "hoodie.c.d", "hoodie.own.name"}, ours, theirs) == ["hoodie.a.b"]
    assert version_of(jars[1]) == "1.1.0"
    assert "hoodie.clean.commits.retained" in list_named_settings(ROOT)


TESTS = """
import os, pathlib
def test_bundle(): assert os.environ["LAKE_HUDI_BUNDLE"].endswith("own.jar")
def test_fixed():
    with open("ran", "a") as file: file.write("x")
    assert False, "no difference"
"""


def test_what_has_ended_is_not_repeated_and_a_step_that_breaks_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Where scratch files lie in a checkout, pytest would take that for its root.
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    (tmp_path / "test_a.py").write_text(TESTS, encoding="utf-8")
    monkeypatch.setattr(next_hudi, "ROOT", tmp_path)
    # They take seconds to import.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setattr(hudi_bundle, "SPARK_PYTHON", Path(sys.executable))
    steps = [NextStep("a step", ("test_a.py",)), NextStep("other", ("test_none.py",))]
    for _ in range(2):
        endings, broken = run_steps(steps, tmp_path / "own.jar", tmp_path)
        assert {name: ending.outcome for name, ending in endings.items()} == {
            "test_a.py::test_bundle": "passed",
            "test_a.py::test_fixed": "failed",
        }
        assert "no difference" in endings["test_a.py::test_fixed"].message
        assert broken == ["other"]
    assert (tmp_path / "ran").read_text(encoding="utf-8") == "x"


def test_report_of_junit_is_read_as_node_ids(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        '<testsuites><testsuite><testcase classname="tests.a.test_b" name="test_c[MOR-9]"/>'
        '<testcase classname="tests.a.test_b" name="test_d"><error message="setup"/></testcase>'
        '<testcase classname="tests.a.test_b" name="test_e"><skipped message="no jar"/></testcase>'
        "</testsuite></testsuites>",
        encoding="utf-8",
    )
    assert read_endings(report) == {
        "tests/a/test_b.py::test_c[MOR-9]": Ending("passed"),
        "tests/a/test_b.py::test_d": Ending("failed", "setup"),
        "tests/a/test_b.py::test_e": Ending("skipped", "no jar"),
    }
