"""Which archived writes Hudi no longer takes for what they are, by the active timeline and the archive."""

from __future__ import annotations

import pytest

from airflow_lake_provider.timeline_head import (
    SPARK_SINK_KEY,
    HeadPlan,
    TimelineInstant,
    find_archived_behind,
    find_checkpoint_limit,
    name_checkpoints,
    needs_archive,
    plan_heads,
)

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
    assert found.describe() == "1 write after savepoint 02 are archived, so Hudi's readers leave them out"


def test_a_savepoint_is_named_before_an_index_build() -> None:
    first = TimelineInstant("01", "indexing", "COMPLETED")
    found = find_archived_behind([first, *SAVED, WRITE], ["03"], slices_by_completion=True)
    assert found is not None
    assert found.is_savepoint


def test_the_sentence_names_instant_and_way_back() -> None:
    found = find_archived_behind([BUILD, WRITE], ["03", "04"], slices_by_completion=True)
    assert found is not None
    assert "2 writes after the pending indexing 02, which stays active, are archived" in found.refuse()
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


@pytest.mark.parametrize(
    ("before", "covered_until", "plan"),
    [
        pytest.param("05", None, HeadPlan((INDEX,), None), id="no-metadata-table"),
        pytest.param("05", "04", HeadPlan((INDEX,), None), id="compacted-after-it-completed"),
        pytest.param("05", "03", HeadPlan((), INDEX), id="compacted-while-it-ran"),
        pytest.param("05", "", HeadPlan((), INDEX), id="never-compacted"),
        pytest.param("02", None, HeadPlan(), id="nothing-behind-it-is-archived"),
        pytest.param("", None, HeadPlan(), id="nothing-is-archived"),
    ],
)
def test_an_index_build_leaves_before_the_writes_behind_it(
    before: str, covered_until: str | None, plan: HeadPlan
) -> None:
    assert plan_heads([INDEX, CLEAN, WRITE], {"02": "03"}, before, covered_until) == plan


@pytest.mark.parametrize("action", ["indexing", "restore", "clean", "rollback"])
def test_what_is_pending_stays_with_all_that_is_behind_it(action: str) -> None:
    begun = TimelineInstant("03", action, "INFLIGHT")
    assert plan_heads([INDEX, begun, WRITE], {"02": "02"}, "05", None) == HeadPlan((INDEX,), begun)


def test_checkpoints_are_named_by_key_and_stream() -> None:
    extra = {"schema": "{}", "streamer.checkpoint.key.v2": "7", SPARK_SINK_KEY: '{"a": "3", "b": "9"}', "mine": "1"}
    sinks = (f"{SPARK_SINK_KEY}/a", f"{SPARK_SINK_KEY}/b")
    assert name_checkpoints(extra) == (*sinks, "mine", "streamer.checkpoint.key.v2")
    assert name_checkpoints({SPARK_SINK_KEY: "no json"}) == (f"{SPARK_SINK_KEY}/",)


@pytest.mark.parametrize(
    ("commits", "keys", "since", "limit"),
    [
        pytest.param({"01": ["deltastreamer.checkpoint.key"], "02": []}, (), "", "01", id="older-streamer"),
        pytest.param(
            {"01": ["streamer.checkpoint.key.v2"], "02": ["streamer.checkpoint.key.v2"]}, (), "", "02", id="newest"
        ),
        pytest.param({"01": [f"{SPARK_SINK_KEY}/a"], "02": [f"{SPARK_SINK_KEY}/b"]}, (), "", "01", id="two-streams"),
        pytest.param({"01": ["mine"], "02": []}, (), "", None, id="no-key-of-a-stream"),
        pytest.param({"01": ["mine"], "02": []}, ("mine",), "", "01", id="key-of-the-policy"),
        pytest.param({"01": [f"{SPARK_SINK_KEY}/a"], "02": []}, (), "02", None, id="stream-that-was-given-up"),
    ],
)
def test_the_newest_checkpoint_of_each_stream_stays(
    commits: dict[str, list[str]], keys: tuple[str, ...], since: str, limit: str | None
) -> None:
    found = find_checkpoint_limit(commits, keys, since)
    assert (None if found is None else found[0]) == limit
