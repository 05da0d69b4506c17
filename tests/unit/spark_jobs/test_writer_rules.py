"""A job that plans gives way at least where the task's admission would have waited: both apply the same rules."""

from __future__ import annotations

from itertools import product

import pytest

from airflow_lake_provider.conflict.admission import AdmissionVerdict, Intent, admit, only_in
from airflow_lake_provider.job_contract import WRITERS_FIRST, Service
from airflow_lake_provider.shared.partition_filter import (
    FILTER_MODE,
    SELECTED,
    STRATEGY_CLASS,
    find_partition_filter,
)
from lake_jobs.services.writer_rules import (
    LivingWriter,
    asks_writers,
    find_in_the_way,
    find_in_the_way_of_plan,
)
from tests.unit.conflict.fake_table import FakeTable

OSLO, BONN = ("Oslo", "f1-0"), ("Bonn", "f2-0")
W1, PLAN, W3 = "20261121100000000", "20261121100001000", "20261121100002000"
ASKING = {WRITERS_FIRST: "true"}


@pytest.mark.parametrize(
    ("service", "version", "writer"),
    list(product(Service, (6, 8, 9), ("none", "silent", "in Oslo", "in Bonn", "dead"))),
)
def test_job_goes_exactly_where_admission_goes(service: Service, version: int, writer: str) -> None:
    table, living = FakeTable(version=version), []
    if writer != "none":
        table.begin(W1)
        living = [LivingWriter(W1)]
    if writer in ("in Oslo", "in Bonn"):
        group = OSLO if writer == "in Oslo" else BONN
        table.announce(W1, [group])
        living = [LivingWriter(W1, frozenset({group[0]}))]
    if writer == "dead":
        table.beat(W1, ago_ms=120_001)
        living = []
    # What the task's admission left of the partitions, or what the table's owner chose.
    settings = dict(only_in([BONN[0]])) if service is Service.CLUSTERING else {}
    intent = Intent(service, partitions=frozenset({OSLO[0], BONN[0]}), options=settings)
    verdict = admit(intent, table.open().read_activity(table.now_ms), None, 10_000, 120_000).verdict
    found = None
    if asks_writers(service, version, ASKING):
        found = find_in_the_way(service, living, find_partition_filter(settings).selected)
    assert (found is None) == (verdict is AdmissionVerdict.GO)


def test_job_that_is_not_to_ask_asks_nothing() -> None:
    assert not any(asks_writers(service, 6, {}) for service in Service)


OF_ONE_PARTITION = dict(only_in([BONN[0]]))


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="none"),
        pytest.param(OF_ONE_PARTITION, id="list"),
        pytest.param({SELECTED: f"{BONN[0]},"}, id="list-with-an-empty-end"),
        pytest.param({**OF_ONE_PARTITION, FILTER_MODE: "NONE"}, id="list-without-a-mode"),
        pytest.param({**OF_ONE_PARTITION, FILTER_MODE: "RECENT_DAYS"}, id="list-and-another-mode"),
        pytest.param({**OF_ONE_PARTITION, STRATEGY_CLASS: "com.acme.Plans"}, id="own-strategy"),
    ],
)
def test_task_and_job_let_the_same_writer_block_a_clustering(settings: dict[str, str]) -> None:
    table = FakeTable(version=9)
    table.begin(W1)
    table.announce(W1, [OSLO])
    intent = Intent(Service.CLUSTERING, partitions=frozenset({OSLO[0], BONN[0]}), options=settings)
    verdict = admit(intent, table.open().read_activity(table.now_ms), None, 10_000, 120_000).verdict
    living = [LivingWriter(W1, frozenset({OSLO[0]}))]
    taken = find_partition_filter(settings).selected
    found = find_in_the_way(Service.CLUSTERING, living, taken)
    assert (found is None) == (verdict is AdmissionVerdict.GO)


def test_strategy_of_ones_own_may_take_any_partition_whatever_the_list_says() -> None:
    assert find_partition_filter({**OF_ONE_PARTITION, STRATEGY_CLASS: "com.acme.Plans"}).selected is None


@pytest.mark.parametrize(
    ("writer", "recent", "gives_way"),
    [
        pytest.param(LivingWriter(W3), None, True, id="silent-on-a-table-without-history"),
        pytest.param(LivingWriter(W3), {"Oslo", "Bonn"}, True, id="silent-where-writers-write"),
        pytest.param(LivingWriter(W3), {"Bonn"}, False, id="silent-while-writers-write-elsewhere"),
        pytest.param(LivingWriter(W1), {"Oslo"}, True, id="silent-since-before-the-plan"),
        pytest.param(LivingWriter(W1, frozenset({"Oslo"})), None, True, id="may-put-new-rows-into-its-files"),
        pytest.param(LivingWriter(W1, frozenset({"Bonn"})), None, False, id="elsewhere"),
        pytest.param(LivingWriter(W3, frozenset({"Oslo"})), None, False, id="has-passed-hudis-refusal"),
    ],
)
def test_running_clustering_gives_way_to_what_it_may_fail(
    writer: LivingWriter, recent: set[str] | None, gives_way: bool
) -> None:
    found = find_in_the_way_of_plan(PLAN, {"Oslo"}, recent, [LivingWriter(W3, frozenset({"Cork"})), writer])
    assert found == (writer if gives_way else None)
