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
import zipfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from airflow_lake_provider.replication.checkpoint import from_text, to_text
from airflow_lake_provider.replication.job import ReplicationRequest, request_to_text, result_from_text
from airflow_lake_provider.replication.pump import Order
from local_stack import hudi_bundle, lake_writer

if TYPE_CHECKING:
    from conftest import MakeTable
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "airflow_lake_provider"
TIMEOUT_S = 300
META = [f"_hoodie_{name}" for name in ("commit_time", "commit_seqno", "record_key", "partition_path", "file_name")]


def write_package(path: Path) -> Path:
    """As execution/engines/replication_packaging.py writes it, which cannot be imported without Airflow."""
    with zipfile.ZipFile(path, "w") as archive:
        for source in (PACKAGE / "__init__.py", PACKAGE / "errors.py", *sorted(PACKAGE.glob("replication/**/*.py"))):
            archive.write(source, f"{PACKAGE.name}/{source.relative_to(PACKAGE)}")
    return path


def submit(folder: Path, request: ReplicationRequest) -> subprocess.Popen[bytes]:
    jobs = ROOT / "spark_jobs"
    (folder / "request.json").write_text(request_to_text(request), encoding="utf-8")
    modules = [str(path) for path in jobs.glob("*.py") if path.name != "replicate.py"]
    env = hudi_bundle.spark_env(Path(sys.executable))
    command = [f"{env['SPARK_HOME']}/bin/spark-submit", "--master", "local[2]", "--jars", str(hudi_bundle.JAR)]
    command += ["--driver-java-options", lake_writer.SPARK_CONF["spark.driver.extraJavaOptions"]]
    for key in ("spark.driver.host", "spark.driver.bindAddress", "spark.sql.shuffle.partitions", "spark.ui.enabled"):
        command += ["--conf", f"{key}={lake_writer.SPARK_CONF[key]}"]
    package = write_package(folder / "package.zip")
    shared = [str(PACKAGE / name) for name in ("job_contract.py", "instant_clock.py")]
    command += ["--py-files", ",".join([*shared, str(package), *modules])]
    command += [str(jobs / "replicate.py"), str(folder / "request.json")]
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
        Order("orders.file", snapshot_part_rows=20, batch_rows=10),
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
    result = result_from_text((tmp_path / "result.json").read_text())
    assert (result.ended, result.error) == (True, "")
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
