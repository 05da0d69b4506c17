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

from airflow_lake_provider.config.owned_options import find_code_option
from airflow_lake_provider.config.tables_file import parse_tables_file
from airflow_lake_provider.config.tables_source import TablesSource
from airflow_lake_provider.execution import arguments
from airflow_lake_provider.hooks.lake import LakeHook
from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.manager.api.services import ManagerServices
from airflow_lake_provider.manager.db.registry import Registry
from airflow_lake_provider.manager.instances import RunFacts, TaskTry
from airflow_lake_provider.manager.monitoring import DeadlineSweep
from airflow_lake_provider.manager.scheduling import RunState
from airflow_lake_provider.operators import table_service
from airflow_lake_provider.operators.indexing import HudiIndexOperator
from airflow_lake_provider.operators.replication import HudiReplicationOperator
from airflow_lake_provider.operators.table_service import HudiTableServiceOperator
from tests.support.fixture_tables import unpack
from tests.unit.manager.conftest import SERVICE_TOKEN, FakeClock, FakeInstanceGateway, serve

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
    client = TestClient(serve(lambda: served), headers={"Authorization": f"Bearer {SERVICE_TOKEN}"})
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
    with pytest.raises(
        AirflowFailException, match=r"clean\.enabled: false means that another process cleans this table"
    ):
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
    given = {"hoodie.write.lock.provider": LOCK, "hoodie.b": "3"}
    for service, owned in (("compaction", {}), ("clean", RETENTION)):
        run_id = f"orders-1a.{service}.20261121120000000"
        assert submit(run_id=run_id, service=service, hudi_options=given | owned).request.hudi_options == given | owned


@pytest.mark.parametrize(
    ("service", "mode"),
    [
        ("clean", "schedule"),
        ("clean", "schedule_and_execute"),
        ("archive", "execute"),
        ("ttl", "execute"),
        ("orphans", "execute"),
        ("orphans", "schedule_and_execute"),
    ],
)
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"hoodie.clean.commits.retained": "1"},
        {"hoodie.partition.ttl.strategy.days.retain": "1"},
        {**RETENTION, "lake.clean.retained_hours": "1"},
        {**RETENTION, "lake.orphans.mode": "quarantine"},
    ],
)
def test_run_with_an_id_as_the_managers_keeps_what_the_table_keeps(
    submit: Submit, service: str, mode: str, given: dict[str, str]
) -> None:
    options = {"hoodie.write.lock.provider": LOCK, **given}
    with pytest.raises(AirflowFailException, match="retention"):
        submit(run_id=f"orders-1a.{service}.20261121120000000", service=service, mode=mode, hudi_options=options)


def test_such_a_run_removes_no_savepoints_that_the_table_keeps(submit: Submit) -> None:
    options = {"hoodie.write.lock.provider": LOCK, "lake.savepoint.keep": "0"}
    with pytest.raises(AirflowFailException, match="retention"):
        submit(run_id="orders-1a.savepoint.2026", service="savepoint", mode="execute", hudi_options=options)


def test_clean_of_a_plan_that_exists_needs_no_retention(submit: Submit) -> None:
    options = {"hoodie.write.lock.provider": LOCK}
    job = submit(run_id="orders-1a.clean.20261121120000000", service="clean", mode="execute", hudi_options=options)
    assert job.request.hudi_options == options


def test_what_a_service_sets_itself_is_refused_by_hand(submit: Submit) -> None:
    with pytest.raises(
        AirflowFailException, match=r"hoodie\.clean\.commits\.retained is set by the provider's services: use clean"
    ):
        submit(service="clean", hudi_options={"hoodie.clean.commits.retained": "1"})


def test_what_the_jobs_read_of_the_policy_is_refused_by_hand(submit: Submit) -> None:
    with pytest.raises(AirflowFailException, match=r"lake\.clean\.retained_hours is set by the provider's services"):
        submit(service="clean", hudi_options={"lake.clean.retained_hours": "1"})


def test_an_index_build_by_hand_takes_lock_and_spark_settings_from_the_policy(submit: Submit) -> None:
    job = submit(operator=HudiIndexOperator, indexes=["record_index"], check_timeout_s=7)
    options = job.request.hudi_options
    assert (options["hoodie.write.lock.provider"], job.conf["spark.executor.memory"]) == (LOCK, "7g")
    assert options["hoodie.metadata.index.check.timeout.seconds"] == "7"
    assert "record_index" in options["lake.index.wanted"]


def test_time_out_of_a_run_by_hand_is_the_tables(submit: Submit, table: Path) -> None:
    assert HudiTableServiceOperator(task_id="t", base_path=str(table), service="clean").find_timeout_s({}) == 7200


