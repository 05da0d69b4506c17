"""An index build on an S3-compatible store, through S3A, with ZooKeeper's lock. In `make soak`: S3A has 280 MB."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from airflow_lake_provider.hudi.properties import load_table_properties
from local_stack.hudi_bundle import S3A, SPARK_PYTHON, spark_env, with_jars
from local_stack.zookeeper import LocalZooKeeper
from tests.integration.storage.lakes import BUCKET, S3Lake

pytestmark = pytest.mark.soak(covered_by="tests/integration/storage/test_indexes_on_hdfs.py")

ROOT = Path(__file__).resolve().parents[3]


def test_indexes_are_built_and_listed_on_s3(s3_lake: S3Lake, tmp_path: Path) -> None:
    zookeeper = LocalZooKeeper(tmp_path / "zookeeper")
    settings = {
        "spark.jars": with_jars(S3A),
        "spark.hadoop.fs.s3a.endpoint": s3_lake.server.endpoint,
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.access.key": s3_lake.server.storage_options["access_key"],
        "spark.hadoop.fs.s3a.secret.key": s3_lake.server.storage_options["secret_key"],
        # Hudi's readers hold more connections than the default pool has.
        "spark.hadoop.fs.s3a.connection.maximum": "200",
    }
    command = [str(SPARK_PYTHON), "-m", "tests.integration.storage.index_job", f"s3a://{BUCKET}/indexed/orders"]
    command += [str(tmp_path), json.dumps(settings)]
    zookeeper.start()
    try:
        command.append(json.dumps(zookeeper.lock_options()))
        run = subprocess.run(
            command, cwd=ROOT, env=spark_env(), capture_output=True, text=True, timeout=900, check=False
        )
    finally:
        zookeeper.stop()
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    reported = json.loads(run.stdout.splitlines()[-1])
    assert (reported["outcome"], reported["found"]) == ("completed", 1), reported
    properties = load_table_properties(s3_lake.open("/indexed/orders"))
    assert {"column_stats", "record_index"} <= set(properties.metadata_partitions)
