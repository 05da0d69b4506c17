"""A stock Hudi writer: four commits to the merge-on-read table try/lake/orders, each announced to Airflow."""

from __future__ import annotations

import os
from pathlib import Path

from pyspark.sql import SparkSession

OPTIONS = {
    "hoodie.table.name": "orders",
    "hoodie.datasource.write.table.type": "MERGE_ON_READ",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.precombine.field": "ts",
    # From here on: what connects a writer to Airflow (docs/writers.md gives the reason for each).
    "hoodie.write.commit.callback.on": "true",
    "hoodie.write.commit.callback.http.url": f"{os.environ['AIRFLOW__API__BASE_URL']}/v1/hoodie/callback",
    "hoodie.write.commit.callback.http.api.key": os.environ["AIRFLOW__LAKE__CALLBACK_TOKENS"],
    "hoodie.write.commit.callback.http.timeout.seconds": "5",
    "hoodie.table.services.enabled": "false",
    "hoodie.compact.inline": "false",
    "hoodie.clean.automatic": "false",
    "hoodie.archive.automatic": "false",
    "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
    "hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider",
    "hoodie.write.lock.filesystem.expire": "2",
    "hoodie.metadata.auto.delete.partitions": "false",
}
TABLE = Path("try/lake/orders").absolute()

session = SparkSession.builder.master("local[1]").config("spark.jars", os.environ["AIRFLOW__LAKE__SPARK_JARS"])
session = session.config("spark.serializer", "org.apache.spark.serializer.KryoSerializer")
session = session.config("spark.sql.extensions", "org.apache.spark.sql.hudi.HoodieSparkSessionExtension")
spark = session.getOrCreate()
for commit in range(4):
    orders = spark.range(1000).selectExpr("id", f"{commit} as ts", f"id * {commit} as amount")
    orders.write.format("hudi").options(**OPTIONS).mode("append").save(str(TABLE))
    print(f"commit {commit + 1} of 4 is in {TABLE}", flush=True)
