"""Where a secret goes: to the driver, in a file that only the worker's user can read, and nowhere else."""

from __future__ import annotations

import logging
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

from airflow_lake_provider.config.owned_options import is_open_secret
from airflow_lake_provider.config.tables_file import parse_tables_file
from airflow_lake_provider.errors import ConfigError, ServiceRefusedError
from airflow_lake_provider.execution.arguments import describe
from airflow_lake_provider.execution.engines import flink, spark_submit
from airflow_lake_provider.execution.engines.engine import EngineJob, Handle
from airflow_lake_provider.execution.engines.job_files import (
    KEPT_S,
    PRUNE_INTERVAL_S,
    ExecutorRecord,
    JobFolder,
    prune_jobs,
    resolve_secrets,
    write_text,
)
from airflow_lake_provider.execution.engines.packaging import submit_arguments, write_secret_conf
from airflow_lake_provider.execution.engines.spark_submit import SparkSubmitEngine
from airflow_lake_provider.execution.job import JobRun
from airflow_lake_provider.job_contract import JobRequest, Service, from_json
from tests.support.engine_jobs import FakeEngine, engine_job, never_lost

SECRET = r"hunter2=\n:ü"
HUDI = {"hoodie.write.lock.zookeeper.password": "secret://connection/lake_zk/password"}
SPARK = {
    "spark.executor.memory": "2g",
    "spark.ssl.keyPassword": "secret://variable/key_password",
    "spark.hadoop.fs.s3a.secret.key": "secret://connection/lake_s3/extra/secret_key",
}


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    zk = f'{{"conn_type": "generic", "password": "{SECRET}-zk"}}'.replace("\\", "\\\\")
    s3 = f'{{"conn_type": "aws", "extra": {{"secret_key": "{SECRET}-s3"}}}}'.replace("\\", "\\\\")
    monkeypatch.setenv("AIRFLOW_CONN_LAKE_ZK", zk)
    monkeypatch.setenv("AIRFLOW_CONN_LAKE_S3", s3)
    monkeypatch.setenv("AIRFLOW_VAR_KEY_PASSWORD", f"{SECRET}-key")
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", '{"conn_type": "spark", "host": "local[1]"}')
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    monkeypatch.delenv("SPARK_HOME", raising=False)


@pytest.fixture
def job(tmp_path: Path) -> EngineJob:
    job = engine_job(tmp_path / "work", engine="spark-submit", conf=SPARK)
    return replace(job, request=replace(job.request, hudi_options=HUDI), conn_id="spark_default")


def files_below(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".zip")


def java_properties(path: str) -> dict[str, str]:
    """Read simple lines as java.util.Properties does."""
    found = {}
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            key, _, value = line.replace(" ", "=", 1).partition("=") if "=" not in line else line.partition("=")
            found[key] = value.replace("\\\\", "\0").replace("\\n", "\n").replace("\0", "\\")
    return found


def test_request_holds_the_secret_while_the_job_runs_for_its_user_alone_and_not_afterwards(
    tmp_path: Path, job: EngineJob
) -> None:
    class Engine(FakeEngine):
        def wait(self, handle: Handle) -> None:
            path = Path(handle.job.request_path)
            read = from_json(JobRequest, path.read_text(encoding="utf-8"))
            assert read.hudi_options == {"hoodie.write.lock.zookeeper.password": f"{SECRET}-zk"}
            assert [one for one in files_below(tmp_path) if "hunter2" in one.read_text(encoding="utf-8")] == [path]
            assert all(stat.S_IMODE(one.stat().st_mode) == 0o600 for one in files_below(tmp_path / "work"))
            super().wait(handle)

    old = os.umask(0)
    try:
        JobRun(job, ExecutorRecord(str(tmp_path / "work"), "t", Service.COMPACTION), lambda _: Engine()).run(never_lost)
    finally:
        os.umask(old)
    assert [one for one in files_below(tmp_path) if "hunter2" in one.read_text(encoding="utf-8")] == []
    assert from_json(JobRequest, Path(job.request_path).read_text(encoding="utf-8")).hudi_options == HUDI


def test_file_that_others_could_read_is_closed_when_it_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "request.json"
    path.write_text("old and longer")
    path.chmod(0o666)
    write_text(str(path), "new")
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("new", 0o600)


