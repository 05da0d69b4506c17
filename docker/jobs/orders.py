"""A stock Hudi writer of the stack: `spark-submit /jobs/orders.py [TABLE] [COMMITS]` fills a merge-on-read table.

Each commit is announced to Airflow. The fifth one of the stack's policy (lake/tables.yaml) makes a compaction due.
"""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

OPTIONS = {
    "hoodie.datasource.write.table.type": "MERGE_ON_READ",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.precombine.field": "ts",
    # From here on: what connects a writer to Airflow (docs/writers.md gives the reason for each).
    "hoodie.write.commit.callback.on": "true",
    "hoodie.write.commit.callback.http.url": "http://api-server:8080/v1/hoodie/callback",
    "hoodie.write.commit.callback.http.api.key": os.environ["LAKE_CALLBACK_TOKENS"].split(",")[0].strip(),
    "hoodie.write.commit.callback.http.timeout.seconds": "5",
    "hoodie.table.services.enabled": "false",
    "hoodie.compact.inline": "false",
    "hoodie.clean.automatic": "false",
    "hoodie.archive.automatic": "false",
    "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
    "hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.ZookeeperBasedImplicitBasePathLockProvider",
    "hoodie.write.lock.zookeeper.url": "zookeeper:2181",
    "hoodie.metadata.auto.delete.partitions": "false",
}
ORDERS = 1000


def main(table: str = "orders", commits: str = "6") -> None:
    """Write a table's commits, each with new amounts for all of its orders."""
    path = f"{os.environ['LAKE_ROOT']}/{table}"
    session = SparkSession.builder.appName(f"writer-of-{table}")
    session = session.config("spark.serializer", "org.apache.spark.serializer.KryoSerializer")
    session = session.config("spark.sql.extensions", "org.apache.spark.sql.hudi.HoodieSparkSessionExtension")
    spark = session.getOrCreate()
    for commit in range(int(commits)):
        orders = spark.range(ORDERS).selectExpr("id", f"{commit} as ts", f"id * {commit} as amount")
        orders.write.format("hudi").options(**{"hoodie.table.name": table, **OPTIONS}).mode("append").save(path)
        print(f"commit {commit + 1} of {commits} is in {path}", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
