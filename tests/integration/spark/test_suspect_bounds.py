"""The search for columns without bounds brings a bounded number of files to the driver, however many are suspect."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from lake_jobs.indexing import bounds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_each_column_brings_its_first_files_alone(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "MAX_FILES", 3)
    suspects = spark.range(2_000).select(
        F.format_string("c%d", F.col("id") % 2).alias("columnName"),
        F.format_string("p%d", F.col("id") % 7).alias("folder"),
        F.format_string("f%05d", "id").alias("fileName"),
    )
    found = {
        row["columnName"]: [tuple(file) for file in row["files"]] for row in bounds.first_files(suspects).collect()
    }
    assert found == {
        "c0": [("p0", "f00000"), ("p0", "f00014"), ("p0", "f00028")],
        "c1": [("p0", "f00007"), ("p0", "f00021"), ("p0", "f00035")],
    }
