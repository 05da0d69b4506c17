"""A run that the manager did not create goes by the table's policy, which the manager answers from the tables file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException
from fastapi.testclient import TestClient

from airflow_lake_provider.config.owned_options import find_code_option
from airflow_lake_provider.config.run_options import may_set_hudi, may_set_sink
from airflow_lake_provider.config.settings import LakeSettings
from airflow_lake_provider.config.tables_file import parse_tables_file
from airflow_lake_provider.config.tables_source import TablesSource
from airflow_lake_provider.errors import ServiceRefusedError
from airflow_lake_provider.execution import arguments
from airflow_lake_provider.hooks.lake import LakeHook
from airflow_lake_provider.hudi.base_path import table_id_of
from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.manager.api.services import ManagerServices
from airflow_lake_provider.manager.db.registry import Registry
from airflow_lake_provider.manager.db.rows import Notice, Source
from airflow_lake_provider.manager.runs.airflow_runs import RunFacts, RunState, TaskTry
from airflow_lake_provider.manager.supervision.monitoring import DeadlineSweep
from airflow_lake_provider.operators import table_service
from airflow_lake_provider.operators.indexing import HudiIndexOperator
from airflow_lake_provider.operators.replication import HudiReplicationOperator
from airflow_lake_provider.operators.table_service import HudiTableServiceOperator
from tests.support.fixture_tables import unpack
from tests.support.task_context import task_instance
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
MANAGERS = "orders.compaction.20261121120000000.1a"
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
        context: Any = {"run_id": run_id, "ti": task_instance()}
        operator(task_id="run_service", base_path=str(table), is_dry_run=True, **arguments).execute(context)
        return jobs[-1]

    return run


@pytest.mark.parametrize(
    ("service", "key"),
    [
        (Service.CLUSTERING, "hoodie.clustering.rollback.pending.replacecommit.on.conflict"),
        (Service.CLUSTERING, "hoodie.clustering.updates.strategy"),
        (Service.CLUSTERING, "hoodie.clustering.expiration.threshold.mins"),
        (Service.CLUSTERING, "hoodie.clustering.plan.strategy.binary.copy.schema.evolution.enable"),
        (Service.CLUSTERING, "hoodie.layout.optimize.enable"),
        (Service.LOGCOMPACTION, "hoodie.log.compaction.enable"),
        (Service.ARCHIVE, "hoodie.archive.beyond.savepoint"),
        (Service.ARCHIVE, "hoodie.archive.block.on.latest.clean.ectr"),
        (Service.ARCHIVE, "hoodie.timeline.manifest.retained.versions"),
        (Service.TTL, "hoodie.partition.ttl.strategy.days.retain"),
        (Service.TTL, "hoodie.partition.ttl.management.strategy.type"),
        (Service.METACOMPACTION, "hoodie.metadata.log.compaction.enable"),
        (Service.INDEXING, "hoodie.metadata.index.drop"),
        (Service.INDEXING, "hoodie.metadata.index.partition.stats.enable"),
    ],
)
def test_run_may_tune_its_service_and_not_choose_what_that_removes_or_keeps(service: Service, key: str) -> None:
    assert not may_set_hudi(service)(key, "1")


@pytest.mark.parametrize(
    ("service", "key"),
    [
        (Service.CLUSTERING, "hoodie.clustering.plan.strategy.sort.columns"),
        (Service.CLUSTERING, "hoodie.clustering.plan.strategy.daybased.lookback.partitions"),
        (Service.CLUSTERING, "hoodie.layout.optimize.strategy"),
        (Service.ARCHIVE, "hoodie.commits.archival.batch"),
        (Service.TTL, "hoodie.partition.ttl.strategy.partition.selected"),
        (Service.METACOMPACTION, "hoodie.metadata.compact.max.delta.commits"),
        (Service.INDEXING, "hoodie.metadata.index.column.stats.column.list"),
        (Service.INDEXING, "hoodie.metadata.global.record.level.index.max.filegroup.count"),
        (Service.INDEXING, "hoodie.metadata.record.index.min.filegroup.count"),
        (Service.INDEXING, "hoodie.metadata.index.bloom.filter.parallelism"),
    ],
)
def test_run_may_set_the_tuning_of_its_service(service: Service, key: str) -> None:
    assert may_set_hudi(service)(key, "1")


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
        service="compaction",
        hudi_options={"hoodie.parquet.compression.codec": "zstd", "hoodie.a": "1"},
        spark_conf='{"spark.executor.memory": "9g"}',
        spark_conn_id="spark_default",
        engine="",
        conflict="{}",
    )
    options = {"hoodie.write.lock.provider": LOCK, "hoodie.a": "1", "hoodie.parquet.compression.codec": "zstd"}
    assert job.request.hudi_options == options
    assert job.conf == {"spark.executor.memory": "9g", "spark.b": "1"}
    assert (job.engine, job.conn_id) == ("spark", "spark_default")


def test_a_run_of_the_managers_goes_by_what_it_was_created_with(submit: Submit) -> None:
    given = {"hoodie.write.lock.provider": LOCK, "hoodie.parquet.max.file.size": "3"}
    for service, owned in (("compaction", {}), ("clean", RETENTION)):
        run_id = f"orders.{service}.20261121120000000.1a"
        assert submit(run_id=run_id, service=service, hudi_options=given | owned).request.hudi_options == given | owned


def test_run_with_an_id_as_the_managers_takes_from_the_tables_file_what_no_run_may_set(submit: Submit) -> None:
    given = {"hoodie.write.lock.provider": LOCK, "hoodie.write.lock.zookeeper.url": "evil:2181", "hoodie.a": "7"}
    job = submit(
        run_id=MANAGERS,
        service="compaction",
        hudi_options=given,
        spark_conf={"spark.eventLog.dir": "file:/any", "spark.executor.cores": "3"},
    )
    assert job.request.hudi_options == {"hoodie.write.lock.provider": LOCK, "hoodie.a": "1"}
    assert job.conf == {"spark.executor.memory": "7g", "spark.b": "1", "spark.executor.cores": "3"}


@pytest.mark.parametrize(
    "other",
    [
        {"hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider"},
        {"hoodie.write.lock.filesystem.expire": "1"},
    ],
)
def test_run_takes_the_lock_of_the_tables_file_as_the_writers_do(submit: Submit, other: dict[str, str]) -> None:
    """With another lock, or one that soon counts as left, service and writers would commit next to each other."""
    given = {"hoodie.write.lock.provider": LOCK, **other}
    with pytest.raises(AirflowFailException, match=f"a run may not set {next(iter(other))}"):
        submit(service="compaction", hudi_options=given)
    as_managers = submit(run_id=MANAGERS, service="compaction", hudi_options=given)
    assert as_managers.request.hudi_options == {"hoodie.write.lock.provider": LOCK, "hoodie.a": "1"}


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
        submit(run_id=f"orders.{service}.20261121120000000.1a", service=service, mode=mode, hudi_options=options)


def test_such_a_run_removes_no_savepoints_that_the_table_keeps(submit: Submit) -> None:
    options = {"hoodie.write.lock.provider": LOCK, "lake.savepoint.keep": "0"}
    with pytest.raises(AirflowFailException, match="retention"):
        submit(run_id="orders.savepoint.2026.1a", service="savepoint", mode="execute", hudi_options=options)


def test_clean_of_a_plan_that_exists_needs_no_retention(submit: Submit) -> None:
    options = {"hoodie.write.lock.provider": LOCK}
    job = submit(run_id="orders.clean.20261121120000000.1a", service="clean", mode="execute", hudi_options=options)
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
MANAGERS = "orders.compaction.20261121120000000.1a"


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
        "hoodie.compaction.strategy": "org.apache.hudi.table.action.compact.strategy.UnBoundedCompactionStrategy",
        "hoodie.compaction.target.io": "1024",
        "hoodie.parquet.compression.codec": "zstd",
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


# Settings that lead to another place, identity, server or file, and name no class.
PLACES = [
    ("spark_conf", "spark.kubernetes.driver.volumes.hostPath.x.options.path", "/"),
    ("spark_conf", "spark.kubernetes.authenticate.driver.serviceAccountName", "cluster-admin"),
    ("spark_conf", "spark.kubernetes.namespace", "kube-system"),
    ("spark_conf", "spark.kubernetes.driver.master", "https://evil"),
    ("spark_conf", "spark.yarn.keytab", "/etc/other.keytab"),
    ("spark_conf", "spark.kerberos.principal", "other"),
    ("spark_conf", "spark.eventLog.dir", "file:/any"),
    ("spark_conf", "spark.redaction.regex", "^$"),
    ("spark_conf", "spark.ui.enabled", "true"),
    ("spark_conf", "spark.driver.bindAddress", "0.0.0.0"),
    ("spark_conf", "spark.local.dir", "/any"),
    ("spark_conf", "spark.sql.warehouse.dir", "/any"),
    ("spark_conf", "spark.shuffle.manager", "sort"),
    ("hudi_options", "hoodie.write.lock.zookeeper.url", "evil:2181"),
    ("hudi_options", "hoodie.write.lock.filesystem.path", "/any"),
    ("hudi_options", "hoodie.metadata.enable", "false"),
    ("hudi_options", "hoodie.client.heartbeat.interval_in_ms", "1"),
    ("hudi_options", "hoodie.clean.multiple.enabled", "true"),
    ("hudi_options", "hoodie.datasource.write.recordkey.field", "x"),
    ("hudi_options", "hoodie.embed.timeline.server.port", "8080"),
    ("hudi_options", "hoodie.basepath", "/other"),
]


@pytest.mark.parametrize(("place", "key", "value"), PLACES)
def test_setting_that_is_not_listed_is_taken_from_the_tables_file_only(
    submit: Submit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, key: str, value: str
) -> None:
    assert f"{place}: a run may not set {key}" in refusal(submit, "manual__2026", place, **{key: value})
    options = {"spark_conf": f"{key}: '{value}'", "hudi_options": f"hoodie.write.lock.provider: {LOCK}"}
    if place == "hudi_options":
        options = {place: f"hoodie.write.lock.provider: {LOCK}, {key}: '{value}'"}
    (tmp_path / "tables.yaml").write_text("defaults:\n" + "".join(f"  {at}: {{{o}}}\n" for at, o in options.items()))
    assert not refusal(submit, "manual__2026", place, **{key: value}), "the same value as in the tables file"
    assert "may not set" in refusal(submit, "manual__2026", place, **{key: f"{value}2"})
    monkeypatch.setenv("AIRFLOW__LAKE__ALLOWED_RUN_OPTIONS", key)
    assert not refusal(submit, "manual__2026", place, **{key: f"{value}2"})


def test_connection_of_a_run_is_the_tables_files_or_the_lakes(submit: Submit, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [submit(service="compaction", spark_conn_id=own).conn_id for own in ("", "cluster")] == ["cluster"] * 2
    assert submit(service="compaction", spark_conn_id="spark_default").conn_id == "spark_default"
    with pytest.raises(AirflowFailException, match="spark_conn_id: a run may not choose connection 'other'"):
        submit(service="compaction", spark_conn_id="other")
    for service, owned in (("compaction", {}), ("clean", RETENTION)):
        run_id = f"orders.{service}.20261121120000000.1a"
        given = {"run_id": run_id, "service": service, "hudi_options": owned}
        assert submit(**given, spark_conn_id="other").conn_id == "cluster", "an id as the manager's proves nothing"
    monkeypatch.setenv("AIRFLOW__LAKE__ALLOWED_RUN_OPTIONS", "spark_conn_id")
    assert submit(service="compaction", spark_conn_id="other").conn_id == "other"


@pytest.mark.parametrize("service", Service)
def test_run_may_set_the_tuning_of_its_own_service_alone(service: Service) -> None:
    tuning = {
        Service.COMPACTION: "hoodie.compaction.target.io",
        Service.CLUSTERING: "hoodie.clustering.plan.strategy.small.file.limit",
        Service.ARCHIVE: "hoodie.archive.merge.enable",
        Service.INDEXING: "hoodie.metadata.index.bloom.filter.file.group.count",
        Service.METACOMPACTION: "hoodie.metadata.compact.max.delta.commits",
    }
    # Hudi reads the size of a compaction of logs from the settings of compaction.
    own = {Service.COMPACTION} if service is Service.LOGCOMPACTION else {service} & tuning.keys()
    assert {owner for owner, key in tuning.items() if may_set_hudi(service)(key, "1")} == own


# Settings near the tuning of a service that lead out of the table, or change what its readers see.
NO_TUNING = [
    (Service.ROLLBACK, "hoodie.rollback.instant.backup.dir", "/lake/bank/accounts/.hoodie/timeline"),
    (Service.CLEAN, "hoodie.clean.delete.bootstrap.base.file", "true"),
    (Service.CLEAN, "hoodie.cleaner.delete.bootstrap.base.file", "true"),
    (Service.COMPACTION, "hoodie.memory.spillable.map.path", "/any"),
    (Service.COMPACTION, "hoodie.compaction.payload.class", "org.apache.hudi.common.model.EmptyHoodieRecordPayload"),
    (Service.COMPACTION, "hoodie.compaction.record.merger.strategy", "eeb8d96f-b1e4-49fd-bbf8-28ac514178e5"),
    (Service.COMPACTION, "hoodie.compact.merge.handle.class", "org.apache.hudi.io.HoodieConcatHandle"),
    (Service.CLUSTERING, "hoodie.parquet.outputtimestamptype", "TIMESTAMP_MILLIS"),
    (Service.CLUSTERING, "hoodie.parquet.spark.row.write.support.class", "org.apache.hudi.io.storage.row.X"),
]


@pytest.mark.parametrize(("service", "key", "value"), NO_TUNING)
def test_run_may_not_set_what_leads_out_of_the_table_or_changes_its_rows(
    service: Service, key: str, value: str
) -> None:
    assert not may_set_hudi(service)(key, value)


@pytest.mark.parametrize("sink", ["own", "of_no_file"])
def test_sink_run_by_hand_takes_the_lock_of_the_table(
    services: ManagerServices, tmp_path: Path, table: Path, monkeypatch: pytest.MonkeyPatch, sink: str
) -> None:
    """A snapshot's savepoint under another lock would be made while a writer or a clean commits."""
    policy = f"hudi_options: {{hoodie.write.lock.provider: {LOCK}}}, replication: [{{sink: noop, name: own}}]"
    (tmp_path / "tables.yaml").write_text(f"tables:\n  - {{base_path: '{table}', {policy}}}\n")
    served = replace(services, tables=TablesSource(str(tmp_path / "tables.yaml")))
    client = TestClient(serve(lambda: served), headers={"Authorization": f"Bearer {SERVICE_TOKEN}"})
    monkeypatch.setattr(LakeHook, "get_conn", lambda _: client)
    services.registry.register(Notice(str(table), "t", Source.CONFIG))
    known = LakeHook().find_sink_entry(table_id_of(str(table)), sink)
    key = "source.hoodie.write.lock.provider"
    other = arguments.SinkByHand("sink", sink, {key: LOCK.replace("Zookeeper", "FileSystem")}, {})
    assert other.sets_places
    with pytest.raises(ServiceRefusedError, match=f"may not set {key}"):
        other.check(known, LakeSettings())
    other.check(known, LakeSettings(allowed_run_options=(key,)))
    other.check({"options": {}}, LakeSettings())
    arguments.SinkByHand("sink", sink, {key: LOCK}, {}).check(known, LakeSettings())


