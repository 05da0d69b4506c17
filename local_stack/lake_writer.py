"""A stock Hudi writer, as a user of the lake would write it: PySpark and settings, nothing of the provider.

`python lake_writer.py settings.json`, by a Python that has pyspark, or through spark-submit. It writes seeded orders
into its tables in turn, and prints one JSON line per commit.

settings.json:
    {"tables": [{"name": "orders", "base_path": "/lake/orders", "type": "MOR", "version": 9, "commits": 10,
                 "keys": 2000, "rows": 200, "seed": 1, "pause_s": 0.5, "partition_by": "city", "drop_notices": [3]}],
     "callback": {"url": "http://127.0.0.1:8080/v1/hoodie/callback", "token": "...",
                  "headers": {"X-Lake-Database": "sales", "X-Lake-Owner": "shop"}},
     "hudi_options": {"hoodie.write.lock.provider": "..."},
     "spark_conf": {"spark.master": "local[1]", "spark.jars": "/jars/hudi-spark3.5-bundle_2.12-1.2.0.jar"}}

Commit 0 of a table inserts `keys` orders (a multiple of 4). Each later one updates `rows` of them and adds a tenth as
many new ones, so existing file groups get log files. `drop_notices` lists commits whose notice is not sent, as if it
had been lost.
The writer continues an existing table from its `first_commit` (default 0; with 1 or more nothing is bulk-created).
With `"stop_file": "/path"` it ends before its next commit once that file exists.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

TABLE_TYPES = {"MOR": "MERGE_ON_READ", "COW": "COPY_ON_WRITE"}
CITIES = ("Aachen", "Bilbao", "Cork", "Dublin")

SPARK_CONF: Mapping[str, str] = {
    "spark.master": "local[1]",
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Start-up is most of a small writer's time: compile less, and count fewer partitions.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Hudi warns several times per commit of settings that are intended.
    "spark.log.level": "ERROR",
    "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
    "spark.kryo.registrator": "org.apache.spark.HoodieSparkKryoRegistrar",
    "spark.sql.extensions": "org.apache.spark.sql.hudi.HoodieSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.hudi.catalog.HoodieCatalog",
}

# What every writer of a managed lake sets: other processes run the services, so writers share a lock with them,
# run no service of their own, and drop no index that another process built.
MANAGED_LAKE: Mapping[str, str] = {
    "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
    "hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider",
    # A killed holder leaves its lock behind; it expires, and waiters wait longer than that: 240 s against 2 minutes.
    "hoodie.write.lock.filesystem.expire": "2",
    "hoodie.write.lock.client.wait_time_ms_between_retry": "500",
    "hoodie.write.lock.client.num_retries": "480",
    "hoodie.table.services.enabled": "false",
    "hoodie.compact.inline": "false",
    "hoodie.clean.automatic": "false",
    "hoodie.archive.automatic": "false",
    "hoodie.metadata.auto.delete.partitions": "false",
}


@dataclass(frozen=True, slots=True)
class WrittenTable:
    """One table of the settings file."""

    name: str
    base_path: str
    type: str = "MOR"
    version: int = 9
    commits: int = 10
    first_commit: int = 0
    keys: int = 2000
    rows: int = 200
    seed: int = 1
    pause_s: float = 0.5
    partition_by: str = "city"
    note: str = ""
    """Where it is set, rows have a column `note` with this text, which other commits' rows need not have."""
    drop_notices: tuple[int, ...] = ()
    hudi_options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Callback:
    """The receiver of Hudi's commit notices."""

    url: str
    token: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


