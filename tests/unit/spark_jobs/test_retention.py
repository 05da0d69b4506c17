"""Retention of clean and archive, raised to what the readers of changes still need."""

from __future__ import annotations

import pytest
from job_contract import MARGIN_COMMITS, SAFEPOINT, Service
from retention import hold_back

COMPLETED = [str(number) for number in range(100, 160)]


@pytest.mark.parametrize(
    ("safepoint", "retained"),
    [
        pytest.param("159", 2 + MARGIN_COMMITS, id="the-newest"),
        pytest.param("150", 11 + MARGIN_COMMITS, id="ten-behind"),
        pytest.param("0", 61 + MARGIN_COMMITS, id="everything"),
    ],
)
def test_clean_retains_what_is_held(safepoint: str, retained: int) -> None:
    options = hold_back(Service.CLEAN, {"hoodie.clean.commits.retained": "3", SAFEPOINT: safepoint}, COMPLETED)
    assert options == {"hoodie.clean.commits.retained": str(retained), "hoodie.clean.policy": "KEEP_LATEST_COMMITS"}


def test_longer_retention_stays() -> None:
    options = hold_back(Service.CLEAN, {"hoodie.clean.commits.retained": "50", SAFEPOINT: "155"}, COMPLETED)
    assert options == {"hoodie.clean.commits.retained": "50"}


def test_policy_that_does_not_count_commits_is_replaced_while_something_is_held() -> None:
    asked = {"hoodie.clean.policy": "KEEP_LATEST_FILE_VERSIONS", "hoodie.clean.fileversions.retained": "1"}
    assert hold_back(Service.CLEAN, asked, COMPLETED) == asked
    held = hold_back(Service.CLEAN, {**asked, SAFEPOINT: "158"}, COMPLETED)
    assert held["hoodie.clean.policy"] == "KEEP_LATEST_COMMITS"
    assert int(held["hoodie.clean.commits.retained"]) >= 3


def test_archive_keeps_more_than_is_cleaned() -> None:
    options = hold_back(
        Service.ARCHIVE, {"hoodie.keep.min.commits": "20", "hoodie.keep.max.commits": "30", SAFEPOINT: "120"}, COMPLETED
    )
    retained, least, most = (
        int(options[key])
        for key in ("hoodie.clean.commits.retained", "hoodie.keep.min.commits", "hoodie.keep.max.commits")
    )
    assert 41 + MARGIN_COMMITS <= retained < least < most


def test_nothing_held_changes_nothing_and_the_safepoint_never_reaches_hudi() -> None:
    assert hold_back(Service.CLEAN, {"a": "b"}, COMPLETED) == {"a": "b"}
    assert hold_back(Service.COMPACTION, {SAFEPOINT: "1"}, COMPLETED) == {}
