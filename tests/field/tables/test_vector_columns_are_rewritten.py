"""Rewriting services lost the encoding of a `VECTOR` column, or failed on it.

Report: https://github.com/apache/hudi/pull/18913
Verdict: right
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.parquet
import pytest
from kept_rows import CITIES, KeptTable
from pyspark.sql import types as T

from airflow_lake_provider.job_contract import Outcome, Service

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

VECTOR = T.StructField("vector", T.ArrayType(T.FloatType(), containsNull=False), metadata={"hudi_type": "VECTOR(3)"})
SCHEMA = T.StructType(
    [
        T.StructField("id", T.LongType()),
        T.StructField("city", T.StringType()),
        VECTOR,
        T.StructField("ts", T.LongType()),
    ]
)


@pytest.mark.soak
@pytest.mark.parametrize(("type", "service"), [("MOR", Service.COMPACTION), ("COW", Service.CLUSTERING)])
def test_vectors_and_their_encoding_stay(spark: SparkSession, tmp_path: Path, type: str, service: Service) -> None:
    kept = KeptTable(spark, tmp_path / "t", type=type, schema=SCHEMA, columns=("id", "city", "vector", "ts"))
    kept.write((i, CITIES[i % 2], [float(i), 0.5, -1.0], 0) for i in range(12))
    kept.write((i, CITIES[i % 2], [9.0, 9.5, float(i)], 1) for i in range(4))
    if service is Service.CLUSTERING:
        kept.write(((i, CITIES[i % 2], [7.0, 7.5, float(i)], 2) for i in range(20, 24)), "insert")
    before = {path for path in kept.path.rglob("*.parquet") if ".hoodie" not in path.parts}
    done = kept.serve(service)
    assert done.outcome is Outcome.COMPLETED, done.message
    assert "not compared, as it is stored as bytes: vector" in done.message
    kept.require_rows()
    new = {path for path in kept.path.rglob("*.parquet") if ".hoodie" not in path.parts} - before
    assert new
    for path in new:
        assert str(pyarrow.parquet.ParquetFile(path).schema_arrow.field("vector").type) == "fixed_size_binary[12]"
    kept.write([(1, CITIES[1], [0.0, 0.25, 0.75], 3)])
    kept.require_rows()
