"""A clean whose settings kept no version of a file deleted the newest ones.

Report: https://github.com/apache/hudi/issues/7693
Verdict: refused
Way out: set `clean.policy: versions` and `clean.retained_versions` of at least 1; the tables file takes no less.
"""

from __future__ import annotations

import pytest

from airflow_lake_provider.config.tables_file import parse_tables_file
from airflow_lake_provider.errors import LakeError


@pytest.mark.parametrize(
    ("clean", "problem"),
    [
        ("clean: {policy: versions, retained_versions: 0}", "clean.retained_versions is '0'"),
        ("clean: {retained_commits: 0}", "clean.retained_commits is '0'"),
        ("clean: {policy: hours, retained_hours: 0}", "clean.retained_hours is '0'"),
        ("hudi_options: {hoodie.clean.fileversions.retained: 0}", "clean.retained_versions"),
        ("hudi_options: {hoodie.cleaner.fileversions.retained: 0}", "clean.retained_versions"),
        ("hudi_options: {hoodie.clean.commits.retained: 0}", "clean.retained_commits"),
    ],
)
def test_no_spelling_keeps_nothing(clean: str, problem: str) -> None:
    with pytest.raises(LakeError) as refused:
        parse_tables_file(f"defaults:\n  {clean}\n", "t.yaml")
    assert problem in str(refused.value)
