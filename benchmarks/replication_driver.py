"""The Spark half of the replication benchmark: writes two tables, replicates them both ways, counts what arrived.

`python -m benchmarks.replication_driver LAKE BOOTSTRAP ROWS COMMITS WIDE_ROWS WIDE_COMMITS`, with spark_jobs/ on the
path. Times are taken here, when the sink's commit returns; the consumer reads later, and only counts. Both ways read
the table's first two changed commits before their time begins.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import confluent_kafka
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from airflow_lake_provider.replication.change import ChangeMode, CommitRef
from airflow_lake_provider.replication.checkpoint import Checkpoint, to_text
from airflow_lake_provider.replication.pump import Pump
from airflow_lake_provider.replication.sink import NoopSink, SinkSettings, create_sink
from airflow_lake_provider.replication.transactions import Order, Report
from benchmarks.replication import create_topic
from lake_jobs.hudi.table import list_times, read_table_state
from lake_jobs.replication.source import HudiSource
from local_stack import hudi_bundle, lake_writer

WARM_UP_COMMITS = 2
_TENS = range(10)


@dataclass(frozen=True)
class Case:
    """One table with its changed commits, all written."""

    name: str
    base_path: str
    source: HudiSource
    bootstrap: str

    @property
    def stream(self) -> str:
        return f"{self.name}.kafka"

    @property
    def commits(self) -> list[CommitRef]:
        """The commits behind the first one, which both ways are measured with, after those that warm them up."""
        return sorted(self.source.read_timeline().completed, key=lambda commit: commit.order)[1 + WARM_UP_COMMITS :]


class NoopFrom(NoopSink):
    """Counts the changes behind a checkpoint, and stores nothing."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(SinkSettings(checkpoint.stream, checkpoint.stream))
        self._text = to_text(checkpoint)

    def open(self) -> str:
        return self._text


def main(lake: str, bootstrap: str, rows: int, commits: int, wide_rows: int, wide_commits: int) -> None:
    spark = lake_writer.open_session(
        {
            "spark.master": "local[2]",
            "spark.jars": hudi_bundle.with_jars(hudi_bundle.KAFKA_SOURCE),
            "spark.sql.session.timeZone": "UTC",
            "spark.driver.memory": "2g",
        }
    )
    case = write_table(spark, "orders", f"{lake}/orders", bootstrap, rows, commits)
    report, warm, marks = replicate(case)
    sparks = replicate_by_spark(case)
    noop_s = measure_noop(case, warm)
    wide = write_table(spark, "wide", f"{lake}/wide", bootstrap, wide_rows, wide_commits)
    wide_report, _, wide_marks = replicate(wide)
    wide_sparks = replicate_by_spark(wide)
    delivered = [*delivered_of(case), *delivered_of(wide)]
    unique, written = len(set(delivered)), rows_written(spark, case) + rows_written(spark, wide)
    print(
        json.dumps(
            {
                "rows_per_s": round(report.rows / (marks[-1] - marks[0])),
                "spark_sink_rows_per_s": sparks,
                "noop_rows_per_s": round(report.rows / noop_s),
                "wide_rows_per_s": round(wide_report.rows / (wide_marks[-1] - wide_marks[0])),
                "wide_spark_sink_rows_per_s": wide_sparks,
                "lost": written - unique,
                "duplicates": len(delivered) - unique,
                "changed_rows": report.rows,
                "wide_changed_rows": wide_report.rows,
                "phases": {phase: round(spent, 2) for phase, spent in report.phases.items()},
                "wide_phases": {phase: round(spent, 2) for phase, spent in wide_report.phases.items()},
                "readers": dict(case.source.readers),
                "commit_s": [later - earlier for earlier, later in pairwise(marks)],
            }
        ),
        flush=True,
    )
    spark.stop()


def write_table(spark: Any, name: str, base_path: str, bootstrap: str, rows: int, commits: int) -> Case:
    """Write a table, take its first snapshot into the sink, and write all commits that change it."""
    per_commit, changed = rows // commits, commits + WARM_UP_COMMITS
    table = lake_writer.WrittenTable(
        name, base_path, "COW", commits=changed + 1, keys=per_commit * 2 // 4 * 4, rows=per_commit,
        hudi_options={"hoodie.table.cdc.enabled": "true"},
    )  # fmt: skip
    write(spark, table, 0)
    case = Case(name, base_path, HudiSource(spark, base_path, ChangeMode.CHANGES), bootstrap)
    Pump(case.source, kafka_sink(case), Order(case.stream)).run()
    for commit in range(1, changed + 1):
        write(spark, table, commit)
    return case