def orders_of_commit(spark: SparkSession, table: WrittenTable, commit: int) -> DataFrame:
    """Return a commit's rows; the same table and commit give the same rows."""
    if commit == 0:
        ids = spark.range(0, table.keys, 1, 2)
    else:
        first = (commit - 1) * table.rows
        added = max(1, table.rows // 10)
        old = spark.range(first, first + table.rows, 1, 1).select((F.col("id") % table.keys).alias("id")).distinct()
        # New orders of one commit are all of one city and day: one new file, not one per partition.
        first_new = table.keys + (commit - 1) * added * len(CITIES) + commit % len(CITIES)
        ids = old.union(spark.range(first_new, first_new + added * len(CITIES), len(CITIES), 1).toDF("id"))
    draw = F.xxhash64(F.lit(table.seed), F.col("id"), F.lit(commit))
    # May be null, as a column has to be that older rows lack.
    note = [F.when(F.col("id") >= 0, F.lit(table.note)).alias("note")] if table.note else []
    return ids.select(
        F.col("id"),
        (F.col("id") % 997).alias("customer"),
        F.element_at(F.array(*[F.lit(city) for city in CITIES]), (F.col("id") % len(CITIES) + 1).cast("int")).alias(
            "city"
        ),
        F.date_format(F.date_add(F.lit("2026-01-01"), (F.col("id") % 4).cast("int")), "yyyy-MM-dd").alias("day"),
        (F.pmod(draw, F.lit(100_000)) / 100).alias("amount"),
        F.lit(commit).cast("long").alias("ts"),
        *note,
    )


def write_options(
    table: WrittenTable, commit: int, callback: Callback | None, options: Mapping[str, str]
) -> dict[str, str]:
    """Return the Hudi settings of one commit."""
    settings = {
        "hoodie.table.name": table.name,
        "hoodie.datasource.write.table.type": TABLE_TYPES[table.type],
        "hoodie.datasource.write.recordkey.field": "id",
        "hoodie.datasource.write.partitionpath.field": table.partition_by,
        "hoodie.datasource.write.precombine.field": "ts",
        "hoodie.datasource.write.operation": "upsert",
        "hoodie.write.table.version": str(table.version),
        "hoodie.write.auto.upgrade": "false",
        "hoodie.upsert.shuffle.parallelism": "2",
        "hoodie.insert.shuffle.parallelism": "2",
        "hoodie.simple.index.parallelism": "2",
        "hoodie.bloom.index.parallelism": "2",
        "hoodie.finalize.write.parallelism": "2",
        "hoodie.markers.delete.parallelism": "2",
        "hoodie.write.markers.type": "DIRECT",
        "hoodie.embed.timeline.server": "false",
        # Or Hudi would put new orders into small base files, and rewrite those instead of logging their updates.
        "hoodie.parquet.small.file.limit": "0",
        # A third of a small commit's time.
        "hoodie.metadata.index.column.stats.enable": "false",
        **MANAGED_LAKE,
        **options,
        **table.hudi_options,
    }
    if callback is not None and commit not in table.drop_notices:
        settings["hoodie.write.commit.callback.on"] = "true"
        settings["hoodie.write.commit.callback.http.url"] = callback.url
        settings["hoodie.write.commit.callback.http.timeout.seconds"] = "5"
        if callback.token:
            settings["hoodie.write.commit.callback.http.api.key"] = callback.token
        if callback.headers:
            headers = ";".join(f"{name}:{value}" for name, value in callback.headers.items())
            settings["hoodie.write.commit.callback.http.custom.headers"] = headers
    return settings


def write_commit(spark: SparkSession, table: WrittenTable, commit: int, options: Mapping[str, str]) -> None:
    """Write one commit; raises what Hudi raises."""
    rows = orders_of_commit(spark, table, commit)
    rows.write.format("hudi").options(**options).mode("append").save(table.base_path)


def rows_as_of(spark: SparkSession, base_path: str, instant: str) -> list[dict[str, Any]]:
    """Return the rows that a table had after an instant, by Hudi's time travel, without Hudi's own fields."""
    table = spark.read.format("hudi").option("as.of.instant", instant).load(base_path)
    fields = [name for name in table.columns if not name.startswith("_hoodie_")]
    texts = table.select(F.to_json(F.struct(*fields), {"ignoreNullFields": "false"}).alias("row")).collect()
    return [json.loads(text.row) for text in texts]


def rows_expected(table: WrittenTable, commit: int) -> int:
    """Return how many rows the table has after a commit, when all of them were written."""
    return table.keys + commit * max(1, table.rows // 10)


def commits_in_turn(tables: tuple[WrittenTable, ...]) -> Iterator[tuple[WrittenTable, int]]:
    """Yield commit 0 of each table, then commit 1 of each, and so on."""
    for offset in range(max((table.commits for table in tables), default=0)):
        for table in tables:
            if offset < table.commits:
                yield table, table.first_commit + offset


def open_session(conf: Mapping[str, str]) -> SparkSession:
    builder = SparkSession.builder.appName("lake-writer")
    for key, value in {**SPARK_CONF, **conf}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def run(settings: Mapping[str, Any]) -> None:
    """Write all commits of the settings, one JSON line each."""
    tables = tuple(WrittenTable(**_table_fields(entry)) for entry in settings["tables"])
    callback = Callback(**settings["callback"]) if settings.get("callback") else None
    stop_file = Path(settings["stop_file"]) if settings.get("stop_file") else None
    spark = open_session(settings.get("spark_conf", {}))
    for table, commit in commits_in_turn(tables):
        if stop_file is not None and stop_file.exists():
            break
        started = time.monotonic()
        write_commit(spark, table, commit, write_options(table, commit, callback, settings.get("hudi_options", {})))
        line = {
            "table": table.name,
            "commit": commit,
            "seconds": round(time.monotonic() - started, 3),
            "ended_at": datetime.now(UTC).isoformat(),
            "notice": callback is not None and commit not in table.drop_notices,
            "rows_expected": rows_expected(table, commit),
        }
        print(json.dumps(line), flush=True)
        time.sleep(table.pause_s)
    spark.stop()


def _table_fields(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {**entry, "drop_notices": tuple(entry.get("drop_notices", ()))}


def main() -> None:
    parser = argparse.ArgumentParser(description="Write seeded orders into Hudi tables.")
    parser.add_argument("settings", type=Path, help="path of the settings file (JSON)")
    run(json.loads(parser.parse_args().settings.read_text(encoding="utf-8")))


if __name__ == "__main__":
    sys.exit(main())