@pytest.mark.parametrize("run_id", ["manual__2026", MANAGERS])
@pytest.mark.parametrize("value", ["${env:AWS_SECRET_ACCESS_KEY}", "1g${system:user.home}", "1g\nspark.jars=x.jar"])
def test_value_that_spark_would_replace_or_read_as_two_is_refused(submit: Submit, run_id: str, value: str) -> None:
    for place, key in (("spark_conf", "spark.driver.maxResultSize"), ("hudi_options", "hoodie.memory.merge.max.size")):
        if run_id == MANAGERS:
            job = submit(run_id=run_id, service="compaction", **{place: {key: value}})
            assert value not in {**job.conf, **job.request.hudi_options}.values()
        else:
            assert f"{place}: a run may not set {key}" in refusal(submit, run_id, place, **{key: value})
    assert not may_set_sink()("topic", value)


@pytest.mark.parametrize(
    "key",
    [
        "hoodie.base.path=/lake/bank.parallelism",
        "hoodie.a b.parallelism",
        "hoodie.a\rspark.master.parallelism",
        "hoodie.a\u2028b.parallelism",
        "hoodie.a:b.parallelism",
        " hoodie.upsert.shuffle.parallelism",
        "hoodie.upsert.shuffle.parallelism ",
        "HOODIE.upsert.shuffle.parallelism",
        "hoodie.upsert.\uff53huffle.parallelism",
        "hoodie.#x.parallelism",
    ],
)
def test_name_that_may_be_read_as_another_one_is_refused(submit: Submit, key: str) -> None:
    assert "a run may not set" in refusal(submit, "manual__2026", "hudi_options", **{key: "5"})
    assert not may_set_sink()(key, "5")
    spark = key.replace("hoodie", "spark.speculation", 1)
    assert "a run may not set" in refusal(submit, "manual__2026", "spark_conf", **{spark: "5"})
    assert may_set_sink()("column.Stra\u00dfe 1.type", "string")


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
    monkeypatch.setattr(LakeHook, "find_sink_entry", lambda *_: {})
    monkeypatch.setattr(LakeHook, "get_conn", lambda _: pytest.fail("the manager is asked"))
    context: Any = {"run_id": "manual__2026", "ti": task_instance()}
    for given, words in (
        ({"base_path": "/etc/t"}, "allowed_roots"),
        ({"spark_conf": {"spark.jars": "/tmp/evil.jar"}}, "spark_conf: spark.jars executes code"),
        ({"options": {"kafka.sasl.kerberos.kinit.cmd": "evil"}}, "options: kafka.sasl.kerberos.kinit.cmd executes"),
        ({"options": {"conn_id": "k", "bootstrap_servers": "evil:9092"}}, "bootstrap_servers stands next to conn_id"),
        ({"options": {"conn_id": "k", "kafka.security.protocol": "PLAINTEXT"}}, "next to conn_id"),
        ({"options": {"conn_id": "db", "url": "postgresql://evil/x"}}, "url stands next to conn_id"),
        ({"options": {"kafka.plugin.library.paths": "/tmp/evil.so"}}, "plugin.library.paths executes"),
        ({"options": {"kafka.sasl.oauthbearer.token.endpoint.url": "http://evil"}}, "may not set kafka.sasl"),
        ({"options": {"schema_registry": "http://169.254.169.254"}}, "may not set schema_registry"),
        ({"options": {"url": "sqlite:////etc/x"}}, "may not set url"),
        ({"options": {"conn_id": "k", "schema_registry": "http://evil"}}, "schema_registry stands next to conn_id"),
        ({"options": {"conn_id": "k", "storage.endpoint_url": "http://evil"}}, "endpoint_url stands next to conn_id"),
        ({"options": {"path": f"{tmp_path}/sinks/x", "storage.cache_storage": "/x"}}, "may not set storage.cache"),
        ({"options": {"path": f"{tmp_path}/sinks/x", "hoodie.base.path": "/x"}}, "may not set hoodie.base.path"),
        ({"spark_conf": {"spark.eventLog.dir": "file:/any"}}, "spark_conf: a run may not set spark.eventLog.dir"),
    ):
        place: dict[str, Any] = {"base_path": str(tmp_path / "t"), **given}
        task = HudiReplicationOperator(task_id="t", sink="noop", **place)
        monkeypatch.setattr(HudiReplicationOperator, "_report_sink", lambda _: None)
        with pytest.raises(AirflowFailException, match=words):
            task.execute(context)


