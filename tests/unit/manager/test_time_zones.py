"""A table whose writer names instants in another zone than the jobs: no run is started, and people hear why."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from airflow_lake_provider.config.policies import StuckKind, TablePolicy
from airflow_lake_provider.config.service_policies import CompactionPolicy, RollbackPolicy
from airflow_lake_provider.config.tables_config import TablesConfig
from airflow_lake_provider.doctor.diagnosis import diagnose
from airflow_lake_provider.doctor.evidence import collect_evidence
from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.manager.api.services import ManagerServices
from airflow_lake_provider.manager.db.registry import Registry
from airflow_lake_provider.manager.db.rows import Notice, Source
from airflow_lake_provider.manager.loop.reconciler import ManagerLoop
from airflow_lake_provider.manager.supervision.monitoring import DeadlineSweep
from airflow_lake_provider.manager.supervision.repair_round import RepairRound
from airflow_lake_provider.planner.decide import DECIDED, decide_now, load_facts
from airflow_lake_provider.planner.rules import Verdict
from airflow_lake_provider.planner.table_view import TableViewCache
from airflow_lake_provider.storage.table_storage import open_storage
from airflow_lake_provider.ui.app import create_pages
from tests.support.heard_problems import Heard
from tests.support.tables import HandMadeTable
from tests.unit.manager.conftest import LOCK_OPTIONS, FakeClock, FakeInstanceGateway, FakeRunGateway

NOON_MS = int(datetime(2026, 11, 21, 12, tzinfo=UTC).timestamp() * 1000)
HOUR_MS = 3_600_000
POLICY = TablePolicy(compaction=CompactionPolicy(delta_commits=3), hudi_options=LOCK_OPTIONS)


def in_zone(zone: str) -> TablePolicy:
    options = "spark.driver.extraJavaOptions"
    return POLICY.replace(spark_conf={options: f"-Xss4m -Duser.timezone={zone} -XX:+UseSerialGC"})


@pytest.fixture
def table(lake: Path, clock: FakeClock) -> HandMadeTable:
    """A table that a writer five hours behind UTC wrote: it called 17:00 UTC noon. It is ten past now."""
    clock.advance(5 * 3600 + 600)
    table = HandMadeTable.create(lake / "orders")
    for second in range(1, 6):
        table.commit(second)
        made(table, f"202611211200{second:02d}000_202611211200{second:02d}500.deltacommit", second * 1000 + 500)
    return table


def made(table: HandMadeTable, name: str, after_noon_ms: int, behind_h: int = 5) -> None:
    file = table.path / ".hoodie" / "timeline" / name
    file.write_bytes(b"{}")  # the plan of a service is never empty
    made_ns = (NOON_MS + behind_h * HOUR_MS + after_noon_ms) * 10**6
    os.utime(file, ns=(made_ns, made_ns))


def says_local(table: HandMadeTable) -> None:
    properties = table.path / ".hoodie" / "hoodie.properties"
    properties.write_text(properties.read_text().replace("timezone=UTC", "timezone=LOCAL"))


def verdicts(table: HandMadeTable, policy: TablePolicy, clock: FakeClock) -> dict[Service, tuple[Verdict, str]]:
    views = TableViewCache()
    now_ms = int(clock().timestamp() * 1000)
    found = decide_now(views, load_facts(views, views.refresh(str(table.path)), policy, now_ms), policy, now_ms)
    return {decision.service: (decision.verdict, decision.reason) for decision in found}


def test_loop_starts_nothing_and_says_why(
    registry: Registry, make_loop: Callable[[], ManagerLoop], gateway: FakeRunGateway, table: HandMadeTable
) -> None:
    table_id = registry.mark_dirty(Notice(str(table.path), "orders", Source.COMMIT_CALLBACK)).table_id
    make_loop().drain()
    assert gateway.runs == []
    text = registry.get(table_id).decisions
    assert '"blocked"' in text
    assert "20261121120005000 (and 2 before) was named 5:00 h behind the clock of the jobs (UTC)" in text


def test_each_due_service_is_blocked_and_none_that_is_not_due(table: HandMadeTable, clock: FakeClock) -> None:
    made(table, "20261121120006000.deltacommit.requested", 6000)
    impatient = POLICY.replace(
        rollback=RollbackPolicy(after_s=1),
        clean=POLICY.clean.replace(commits=1, retained_commits=1),
        archive=POLICY.archive.replace(min_commits=2, max_commits=3),
        clustering=POLICY.clustering.replace(enabled=True),
    )
    found = verdicts(table, impatient, clock)
    assert found.keys() == DECIDED
    assert not [service for service, (verdict, _) in found.items() if verdict is Verdict.DUE]
    for service in (Service.COMPACTION, Service.ROLLBACK):
        assert found[service][0] is Verdict.BLOCKED, found[service]


def test_jobs_that_are_set_to_the_writers_zone_are_due(table: HandMadeTable, clock: FakeClock) -> None:
    says_local(table)
    verdict, reason = verdicts(table, in_zone("UTC"), clock)[Service.COMPACTION]
    assert verdict is Verdict.BLOCKED
    assert "hoodie.table.timeline.timezone=LOCAL" in reason
    assert verdicts(table, in_zone("Etc/GMT+5"), clock)[Service.COMPACTION][0] is Verdict.DUE
    assert verdicts(table, in_zone("GMT-05:00"), clock)[Service.COMPACTION][0] is Verdict.DUE


def test_doctor_names_the_zone_and_the_writes_behind_a_commit_of_another_zone(table: HandMadeTable) -> None:
    def examine() -> dict[StuckKind, tuple[str, str]]:
        evidence = collect_evidence(open_storage(str(table.path)), NOON_MS + 5 * HOUR_MS + 600_000)
        return {finding.kind: (finding.instant, finding.message) for finding in diagnose(evidence)}

    assert examine().keys() == {StuckKind.FOREIGN_TIME_ZONE}
    made(table, "20261121170008000.compaction.requested", 8000)
    made(table, "20261121170008000_20261121170009000.commit", 9000)
    assert examine().keys() == {StuckKind.FOREIGN_TIME_ZONE}
    made(table, "20261121120012000.deltacommit.requested", 12_000)
    table.commit(12)
    made(table, "20261121120012000_20261121120012500.deltacommit", 12_500)
    instant, message = examine()[StuckKind.DISORDERED_WRITES]
    assert instant == "20261121170008000"
    assert message.startswith("1 writes (instant 20261121120012000) were made after compaction 20261121170008000")


def test_round_notifies_people_once(registry: Registry, table: HandMadeTable, clock: FakeClock) -> None:
    registry.mark_dirty(Notice(str(table.path), "orders", Source.HINT))
    heard = Heard()
    for _ in range(2):
        RepairRound(registry, TablesConfig, open_storage).run()
        DeadlineSweep(registry, FakeInstanceGateway(), notifier=heard).sweep()
        clock.advance(601)
    (problem,) = heard.problems
    assert (problem.base_path, problem.service) == (str(table.path), "foreign_time_zone")
    assert "5:00 h behind the clock of the jobs" in problem.reason


def test_page_says_what_is_wrong_and_what_to_do(services: ManagerServices, table: HandMadeTable) -> None:
    client = TestClient(create_pages(lambda: services, lambda: None), raise_server_exceptions=False)
    table_id = services.registry.mark_dirty(Notice(str(table.path), "orders", Source.HINT)).table_id
    (problem,) = client.get(f"/api/tables/{table_id}/timeline").json()["problems"]
    assert "20261121120005000 (and 2 before) was named 5:00 h behind the clock of the jobs (UTC)" in problem["message"]
    assert "-Duser.timezone=UTC" in problem["repair"]
