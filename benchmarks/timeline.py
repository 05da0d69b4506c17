"""How long does it take to load a table's timeline? Ours against hudi-rs and against Hudi's own metadata client.

A real table's last delta commit is repeated under new instants, three files each, to timelines of 1,000 and 10,000.
`ours_ms` loads properties and timeline from nothing; `ours_reload_ms` refreshes a cached view after one more commit;
the peers load the same from nothing: the `hudi` package (hudi-rs) its table and timeline, `HoodieTableMetaClient` on a
warm JVM its properties and active timeline. Medians of several runs, page cache warm for all.

hudi-rs lists the folder once to open a table, and again for each question to its timeline. `hudi_rs_ms` is the opening
alone, which already holds the completed commits: one listing, like ours. It keeps no pending instants; we do.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.hudi.properties import load_table_properties
from airflow_lake_provider.hudi.timeline import load_timeline
from airflow_lake_provider.planner.table_view import TableViewCache
from airflow_lake_provider.storage.table_storage import open_storage
from local_stack.hudi_bundle import JAR, SPARK_PYTHON
from tests.support.fixture_tables import unpack

if TYPE_CHECKING:
    from hudi import HudiTimeline

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / ".work"
SOURCE = "mor_v9"
SIZES = (100, 1_000, 10_000, 100_000)
RECORDED_SIZE = 10_000
"""Of the closing line's own figures, and of Hudi's client; the others are there to show how the cost grows."""
JVM_WARM_UP_S = 20  # after 5 loads it is still compiling, and its answer is any number

JVM_SIDE = """
import json, sys, time
from pyspark.sql import SparkSession
jar, path, runs, warm_s = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
builder = SparkSession.builder.master("local[1]").config("spark.jars", jar).config("spark.ui.enabled", "false")
spark = builder.config("spark.log.level", "OFF").config("spark.driver.memory", "2g").getOrCreate()
jvm = spark._jvm
conf = jvm.org.apache.hudi.storage.hadoop.HadoopStorageConfiguration(spark._jsc.hadoopConfiguration())
def load():
    client = jvm.org.apache.hudi.common.table.HoodieTableMetaClient.builder().setConf(conf).setBasePath(path).build()
    return client.getActiveTimeline().countInstants()
first, ends = [], time.perf_counter() + warm_s
while time.perf_counter() < ends or len(first) < 5:
    began = time.perf_counter()
    count = load()
    first.append((time.perf_counter() - began) * 1000)
times = []
for _ in range(runs):
    began = time.perf_counter()
    load()
    times.append((time.perf_counter() - began) * 1000)
print("RESULT " + json.dumps({"times_ms": times, "first_ms": first, "instants": count}))
"""


def synthesise(instants: int, folder: Path) -> Path:
    """Repeat the last delta commit of a real table until its timeline has that many instants."""
    table = unpack(SOURCE, folder / str(instants)).path
    shutil.rmtree(table / ".hoodie" / "timeline" / "history", ignore_errors=True)
    last = max(name for name in os.listdir(timeline_of(table)) if name.endswith(".deltacommit"))
    for number in range(instants - count_instants(table)):
        repeat_commit(table, last, number)
    return table


def repeat_commit(table: Path, completed_name: str, number: int) -> None:
    """Write the three files of one more commit, with the real ones' content."""
    folder = timeline_of(table)
    requested, _, rest = completed_name.partition("_")
    inflight = (folder / f"{requested}.deltacommit.inflight").read_bytes()
    completed = (folder / completed_name).read_bytes()
    begun = datetime.strptime(requested[:14] + "+0000", "%Y%m%d%H%M%S%z") + timedelta(seconds=2 + number)
    new, done = begun.strftime("%Y%m%d%H%M%S000"), begun.strftime("%Y%m%d%H%M%S500")
    (folder / f"{new}.deltacommit.requested").write_bytes(b"")
    (folder / f"{new}.deltacommit.inflight").write_bytes(inflight)
    (folder / f"{new}_{done}.{rest.partition('.')[2]}").write_bytes(completed)


def timeline_of(table: Path) -> Path:
    return table / ".hoodie" / "timeline"


def count_instants(table: Path) -> int:
    storage = open_storage(str(table))
    return len(load_timeline(storage, load_table_properties(storage)).instants)


def median_ms(work: Callable[[], object], runs: int) -> float:
    times = []
    for _ in range(runs):
        began = time.perf_counter()
        work()
        times.append((time.perf_counter() - began) * 1000)
    return round(statistics.median(times), 2)