@pytest.mark.parametrize("service", Service)
def test_policy_is_answered_for_every_service(services: ManagerServices, service: Service) -> None:
    client = TestClient(serve(lambda: services), headers={"Authorization": f"Bearer {SERVICE_TOKEN}"})
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
    gateway = FakeInstanceGateway()
    params = {"base_path": "/lake/orders/", "service": "clean", **given}
    created_ms = registry.now_ms()
    gateway.runs = [RunFacts("by-hand", RunState.RUNNING, created_ms, params=params, task=TaskTry("running", 1))]
    clock.advance(100_000)
    swept = DeadlineSweep(registry, gateway, load_tables=lambda: parse_tables_file(entry, "t.yaml")).sweep()
    assert (swept.ended == 1) is ended


EVIL = "-javaagent:/tmp/evil.jar"
MANAGERS = "orders-1a.compaction.20261121120000000"


def refusal(submit: Submit, run_id: str, place: str = "spark_conf", **given: str) -> str:
    arguments = {"hudi_options": {"hoodie.write.lock.provider": LOCK}, "spark_conf": {}}
    arguments[place] |= given
    try:
        submit(run_id=run_id, service="compaction", **arguments)
    except AirflowFailException as error:
        return str(error)
    return ""


CODE = [
    ("spark_conf", "spark.driver.extraJavaOptions", EVIL),
    ("spark_conf", "spark.executor.extraJavaOptions", EVIL),
    ("spark_conf", "spark.executor.defaultJavaOptions", EVIL),
    ("spark_conf", "spark.driver.extraClassPath", "/tmp/evil.jar"),
    ("spark_conf", "spark.executor.extraLibraryPath", "/tmp"),
    ("spark_conf", "spark.jars", "/tmp/evil.jar"),
    ("spark_conf", "spark.jars.packages", "evil:evil:1"),
    ("spark_conf", "spark.jars.ivySettings", "/tmp/ivy.xml"),
    ("spark_conf", "spark.submit.pyFiles", "/tmp/evil.py"),
    ("spark_conf", "spark.yarn.dist.files", "/etc/passwd"),
    ("spark_conf", "spark.files", "/etc/passwd"),
    ("spark_conf", "spark.archives", "/tmp/evil.zip"),
    ("spark_conf", "spark.pyspark.python", "/tmp/evil"),
    ("spark_conf", "spark.pyspark.driver.python", "/tmp/evil"),
    ("spark_conf", "spark.python.daemon.module", "evil"),
    ("spark_conf", "spark.executorEnv.PYTHONPATH", "/tmp"),
    ("spark_conf", "spark.yarn.appMasterEnv.PYTHONPATH", "/tmp"),
    ("spark_conf", "spark.kubernetes.container.image", "evil"),
    ("spark_conf", "spark.kubernetes.driver.podTemplateFile", "/tmp/pod.yaml"),
    ("spark_conf", "spark.executor.resource.gpu.discoveryScript", "/tmp/evil.sh"),
    ("spark_conf", "spark.plugins", "com.evil.Plugin"),
    ("spark_conf", "spark.extraListeners", "com.evil.Listener"),
    ("spark_conf", "spark.sql.extensions", "com.evil.Extension"),
    ("spark_conf", "spark.sql.catalog.evil", "com.evil.Catalog"),
    ("spark_conf", "spark.serializer", "com.evil.Serializer"),
    ("spark_conf", "spark.hadoop.fs.evil.impl", "com.evil.FileSystem"),
    ("spark_conf", "spark.hadoop.net.topology.script.file.name", "/tmp/evil.sh"),
    ("spark_conf", "spark.some.new.setting", "com.evil.Anything"),
    ("spark_conf", "spark.master", "spark://evil:7077"),
    ("hudi_options", "hoodie.datasource.write.payload.class", "com.evil.Payload"),
    ("hudi_options", "hoodie.compaction.payload.class", "com.evil.Payload"),
    ("hudi_options", "hoodie.write.record.merge.custom.implementation.classes", "com.evil.Merger"),
    ("hudi_options", "hoodie.write.lock.provider", "com.evil.Lock"),
    ("hudi_options", "hoodie.compaction.strategy", "org.apache.hudi.Fine,com.evil.Strategy"),
    ("hudi_options", "hoodie.write.commit.callback.class", "org.apache.hudi.callback.Http"),
    ("hudi_options", "hoodie.write.commit.callback.http.url", "http://evil/"),
    ("hudi_options", "hoodie.metrics.reporter.class", "com.evil.Reporter"),
    ("hudi_options", "hoodie.new.setting", "com.evil.Anything"),
    ("hudi_options", "hoodie.x", "secret://connection/prod/password"),
    ("spark_conf", "spark.x", "secret://variable/prod"),
]


@pytest.mark.parametrize(("place", "key", "value"), CODE)
def test_option_that_executes_code_or_refers_to_a_secret_is_known(place: str, key: str, value: str) -> None:
    assert find_code_option({"a": "1", key: value}, {}, ()) == key
    assert find_code_option({key: value}, {key: value}, ()) is None
    assert find_code_option({key: value}, {key: f"{value}2"}, ()) == key
    assert find_code_option({key: value}, {}, ("x", f"{key[:-2]}*")) is None


