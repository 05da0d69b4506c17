"""Rows per second of the database sink on PostgreSQL, next to `psql \\copy` of the same rows in the same run.

`python -m benchmarks.mirror --rows 5000000` prints one JSON line. Rows have seven columns and a primary key of two. A
snapshot writes them into an empty table, as `\\copy` does; updates then change each of them; both are one commit in
blocks of 5,000, as a run hands them over. Reading the Hudi table is not part of it. The rates are the median of
`--times`, because other work on the machine moves them more than the code does.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from airflow_lake_provider.replication.change import Batch, Change, ChangeMode, CommitRef, Op
from airflow_lake_provider.replication.checkpoint import Checkpoint
from airflow_lake_provider.replication.sink import Sink, SinkSettings, create_sink
from local_stack.postgres import LocalPostgres
from tests.support.plain_sql import run_sql

BLOCK = 5_000
COLUMNS = {
    "id": ("bigint", "long"),
    "part": ("text", "string"),
    "name": ("text", "string"),
    "price": ("numeric(12,2)", {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}),
    "at": ("timestamptz", {"type": "long", "logicalType": "timestamp-micros"}),
    "v": ("integer", "int"),
    "ts": ("bigint", "long"),
}
SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "orders",
        "fields": [{"name": name, "type": ["null", kind], "default": None} for name, (_, kind) in COLUMNS.items()],
    }
)


def row(number: int, version: int) -> list[object]:
    return [number, f"p{number % 10}", f"name of {number}", 1.25, "2026-03-01T10:00:00.123456Z", version, version]


def blocks(op: Op, rows: int, version: int) -> Iterator[list[Change]]:
    for begin in range(0, rows, BLOCK):
        yield [
            Change(
                op,
                f'{{"id":{number},"part":"p{number % 10}"}}',
                None,
                json.dumps(dict(zip(COLUMNS, row(number, version), strict=True)), separators=(",", ":")),
            )
            for number in range(begin, min(begin + BLOCK, rows))
        ]


def send(sink: Sink, op: Op, rows: int, version: int) -> float:
    """Return the seconds of one commit; the rows are made outside of them."""
    commit = CommitRef(f"2026060100000{version:04d}", f"2026060100001{version:04d}")
    spent_s = 0.0
    for number, block in enumerate(blocks(op, rows, version)):
        began_s = time.monotonic()
        sink.write(Batch(commit, block, 1, begins_snapshot=op is Op.READ and number == 0, schema=SCHEMA))
        spent_s += time.monotonic() - began_s
    began_s = time.monotonic()
    sink.commit(Checkpoint("mirror.sink", version, 1, commit))
    return spent_s + time.monotonic() - began_s


def copy(server: LocalPostgres, path: Path) -> float:
    """Return the seconds of `psql \\copy`."""
    began_s = time.monotonic()
    url = server.url.replace("+psycopg2", "")
    subprocess.run(["psql", url, "-qc", f"\\copy bare from '{path}'"], check=True)
    return time.monotonic() - began_s


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--times", type=int, default=3)
    options = parser.parse_args()
    rows: int = options.rows
    server = LocalPostgres()
    server.start()
    seconds: dict[str, list[float]] = {"copy": [], "snapshot": [], "updates": []}
    try:
        columns = ", ".join(f"{name} {kind}" for name, (kind, _) in COLUMNS.items())
        for table in ("bare", "mirror"):
            run_sql(server.url, f"create table {table} ({columns}, primary key (id, part))")
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            for number in range(rows):
                file.write("\t".join(map(str, row(number, 1))) + "\n")
            file.flush()
            sink = create_sink(
                "database",
                SinkSettings("mirror.sink", "orders", ChangeMode.LATEST, {"url": server.url, "table": "mirror"}),
            )
            sink.open()
            for turn in range(options.times):
                for table in ("bare", "mirror"):
                    run_sql(server.url, f"truncate {table}")
                seconds["copy"].append(copy(server, Path(file.name)))
                seconds["snapshot"].append(send(sink, Op.READ, rows, 2 * turn + 1))
                seconds["updates"].append(send(sink, Op.UPDATE, rows, 2 * turn + 2))
            sink.close()
        assert run_sql(server.url, "select count(*), count(distinct v) from mirror") == [(rows, 1)]
    finally:
        server.stop()
    rates = {f"{name}_rows_per_s": round(rows / statistics.median(spent)) for name, spent in seconds.items()}
    shares = {}
    for name in ("snapshot", "updates"):
        turns = zip(seconds["copy"], seconds[name], strict=True)
        shares[f"{name}_of_copy"] = round(statistics.median(bare / ours for bare, ours in turns), 2)
    print(json.dumps({"rows": rows, **rates, **shares}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
