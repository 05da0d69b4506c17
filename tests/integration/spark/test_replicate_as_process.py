"""The replication job through spark-submit, with only the zip of this package that travels; killed, repeated."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_lake_provider.replication.job import ReplicationRequest, request_to_text, result_from_text
from airflow_lake_provider.replication.pump import Order
from local_stack import hudi_bundle, lake_writer

if TYPE_CHECKING:
    from conftest import MakeTable

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "airflow_lake_provider"
TIMEOUT_S = 300


def write_package(path: Path) -> Path:
    """As engines/replication_job.py writes it, which cannot be imported without Airflow."""
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
    command += ["--py-files", ",".join([str(PACKAGE / "job_contract.py"), str(package), *modules])]
    command += [str(jobs / "replicate.py"), str(folder / "request.json")]
    with (folder / "driver.log").open("ab") as log:
        # Not from the checkout: there the package would be found without the zip.
        return subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env=env, start_new_session=True)


def end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.usefixtures("spark")
def test_driver_killed_in_its_snapshot_goes_on_where_the_sink_is(make_table: MakeTable, tmp_path: Path) -> None:
    table = make_table(**{"hoodie.table.cdc.enabled": "true"})
    sink = tmp_path / "files"
    request = ReplicationRequest(
        str(table.path),
        "orders",
        "file",
        Order("orders.file", snapshot_part_rows=20, batch_rows=10),
        str(tmp_path / "result.json"),
        options={"path": str(sink)},
    )
    first = submit(tmp_path, request)
    deadline = time.monotonic() + TIMEOUT_S
    while len(list(sink.glob("[0-9]*.jsonl"))) < 2:
        assert first.poll() is None, (tmp_path / "driver.log").read_text()[-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.02)
    end(first)
    whole = {path.name: path.read_bytes() for path in sink.glob("[0-9]*.jsonl")}

    second = submit(tmp_path, request)
    try:
        assert second.wait(TIMEOUT_S) == 0, (tmp_path / "driver.log").read_text()[-3000:]
    finally:
        end(second)
    result = result_from_text((tmp_path / "result.json").read_text())
    assert (result.ended, result.error) == (True, "")
    records = [
        json.loads(line)
        for path in sorted(sink.glob("[0-9]*.jsonl"))
        for line in path.read_text(encoding="utf-8").splitlines()[:-1]
    ]
    assert all((sink / name).read_bytes() == content for name, content in whole.items())
    counts = Counter(record["key"]["id"] for record in records)
    assert set(counts.values()) == {1}
    assert len(counts) == lake_writer.rows_expected(table.written, table.written.commits - 1)
