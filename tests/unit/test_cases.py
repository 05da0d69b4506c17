"""The page of public reports: what its docstrings must say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.cases import CaseError, draw_page, read_cases

WHOLE = """Every upsert failed after a clustering.

Report: https://github.com/apache/hudi/issues/8906
Report: https://example.org/posts/buckets
Verdict: refused
Way out: let the writer
  cluster | inline.
"""


def write(root: Path, docstring: str) -> None:
    folder = root / "tests" / "field" / "tables"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "test_upserts_fail.py").write_text(f'"""{docstring}"""\n', encoding="utf-8")


def test_a_case_is_one_row_with_its_reports_and_its_way_out(tmp_path: Path) -> None:
    write(tmp_path, WHOLE)
    row = draw_page(read_cases(tmp_path)).splitlines()[-1]
    assert row == (
        "| [Every upsert failed after a clustering.](../tests/field/tables/test_upserts_fail.py) "
        "| [hudi#8906](https://github.com/apache/hudi/issues/8906), [buckets](https://example.org/posts/buckets) "
        "| let the writer cluster &#124; inline. |"
    )


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("Report: https://github.com/apache/hudi/issues/8906\nReport: https://example.org/posts/buckets\n", ""),
        ("Verdict: refused\n", ""),
        ("Verdict: refused\n", "Verdict: fine\n"),
        ("Verdict: refused\n", "Verdict: right\n"),
        ("Way out: let the writer\n  cluster | inline.\n", ""),
    ],
)
def test_a_docstring_that_lacks_a_fact_is_named(tmp_path: Path, line: str, instead: str) -> None:
    write(tmp_path, WHOLE.replace(line, instead))
    with pytest.raises(CaseError, match=r"tests/field/tables/test_upserts_fail\.py"):
        read_cases(tmp_path)
