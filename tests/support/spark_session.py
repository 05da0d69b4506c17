"""One Spark session with real Hudi for many small tables: what makes it warm soon and its commits short."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from local_stack import hudi_bundle, lake_writer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL_BLOOM_FILTERS = {"hoodie.index.bloom.num_entries": "1000"}
"""Each base file has one, by default for 60,000 keys: to write its text is a tenth of a small commit."""

ONE_TASK = SMALL_BLOOM_FILTERS | {
    f"hoodie.{step}.parallelism": "1"
    for step in (
        "upsert.shuffle", "insert.shuffle", "bulkinsert.shuffle", "delete.shuffle", "simple.index", "bloom.index",
        "global.simple.index", "finalize.write", "markers.delete", "rollback", "combine.before.insert",
    )
}  # fmt: skip
"""For writers of small tables: a task costs more than the rows that it writes."""


LONG_JVM = "-XX:ReservedCodeCacheSize=256m"
"""For a process of hundreds of tests: in the 48 MB of a JVM that compiles little, code is thrown away again."""


def open_test_session(folder: Path, more: Mapping[str, str] | None = None) -> SparkSession:
    """Start Spark with the Hudi bundle; `folder` takes its scratch files, and `more` are settings besides."""
    (folder / "warehouse").mkdir(parents=True, exist_ok=True)
    return lake_writer.open_session(
        {
            "spark.master": "local[2]",
            # In 1 GB the collector is at work for a sixth of the time.
            "spark.driver.memory": "2g",
            **hudi_bundle.bundle_first(),
            "spark.driver.extraJavaOptions": f"{hudi_bundle.jvm_options(hudi_bundle.HUDI_CLASSES)} -Xmn1g {LONG_JVM}",
            # Much of a small write is to send tasks, each with all of Hadoop's configuration, and to read them.
            "spark.sql.shuffle.partitions": "1",
            "spark.default.parallelism": "1",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            **(more or {}),
        }
    )
