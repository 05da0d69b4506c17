"""What the runs of one service have saved for comparisons, as it is kept with the table."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from lake_jobs.hudi.files import TableFiles
from lake_jobs.verify.savings import FILE, Savings, parse_savings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from airflow_lake_provider.job_contract import Service


class KeptSavings:
    """What is left to one service, read once and written after its run."""

    def __init__(self, spark: SparkSession, base_path: str, service: Service) -> None:
        """Read it. Raises Py4JJavaError."""
        self._files = TableFiles(spark, base_path)
        self._service = service
        self.savings = Savings(self._read().get(service))

    def _read(self) -> Mapping[str, float]:
        return parse_savings(self._files.read(FILE)) if self._files.size_of(FILE) is not None else {}

    def spend(self, work_s: float, spent_s: float) -> None:
        """Keep what is left after a run. Raises Py4JJavaError."""
        left_s = self.savings.spend(work_s, spent_s).left_s
        self._files.create(FILE, json.dumps({**self._read(), self._service: left_s}).encode())
