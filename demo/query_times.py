"""Time a query of a Hudi table before and after a compaction: `python query_times.py BASE_PATH JAR BEFORE AFTER`.

Stock Spark and Hudi, nothing of the provider. BEFORE and AFTER are instants: the query reads the table as of each, so
that both answers must be the same rows. One line of JSON for each:
`{"instant": "...", "seconds": 0.8, "rows": 40000, "sum": "..."}`; `seconds` is the median of several runs, in turns.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any

from lake_writer import open_session
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

RUNS = 5


def ask(spark: SparkSession, base_path: str, instant: str) -> tuple[float, Any]:
    """Return how long the query took, in seconds, and its answer."""
    started = time.monotonic()
    table = spark.read.format("hudi").option("as.of.instant", instant).load(base_path)
    row = table.agg(F.count("id"), F.sum(F.xxhash64("id", "amount", "ts").cast("decimal(38,0)"))).collect()[0]
    return time.monotonic() - started, (row[0], str(row[1]))


def main(base_path: str, jar: str, instants: list[str]) -> None:
    spark = open_session({"spark.jars": jar, "spark.sql.session.timeZone": "UTC"})
    taken: dict[str, list[float]] = {instant: [] for instant in instants}
    answers = {}
    for turn in range(RUNS + 1):
        for instant in instants:
            seconds, answers[instant] = ask(spark, base_path, instant)
            if turn:  # the first one compiles
                taken[instant].append(seconds)
    for instant in instants:
        rows, checksum = answers[instant]
        seconds = round(statistics.median(taken[instant]), 3)
        print(json.dumps({"instant": instant, "seconds": seconds, "rows": rows, "sum": checksum}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
