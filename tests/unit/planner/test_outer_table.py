"""No service goes by a table's partitions while a table that the registry knows lies among them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from airflow_lake_provider.hudi.inner_table import find_inner_table
from airflow_lake_provider.job_contract import TRAITS, Mode, Service
from airflow_lake_provider.planner.rules import Decision, Verdict, block_outer_table
from airflow_lake_provider.storage.table_storage import open_storage
from tests.support.tables import HandMadeTable

DUE = tuple(Decision(service, Verdict.DUE, "it is due") for service in Service)
LISTING = {service for service in Service if TRAITS[service].lists_partitions}


@pytest.mark.parametrize(("has_metadata", "blocked"), [(False, LISTING), (True, {Service.ARCHIVE})])
def test_services_that_list_partitions_are_blocked(has_metadata: bool, blocked: set[Service]) -> None:
    found = [each for each in block_outer_table(DUE, "old/t", has_metadata=has_metadata) if each.verdict != "due"]
    assert {each.service for each in found} == blocked
    assert all("another Hudi table lies in old/t below the base path" in each.reason for each in found)
    assert all(("call delete_metadata_table" in each.reason) is has_metadata for each in found)
    assert block_outer_table(DUE, "", has_metadata=has_metadata) == DUE


def test_a_plan_may_be_withdrawn() -> None:
    withdrawal = replace(DUE[0], mode=Mode.WITHDRAW)
    assert block_outer_table([withdrawal], "old/t", has_metadata=False) == (withdrawal,)


@pytest.mark.parametrize(
    ("partition_file", "registered", "found"),
    [
        pytest.param("", ["old/t"], "old/t", id="a-table"),
        pytest.param("", ["gone", "old/t"], "old/t", id="one-that-is-gone-and-a-table"),
        pytest.param("", ["old/t/inner"], "old/t", id="below-a-table-that-is-not-registered"),
        pytest.param("", ["moved/away"], "", id="moved-away"),
        pytest.param("", [], "", id="none"),
        pytest.param(".hoodie_partition_metadata", ["old/t"], "", id="below-a-partition"),
        pytest.param(".hoodie_partition_metadata.parquet", ["old/t"], "", id="below-a-partition-with-base-format"),
    ],
)
def test_only_a_table_that_hudi_gets_to_counts(
    tmp_path: Path, partition_file: str, registered: list[str], found: str
) -> None:
    outer = HandMadeTable.create(tmp_path / "orders")
    HandMadeTable.create(outer.path / "old" / "t")
    if partition_file:
        (outer.path / "old" / partition_file).write_text("")
    assert find_inner_table(open_storage(str(outer.path)), registered) == found