def kafka_sink(case: Case) -> Any:
    options = {"bootstrap_servers": case.bootstrap, "topic": case.name, "create_topics": "true"}
    return create_sink("kafka", SinkSettings(case.stream, case.name, ChangeMode.CHANGES, options))


def replicate(case: Case) -> tuple[Report, Checkpoint, list[float]]:
    """Replicate the commits that count; return with the checkpoint before them, and when each commit returned."""
    warm = Pump(case.source, kafka_sink(case), Order(case.stream, max_commits=WARM_UP_COMMITS)).run().checkpoint
    assert warm is not None
    marks = [time.monotonic()]
    report = Pump(case.source, kafka_sink(case), Order(case.stream), lambda _, __: marks.append(time.monotonic())).run()
    return report, warm, marks


def measure_noop(case: Case, warm: Checkpoint) -> float:
    """Return the seconds for reading the same commits, reconciled, into a sink that stores nothing."""
    began = time.monotonic()
    Pump(case.source, NoopFrom(warm), Order(case.stream)).run()
    return time.monotonic() - began


def replicate_by_spark(case: Case) -> int:
    """Return the rows a second that Spark's own sink takes for the same commits."""
    every = sorted(case.source.read_timeline().completed, key=lambda commit: commit.order)[1:]
    topics = (f"{case.name}-warm-up", f"{case.name}-spark")
    for topic, commits in zip(topics, (every[:WARM_UP_COMMITS], every[WARM_UP_COMMITS:]), strict=True):
        create_topic(case.bootstrap, topic)
        began = time.monotonic()
        for commit in commits:
            changes = case.source.change_data(commit)
            value = F.to_json(F.struct("op", "ts_ms", "before", "after"))
            key = F.get_json_object(F.coalesce("after", "before"), "$.id")
            changes.select(key.alias("key"), value.alias("value")).write.format("kafka").option(
                "kafka.bootstrap.servers", case.bootstrap
            ).option("topic", topic).save()
        spent = time.monotonic() - began
    return round(len(read(case.bootstrap, topics[-1])) / spent)


def rows_written(spark: Any, case: Case) -> int:
    """Return how many rows the commits that count say that they wrote or deleted: Hudi's own sums, not the reader's."""
    timeline = read_table_state(spark, case.base_path).timeline
    done = timeline.getCommitsTimeline().filterCompletedInstants()
    counted, rows = {commit.requested_time for commit in case.commits}, 0
    for position, (requested_time, _) in enumerate(list_times(done)):
        if requested_time in counted:
            metadata = timeline.readCommitMetadata(done.getInstants()[position])
            rows += int(metadata.fetchTotalInsertRecordsWritten()) + int(metadata.fetchTotalUpdateRecordsWritten())
            rows += int(metadata.getTotalRecordsDeleted())
    return rows


def delivered_of(case: Case) -> list[tuple[str, bytes, bytes]]:
    """Return table, commit and key of each record of the commits that count."""
    counted = {commit.requested_time.encode() for commit in case.commits}
    return [(case.name, commit, key) for commit, key in read(case.bootstrap, case.name) if commit in counted]


def write(spark: Any, table: lake_writer.WrittenTable, commit: int) -> None:
    rows = lake_writer.orders_of_commit(spark, table, commit)
    if table.name == "wide":
        rows = widen(rows)
    options = lake_writer.write_options(table, commit, None, {})
    rows.write.format("hudi").options(**options).mode("append").save(table.base_path)


def widen(rows: DataFrame) -> DataFrame:
    """Add 34 columns to the 6 of an order: decimals, timestamps, texts, doubles, nested ones."""
    cents = F.col("amount") * 100
    second = F.lit(1_767_225_600) + F.col("ts") * 60
    address = F.struct(
        F.concat(F.lit("Street "), F.col("customer")).alias("street"),
        F.col("city").alias("town"),
        F.struct((cents % 90).alias("lat"), (cents % 180).alias("lon")).alias("place"),
    )
    more = {
        **{f"price_{n}": (F.col("amount") + n).cast("decimal(18,4)") for n in _TENS},
        **{f"at_{n}": F.timestamp_seconds(second + F.col("id") % 86_400 + n) for n in range(8)},
        **{f"text_{n}": F.concat_ws("-", F.lit(f"part {n}"), F.col("customer"), F.col("day")) for n in range(8)},
        **{f"measure_{n}": F.col("amount") / (n + 1) for n in range(5)},
        "due": F.to_date("day"),
        "address": address,
        "tags": F.array(F.col("city"), F.col("day")),
    }
    return rows.select("*", *[column.alias(name) for name, column in more.items()])


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
    main(sys.argv[1], sys.argv[2], *[int(number) for number in sys.argv[3:]])
