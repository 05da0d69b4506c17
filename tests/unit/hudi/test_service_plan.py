from __future__ import annotations

from pathlib import Path

import pytest

from airflow_lake_provider.hudi.pending import load_service_plan, resolve_clusterings
from airflow_lake_provider.hudi.properties import load_table_properties
from airflow_lake_provider.hudi.timeline import Timeline, load_timeline
from airflow_lake_provider.shared.actions import Action
from airflow_lake_provider.storage.table_storage import open_storage
from tests.support.old_table_plans import CLUSTERING, OVERWRITE, old_table


def reported(folder: Path) -> tuple[Timeline, int]:
    """Return the timeline, and how many files were opened to know its clusterings."""
    storage = open_storage(str(folder))
    properties = load_table_properties(storage)
    timeline = load_timeline(storage, properties)
    opens = storage.calls.opens
    return resolve_clusterings(storage, properties, timeline), storage.calls.opens - opens


def test_clusterings_of_layout_1_are_distinguished_from_insert_overwrites(tmp_path: Path) -> None:
    folder = old_table(tmp_path, t20260101000000001=CLUSTERING, t20260101000000002=OVERWRITE)
    timeline, opens = reported(folder)
    assert [i.requested_time for i in timeline.pending(Action.CLUSTERING)] == ["20260101000000001"]
    assert [i.requested_time for i in timeline.pending_writes()] == ["20260101000000002"]
    assert opens == 2
    (clustering,) = timeline.pending(Action.CLUSTERING)
    assert clustering.file_name == "20260101000000001.replacecommit.inflight"
    storage = open_storage(str(folder))
    plan = load_service_plan(storage, load_table_properties(storage), clustering)
    assert plan is not None
    assert plan.file_groups == (("p", "a"), ("p", "b"))


def test_damaged_plan_keeps_its_action(tmp_path: Path) -> None:
    timeline, _ = reported(old_table(tmp_path, t20260101000000001="{"))
    assert timeline.pending(Action.CLUSTERING) == ()
    assert len(timeline.pending(Action.REPLACECOMMIT)) == 1


@pytest.mark.parametrize("plans", [{}, {"t20260101000000001": OVERWRITE}], ids=["nothing-pending", "overwrite"])
def test_nothing_is_read_that_need_not_be(tmp_path: Path, plans: dict[str, dict[str, object]]) -> None:
    _, opens = reported(old_table(tmp_path, **plans))
    assert opens == len(plans)