ROOTS = ("/lake/sinks", "s3://mirror/team", "hdfs://nn/mirror")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("filecache::file:///lake/sinks/x", "chained"),
        ("simplecache::s3://mirror/team/x", "chained"),
        ("reference://", "absolute"),
        ("reference://lake/sinks", "reference is not one of"),
        ("ftp://127.0.0.1/x", "ftp is not one of"),
        ("http://169.254.169.254/latest", "http is not one of"),
        ("memory://lake/sinks", "memory is not one of"),
        ("/lake/sinks/../other", "'..' segment"),
        ("/lake/sinks2/x", "lies below none of"),
        ("/etc/cron.d", "lies below none of"),
        ("s3://mirror/other/x", "lies below none of"),
        ("s3://evil/team/x", "lies below none of"),
        ("hdfs://evil/mirror/x", "lies below none of"),
        ("lake/sinks/x", "not absolute"),
        ("file:///lake/sinks/x", "write it as /lake/sinks/x"),
        ("/lake/sinks//x", "write it as /lake/sinks/x"),
        ("/lake/sinks/x\n", "control or invisible characters"),
    ],
)
def test_path_of_a_sink_by_hand_lies_below_its_roots(path: str, words: str) -> None:
    assert words in arguments.find_path_problem(path, ROOTS)


