"""Replicate changes to a local broker: ours, exactly once; Spark's own Kafka sink, at least once; the bare producer.

`python -m benchmarks.replication --rows 1000000 --commits 50` prints one JSON line with the keys `rows_per_s,
spark_sink_rows_per_s, raw_rows_per_s, noop_rows_per_s, wide_rows_per_s, wide_spark_sink_rows_per_s, lag_p50_s,
lag_p99_s, lost, duplicates, phases`. `wide` is a table of 40 columns with decimals, timestamps and nested ones; `noop`
reads and reconciles the commits of the narrow one, and stores nothing. All of a table is written first, so this is
catching up, and the lags are what one commit takes in it: the time between the moments at which the sink's commits
returned; from then on consumers may see the rows. No consumer's clock is asked, and no writer is waited for. Both ways
read two commits before their time begins. Lost and doubled are counted by a consumer afterwards, against the rows that
Hudi's commits say they wrote and deleted, not against what our reader says it has read.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from local_stack import hudi_bundle
from local_stack.kafka import LocalKafka

ROOT = Path(__file__).parent.parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="changed rows in all")
    parser.add_argument("--commits", type=int, default=50)
    parser.add_argument("--wide-rows", type=int, default=None, help="changed rows of the wide table; a tenth of --rows")
    parser.add_argument("--wide-commits", type=int, default=None, help="a fifth of --commits")
    parser.add_argument("--timeout-s", type=int, default=7200)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lake-replication-") as name:
        folder = Path(name)
        broker = LocalKafka(folder / "kafka")
        broker.start()
        try:
            raw = measure_raw_producer(broker.bootstrap, min(options.rows, 500_000))
            command = [str(hudi_bundle.SPARK_PYTHON), "-m", "benchmarks.replication_driver", str(folder / "lake")]
            command += [broker.bootstrap, str(options.rows), str(options.commits)]
            wide_commits = options.wide_commits or max(2, options.commits // 5)
            command += [str(options.wide_rows or options.rows // 10), str(wide_commits)]
            env = hudi_bundle.spark_env() | {"PYTHONPATH": f"{ROOT}:{ROOT / 'spark_jobs'}"}
            run = subprocess.run(
                command, cwd=ROOT, env=env, stdout=subprocess.PIPE, timeout=options.timeout_s, check=True, text=True
            )
            measured = json.loads(run.stdout.splitlines()[-1])
        finally:
            broker.stop()
    ways = sorted(measured.pop("commit_s"))
    print(
        json.dumps(
            {
                "rows": options.rows,
                "commits": options.commits,
                **measured,
                "raw_rows_per_s": round(raw),
                "lag_p50_s": round(statistics.median(ways), 3),
                "lag_p99_s": round(ways[min(len(ways) - 1, int(len(ways) * 0.99))], 3),
            }
        )
    )
    return 0


def create_topic(bootstrap: str, topic: str) -> None:
    """Create a topic of one partition."""
    # Kept until the answer is there: a client that is collected takes its answers along.
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)


def measure_raw_producer(bootstrap: str, rows: int) -> float:
    """Return how many records of the same size the client alone sends, idempotent, without transactions."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": "true", "linger.ms": "50", "compression.type": "lz4"}
    )
    create_topic(bootstrap, "raw")
    value = json.dumps({"op": "u", "before": "x" * 100, "after": "y" * 100}).encode()
    began = time.monotonic()
    for number in range(rows):
        while True:
            try:
                producer.produce("raw", key=b'{"id":%d}' % number, value=value)
            except BufferError:
                producer.poll(0.1)
            else:
                break
    producer.flush(120)
    return rows / (time.monotonic() - began)


if __name__ == "__main__":
    sys.exit(main())
