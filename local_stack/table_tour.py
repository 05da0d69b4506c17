"""Write a small table, serve, read and replicate it, so that the classes for all of that are loaded: see hudi_bundle.

`spark-submit table_tour.py BASE_PATH`; the table is of no further use.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from lake_writer import MANAGED_LAKE, WrittenTable, open_session, write_commit, write_options

ROOT = Path(__file__).parent.parent
COMMITS = 3
INDEXING = "indexing"
SERVICES = (INDEXING, "compaction", "clustering", "clean", "archive")


def main(base_path: str) -> None:
    sys.path[:0] = [str(ROOT / "spark_jobs"), str(ROOT)]
    contract: Any = importlib.import_module("airflow_lake_provider.job_contract")
    jobs: Any = importlib.import_module("run_services")
    replication: Any = importlib.import_module("replicate")
    job: Any = importlib.import_module("airflow_lake_provider.replication.job")
    transactions: Any = importlib.import_module("airflow_lake_provider.replication.transactions")
    index_spec: Any = importlib.import_module("airflow_lake_provider.indexing.index_spec")
    spark = open_session({})
    table = WrittenTable("orders", base_path, "MOR", 9, commits=COMMITS, keys=40, rows=8)
    for commit in range(COMMITS):
        write_commit(spark, table, commit, write_options(table, commit, None, {}))
    lock = {key: value for key, value in MANAGED_LAKE.items() if key.startswith("hoodie.write.lock.")}
    indexes = index_spec.requested_options(index_spec.parse_indexes(["record_index"]))
    services = tuple(
        contract.ServiceRequest(
            contract.Service(service), contract.Mode.SCHEDULE_AND_EXECUTE, (), indexes if service == INDEXING else {}
        )
        for service in SERVICES
    )
    request = contract.JobRequest("tour", base_path, "orders", services, f"{base_path}-result.json", lock)
    for result in jobs.run_job(spark, request).services:
        print(result.service, result.outcome, result.message)
    stream = {"stream": "tour.file", "ends_early": True}
    sink = {"path": f"{base_path}-files", "format": "parquet"}
    for commit in range(COMMITS, COMMITS + 2):
        wanted = job.ReplicationRequest(
            base_path, "orders", "file", transactions.Order(**stream), f"{base_path}-replicated.json", options=sink
        )
        print(replication.replicate(spark, wanted).message or "replicated")
        write_commit(spark, table, commit, write_options(table, commit, None, {}))
    print(spark.read.format("hudi").load(base_path).where("id < 10").count(), "rows")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
