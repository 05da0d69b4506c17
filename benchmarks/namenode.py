"""How much does the NameNode have to do for readers of timelines? A real HDFS, its own RPC counters.

100 tables, 5 readers each, one refresh per reader and minute; a tenth of the tables gets a commit per minute. Counted
are the NameNode's client RPCs while the readers refresh (writing the commits happens between two counts):

`direct_ops`: each reader loads the table afresh: hoodie.properties and a listing of the timeline.
`gated_ops`: each reader keeps what it knows and stats the timeline's folder first (our view of the file system).
`served_ops`: all readers ask one timeline server, which is notified of each commit; its own refreshes are in.

All three are per minute, mean over the rounds; the rounds follow one another without waiting a minute, so heartbeats of
the server, fewer than one per table and hour, are not in. `hudi_*_ops_per_commit`: the same counters around upsert
commits of Hudi's own writer (Spark, local[2], merge-on-read, metadata table on), with its embedded timeline server on
and off.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import hdfs_native
import uvicorn

from airflow_lake_provider.hudi.properties import load_table_properties
from airflow_lake_provider.hudi.timeline import load_timeline
from airflow_lake_provider.storage.table_storage import open_storage
from airflow_lake_provider.timeline_server.cache import SharedTimelines
from airflow_lake_provider.timeline_server.client import TimelineClient, TimelineEndpoint
from airflow_lake_provider.timeline_server.routes import create_timeline_app
from airflow_lake_provider.timeline_server.server import ServerOptions, TableFeed, TimelineServer
from airflow_lake_provider.timeline_server.snapshot import Freshness
from airflow_lake_provider.timeline_server.views import FileSystemTimelineView, RemoteTimelineView, TableTimelineView
from local_stack.hdfs import LocalHdfs, namenode_operations
from local_stack.hudi_bundle import JAR, SPARK_PYTHON, spark_env
from local_stack.processes import free_port, wait_until

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / ".work"
TOKEN = "bench-namenode-token"
INSTANTS = 30
POLL_INTERVAL_S = 60.0

WRITER = """
import json, sys
from pyspark.sql import SparkSession
jar, path, embedded, commits = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
builder = SparkSession.builder.master("local[2]").config("spark.jars", jar).config("spark.ui.enabled", "false")
builder = builder.config("spark.serializer", "org.apache.spark.serializer.KryoSerializer")
builder = builder.config("spark.kryo.registrator", "org.apache.spark.HoodieSparkKryoRegistrar")
builder = builder.config("spark.sql.shuffle.partitions", "4").config("spark.log.level", "ERROR")
spark = builder.config("spark.hadoop.dfs.replication", "1").getOrCreate()
options = {
    "hoodie.table.name": "orders", "hoodie.datasource.write.table.type": "MERGE_ON_READ",
    "hoodie.datasource.write.recordkey.field": "id", "hoodie.datasource.write.partitionpath.field": "day",
    "hoodie.datasource.write.precombine.field": "at", "hoodie.datasource.write.operation": "upsert",
    "hoodie.embed.timeline.server": embedded, "hoodie.compact.inline": "false", "hoodie.clean.automatic": "false",
    "hoodie.archive.automatic": "false", "hoodie.upsert.shuffle.parallelism": "4",
}
for number in range(commits):
    frame = spark.range(2000).selectExpr("id", f"{number} as at", "concat('d', id % 5) as day")
    frame.write.format("hudi").options(**options).mode("append").save(path)
    print(json.dumps({"committed": number}), flush=True)
    sys.stdin.readline()
"""


def count_reads(operations: dict[str, int]) -> int:
    """Return all client RPCs, by the NameNode's own count."""
    return sum(count for name, count in operations.items() if name.startswith("rpc."))


class Lake:
    """Tables on HDFS that hold what a reader of timelines needs: properties and instants."""

    def __init__(self, hdfs: LocalHdfs, tables: int) -> None:
        self.hdfs = hdfs
        self.client = hdfs_native.Client(hdfs.url)
        self.roots = [f"/lake/t{number:04d}" for number in range(tables)]
        self.paths = [f"{hdfs.url}{root}" for root in self.roots]
        self.instant = int(datetime.now(UTC).strftime("%Y%m%d000000000"))
        self.random = random.Random(1)
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(self._create, self.roots))

    def _create(self, root: str) -> None:
        lines = {
            "hoodie.table.name": "orders",
            "hoodie.table.type": "MERGE_ON_READ",
            "hoodie.table.version": "9",
            "hoodie.timeline.layout.version": "2",
            "hoodie.table.checksum": str(zlib.crc32(b".orders")),
        }
        text = "\n".join(f"{key}={value}" for key, value in lines.items())
        self._write(f"{root}/.hoodie/hoodie.properties", text.encode())
        for number in range(INSTANTS):
            self._write(
                f"{root}/.hoodie/timeline/{self.instant - 1000 + number}_{self.instant - 900 + number}.deltacommit", b""
            )

    def _write(self, path: str, content: bytes) -> None:
        options = hdfs_native.WriteOptions(overwrite=True, create_parent=True)
        with self.client.create(path, options) as stream:
            if content:
                stream.write(content)

    def commit(self, share: float) -> list[tuple[str, str]]:
        """Add a commit to a share of the tables; return base path and requested time of each."""
        committed = []
        for number in self.random.sample(range(len(self.roots)), int(len(self.roots) * share)):
            self.instant += 10
            self._write(f"{self.roots[number]}/.hoodie/timeline/{self.instant}_{self.instant + 5}.deltacommit", b"")
            committed.append((self.paths[number], str(self.instant)))
        return committed


