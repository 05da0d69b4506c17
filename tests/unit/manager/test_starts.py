"""A due decision gets a run only within the limits of its table, its pool and its queue."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.config.tables_config import Limits, TablesConfig
from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.manager.db.leases import Executors
from airflow_lake_provider.manager.db.registry import Registry
from airflow_lake_provider.manager.db.rows import Notice, Source, TableLease
from airflow_lake_provider.manager.runs.airflow_runs import RunState, ServiceRun
from airflow_lake_provider.manager.runs.run_ids import run_id_of
from airflow_lake_provider.manager.scheduling.run_scheduler import RunScheduler
from airflow_lake_provider.manager.scheduling.scheduling import StartVerdict
from airflow_lake_provider.planner.rules import Decision, Urgency, Verdict
from tests.unit.manager.conftest import FakeRunGateway

DUE = Decision(Service.COMPACTION, Verdict.DUE, "due", key_instant="20261121120001000")
HEAVY = TablePolicy(
    pool="heavy", queue="spark", spark_conf={"spark.executor.memory": "2g"}, timeout_s=60, retries=1, engine="spark"
)
TABLES = TablesConfig(limits=Limits(pools={"heavy": 2}, queues={"spark": 3}))


def table_lease_of(registry: Registry, name: str) -> TableLease:
    registry.mark_dirty(Notice(f"/lake/{name}", name, Source.CONFIG))
    (table_lease,) = registry.acquire(1, 60)
    return table_lease


def active(name: str, pool: str = "", queue: str = "") -> ServiceRun:
    return ServiceRun(run_id_of(name, Service.COMPACTION, "1"), RunState.RUNNING, pool=pool, queue=queue)


@pytest.mark.parametrize(
    ("runs", "says"),
    [
        pytest.param([active("a", "heavy")], "", id="one-place-is-free"),
        pytest.param([active("a"), active("b"), active("c")], "", id="others-do-not-count"),
        pytest.param(
            [active("a", "heavy"), active("b", "heavy")],
            "2 runs of pool heavy are active, at most 2",
            id="pool-is-full",
        ),
        pytest.param(
            [active("a", "heavy"), replace(active("b", "heavy"), is_between_tries=True)],
            "",
            id="between-two-tries-it-holds-no-place-of-a-pool",
        ),
        pytest.param(
            [replace(active(n, queue="spark"), is_between_tries=True) for n in "abc"],
            "3 runs of queue spark are active",
            id="nothing-else-bounds-the-tasks-of-a-queue",
        ),
        pytest.param([active(n, queue="spark") for n in "abc"], "3 runs of queue spark are active", id="queue-is-full"),
    ],
)
def test_start_within_the_limits_of_pool_and_queue(
    registry: Registry, gateway: FakeRunGateway, runs: list[ServiceRun], says: str
) -> None:
    gateway.runs = list(runs)
    starts = RunScheduler(registry, gateway, lambda: TABLES)
    table_lease = table_lease_of(registry, "orders")
    (previewed,) = starts.preview(table_lease.table_id, HEAVY, [DUE])
    assert len(gateway.runs) == len(runs), "a preview starts nothing"
    start = starts.start(table_lease, HEAVY, DUE)
    assert start == previewed
    assert start.verdict is (StartVerdict.WAITING if says else StartVerdict.START)
    assert says in start.reason
    assert (start.evaluate_again_ms or 0) > registry.now_ms()


def test_run_gets_the_settings_of_its_policy(registry: Registry, gateway: FakeRunGateway) -> None:
    RunScheduler(registry, gateway, lambda: TABLES).start(table_lease_of(registry, "orders"), HEAVY, DUE)
    expected = {
        "pool": "heavy",
        "queue": "spark",
        "timeout_s": 60,
        "retries": 1,
        "engine": "spark",
        "spark_conn_id": "",
    }
    assert expected.items() <= gateway.confs[0].items()
    assert gateway.confs[0]["spark_conf"] == {"spark.executor.memory": "2g"}
    assert gateway.confs[0]["deadline_s"] == 86_400
    assert gateway.confs[0]["priority_weight"] == Urgency.USUAL


def test_tables_that_start_at_once_share_the_last_places(registry: Registry, gateway: FakeRunGateway) -> None:
    leases = [table_lease_of(registry, name) for name in "abcdef"]
    verdicts: list[StartVerdict] = []

    def start(table_lease: TableLease) -> None:
        verdicts.append(
            RunScheduler(registry, gateway, lambda: TABLES).start(table_lease, TablePolicy(pool="heavy"), DUE).verdict
        )

    threads = [threading.Thread(target=start, args=(table_lease,)) for table_lease in leases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(verdicts) == [StartVerdict.START] * 2 + [StartVerdict.WAITING] * 4
    assert len(gateway.runs) == 2


def test_plan_that_a_run_by_hand_executes_is_left_to_it_until_its_lease_ends(
    registry: Registry, gateway: FakeRunGateway
) -> None:
    starts, table_lease = RunScheduler(registry, gateway, TablesConfig), table_lease_of(registry, "orders")
    executors = Executors(registry, 60)
    lease = executors.acquire(table_lease.table_id, Service.COMPACTION, "by-hand", 1)
    waiting = starts.start(table_lease, TablePolicy(), DUE)
    assert (waiting.verdict, waiting.evaluate_again_ms) == (StartVerdict.WAITING, lease.lease_until_ms)
    executors.release(table_lease.table_id, Service.COMPACTION, lease.token)
    assert starts.start(table_lease, TablePolicy(), DUE).verdict is StartVerdict.START


@pytest.mark.parametrize(
    ("run_by", "service", "other", "waits"),
    [
        pytest.param("warm", Service.CLEAN, Service.COMPACTION, False, id="one-application-runs-both"),
        pytest.param("warm", Service.ARCHIVE, Service.CLEAN, False, id="archive-behind-clean-in-one-application"),
        pytest.param("warm", Service.CLEAN, Service.CLUSTERING, True, id="clustering-has-its-own-spark-submit"),
        pytest.param("warm", Service.CLUSTERING, Service.CLEAN, True, id="and-waits-itself"),
        pytest.param("auto", Service.CLEAN, Service.COMPACTION, True, id="compaction-may-be-large"),
        pytest.param("auto", Service.ARCHIVE, Service.CLEAN, False, id="small-with-small"),
        pytest.param("spark-submit", Service.CLEAN, Service.COMPACTION, True, id="one-at-a-time"),
        pytest.param("spark-submit", Service.ARCHIVE, Service.CLEAN, True, id="archive-waits-for-clean"),
    ],
)
def test_services_that_one_application_runs_in_turn_do_not_wait_for_each_other(
    registry: Registry, gateway: FakeRunGateway, run_by: str, service: Service, other: Service, waits: bool
) -> None:
    table = table_lease_of(registry, "orders")
    gateway.runs = [ServiceRun(run_id_of(table.table_id, other, "1"), RunState.RUNNING)]
    scheduler = RunScheduler(registry, gateway, TablesConfig, run_by)
    decision = Decision(service, Verdict.DUE, "due", key_instant="1")
    most = 2 if service is Service.ARCHIVE else 1
    start = scheduler.start(table, TablePolicy(max_active_runs=most), decision)
    assert start.verdict is (StartVerdict.WAITING if waits else StartVerdict.START), start.reason
    own = TablePolicy(engine="spark-submit", max_active_runs=most)
    (previewed,) = scheduler.preview(table.table_id, own, [replace(decision, key_instant="2")])
    assert previewed.verdict is not StartVerdict.START, "the table's own engine counts"
