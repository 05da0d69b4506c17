"""A stock streaming Hudi writer: PySpark Structured Streaming and settings, nothing of the provider.

`python lake_stream.py settings.json`, by a Python that has pyspark. It creates a table with commit 0 of `lake_writer`,
puts the rows of the later commits into one file each, and then streams these files into the table, one commit a file.
Only the stream is measured. It prints one JSON line: {"seconds": 55.1, "commits": 20}.

settings.json:
    {"table": {fields of lake_writer.WrittenTable}, "work_dir": "/tmp/stream", "callback": {"url": "..."},
     "hudi_options": {}, "spark_conf": {"spark.jars": "/jars/hudi-spark3.5-bundle_2.12-1.2.0.jar"}}
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lake_writer import Callback, WrittenTable, open_session, orders_of_commit, write_commit, write_options
from pyspark.sql import SparkSession


def write_source(spark: SparkSession, table: WrittenTable, folder: Path) -> None:
    """Put each commit's rows into a file of its own, the older the earlier."""
    folder.mkdir(parents=True)
    for commit in range(1, table.commits + 1):
        part = folder.parent / "part"
        orders_of_commit(spark, table, commit).coalesce(1).write.mode("overwrite").parquet(str(part))
        (written,) = part.glob("part-*.parquet")
        target = folder / f"commit-{commit:03d}.parquet"
        shutil.move(written, target)
        os.utime(target, (commit, commit))
        shutil.rmtree(part)


def stream(spark: SparkSession, table: WrittenTable, source: Path, options: Mapping[str, str]) -> float:
    """Stream the files into the table, one commit each; return the seconds that it took."""
    schema = spark.read.parquet(str(source)).schema
    began = time.monotonic()
    rows = spark.readStream.schema(schema).option("maxFilesPerTrigger", "1").parquet(str(source))
    query = (
        rows.writeStream.format("hudi")
        .options(**options)
        .option("checkpointLocation", str(source.parent / "checkpoint"))
        # In multi-writer mode a stream is refused without a name of its own.
        .option("hoodie.datasource.write.streaming.checkpoint.identifier", table.name)
        .outputMode("append")
        .trigger(availableNow=True)
        .start(table.base_path)
    )
    query.awaitTermination()
    return time.monotonic() - began


def run(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Create the table, prepare the source, stream it."""
    table = WrittenTable(**settings["table"])
    callback = Callback(**settings["callback"]) if settings.get("callback") else None
    spark = open_session(settings.get("spark_conf", {}))
    hudi_options = settings.get("hudi_options", {})
    write_commit(spark, table, 0, write_options(table, 0, None, hudi_options))
    source = Path(settings["work_dir"]) / "source"
    write_source(spark, table, source)
    seconds = stream(spark, table, source, write_options(table, 1, callback, hudi_options))
    spark.stop()
    return {"seconds": round(seconds, 2), "commits": table.commits}


if __name__ == "__main__":
    print(json.dumps(run(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))), flush=True)
