"""What of a table may not change between the derivation of a client's settings and its commit."""

from __future__ import annotations

import pytest

from airflow_lake_provider.job_contract import Service
from lake_jobs.hudi.settings import METADATA_SETTINGS, find_change, service_settings


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        pytest.param((9, set()), (9, set()), "", id="none"),
        pytest.param((9, {"files"}), (9, {"files", "record_index"}), "", id="an-index-without-a-setting"),
        pytest.param((9, set()), (9, {"files", "column_stats"}), "its metadata table was switched on", id="on"),
        pytest.param((9, {"files", "column_stats"}), (9, set()), "its metadata table was switched off", id="off"),
        pytest.param((9, {"files"}), (9, {"files", "column_stats"}), "column_stats came into", id="statistics"),
        pytest.param((9, {"files", "column_stats"}), (9, {"files"}), "column_stats left it", id="dropped"),
        pytest.param((9, {"column_stats"}), (9, {"column_stats", "partition_stats"}), "", id="by-our-own-client"),
        pytest.param((8, set()), (9, set()), "its version went from 8 to 9", id="upgrade"),
    ],
)
def test_change_is_named(before: tuple[int, set[str]], after: tuple[int, set[str]], says: str) -> None:
    change = find_change(*before, *after)
    assert change.startswith(says)
    assert bool(change) is bool(says)


def test_settings_are_derived_from_what_is_watched() -> None:
    none, all_on = (service_settings(Service.CLUSTERING, {}, 9, found) for found in ((), METADATA_SETTINGS))
    assert {key for key in all_on if none[key] != all_on[key]} == set(METADATA_SETTINGS.values())
