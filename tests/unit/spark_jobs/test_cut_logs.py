"""Which log files are shorter than their commits say, and which commits say it."""

from __future__ import annotations

import pytest

from airflow_lake_provider.shared.cut_logs import find_log_writers, name_cut_logs, path_of_stat

A, B = "Cork/.a-0_5.log.1_0-1-1", "Cork/.b-0_7.log.1_0-1-1"


@pytest.mark.parametrize(
    ("has_own_logs", "writers"),
    [
        pytest.param(True, ["5", "7"], id="named by their writes"),
        pytest.param(False, ["6", "7", "8"], id="by the base"),
    ],
)
def test_writers_of_log_files(has_own_logs: bool, writers: list[str]) -> None:
    assert find_log_writers([A, B], ["4", "5", "6", "7", "8"], has_own_logs=has_own_logs) == writers
    assert find_log_writers([], ["4", "5"], has_own_logs=has_own_logs) == []


def test_only_planned_files_that_are_shorter_are_named() -> None:
    committed = [(A, 100), (A, 1234), (B, 50), ("Cork/.c-0_7.log.1_0-1-1", 9)]
    assert name_cut_logs({A, B}, committed, {A: 1233, B: 50}) == [f"{A} (1,233 of 1,234 bytes)"]
    assert name_cut_logs({A, B}, committed, {A: 1235, B: 0}) == [f"{B} (0 of 50 bytes)"]


def test_a_file_that_is_gone_or_that_no_commit_names_is_not_cut() -> None:
    assert name_cut_logs({A, B}, [(A, 10)], {B: 0}) == []


@pytest.mark.parametrize(
    ("path", "below"),
    [
        ("Aachen/.f_1.log.1_0-1-2", "Aachen/.f_1.log.1_0-1-2"),
        ("file:Aachen/.f_1.log.1_0-1-2", "Aachen/.f_1.log.1_0-1-2"),
        ("s3a:Aachen/.f_1.log.1_0-1-2", "Aachen/.f_1.log.1_0-1-2"),
        (".f_1.log.1_0-1-2", ".f_1.log.1_0-1-2"),
        ("time=10:30/.f_1.log.1_0-1-2", "time=10:30/.f_1.log.1_0-1-2"),
    ],
)
def test_path_of_a_write_of_version_6_may_begin_with_a_scheme(path: str, below: str) -> None:
    assert path_of_stat(path) == below
