"""The Spark half of the replication benchmark: writes the table, replicates it both ways, counts what arrived.

`python -m benchmarks.replication_driver LAKE BOOTSTRAP ROWS COMMITS`, with spark_jobs/ on the path. Times are taken
here, when the sink's commit returns; the consumer reads later, and only counts.
"""

from __future__ import annotations

import json
import sys
import time
from itertools import pairwise
from typing import Any

import confluent_kafka
from pyspark.sql import functions as F

from airflow_lake_provider.replication.change import ChangeMode
from airflow_lake_provider.replication.checkpoint import Checkpoint
from airflow_lake_provider.replication.pump import Order, Pump
from airflow_lake_provider.replication.sink import (
    SinkSettings,
    create_sink,
)
from benchmarks.replication import CONNECTOR, create_topic
from lake_jobs.replication.source import HudiSource
from local_stack import hudi_bundle, lake_writer


def main(lake: str, bootstrap: str, rows: int, commits: int) -> None:
    spark = lake_writer.open_session(
        {
            "spark.master": "local[2]",
            "spark.jars": str(hudi_bundle.JAR),
            "spark.jars.packages": CONNECTOR,
            "spark.jars.ivy": f"{lake}/ivy",
            "spark.sql.session.timeZone": "UTC",
            "spark.driver.memory": "2g",
        }
    )
    per_commit = rows // commits
    table = lake_writer.WrittenTable(
        "orders", f"{lake}/orders", "COW", commits=commits + 1, keys=per_commit * 2 // 4 * 4, rows=per_commit,
        hudi_options={"hoodie.table.cdc.enabled": "true"},
    )  # fmt: skip
    write(spark, table, 0)
    settings = SinkSettings(
        "orders.kafka",
        "orders",
        ChangeMode.CHANGES,
        {"bootstrap_servers": bootstrap, "topic": "ours", "create_topics": "true"},
    )
    source = HudiSource(spark, table.base_path, ChangeMode.CHANGES)
    Pump(source, create_sink("kafka", settings), Order("orders.kafka")).run()
    for commit in range(1, commits + 1):
        write(spark, table, commit)
    before = count(bootstrap, "ours")

    marks = [time.monotonic()]

    def mark(_: Checkpoint) -> None:
        marks.append(time.monotonic())

    report = Pump(source, create_sink("kafka", settings), Order("orders.kafka"), mark).run()
    ours_s = marks[-1] - marks[0]
    delivered = read(bootstrap, "ours")[before:]
    unique = len(set(delivered))

    create_topic(bootstrap, "spark")
    began = time.monotonic()
    done = sorted(source.read_timeline().completed, key=lambda commit: commit.order)[1:]
    for commit in done:
        changes = source.change_data(commit)
        value = F.to_json(F.struct("op", "ts_ms", "before", "after"))
        key = F.get_json_object(F.coalesce("after", "before"), "$.id")
        changes.select(key.alias("key"), value.alias("value")).write.format("kafka").option(
            "kafka.bootstrap.servers", bootstrap
        ).option("topic", "spark").save()
    spark_s = time.monotonic() - began
    print(
        json.dumps(
            {
                "rows_per_s": round(report.rows / ours_s),
                "spark_sink_rows_per_s": round(count(bootstrap, "spark") / spark_s),
                "lost": report.rows - unique,
                "duplicates": len(delivered) - unique,
                "changed_rows": report.rows,
                "commit_s": [later - earlier for earlier, later in pairwise(marks)],
            }
        ),
        flush=True,
    )
    spark.stop()


def write(spark: Any, table: lake_writer.WrittenTable, commit: int) -> None:
    lake_writer.write_commit(spark, table, commit, lake_writer.write_options(table, commit, None, {}))


def count(bootstrap: str, topic: str) -> int:
    return len(read(bootstrap, topic))


def read(bootstrap: str, topic: str) -> list[tuple[bytes, bytes]]:
    """Return commit and key of each committed record."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap, "group.id": "check", "isolation.level": "read_committed",
            "auto.offset.reset": "earliest", "enable.partition.eof": "true",
        }
    )  # fmt: skip
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    records = []
    while True:
        message = consumer.poll(30)
        if message is None or message.error() is not None:
            consumer.close()
            return records
        headers = dict(message.headers() or ())
        records.append((headers.get("commit", b""), message.key()))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
