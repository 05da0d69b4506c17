"""Write a small table, run its services and read it, so that the classes of all of them are loaded: see hudi_bundle.

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
SERVICES = ("compaction", "clustering", "clean", "archive")


def main(base_path: str) -> None:
    sys.path[:0] = [str(ROOT / "spark_jobs"), str(ROOT)]
    contract: Any = importlib.import_module("airflow_lake_provider.job_contract")
    jobs: Any = importlib.import_module("run_services")
    spark = open_session({})
    table = WrittenTable("orders", base_path, "MOR", 9, commits=COMMITS, keys=40, rows=8)
    for commit in range(COMMITS):
        write_commit(spark, table, commit, write_options(table, commit, None, {}))
    lock = {key: value for key, value in MANAGED_LAKE.items() if key.startswith("hoodie.write.lock.")}
    services = tuple(
        contract.ServiceRequest(contract.Service(service), contract.Mode.SCHEDULE_AND_EXECUTE) for service in SERVICES
    )
    request = contract.JobRequest("tour", base_path, "orders", services, f"{base_path}-result.json", lock)
    for result in jobs.run_job(spark, request).services:
        print(result.service, result.outcome, result.message)
    print(spark.read.format("hudi").load(base_path).where("id < 10").count(), "rows")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