@pytest.mark.parametrize("run_id", ["manual__2026", MANAGERS], ids=["by-hand", "with-an-id-as-the-managers"])
@pytest.mark.parametrize(("place", "key", "value"), CODE[::10])
def test_option_that_executes_code_is_taken_from_the_tables_file_only(
    submit: Submit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_id: str, place: str, key: str, value: str
) -> None:
    refused = refusal(submit, run_id, place, **{key: value})
    assert f"{place}: {key} executes code in the job" in refused
    assert "[lake] allowed_run_options" in refused
    lock = "" if key == "hoodie.write.lock.provider" else f"hoodie.write.lock.provider: {LOCK}"
    options = {"spark_conf": "", "hudi_options": lock}
    options[place] += f", {key}: '{value}'" if options[place] else f"{key}: '{value}'"
    (tmp_path / "tables.yaml").write_text("defaults:\n" + "".join(f"  {at}: {{{o}}}\n" for at, o in options.items()))
    assert not refusal(submit, run_id, place, **{key: value}), "the same value as in the tables file"
    assert "executes code" in refusal(submit, run_id, place, **{key: f"{value}.Two"})
    monkeypatch.setenv("AIRFLOW__LAKE__ALLOWED_RUN_OPTIONS", f"spark.other, {key[:-3]}*")
    assert not refusal(submit, run_id, place, **{key: f"{value}.Two"})


@pytest.mark.parametrize("run_id", ["manual__2026", MANAGERS])
def test_options_that_execute_no_code_pass_without_a_setting(submit: Submit, run_id: str) -> None:
    hudi = {
        "hoodie.write.lock.provider": LOCK,
        "hoodie.compaction.payload.class": "org.apache.hudi.common.model.DefaultHoodieRecordPayload",
        "hoodie.clustering.plan.strategy.small.file.limit": "300000000",
        "hoodie.write.lock.zookeeper.url": "zk1:2181",
        "hoodie.parquet.compression.codec": "zstd",
        "hoodie.metadata.enable": "true",
    }
    spark = {
        "spark.driver.memory": "4g",
        "spark.executor.instances": "8",
        "spark.sql.shuffle.partitions": "200",
        "spark.dynamicAllocation.enabled": "true",
        "spark.yarn.queue": "services",
        "spark.io.compression.codec": "zstd",
        "spark.network.timeout": "120s",
    }
    assert not refusal(submit, run_id, "hudi_options", **hudi)
    assert not refusal(submit, run_id, "spark_conf", **spark)


@pytest.mark.parametrize("run_id", ["manual__2026", MANAGERS])
def test_nothing_is_read_or_started_outside_the_allowed_roots(
    submit: Submit, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_id: str
) -> None:
    for module in (table_service, arguments):
        monkeypatch.setattr(module, "TableReader", lambda *_: pytest.fail("the table is read"))
    for roots in (f"{lake}/other, s3://bucket", str(tmp_path / "lak"), ""):
        monkeypatch.setenv("AIRFLOW__LAKE__ALLOWED_ROOTS", roots)
        with pytest.raises(AirflowFailException, match=r"\[lake\] allowed_roots"):
            submit(run_id=run_id, service="compaction")
        with pytest.raises(AirflowFailException, match=r"\[lake\] allowed_roots"):
            submit(run_id=run_id, operator=HudiIndexOperator, indexes=["record_index"])


def test_replication_by_hand_refuses_other_roots_and_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LakeHook, "get_conn", lambda _: pytest.fail("the manager is asked"))
    context: Any = {"run_id": "manual__2026", "ti": SimpleNamespace(try_number=1)}
    for given, words in (
        ({"base_path": "/etc/t"}, "allowed_roots"),
        ({"spark_conf": {"spark.jars": "/tmp/evil.jar"}}, "spark_conf: spark.jars executes code"),
        ({"options": {"kafka.sasl.kerberos.kinit.cmd": "evil"}}, "options: kafka.sasl.kerberos.kinit.cmd executes"),
        ({"options": {"conn_id": "k", "bootstrap_servers": "evil:9092"}}, "bootstrap_servers stands next to conn_id"),
        ({"options": {"conn_id": "k", "kafka.security.protocol": "PLAINTEXT"}}, "next to conn_id"),
        ({"options": {"conn_id": "db", "url": "postgresql://evil/x"}}, "url stands next to conn_id"),
        ({"options": {"kafka.plugin.library.paths": "/tmp/evil.so"}}, "plugin.library.paths executes"),
    ):
        place: dict[str, Any] = {"base_path": str(tmp_path / "t"), **given}
        task = HudiReplicationOperator(task_id="t", sink="noop", **place)
        monkeypatch.setattr(HudiReplicationOperator, "_report_sink", lambda _: None)
        with pytest.raises(AirflowFailException, match=words):
            task.execute(context)