def measure_load(table: Path, runs: int) -> float:
    """Return what it takes to load the timeline."""

    def load() -> int:
        storage = open_storage(str(table))
        timeline = load_timeline(storage, load_table_properties(storage))
        calls.update(lists=storage.calls.lists, opens=storage.calls.opens)
        return len(timeline.instants)

    calls: dict[str, int] = {}
    load_ms = median_ms(load, runs)
    say(f"  ours: load {load_ms} ms, {calls['lists']} listing, {calls['opens']} file opened")
    return load_ms


def measure_reload(table: Path, runs: int) -> float:
    """Return what it takes to bring a view up to date with one commit more."""
    cache = TableViewCache()
    began = time.perf_counter()
    cache.refresh(str(table))
    say(f"  ours: first view with every commit's metadata {(time.perf_counter() - began) * 1000:.0f} ms")
    last = max(name for name in os.listdir(timeline_of(table)) if name.endswith(".deltacommit"))
    times = []
    for number in range(runs):
        repeat_commit(table, last, number)
        began = time.perf_counter()
        cache.refresh(str(table))
        times.append((time.perf_counter() - began) * 1000)
    reload_ms = round(statistics.median(times), 2)
    say(f"  ours: reload after one more commit {reload_ms} ms")
    return reload_ms


def measure_hudi_rs(table: Path, runs: int) -> float:
    """Return what hudi-rs takes to open the table with its timeline; asking it for its commits is only printed."""
    from hudi import HudiTableBuilder

    def load() -> HudiTimeline:
        return HudiTableBuilder.from_base_uri(str(table)).build().get_timeline()

    def load_and_ask() -> int:
        return len(load().get_completed_deltacommits())

    say(f"  hudi-rs: sees {load_and_ask()} completed delta commits; asks in {median_ms(load_and_ask, runs)} ms")
    return median_ms(load, runs)


def measure_jvm(table: Path, runs: int) -> float:
    """Return what Hudi's own metadata client takes on a warm JVM."""
    command = [str(SPARK_PYTHON), "-c", JVM_SIDE, str(JAR), str(table), str(runs), str(JVM_WARM_UP_S)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    line = next((line for line in result.stdout.splitlines() if line.startswith("RESULT ")), None)
    if line is None:
        raise RuntimeError(f"the JVM side failed:\n{result.stdout[-2000:]}\n{result.stderr[-2000:]}")
    answer = json.loads(line.removeprefix("RESULT "))
    first_ms = answer["first_ms"]
    say(f"  Hudi's metadata client: sees {answer['instants']} instants; first load {first_ms[0]:.0f} ms")
    say(f"  then loads {', '.join(f'{ms:.0f}' for ms in first_ms[1::20])} ms while it warms up ({len(first_ms)} loads)")
    return round(statistics.median(answer["times_ms"]), 2)


def measure(table: Path, instants: int, runs: int, *, with_jvm: bool) -> dict[str, float]:
    say(f"{instants} instants, {len(os.listdir(timeline_of(table)))} files")
    hudi_rs_ms = measure_hudi_rs(table, runs)
    say(f"  hudi-rs: {hudi_rs_ms} ms")
    jvm: dict[str, float] = {}
    if with_jvm:
        jvm["jvm_ms"] = measure_jvm(table, runs)
        say(f"  Hudi's metadata client: {jvm['jvm_ms']} ms")
    found = {"instants": instants, "ours_ms": measure_load(table, runs)}
    if instants <= RECORDED_SIZE:
        # A view reads each commit once: for minutes, of a hundred thousand.
        found["ours_reload_ms"] = measure_reload(table, runs)
    return {**found, "hudi_rs_ms": hudi_rs_ms, **jvm}


def say(text: str) -> None:
    print(text, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="instants of each timeline")
    parser.add_argument("--without-jvm", action="store_true", help="leave Hudi's own metadata client out")
    options = parser.parse_args()
    results: dict[int, dict[str, Any]] = {}
    WORK.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-timeline-", dir=WORK) as folder:
        for instants in options.sizes:
            table = synthesise(instants, Path(folder))
            with_jvm = instants == RECORDED_SIZE and not options.without_jvm
            results[instants] = measure(table, instants, options.runs, with_jvm=with_jvm)
    growth = {size: {key: figures[key] for key in ("ours_ms", "hudi_rs_ms")} for size, figures in results.items()}
    recorded = RECORDED_SIZE if RECORDED_SIZE in results else max(results)
    say(json.dumps({**results[recorded], "growth": growth}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