def test_spark_submit_gets_secrets_in_a_file_of_its_user_and_none_in_its_arguments_or_log(
    job: EngineJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    conf_dir = tmp_path / "spark-conf"
    conf_dir.mkdir()
    (conf_dir / "spark-defaults.conf").write_text("spark.eventLog.enabled true\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(conf_dir))
    commands: list[list[str]] = []
    engine = SparkSubmitEngine()
    monkeypatch.setattr(
        engine._client._local, "start", lambda job, command, **_: commands.append(command) or Handle(job)
    )
    with caplog.at_level(logging.DEBUG):
        engine.start(job)
    (command,) = commands
    assert "hunter2" not in " ".join(command) + caplog.text + describe(job, ())
    assert "secret://" not in " ".join(command)
    assert "spark.executor.memory=2g" in command
    path = command[command.index("--properties-file") + 1]
    assert stat.S_IMODE(Path(path).stat().st_mode) == 0o600
    assert stat.S_IMODE(Path(path).parent.stat().st_mode) == 0o700
    assert java_properties(path) == {
        "spark.eventLog.enabled": "true",
        "spark.ssl.keyPassword": f"{SECRET}-key",
        "spark.hadoop.fs.s3a.secret.key": f"{SECRET}-s3",
    }


def test_job_without_secrets_keeps_sparks_own_defaults(job: EngineJob) -> None:
    plain = replace(job, conf={"spark.executor.memory": "2g"})
    assert write_secret_conf(plain.conf, os.environ) == ""
    assert "--properties-file" not in SparkSubmitHook(**submit_arguments(plain))._build_spark_submit_command("app.py")


def test_child_of_the_worker_gets_secrets_in_a_file_as_well(job: EngineJob) -> None:
    command, variables = spark_submit.build_command(job, {})
    assert "hunter2" not in " ".join(command) + str(variables)
    assert "--properties-file" in variables["PYSPARK_SUBMIT_ARGS"]


def test_properties_files_of_an_hour_ago_are_removed(job: EngineJob) -> None:
    old, new = (Path(write_secret_conf(job.conf, {})) for _ in range(2))
    os.utime(old, (time.time() - 3700,) * 2)
    write_secret_conf(job.conf, {})
    assert (old.exists(), new.exists()) == (False, True)


def test_flink_logs_no_secret_and_takes_no_reference(
    job: EngineJob, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = flink.FlinkCluster("jobmanager:8081", "/jars/hudi.jar")
    with pytest.raises(ServiceRefusedError, match="refers to a secret"):
        flink.build_command(job, cluster, "0" * 32)
    options = {"hoodie.aws.secret.key": "hunter2", "hoodie.x.url": "jdbc:x://me:hunter2@host/"}
    open_job = replace(job, conf={"s3.access-key": "hunter2"}, request=replace(job.request, hudi_options=options))
    started: list[list[str]] = []

    class Process:
        tail = (f"Job has been submitted with JobID {flink.ids_of(open_job)[0]}",)

        @classmethod
        def start(cls, command: list[str]) -> Process:
            started.append(command)
            return cls()

        def follow(self) -> int:
            return 0

    monkeypatch.setattr(flink, "LocalProcess", Process)
    monkeypatch.setattr(flink, "_list_jobs", lambda _: [])
    monkeypatch.setattr(flink, "find_cluster", lambda _: cluster)
    with caplog.at_level(logging.INFO):
        flink.FlinkEngine().start(open_job)
    assert "hoodie.aws.secret.key=hunter2" in started[0]
    assert "hoodie.aws.secret.key=***" in caplog.text
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize(
    "reference",
    [
        "secret://connection/nowhere/password",
        "secret://connection/lake_zk/extra/none",
        "secret://connection/lake_zk/get_uri",
        "secret://connection/lake_zk",
        "secret://variable/nowhere",
        "secret://variable/",
        "secret://vault/x",
    ],
)
def test_reference_to_nothing_is_an_error_that_names_the_option(reference: str) -> None:
    with pytest.raises(ConfigError, match=r"hoodie\.x is 'secret://"):
        resolve_secrets({"hoodie.x": reference})


@pytest.mark.parametrize(
    "entry",
    [
        "hudi_options: {hoodie.aws.secret.key: hunter2}",
        "hudi_options: {hoodie.write.lock.zookeeper.password: hunter2}",
        "spark_conf: {spark.hadoop.fs.s3a.access.key: hunter2}",
        "spark_conf: {spark.ssl.keyPassword: hunter2}",
        "spark_conf: {spark.authenticate.secret: hunter2}",
        "replication: [{sink: kafka, topic: t, bootstrap_servers: b, kafka.sasl.password: hunter2}]",
        "replication: [{sink: database, table: t, url: 'postgresql://me:hunter2@db/x'}]",
    ],
)
def test_secret_in_the_tables_file_is_refused_with_its_line_and_not_shown(entry: str) -> None:
    with pytest.raises(ConfigError, match=r"t\.yaml.*2.*holds a secret") as refused:
        parse_tables_file(f"tables:\n- {{base_path: /lake/x, {entry}}}", "t.yaml")
    assert "hunter2" not in str(refused.value)
    assert "secret://connection" in str(refused.value)
    reference = "secret://connection/x/password"
    fine = entry.replace("postgresql://me:hunter2@db/x", reference).replace("hunter2", f"'{reference}'")
    parse_tables_file(f"tables:\n- {{base_path: /lake/x, {fine}}}", "t.yaml")


def test_names_of_providers_files_and_switches_are_no_secrets() -> None:
    for key, value in {
        "spark.hadoop.fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.auth.IAMInstanceCredentialsProvider",
        "spark.kubernetes.authenticate.oauthTokenFile": "/var/run/token",
        "spark.authenticate.secret.file": "/run/secret",
        "spark.kubernetes.driver.secretKeyRef.AWS_SECRET_ACCESS_KEY": "s3:secret",
        "spark.kubernetes.executor.secretKeyRef.AWS_ACCESS_KEY_ID": "s3:key",
        "spark.kubernetes.driver.secrets.s3-credentials": "/etc/secrets",
        "spark.hadoop.hadoop.security.credential.provider.path": "jceks://hdfs/x.jceks",
        "spark.security.credentials.hive.enabled": "false",
        "hoodie.write.lock.zookeeper.url": "zk:2181",
        "hoodie.metadata.index.bloom.filter.enable": "true",
        "spark.sql.shuffle.partitions": "200",
    }.items():
        assert not is_open_secret(key, value), key


def age(folder: Path, seconds: float) -> None:
    for path in folder.rglob("*"):
        os.utime(path, (time.time() - seconds,) * 2)


def test_files_of_runs_that_ended_long_ago_are_removed_and_those_of_living_ones_stay(tmp_path: Path) -> None:
    for run_id, seconds in (("old", KEPT_S + 60), ("new", KEPT_S - 60), ("living", KEPT_S * 3)):
        for try_number in (1, 2):
            write_text(JobFolder(str(tmp_path), run_id, try_number).request_path, "{}")
        age(tmp_path / "jobs" / run_id, seconds)
    write_text(JobFolder(str(tmp_path), "half-old", 1).request_path, "{}")
    age(tmp_path / "jobs" / "half-old", KEPT_S * 2)
    write_text(JobFolder(str(tmp_path), "half-old", 2).request_path, "{}")
    ExecutorRecord(str(tmp_path), "t", Service.CLEAN).begin(engine_job(tmp_path, run_id="living", try_number=2))
    assert prune_jobs(str(tmp_path)) == 1
    assert {path.name for path in (tmp_path / "jobs").iterdir()} == {"new", "living", "half-old", ".pruned"}
    ExecutorRecord(str(tmp_path), "t", Service.CLEAN).forget()
    assert prune_jobs(str(tmp_path)) == 0, "once an hour"
    assert prune_jobs(str(tmp_path), time.time() + PRUNE_INTERVAL_S + 1) == 2, "new is old by then, living is not alive"


def test_files_that_cannot_be_removed_stop_no_job(tmp_path: Path) -> None:
    (tmp_path / "jobs").write_text("not a folder")
    assert prune_jobs(str(tmp_path)) == 0
    assert prune_jobs("unknown://store/work") == 0
