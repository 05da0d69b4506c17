"""Spark job: copies the rows that a Hudi table's commits changed after one completed time, up to another.

A second try replaces what the first one wrote, because the same range has the same folder.
"""

import sys

from pyspark.sql import SparkSession


def copy_rows(spark, base_path, after, until, target):
    """Write the newest version of each row that a commit of the range inserted or updated."""
    rows = (
        spark.read.format("hudi")
        .option("hoodie.datasource.query.type", "incremental")
        # Completed times in tables of version 8 or later: `after` is exclusive, `until` inclusive.
        .option("hoodie.datasource.read.begin.instanttime", after or "000")
        .option("hoodie.datasource.read.end.instanttime", until)
        .load(base_path)
    )
    rows.write.mode("overwrite").parquet(f"{target}/{until}")


if __name__ == "__main__":
    copy_rows(SparkSession.builder.appName("new rows").getOrCreate(), *sys.argv[1:])
