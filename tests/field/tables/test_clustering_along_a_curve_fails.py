"""Clustering with `z-order` failed with "Unable to infer schema for Parquet", and its plan stayed.

Report: https://github.com/apache/hudi/issues/4609
Verdict: right
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kept_rows import CITIES, KeptTable, first_rows

from airflow_lake_provider.job_contract import Outcome, Service

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.mark.soak
@pytest.mark.parametrize("curve", ["z-order", "hilbert"])
def test_rows_stay_with_nulls_and_deletes(spark: SparkSession, tmp_path: Path, curve: str) -> None:
    kept = KeptTable(spark, tmp_path / "t", options={"hoodie.parquet.small.file.limit": "0"})
    kept.write(first_rows(), "bulk_insert")
    kept.write(((i, CITIES[i % 2], None, 1) for i in range(20, 30)), "bulk_insert")
    # No row of the second city is left.
    kept.write(((i, CITIES[1], 0.0, 2) for i in range(1, 30, 2)), "delete")
    kept.forget(range(1, 30, 2))
    along = {
        "hoodie.layout.optimize.strategy": curve,
        "hoodie.clustering.plan.strategy.sort.columns": "id,amount",
    }
    assert kept.serve(Service.CLUSTERING, **along).outcome is Outcome.COMPLETED
    kept.require_rows()
    kept.write((i, CITIES[i % 2], 7.0, 7) for i in range(6))
    kept.require_rows()
