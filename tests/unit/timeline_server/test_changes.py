from __future__ import annotations

import pytest

from airflow_lake_provider.hudi.instant import Layout
from airflow_lake_provider.hudi.timeline import build_timeline
from airflow_lake_provider.timeline_server.watch import find_commits_after, find_pending_index_builds


@pytest.mark.parametrize(
    ("after", "found"),
    [
        pytest.param("", ["5", "3"], id="everything-but-compared-as-text"),
        pytest.param("5", ["3"], id="slow-writer-requested-before-and-completed-after"),
        pytest.param("3", [], id="a-requested-time-excludes-that-commit"),
        pytest.param("6", ["3"], id="a-completed-time-is-exclusive"),
    ],
)
def test_find_commits_after_orders_by_completion(after: str, found: list[str]) -> None:
    timeline = build_timeline(Layout.V2, ["3_9.deltacommit", "5_6.deltacommit", "7_8.clean", "4.inflight"])
    assert [instant.requested_time for instant in find_commits_after(timeline, after)] == found


def test_find_commits_after_for_given_actions() -> None:
    timeline = build_timeline(Layout.V2, ["1_2.commit", "3_4.clean"])
    assert [i.action for i in find_commits_after(timeline, "", {"clean"})] == ["clean"]


def test_find_pending_index_builds_ignores_completed_ones() -> None:
    timeline = build_timeline(
        Layout.V2, ["1.indexing.requested", "2.indexing.requested", "2.indexing.inflight", "3_4.indexing"]
    )
    assert [(i.requested_time, str(i.state)) for i in find_pending_index_builds(timeline)] == [
        ("1", "REQUESTED"),
        ("2", "INFLIGHT"),
    ]