def measure(
    name: str, lake: Lake, rounds: int, refresh: Callable[[], None], announce: Callable[[list[tuple[str, str]]], None]
) -> float:
    """Return NameNode operations per round of all readers."""
    refresh()  # what a reader learns once at its start is not in
    total = 0
    for number in range(rounds):
        committed = lake.commit(0.1)
        before = namenode_operations(lake.hdfs.http_url)
        announce(committed)
        refresh()
        after = namenode_operations(lake.hdfs.http_url)
        spent = count_reads(after) - count_reads(before)
        total += spent
        print(f"{name}: round {number + 1}/{rounds}: {spent} operations {_split(before, after)}", flush=True)
    return total / rounds


def _split(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    return {
        k.removeprefix("rpc."): v - before.get(k, 0)
        for k, v in after.items()
        if k.startswith("rpc.") and v != before.get(k, 0)
    }


def load_directly(path: str) -> None:
    storage = open_storage(path)
    load_timeline(storage, load_table_properties(storage))


def all_of(views: list[TableTimelineView], freshness: Freshness) -> Callable[[], None]:
    def refresh() -> None:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda view: view.snapshot(freshness), views))

    return refresh


def run_readers(lake: Lake, readers: int, rounds: int) -> dict[str, float]:
    def direct() -> None:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(load_directly, lake.paths * readers))

    def announce_nothing(_: list[tuple[str, str]]) -> None:
        return

    result = {"direct_ops": measure("direct", lake, rounds, direct, announce_nothing)}
    # Rounds stand for minutes, by a clock of the readers' own: a folder that changed a minute ago is believed, one that
    # changed just now is not. The bound is a sensor's: with a bound of 0 a reader stats hoodie.properties as well.
    ahead_ms = [0]
    gated: list[TableTimelineView] = [
        FileSystemTimelineView(path, now_ms=lambda: int(time.time() * 1000) + ahead_ms[0])
        for path in lake.paths * readers
    ]
    refresh_gated = all_of(gated, Freshness(unannounced_max_age_s=POLL_INTERVAL_S / 2))

    def gated_round() -> None:
        ahead_ms[0] += 61_000
        refresh_gated()

    result["gated_ops"] = measure("gated", lake, rounds, gated_round, announce_nothing)
    result["served_ops"] = run_served(lake, readers, rounds)
    return result


def run_served(lake: Lake, readers: int, rounds: int) -> float:
    """The server runs in a thread here; its readers talk HTTP to it all the same."""
    import threading

    server = TimelineServer(SharedTimelines(), ServerOptions((f"{lake.hdfs.url}/lake",), (TOKEN,)))
    port = free_port()
    config = uvicorn.Config(create_timeline_app(lambda: server), host="127.0.0.1", port=port, log_level="error")
    http = uvicorn.Server(config)
    thread = threading.Thread(target=http.run)
    thread.start()
    endpoint = TimelineEndpoint(f"http://127.0.0.1:{port}/v1/hoodie", TOKEN)
    wait_until(lambda: http.started, 30, "the timeline server")
    for path in lake.paths:
        server.timelines.register(path)

    def announce(committed: list[tuple[str, str]]) -> None:
        for path, instant in committed:
            server.hint(TableFeed(path, instants=(instant,), is_by_writer=True))
        wait_until(lambda: server.timelines.due.hints == 0, 30, "the refreshes")

    try:
        with closing(TimelineClient(endpoint)) as client:
            views: list[TableTimelineView] = [RemoteTimelineView(path, client) for path in lake.paths * readers]
            refresh = all_of(views, Freshness(unannounced_max_age_s=POLL_INTERVAL_S / 2))
            refresh()
            announce([(path, "20200101000000000") for path in lake.paths])  # each writer was heard once
            return measure("served", lake, rounds, refresh, announce)
    finally:
        http.should_exit = True
        thread.join(30)


def run_hudi(lake: Lake, embedded: str, commits: int) -> float:
    """Return NameNode operations per commit of Hudi's own writer."""
    path = f"{lake.hdfs.url}/hudi/embedded-{embedded}"
    command = [str(SPARK_PYTHON), "-c", WRITER, str(JAR), path, embedded, str(commits + 2)]
    log = (WORK / "bench-namenode-writer.log").open("wb")
    writer = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=spark_env(), text=True
    )
    assert writer.stdin is not None
    assert writer.stdout is not None
    counts: list[int] = []
    try:
        for number in range(commits + 2):
            line = writer.stdout.readline()
            if not line:
                raise RuntimeError(f"Hudi's writer ended: see {log.name}")
            counts.append(count_reads(namenode_operations(lake.hdfs.http_url)))
            spent = counts[-1] - counts[max(0, number - 1)]
            print(f"hudi, embedded timeline server {embedded}: commit {number + 1}, {spent} operations", flush=True)
            writer.stdin.write("\n")
            writer.stdin.flush()
        writer.wait(60)
    finally:
        writer.kill()
        writer.wait()
        log.close()
    # The first two commits create the table and its metadata table.
    return (counts[-1] - counts[1]) / commits


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=100)
    parser.add_argument("--readers", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--commits", type=int, default=4, help="of Hudi's own writer, each way; 0 leaves it out")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-namenode-", dir=WORK))
    hdfs = LocalHdfs(folder)
    try:
        print("starting HDFS", flush=True)
        hdfs.start()
        lake = Lake(hdfs, options.tables)
        result: dict[str, float] = {"tables": options.tables, "readers": options.readers}
        result |= run_readers(lake, options.readers, options.rounds)
        result["served_share_of_direct"] = round(result["served_ops"] / result["direct_ops"], 4)
        if options.commits:
            result["hudi_embedded_ops_per_commit"] = run_hudi(lake, "true", options.commits)
            result["hudi_without_ops_per_commit"] = run_hudi(lake, "false", options.commits)
    finally:
        hdfs.stop()
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
