"""What the layout of a table forbids is blocked, so that no run starts only to be refused."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.config.service_policies import ClusteringPolicy, TtlPolicy
from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.planner.decide import decide_now, load_facts
from airflow_lake_provider.planner.rules import Decision, Verdict
from airflow_lake_provider.planner.table_view import TableViewCache
from airflow_lake_provider.table_layout import HASHING_METADATA
from tests.support.tables import HandMadeTable

LOCK = {"hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider"}
POLICY = TablePolicy(
    clustering=ClusteringPolicy(enabled=True, commits=1), ttl=TtlPolicy(retained_days=1), hudi_options=LOCK
)


def decided(table: HandMadeTable, service: Service) -> Decision:
    views, now_ms = TableViewCache(), int(time.time() * 1000)
    found = decide_now(views, load_facts(views, views.refresh(str(table.path)), POLICY, now_ms), POLICY, now_ms)
    return next(decision for decision in found if decision.service is service)


def add_property(table: HandMadeTable, line: str) -> None:
    properties = table.path / ".hoodie" / "hoodie.properties"
    properties.write_text(f"{properties.read_text()}\n{line}\n")


@pytest.mark.parametrize(
    ("file_id", "folder", "service", "verdict"),
    [
        ("a", "", Service.CLUSTERING, Verdict.DUE),
        ("00000003-7a2c-4d9b-9f00-000000000000-0", "", Service.CLUSTERING, Verdict.BLOCKED),
        ("a", HASHING_METADATA, Service.CLUSTERING, Verdict.BLOCKED),
        ("a", HASHING_METADATA, Service.TTL, Verdict.BLOCKED),
        ("00000003-7a2c-4d9b-9f00-000000000000-0", "", Service.TTL, Verdict.DUE),
    ],
)
def test_services_that_would_lose_rows_of_buckets_are_blocked(
    tmp_path: Path, file_id: str, folder: str, service: Service, verdict: Verdict
) -> None:
    table = HandMadeTable.create(tmp_path / "orders")
    add_property(table, "hoodie.table.partition.fields=p")
    table.commit(1, file_id=file_id)
    if folder:
        (table.path / folder).mkdir(parents=True)
    decision = decided(table, service)
    assert decision.verdict is verdict, decision.reason
    assert ("bucket index" in decision.reason) is (verdict is Verdict.BLOCKED)
