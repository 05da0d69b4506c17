"""Read the Hudi table at a path as plain Spark does, with its metadata table and without; print one JSON line."""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("reader").getOrCreate()
answers = []
for metadata in ("true", "false"):
    rows = spark.read.format("hudi").option("hoodie.metadata.enable", metadata).load(sys.argv[1])
    # A replica's key is the source's: its columns are the same.
    found = rows.selectExpr("count(*)", "count(distinct id)", "sum(amount)", "min(ts)", "max(ts)").first()
    answers.append(list(found or ()))
print(json.dumps({"rows": answers}), flush=True)
spark.stop()
