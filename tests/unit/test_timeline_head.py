"""Which archived writes Hudi no longer takes for what they are, by the active timeline and the archive."""

from __future__ import annotations

import pytest

from airflow_lake_provider.timeline_head import TimelineInstant, find_archived_behind, needs_archive

INDEX = TimelineInstant("02", "indexing", "COMPLETED")
RESTORE = TimelineInstant("02", "restore", "COMPLETED")
BUILD = TimelineInstant("02", "indexing", "INFLIGHT")
CLEAN = TimelineInstant("02", "clean", "COMPLETED")
WRITE = TimelineInstant("05", "deltacommit", "COMPLETED")
SAVED = (TimelineInstant("02", "deltacommit", "COMPLETED"), TimelineInstant("02", "savepoint", "COMPLETED"))
PENDING_WRITE = TimelineInstant("02", "deltacommit", "INFLIGHT")


@pytest.mark.parametrize(
    ("active", "archived", "lost"),
    [
        pytest.param([INDEX, WRITE], ["01", "03", "04"], ("03", "04"), id="index-build"),
        pytest.param([WRITE, RESTORE], ["03"], ("03",), id="restore-in-any-order"),
        pytest.param([BUILD, WRITE], ["03"], ("03",), id="build-that-is-at-work"),
        pytest.param([CLEAN, WRITE], ["03"], (), id="clean-which-is-archived-with-the-next-write"),
        pytest.param([WRITE, RESTORE._replace(requested_time="06")], ["03"], (), id="restore-behind-a-write"),
        pytest.param([INDEX, WRITE], ["01"], (), id="older-ones-only"),
        pytest.param([INDEX, WRITE], ["05"], (), id="written-down-and-still-active"),
        pytest.param([WRITE], ["03"], (), id="a-write-is-first"),
        pytest.param([], ["03"], (), id="nothing-active"),
        pytest.param([*SAVED, WRITE], ["03"], ("03",), id="savepoint"),
    ],
)
def test_archived_writes_behind_the_first_instant_are_found(
    active: list[TimelineInstant], archived: list[str], lost: tuple[str, ...]
) -> None:
    found = find_archived_behind(active, archived, slices_by_completion=True)
    assert (() if found is None else found.writes) == lost


def test_where_no_log_file_is_found_by_completion_only_a_savepoint_hides_writes() -> None:
    assert find_archived_behind([INDEX, WRITE], ["03"], slices_by_completion=False) is None
    found = find_archived_behind([*SAVED, WRITE], ["03"], slices_by_completion=False)
    assert found is not None
    assert found.describe() == "1 write behind savepoint 02 are archived, so Hudi's readers leave them out"


def test_a_savepoint_is_named_before_an_index_build() -> None:
    first = TimelineInstant("01", "indexing", "COMPLETED")
    found = find_archived_behind([first, *SAVED, WRITE], ["03"], slices_by_completion=True)
    assert found is not None
    assert found.is_savepoint


def test_the_sentence_names_instant_and_way_back() -> None:
    found = find_archived_behind([BUILD, WRITE], ["03", "04"], slices_by_completion=True)
    assert found is not None
    assert "2 writes behind the pending indexing 02, which stays active, are archived" in found.refuse()
    assert "(archived_behind_head)" in found.refuse()


@pytest.mark.parametrize(
    ("active", "by_completion", "expected"),
    [
        pytest.param([INDEX, WRITE], True, True, id="index-build"),
        pytest.param([BUILD, WRITE], True, True, id="build-that-is-at-work"),
        pytest.param([INDEX, WRITE], False, False, id="no-log-files"),
        pytest.param([CLEAN, WRITE], True, False, id="clean-which-is-archived"),
        pytest.param([PENDING_WRITE, WRITE], True, False, id="pending-write-which-stops-archiving"),
        pytest.param([*SAVED, WRITE], False, True, id="savepoint"),
        pytest.param([], True, False, id="nothing-active"),
    ],
)
def test_an_archive_is_read_only_where_it_can_hold_such_writes(
    active: list[TimelineInstant], by_completion: bool, expected: bool
) -> None:
    assert needs_archive(active, slices_by_completion=by_completion) is expected
