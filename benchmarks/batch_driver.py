"""Run the requests of several files in one Spark, one after another, as Hudi's multi-table job does; for `batch`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path


def main(paths: list[str]) -> None:
    """Write each request's result."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "spark_jobs"))
    jobs = importlib.import_module("run_services")
    contract = importlib.import_module("airflow_lake_provider.job_contract")
    spark = importlib.import_module("lake_jobs.driver.application").open_session()
    for path in paths:
        request = contract.from_json(contract.JobRequest, Path(path).read_text(encoding="utf-8"))
        result = jobs.run_job(spark, request)
        Path(request.result_path).write_text(contract.to_json(result), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
