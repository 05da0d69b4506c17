"""An index build on HDFS, where the files that list a table's indexes are replaced by another call than on a disk."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from airflow_lake_provider.hudi.properties import load_table_properties
from local_stack.hudi_bundle import HUDI_CLASSES, SPARK_PYTHON, spark_env
from tests.integration.storage.lakes import HdfsLake

ROOT = Path(__file__).resolve().parents[3]


def test_indexes_are_built_and_listed_on_hdfs(hdfs_lake: HdfsLake, tmp_path: Path) -> None:
    path = "/indexed/orders"
    command = [str(SPARK_PYTHON), "-m", "tests.integration.storage.index_job"]
    command += [f"{hdfs_lake.cluster.url}{path}", str(tmp_path)]
    env = spark_env(classes=HUDI_CLASSES)
    run = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    reported = json.loads(run.stdout.splitlines()[-1])
    assert (reported["outcome"], reported["found"]) == ("completed", 1), reported
    storage = hdfs_lake.open(path)
    properties = load_table_properties(storage)
    assert {"column_stats", "record_index"} <= set(properties.metadata_partitions)
    assert storage.list_names(".hoodie/.aux/lake_index") == []
