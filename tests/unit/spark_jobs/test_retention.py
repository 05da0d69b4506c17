"""Retention of clean and archive, raised to what the readers of changes still need."""

from __future__ import annotations

import pytest

from airflow_lake_provider.instant_clock import MARGIN_COMMITS, MARGIN_COMMITS_OF_HOURS
from airflow_lake_provider.job_contract import RETAINED_HOURS, SAFEPOINT, Service
from lake_jobs.hudi.settings import hold_back

COMPLETED = [str(number) for number in range(100, 160)]


def hours_ago(hours: int) -> str:
    """One commit an hour, the last of them just now."""
    return str(159 - hours)


@pytest.mark.parametrize(
    ("safepoint", "retained"),
    [
        pytest.param("159", 2 + MARGIN_COMMITS, id="the-newest"),
        pytest.param("150", 11 + MARGIN_COMMITS, id="ten-behind"),
        pytest.param("0", 61 + MARGIN_COMMITS, id="everything"),
    ],
)
def test_clean_retains_what_is_held(safepoint: str, retained: int) -> None:
    asked = {"hoodie.clean.commits.retained": "3", SAFEPOINT: safepoint}
    options = hold_back(Service.CLEAN, asked, COMPLETED, hours_ago)
    assert options == {"hoodie.clean.commits.retained": str(retained), "hoodie.clean.policy": "KEEP_LATEST_COMMITS"}


def test_longer_retention_stays() -> None:
    options = hold_back(Service.CLEAN, {"hoodie.clean.commits.retained": "50", SAFEPOINT: "155"}, COMPLETED, hours_ago)
    assert options == {"hoodie.clean.commits.retained": "50"}


def test_policy_that_does_not_count_commits_is_replaced_while_something_is_held() -> None:
    asked = {"hoodie.clean.policy": "KEEP_LATEST_FILE_VERSIONS", "hoodie.clean.fileversions.retained": "1"}
    assert hold_back(Service.CLEAN, asked, COMPLETED, hours_ago) == asked
    held = hold_back(Service.CLEAN, {**asked, SAFEPOINT: "158"}, COMPLETED, hours_ago)
    assert held["hoodie.clean.policy"] == "KEEP_LATEST_COMMITS"
    assert int(held["hoodie.clean.commits.retained"]) >= 3


def test_archive_keeps_more_than_is_cleaned() -> None:
    asked = {"hoodie.keep.min.commits": "20", "hoodie.keep.max.commits": "30", SAFEPOINT: "120"}
    options = hold_back(Service.ARCHIVE, asked, COMPLETED, hours_ago)
    retained, least, most = (
        int(options[key])
        for key in ("hoodie.clean.commits.retained", "hoodie.keep.min.commits", "hoodie.keep.max.commits")
    )
    assert 41 + MARGIN_COMMITS <= retained < least < most


def test_nothing_held_changes_nothing_and_the_safepoint_never_reaches_hudi() -> None:
    assert hold_back(Service.CLEAN, {"a": "b"}, COMPLETED, hours_ago) == {"a": "b"}
    assert hold_back(Service.COMPACTION, {SAFEPOINT: "1"}, COMPLETED, hours_ago) == {}


def test_commits_of_the_last_hours_are_counted_and_the_longer_of_hours_and_safepoint_holds() -> None:
    by_hours = {RETAINED_HOURS: "24", "hoodie.clean.commits.retained": "1"}
    of_a_day = 25 + 1 + MARGIN_COMMITS_OF_HOURS
    counted = hold_back(Service.CLEAN, by_hours, COMPLETED, hours_ago)
    assert counted == {"hoodie.clean.commits.retained": str(of_a_day), "hoodie.clean.policy": "KEEP_LATEST_COMMITS"}
    held = hold_back(Service.CLEAN, {**by_hours, SAFEPOINT: "110"}, COMPLETED, hours_ago)
    assert int(held["hoodie.clean.commits.retained"]) >= 51
    passed = hold_back(Service.CLEAN, {**by_hours, SAFEPOINT: "155"}, COMPLETED, hours_ago)
    assert passed["hoodie.clean.commits.retained"] == str(of_a_day)
    archive = hold_back(Service.ARCHIVE, {**by_hours, "hoodie.keep.min.commits": "20"}, COMPLETED, hours_ago)
    assert int(archive["hoodie.keep.min.commits"]) > of_a_day
