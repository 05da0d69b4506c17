"""A run that the manager did not create goes by the table's policy, which the manager answers from the tables file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException
from fastapi.testclient import TestClient

from airflow_lake_provider.config.tables_file import parse_tables_file
from airflow_lake_provider.config.tables_source import TablesSource
from airflow_lake_provider.hooks.lake import LakeHook
from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.manager.api.app import create_app
from airflow_lake_provider.manager.api.services import ManagerServices
from airflow_lake_provider.manager.db.registry import Registry
from airflow_lake_provider.manager.instances import RunFacts, TaskTry
from airflow_lake_provider.manager.monitoring import DeadlineSweep
from airflow_lake_provider.manager.scheduling import RunState
from airflow_lake_provider.operators import table_service
from airflow_lake_provider.operators.indexing import HudiIndexOperator
from airflow_lake_provider.operators.table_service import HudiTableServiceOperator
from tests.support.fixture_tables import unpack
from tests.unit.manager.conftest import SERVICE_TOKEN, FakeClock, FakeInstanceDoor

LOCK = "org.apache.hudi.client.transaction.lock.ZookeeperBasedLockProvider"
TABLES = f"""
defaults:
  hudi_options: {{hoodie.write.lock.provider: {LOCK}, hoodie.a: "1"}}
tables:
  - name: mor_v9
    clean: {{retained_commits: 500}}
    archive: {{min_commits: 600, max_commits: 700}}
    ttl: {{retained_days: 9}}
    engine: spark
    spark_conn_id: cluster
    spark_conf: {{spark.executor.memory: 7g, spark.b: "1"}}
    conflict: {{period_s: 3}}
    timeout_s: 7200
    deadline_s: 200000
"""
RETENTION = {"hoodie.clean.policy": "KEEP_LATEST_COMMITS", "hoodie.clean.commits.retained": "500"}

Submit = Callable[..., Any]


@pytest.fixture
def table(lake: Path) -> Path:
    return unpack("mor_v9", lake).path


@pytest.fixture
def submit(services: ManagerServices, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Submit:
    """Return what hands a run on as far as the engine, against a manager with these tables, and returns its job."""
    (tmp_path / "tables.yaml").write_text(TABLES, encoding="utf-8")
    served = replace(services, tables=TablesSource(str(tmp_path / "tables.yaml")))
    client = TestClient(create_app(lambda: served), headers={"Authorization": f"Bearer {SERVICE_TOKEN}"})
    monkeypatch.setattr(LakeHook, "get_conn", lambda _: client)
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "airflow"))
    jobs: list[Any] = []
    describe = table_service.describe
    monkeypatch.setattr(table_service, "describe", lambda job, pending: jobs.append(job) or describe(job, pending))

    def run(run_id: str = "manual__2026", operator: Any = HudiTableServiceOperator, **arguments: Any) -> Any:
        context: Any = {"run_id": run_id, "ti": SimpleNamespace(try_number=1)}
        operator(task_id="run_service", base_path=str(table), is_dry_run=True, **arguments).execute(context)
        return jobs[-1]

    return run


def test_a_clean_by_hand_keeps_what_the_table_keeps(submit: Submit) -> None:
    job = submit(service="clean", table_name="a name for people")
    assert job.request.hudi_options == {"hoodie.write.lock.provider": LOCK, "hoodie.a": "1", **RETENTION}


def test_a_table_that_others_clean_is_not_cleaned_by_hand(submit: Submit, tmp_path: Path) -> None:
    text = TABLES.replace("clean: {retained_commits: 500}", "clean: {enabled: false, retained_commits: 500}")
    (tmp_path / "tables.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(AirflowFailException, match=r"clean\.enabled: false says that others clean this table"):
        submit(service="clean")
    assert submit(service="compaction").request.hudi_options["hoodie.a"] == "1"


def test_an_archive_by_hand_keeps_what_the_table_keeps(submit: Submit) -> None:
    options = submit(service="archive").request.hudi_options
    assert {**RETENTION, "hoodie.keep.min.commits": "600", "hoodie.keep.max.commits": "700"}.items() <= options.items()


def test_what_a_run_by_hand_is_given_is_laid_over_the_policy(submit: Submit) -> None:
    job = submit(
        hudi_options={"hoodie.a": "2"}, spark_conf='{"spark.b": "2"}', spark_conn_id="other", engine="", conflict="{}"
    )
    assert job.request.hudi_options == {"hoodie.write.lock.provider": LOCK, "hoodie.a": "2"}
    assert job.conf == {"spark.executor.memory": "7g", "spark.b": "2"}
    assert (job.engine, job.conn_id) == ("spark", "other")


def test_a_run_of_the_managers_goes_by_what_it_was_created_with(submit: Submit) -> None:
    given = {"hoodie.write.lock.provider": LOCK, "hoodie.clean.commits.retained": "3"}
    job = submit(run_id="orders-1a.clean.20261121120000000", service="clean", hudi_options=given)
    assert job.request.hudi_options == given


def test_what_a_service_sets_itself_is_refused_by_hand(submit: Submit) -> None:
    with pytest.raises(
        AirflowFailException, match=r"hoodie\.clean\.commits\.retained is set by our services: use clean"
    ):
        submit(service="clean", hudi_options={"hoodie.clean.commits.retained": "1"})


def test_an_index_build_by_hand_takes_lock_and_spark_settings_from_the_policy(submit: Submit) -> None:
    job = submit(operator=HudiIndexOperator, indexes=["record_index"], check_timeout_s=7)
    options = job.request.hudi_options
    assert (options["hoodie.write.lock.provider"], job.conf["spark.executor.memory"]) == (LOCK, "7g")
    assert options["hoodie.metadata.index.check.timeout.seconds"] == "7"
    assert "record_index" in options["lake.index.wanted"]


def test_time_out_of_a_run_by_hand_is_the_tables(submit: Submit, table: Path) -> None:
    assert HudiTableServiceOperator(task_id="t", base_path=str(table), service="clean").find_timeout_s() == 7200


@pytest.mark.parametrize("service", Service)
def test_policy_is_answered_for_every_service(services: ManagerServices, service: Service) -> None:
    client = TestClient(create_app(lambda: services), headers={"Authorization": f"Bearer {SERVICE_TOKEN}"})
    params = {"base_path": "/lake/orders", "table_name": "orders", "service": service.value}
    assert client.get("/policy", params=params).status_code == 200
    assert client.get("/policy", params=params, headers={"Authorization": "Bearer wrong"}).status_code == 401


@pytest.mark.parametrize(
    ("given", "ended"),
    [
        pytest.param({"deadline_s": None}, False, id="the-tables"),
        pytest.param({}, False, id="not-named"),
        pytest.param({"deadline_s": 3600}, True, id="given"),
    ],
)
def test_deadline_of_a_run_by_hand_is_the_tables(
    registry: Registry, clock: FakeClock, given: dict[str, Any], ended: bool
) -> None:
    entry = TABLES.replace("name: mor_v9", "base_path: /lake/orders")
    door = FakeInstanceDoor()
    params = {"base_path": "/lake/orders/", "service": "clean", **given}
    created_ms = registry.now_ms()
    door.runs = [RunFacts("by-hand", RunState.RUNNING, created_ms, params=params, task=TaskTry("running", 1))]
    clock.advance(100_000)
    swept = DeadlineSweep(registry, door, load_tables=lambda: parse_tables_file(entry, "t.yaml")).sweep()
    assert (swept.ended == 1) is ended
