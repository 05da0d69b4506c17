"""What a restore drops first and builds afterwards."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.doctor.restore_check import RestoreFacts
from airflow_lake_provider.doctor.restore_facts import load_restore_facts
from airflow_lake_provider.doctor.restore_plan import plan_restore
from airflow_lake_provider.hudi.instant import Instant
from airflow_lake_provider.hudi.timeline import Timeline
from airflow_lake_provider.indexing.index_spec import IndexDefinition
from airflow_lake_provider.shared.actions import Action, State
from airflow_lake_provider.storage.table_storage import open_storage
from tests.unit.doctor.stuck_table import NOW_MS, Patient

SAVED = "20261121120001000"
LOST = "20261121120003000"
YOUNG = "20261121120004000"
OLD = "20261121120000500"
DEFINITIONS = {
    "secondary_index_city": IndexDefinition("secondary_index", "identity", ("city",)),
    "secondary_index_by_hand": IndexDefinition("secondary_index", "identity", ("city",)),
}


@pytest.fixture
def facts(tmp_path: Path) -> RestoreFacts:
    table = Patient.create(tmp_path / "orders")
    table.commit(1)
    table.commit(3)
    table.left_instant(f"{SAVED}_20261121120002500.savepoint", {})
    found = load_restore_facts(open_storage(str(table.path)), TablePolicy(), SAVED, NOW_MS)
    properties = replace(found.evidence.properties, metadata_partitions=("files", "record_index"))
    births = {"record_index": OLD, "secondary_index_city": YOUNG}
    return replace(found, evidence=replace(found.evidence, properties=properties), index_births=births)


def metadata_since(instant: str) -> Timeline:
    return Timeline((Instant(instant, Action.DELTACOMMIT, State.COMPLETED, instant, ""),))


def test_indexes_younger_than_the_savepoint_are_dropped_and_built_again(facts: RestoreFacts) -> None:
    plan = plan_restore(facts, DEFINITIONS)
    assert (plan.refused, plan.takes_back) == (False, (LOST,))
    assert plan.drops == plan.builds == ("secondary_index:city",)
    assert not plan.without_metadata


def test_metadata_table_that_does_not_reach_back_is_built_with_all_indexes(facts: RestoreFacts) -> None:
    plan = plan_restore(replace(facts, metadata_timeline=metadata_since(YOUNG)), DEFINITIONS)
    assert (plan.without_metadata, plan.drops) == (True, ())
    assert plan.builds == ("files", "record_index", "secondary_index:city")


def test_index_that_the_provider_cannot_build_again_forbids_the_restore(facts: RestoreFacts) -> None:
    plan = plan_restore(replace(facts, index_births={"secondary_index_by_hand": YOUNG}), DEFINITIONS)
    assert plan.refused
    assert "secondary_index_by_hand: this index was not made by the provider" in plan.report