@pytest.mark.parametrize(
    "path", ["/lake/sinks/x", "/lake/sinks", "s3a://mirror/team/{table}", "hdfs://nn:8020/mirror/x/"]
)
def test_path_below_a_root_is_allowed(path: str) -> None:
    assert arguments.find_path_problem(path, ROOTS) == ""
    assert arguments.find_path_problem(path, ()) != ""


@pytest.mark.parametrize("value", ["ftp://127.0.0.1/x", "/lake/sinks/own", "s3://mirror/team/own"])
def test_login_of_a_connection_goes_to_its_own_place_alone(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    extra = {"path": "s3://archive/out", "storage.username": "svc", "storage.password": "ftp-Secret-9"}
    monkeypatch.setattr(arguments, "options_with_connection", lambda *_: extra)
    by_hand = arguments.SinkByHand("sink x", "file", {"conn_id": "archive", "path": value}, {})
    settings = LakeSettings(sink_roots=(*ROOTS, "s3://archive"))
    assert by_hand.sets_places
    with pytest.raises(ServiceRefusedError, match=r"path .* \[lake\] sink_roots"):
        by_hand.check({}, settings)
    own = replace(by_hand, options={"conn_id": "archive", "path": "s3://archive/out/mine"})
    own.check({}, settings)
    own.check({"options": own.options}, LakeSettings())
    with pytest.raises(ServiceRefusedError):
        own.check({}, LakeSettings())


def test_sink_of_the_tables_file_may_be_run_by_hand_with_all_its_settings(
    services: ManagerServices, tmp_path: Path, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {
        "url": "secret://connection/db/url",
        "table": "m",
        "schema_registry": "http://r:8081",
        "path": "ftp://x/y",
    }
    entry = ", ".join(f"{key}: '{text}'" for key, text in options.items())
    (tmp_path / "tables.yaml").write_text(
        f"tables:\n  - base_path: '{table}'\n    spark_conf: {{spark.eventLog.dir: 'file:/logs'}}\n"
        f"    replication: [{{sink: own, {entry}}}]\n"
    )
    served = replace(services, tables=TablesSource(str(tmp_path / "tables.yaml")))
    client = TestClient(serve(lambda: served), headers={"Authorization": f"Bearer {SERVICE_TOKEN}"})
    monkeypatch.setattr(LakeHook, "get_conn", lambda _: client)
    table_id = table_id_of(str(table))
    services.registry.register(Notice(str(table), "t", Source.CONFIG))
    known = LakeHook().find_sink_entry(table_id, "own")
    of_table = {"spark_conf": {"spark.eventLog.dir": "file:/logs"}, "names": {"own": "own"}}
    assert known.items() >= {"options": options, "sink": "own", "mode": "changes", **of_table}.items()
    assert LakeHook().find_sink_entry(table_id, "other").items() >= {"options": {}, "sink": "", **of_table}.items()
    arguments.SinkByHand("sink own", "own", options, known["spark_conf"]).check(known, LakeSettings())
    theirs = {"options": {"kafka.sasl.password": "secret://variable/p", "path": "/lake/sinks/own"}}
    for change in ({"bootstrap_servers": "evil:9092"}, {"kafka.client.id": "x"}, {"path": "/lake/sinks/other"}):
        elsewhere = arguments.SinkByHand("sink own", "own", theirs["options"] | change, {})
        assert elsewhere.sets_places
        with pytest.raises(ServiceRefusedError, match=r"the secret of kafka\.sasl\.password|whose login it would get"):
            elsewhere.check(theirs, LakeSettings(sink_roots=("/lake/sinks",)))
    below = arguments.SinkByHand("sink own", "own", theirs["options"] | {"path": "/lake/sinks/own/x"}, {})
    below.check(theirs, LakeSettings(sink_roots=("/lake/sinks",)))
    for change in ({"url": "postgresql://evil/x"}, {"schema_registry": "http://evil"}, {"path": "ftp://evil/y"}):
        with pytest.raises(ServiceRefusedError):
            arguments.SinkByHand("sink own", "own", options | change, {}).check(known, LakeSettings())
