"""The active NameNode dies while a job is at work: the job ends well, once, and no row is lost."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from airflow_lake_provider.execution.engines.packaging import find_package
from airflow_lake_provider.indexing.index_spec import parse_indexes, requested_options
from airflow_lake_provider.job_contract import (
    JobRequest,
    JobResult,
    Mode,
    Outcome,
    Service,
    ServiceRequest,
    from_json,
    to_json,
)
from airflow_lake_provider.replication.job import ReplicationRequest, ReplicationResult
from airflow_lake_provider.replication.transactions import Order
from local_stack import hadoop, hudi_bundle, lake_writer
from local_stack.hdfs_daemons import HdfsDaemons
from local_stack.processes import PATIENCE
from local_stack.writer_process import StandingWriter
from tests.integration.engines.hdfs_stage import HdfsStage
from tests.integration.engines.lease_server import serve_leases
from tests.integration.engines.stage import OPTIONS, ROOT, SPARK_CONF, Stage

pytestmark = [pytest.mark.integration, pytest.mark.soak(covered_by="tests/integration/storage/test_outages.py")]

FEW_GROUPS = {"hoodie.metadata.global.record.level.index.min.filegroup.count": "2"}
RECORD_INDEX = requested_options(parse_indexes(["record_index"]))


@dataclass
class FailoverStage(HdfsStage):
    """Tasks and jobs with one local core on an HDFS of two NameNodes."""

    hdfs: HdfsDaemons = field(default_factory=lambda: HdfsDaemons(Path()))

    def submit(self, script: str, request: JobRequest | ReplicationRequest) -> subprocess.Popen[bytes]:
        """Start a job's driver; its log is `<script>.log`."""
        folder = self.folder / Path(script).stem
        folder.mkdir(exist_ok=True)
        (folder / "request.json").write_text(to_json(request), encoding="utf-8")
        command = [f"{self.env()['SPARK_HOME']}/bin/spark-submit", "--master", "local[1]"]
        command += ["--jars", str(hudi_bundle.JAR), "--py-files", str(find_package())]
        command += [part for key in ("spark.driver.host",) for part in ("--conf", f"{key}={SPARK_CONF[key]}")]
        command += [str(ROOT / "spark_jobs" / script), f"file://{folder}/request.json"]
        with (self.folder / f"{script}.log").open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env=self.env(), start_new_session=True)

    def printed(self, script: str) -> str:
        return (self.folder / f"{script}.log").read_text(encoding="utf-8")

    def fail_over(self) -> None:
        """Kill the active NameNode, wait until the other one has taken over, and start it again as the standby."""
        killed = self.hdfs.kill_active()
        self.wait_until(lambda: self.hdfs.find_active() not in {None, killed}, "the standby takes over", 90)
        self.hdfs.start_name_node(killed)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FailoverStage]:
    if not hudi_bundle.JAR.exists():
        pytest.skip("no Hudi bundle: run `make install`")
    if not hadoop.LIB.is_dir() and (shutil.which("mvn") is None or shutil.which("java") is None):
        pytest.skip("HDFS needs Maven and Java 17")
    hdfs = HdfsDaemons(tmp_path_factory.mktemp("hdfs"), name_nodes=2)
    with serve_leases(10.0) as manager_url:
        stage = FailoverStage(
            tmp_path_factory.mktemp("stage"),
            manager_url,
            "local[1]",
            store_url=hdfs.url,
            conf=str(hdfs.conf),
            hdfs=hdfs,
        )
        writer = threading.Thread(target=Stage.write_table, args=(stage,))
        writer.start()
        try:
            hdfs.start()
            writer.join()
            yield stage
        finally:
            writer.join()
            stage.close()
            hdfs.stop()


@pytest.fixture(scope="module")
def reader(stage: FailoverStage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandingWriter]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HADOOP_CONF_DIR", str(stage.hdfs.conf))
        reader = StandingWriter(tmp_path_factory.mktemp("reader"))
    with reader:
        yield reader


@pytest.fixture(autouse=True)
def _both_name_nodes(stage: FailoverStage) -> None:
    """Begin with a standby that can take over."""
    stage.wait_until(
        lambda: any(stage.hdfs.is_standby(name) for name in stage.hdfs.names), "a standby out of its safe mode", 90
    )


@contextlib.contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def without_time(read: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in read.items() if key != "seconds"}


def test_compaction_goes_on_by_the_other_name_node(stage: FailoverStage, reader: StandingWriter) -> None:
    path = stage.copy_table("orders")
    before = without_time(reader.read(path))
    task = stage.start_task("compaction", base_path=path, table_name="orders")
    stage.wait_until(lambda: holds(stage, "orders", ".compaction.inflight") or not task.alive(), "the plan at work")
    assert task.alive(), task.log_tail(60)
    stage.fail_over()
    stage.require_completed("orders", task)
    stage.require_executed_once("orders")
    assert without_time(reader.read(path)) == before


