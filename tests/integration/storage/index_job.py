"""Write a table on any store and build indexes on it; runs in a Python that has pyspark, and prints one JSON line.

`python -m tests.integration.storage.index_job hdfs://host:port/lake/orders /tmp/folder '{"spark.some": "setting"}'`
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
INDEXES = ("column_stats", "record_index")
FEW_GROUPS = {"hoodie.metadata.global.record.level.index.min.filegroup.count": "2"}
STREAMING_OFF = {"hoodie.metadata.streaming.write.enabled": "false"}


def main(base_path: str, folder: str, conf: str = "{}", lock_options: str = "{}") -> None:
    sys.path.insert(0, str(ROOT / "spark_jobs"))
    from airflow_lake_provider import job_contract
    from airflow_lake_provider.indexing.index_spec import parse_indexes, requested_options
    from local_stack import lake_writer
    from local_stack.hudi_bundle import JAR, bundle_first

    jobs: Any = importlib.import_module("run_services")
    settings = {"spark.master": "local[2]", "spark.jars": str(JAR), **bundle_first(), **json.loads(conf)}
    spark = lake_writer.open_session(settings)
    own_lock = json.loads(lock_options)
    table = lake_writer.WrittenTable(
        "orders", base_path, "MOR", 9, commits=1, keys=400, hudi_options=STREAMING_OFF | own_lock
    )

    def commit(number: int) -> None:
        lake_writer.write_commit(spark, table, number, lake_writer.write_options(table, number, None, {}))

    commit(0)
    service = job_contract.ServiceRequest(
        job_contract.Service.INDEXING,
        job_contract.Mode.SCHEDULE_AND_EXECUTE,
        options=requested_options(parse_indexes(INDEXES)) | {"lake.index.check": "full", **FEW_GROUPS},
    )
    lock = {
        key: value for key, value in lake_writer.MANAGED_LAKE.items() if key.startswith("hoodie.write.lock.")
    } | own_lock
    job = job_contract.JobRequest("job-1", base_path, "orders", (service,), f"{folder}/result.json", lock)
    (result,) = jobs.run_job(spark, job).services
    commit(1)
    rows = spark.read.format("hudi").load(base_path)
    key = rows.select("id").first()["id"]
    with_index = spark.read.format("hudi").option("hoodie.metadata.global.record.level.index.enable", "true")
    found = with_index.load(base_path).where(f"id = '{key}'").count()
    print(
        json.dumps({"outcome": result.outcome.value, "message": result.message, "rows": rows.count(), "found": found})
    )
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
