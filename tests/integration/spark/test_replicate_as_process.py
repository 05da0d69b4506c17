"""The replication job through spark-submit, with only the zip of this package that travels: Parquet files, as the
driver's own Python writes them; killed, repeated.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from airflow_lake_provider.execution.engines.packaging import find_package
from airflow_lake_provider.job_contract import from_json, to_json
from airflow_lake_provider.replication.checkpoint import from_text, to_text
from airflow_lake_provider.replication.job import ReplicationRequest, ReplicationResult
from airflow_lake_provider.replication.transactions import Order
from local_stack import hudi_bundle, lake_writer

if TYPE_CHECKING:
    from conftest import MakeTable
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[3]
TIMEOUT_S = 300
META = [f"_hoodie_{name}" for name in ("commit_time", "commit_seqno", "record_key", "partition_path", "file_name")]


def submit(
    folder: Path,
    request: ReplicationRequest,
    application: Path = ROOT / "spark_jobs" / "replicate.py",
    master: str = "local[2]",
    **more_env: str,
) -> subprocess.Popen[bytes]:
    (folder / "request.json").write_text(to_json(request), encoding="utf-8")
    env = hudi_bundle.spark_env(Path(sys.executable), hudi_bundle.HUDI_CLASSES) | more_env
    command = [f"{env['SPARK_HOME']}/bin/spark-submit", "--master", master, "--jars", str(hudi_bundle.JAR)]
    command += ["--driver-java-options", lake_writer.SPARK_CONF["spark.driver.extraJavaOptions"]]
    names = ("spark.driver.host", "spark.driver.bindAddress", "spark.sql.shuffle.partitions", "spark.ui.enabled")
    for key, value in {**{name: lake_writer.SPARK_CONF[name] for name in names}, **hudi_bundle.bundle_first()}.items():
        command += ["--conf", f"{key}={value}"]
    command += ["--py-files", str(find_package())]
    command += ["--conf", f"spark.executor.extraJavaOptions={hudi_bundle.QUICK_JVM}"]
    command += [str(application), str(folder / "request.json")]
    with (folder / "driver.log").open("ab") as log:
        # Not from the checkout: there the package would be found without the zip.
        return subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env=env, start_new_session=True)


def end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def test_driver_killed_in_its_snapshot_goes_on_where_the_sink_is(
    spark: SparkSession, make_table: MakeTable, tmp_path: Path
) -> None:
    table = make_table(**{"hoodie.table.cdc.enabled": "true"})
    sink = tmp_path / "files"
    request = ReplicationRequest(
        str(table.path),
        "orders",
        "file",
        Order("orders.file", snapshot_part_rows=60, batch_rows=20),
        str(tmp_path / "result.json"),
        options={"path": str(sink), "format": "parquet"},
    )
    first = submit(tmp_path, request)
    deadline = time.monotonic() + TIMEOUT_S
    while len(list(sink.glob("[0-9]*.parquet"))) < 2:
        assert first.poll() is None, (tmp_path / "driver.log").read_text()[-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.02)
    end(first)
    whole = {path.name: path.read_bytes() for path in sink.glob("[0-9]*.parquet")}

    second = submit(tmp_path, request)
    try:
        assert second.wait(TIMEOUT_S) == 0, (tmp_path / "driver.log").read_text()[-3000:]
    finally:
        end(second)
    result = from_json(ReplicationResult, (tmp_path / "result.json").read_text())
    assert (result.ended, result.message) == (True, "")
    paths = sorted(sink.glob("[0-9]*.parquet"))
    records = [record for path in paths for record in pq.ParquetFile(path).read().to_pylist()]
    assert all((sink / name).read_bytes() == content for name, content in whole.items())
    counts = Counter(record["key"]["id"] for record in records)
    assert set(counts.values()) == {1}
    assert len(counts) == lake_writer.rows_expected(table.written, table.written.commits - 1)
    # As the table's own rows: typed, by another reader.
    rows = {row.id: row.asDict() for row in spark.read.format("hudi").load(str(table.path)).drop(*META).collect()}
    assert {record["key"]["id"]: record["after"] for record in records} == rows
    checkpoint = from_text(pq.ParquetFile(paths[-1]).metadata.metadata[b"lake.checkpoint"].decode())
    assert (checkpoint.snapshot, to_text(checkpoint)) == (None, result.checkpoint)