def test_lock_that_a_job_holds_while_the_name_node_dies_loses_no_row_and_makes_one_plan(
    stage: FailoverStage, reader: StandingWriter
) -> None:
    path = stage.copy_table("locked")
    lock, store = f"{stage.folder}/lake/locked/.hoodie/lock", stage.store

    def is_held() -> bool:
        try:
            return bool(store.get_file_info(lock))
        except FileNotFoundError:
            return False

    task = stage.start_task("locked", base_path=path, table_name="locked")
    deadline_s = time.monotonic() + 180 * PATIENCE
    # Without a pause: a plan takes less than a second.
    while not is_held():
        assert task.alive(), task.log_tail(60)
        assert time.monotonic() < deadline_s
    # The copy has its original's name.
    table = {"name": "orders", "type": "MOR", "version": 9, "keys": 400, "rows": 100, "base_path": path}
    # A writer wants the lock meanwhile.
    reader.begin({"do": "write", "table": table, "commit": 3, "callback": None, "hudi_options": OPTIONS})
    stage.fail_over()
    reader.finish()
    stage.require_completed("locked", task)
    stage.require_executed_once("locked")
    assert len({entry.split(".")[0] for entry in stage.instants("locked") if ".compaction.requested" in entry}) == 1
    expected = lake_writer.rows_expected(lake_writer.WrittenTable("locked", path, keys=400, rows=100), 3)
    read = reader.read(path)
    assert (read["rows"], read["ids"]) == (expected, expected)
    assert not is_held()


def test_index_build_goes_on_by_the_other_name_node(stage: FailoverStage, reader: StandingWriter) -> None:
    path = stage.copy_table("clicks")
    before = without_time(reader.read(path))
    request = JobRequest(
        "job/1",
        path,
        "clicks",
        (ServiceRequest(Service.INDEXING, Mode.SCHEDULE_AND_EXECUTE, (), RECORD_INDEX | FEW_GROUPS),),
        f"{stage.root}/index-result.json",
        hudi_options=OPTIONS,
    )
    with ended(stage.submit("run_services.py", request)) as driver:
        stage.wait_until(lambda: holds(stage, "clicks", ".indexing.") or driver.poll() is not None, "the index's plan")
        assert driver.poll() is None, stage.printed("run_services.py")[-4000:]
        stage.fail_over()
        assert driver.wait(300 * PATIENCE) == 0, stage.printed("run_services.py")[-4000:]
    (result,) = from_json(JobResult, stage.read_text("index-result.json")).services
    assert (result.outcome, len(result.completed_instants)) == (Outcome.COMPLETED, 1), result.message
    plans = {name.split(".")[0].split("_")[0] for name in stage.instants("clicks") if ".indexing" in name}
    assert plans == set(result.completed_instants)
    properties = stage.read_text("lake/clicks/.hoodie/hoodie.properties")
    assert "record_index" in properties.partition("hoodie.table.metadata.partitions=")[2].splitlines()[0]
    assert without_time(reader.read(path)) == before


def test_replication_run_goes_on_by_the_other_name_node(stage: FailoverStage) -> None:
    path, sink = stage.copy_table("users"), stage.folder / "files"
    request = ReplicationRequest(
        path,
        "users",
        "file",
        Order("users.file", snapshot_part_rows=20, batch_rows=10),
        f"{stage.root}/replication-result.json",
        options={"path": str(sink), "format": "parquet"},
    )
    with ended(stage.submit("replicate.py", request)) as driver:
        stage.wait_until(
            lambda: len(list(sink.glob("[0-9]*.parquet"))) >= 2 or driver.poll() is not None,
            "the snapshot's first parts",
        )
        assert driver.poll() is None, stage.printed("replicate.py")[-4000:]
        stage.fail_over()
        assert driver.wait(300 * PATIENCE) == 0, stage.printed("replicate.py")[-4000:]
    result = from_json(ReplicationResult, stage.read_text("replication-result.json"))
    assert (result.ended, result.message) == (True, "")
    records = [row for file in sorted(sink.glob("[0-9]*.parquet")) for row in pq.ParquetFile(file).read().to_pylist()]
    counts = Counter(record["key"]["id"] for record in records)
    assert set(counts.values()) == {1}
    table = lake_writer.WrittenTable("users", path, keys=400, rows=100)
    assert len(counts) == lake_writer.rows_expected(table, 2)


def holds(stage: FailoverStage, name: str, part: str) -> bool:
    return any(part in entry for entry in stage.instants(name))
