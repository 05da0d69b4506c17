"""How long does one check for conflicting writers take? Ours against Hudi's own detector on a warm JVM, in one run.

RFC-56's set-up: two writers, each with its markers in MARKERS0-19, on a local file system; there 1,500 markers took
179 ms. Here each of the two has as many, on disjoint file groups, so that every marker must be read. The table is
a real one with two writes planted in flight.

A check begins with the younger writer's file groups in memory, with the table of fingerprints that many of them get
when they are first compared (`own_filter_150k_ms`), and reads the older one's markers, the heartbeats and the timeline.
`first_ms` is a check that knows nothing else, `recheck_ms` the next one without a change. `hudi_ms` is one pass of Hudi
1.2's checker (`MarkerBasedEarlyConflictDetectionRunnable`), which has its own writer's markers in memory as well, after
thousands of passes; `hudi_first_ms` its first one, as in a writer that has just begun to write. `floor_ms` is what
plain reading of the older writer's marker files takes here, which no first check can undercut; it is bound by memory,
and a check by the processor, so that their ratio differs by half from run to run. `plain_ms` is what plain Python takes
to read them and put their lines into a set: work of the same kind, to compare runs with. Medians; page cache warm for
all.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

from airflow_lake_provider.conflict.activity import ConflictTable
from airflow_lake_provider.conflict.contention import WriteIntent, partitions_of
from airflow_lake_provider.hudi.marker_scan import FileGroupFilter
from airflow_lake_provider.storage.table_storage import Storage, open_storage
from airflow_lake_provider.timeline_server.views import FileSystemTimelineView
from local_stack.hudi_bundle import JAR, SPARK_PYTHON
from tests.support.fixture_tables import unpack

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / ".work"
OLDER, YOUNGER = "20991231000000001", "20991231000000002"
MARKER_FILES = 20
RFC_MARKERS = 1_500
SIZES = (RFC_MARKERS, 15_000, 150_000)
PARTITIONS = 1_000
JVM_WARM_UP_S = 20

JVM_SIDE = """
import json, sys, time
from pyspark.sql import SparkSession
jar, path, instant, runs, warm_s = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
builder = SparkSession.builder.master("local[1]").config("spark.jars", jar).config("spark.ui.enabled", "false")
spark = builder.config("spark.log.level", "OFF").config("spark.driver.memory", "2g").getOrCreate()
jvm = spark._jvm
hudi = jvm.org.apache.hudi
conf = hudi.storage.hadoop.HadoopStorageConfiguration(spark._jsc.hadoopConfiguration())
base, folder = hudi.storage.StoragePath(path), path + "/.hoodie/.temp/" + instant
storage = hudi.storage.hadoop.HoodieHadoopStorage(base, conf)
service = getattr(hudi.timeline.service.TimelineService, "Config")()
registry = hudi.common.metrics.Registry.getRegistry("bench")
handler = hudi.timeline.service.handlers.MarkerHandler(conf, service, None, registry)
def check():
    flag = jvm.java.util.concurrent.atomic.AtomicBoolean(False)
    checker = hudi.timeline.service.handlers.marker.MarkerBasedEarlyConflictDetectionRunnable(
        flag, handler, folder, path, storage, 10**10, jvm.java.util.HashSet(), False)
    began = time.perf_counter()
    checker.run()
    return (time.perf_counter() - began) * 1000, flag.get()
first, ends = [], time.perf_counter() + warm_s
while time.perf_counter() < ends or len(first) < 5:
    first.append(check()[0])
times = [check() for _ in range(runs)]
own = handler.getAllMarkers(folder).size()
print("RESULT " + json.dumps({"first_ms": first, "times_ms": [t for t, _ in times], "own": own,
                              "conflict": any(c for _, c in times)}))
sys.stdout.flush()
import os
os._exit(0)
"""


def plant_writers(table: Path, markers: int, *, direct_partitions: int = 0) -> None:
    """Put two live writers in flight, each with as many markers."""
    meta = table / ".hoodie"
    for seed, instant in enumerate((OLDER, YOUNGER)):
        (meta / "timeline" / f"{instant}.deltacommit.requested").touch()
        (meta / "timeline" / f"{instant}.deltacommit.inflight").touch()
        (meta / ".heartbeat").mkdir(exist_ok=True)
        (meta / ".heartbeat" / instant).touch()
        folder = meta / ".temp" / instant
        folder.mkdir(parents=True)
        draw = random.Random(seed)
        names = [_marker(draw, instant, n, direct_partitions or 50) for n in range(markers)]
        if direct_partitions:
            _plant_direct(folder, names)
        else:
            _plant_files(folder, names)
    # What changed within the last two seconds is always listed; these writers began a minute ago.
    for path in (meta / "timeline", *(meta / ".temp").glob("**/")):
        os.utime(path, (time.time() - 60, time.time() - 60))


def _marker(draw: random.Random, instant: str, n: int, partitions: int) -> str:
    file_id = f"{uuid.UUID(int=draw.getrandbits(128))}-0"
    return f"day=2026-{n % partitions:04d}/{file_id}_{n}-23-{1000 + n}_{instant}.parquet.marker.MERGE"


def _plant_files(folder: Path, names: list[str]) -> None:
    (folder / "MARKERS.type").write_text("TIMELINE_SERVER_BASED", encoding="utf-8")
    for index in range(MARKER_FILES):
        text = "".join(f"{name}\n" for name in names[index::MARKER_FILES])
        (folder / f"MARKERS{index}").write_text(text, encoding="utf-8")


def _plant_direct(folder: Path, names: list[str]) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.touch()


def open_table(path: Path) -> tuple[ConflictTable, Storage]:
    storage = open_storage(str(path))
    view = FileSystemTimelineView(str(path), lambda _: storage)
    return ConflictTable(storage, view.snapshot), storage


def measure_ours(path: Path, runs: int, markers: int, *, is_direct: bool = False) -> dict[str, float]:
    """Return the times of a first check and of the next one, and how often each asked the file system."""
    first, again = [], []
    intent = claim_of_younger(path)
    if len(intent.file_groups) != markers:
        raise RuntimeError(f"read {len(intent.file_groups)} markers of {markers}")
    partitions = partitions_of(intent.file_groups) if is_direct else None
    began = time.perf_counter()
    FileGroupFilter.of(intent.file_groups)
    own_filter_ms = (time.perf_counter() - began) * 1000
    # Hudi's JVM collects its garbage between two checks as well.
    gc.disable()
    for _ in range(runs):
        gc.collect()
        began = time.perf_counter()
        table, storage = open_table(path)
        check(table, intent, partitions)
        first.append((time.perf_counter() - began) * 1000)
        first_calls = calls_of(storage)
        for _ in range(5):
            before = calls_of(storage)
            began = time.perf_counter()
            check(table, intent, partitions)
            again.append((time.perf_counter() - began) * 1000)
        recheck_calls = calls_of(storage) - before
    gc.enable()
    return {
        "first_ms": round(statistics.median(first), 3),
        "recheck_ms": round(statistics.median(again), 3),
        "own_filter_ms": round(own_filter_ms, 3),
        "first_calls": first_calls,
        "recheck_calls": recheck_calls,
    }


def measure_floor(path: Path, runs: int) -> float:
    """Return what it takes to list the older writer's marker files and read them, and nothing else."""
    times = []
    for _ in range(runs):
        began = time.perf_counter()
        with os.scandir(path / ".hoodie" / ".temp" / OLDER) as entries:
            for entry in entries:
                Path(entry.path).read_bytes()
        times.append((time.perf_counter() - began) * 1000)
    return round(statistics.median(times), 3)


def measure_plain(path: Path, runs: int) -> float:
    """Return what it takes to read the older writer's marker files and to put their lines into a set."""
    times = []
    gc.disable()
    for _ in range(runs):
        gc.collect()
        began = time.perf_counter()
        lines: set[bytes] = set()
        for file in (path / ".hoodie" / ".temp" / OLDER).glob("MARKERS[0-9]*"):
            lines.update(file.read_bytes().splitlines())
        times.append((time.perf_counter() - began) * 1000)
    gc.enable()
    return round(statistics.median(times), 3)


def calls_of(storage: Storage) -> int:
    return storage.calls.lists + storage.calls.opens + storage.calls.stats


def claim_of_younger(path: Path) -> WriteIntent:
    activity = open_table(path)[0].read_activity(int(time.time() * 1000))
    (own,) = (active for active in activity.actives if active.instant == YOUNGER)
    return WriteIntent(YOUNGER, own.markers.file_groups(), since=YOUNGER)


def check(table: ConflictTable, intent: WriteIntent, partitions: frozenset[str] | None = None) -> None:
    """Check the younger writer's markers against the older one's; they are disjoint."""
    verdict = table.check(intent, int(time.time() * 1000), partitions)
    if not verdict.is_free:
        raise RuntimeError(f"disjoint file groups, and yet {verdict}")


def measure_hudi(path: Path, runs: int, markers: int) -> tuple[float, float]:
    """Return what Hudi's own checker takes on a warm JVM, and at its first pass."""
    command = [str(SPARK_PYTHON), "-c", JVM_SIDE, str(JAR), str(path), YOUNGER, str(runs), str(JVM_WARM_UP_S)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    line = next((line for line in result.stdout.splitlines() if line.startswith("RESULT ")), None)
    if line is None:
        raise RuntimeError(f"the JVM side failed:\n{result.stdout[-2000:]}\n{result.stderr[-3000:]}")
    answer = json.loads(line.removeprefix("RESULT "))
    if answer["own"] != markers or answer["conflict"]:
        raise RuntimeError(f"Hudi saw something else: {answer}")
    warm_up = ", ".join(f"{ms:.0f}" for ms in answer["first_ms"][::50])
    say(f"  Hudi while it warms up ({len(answer['first_ms'])} checks, each 50th): {warm_up} ms")
    return round(statistics.median(answer["times_ms"]), 3), round(answer["first_ms"][0], 3)


def say(text: str) -> None:
    print(text, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--without-hudi", action="store_true", help="leave Hudi's own checker out")
    options = parser.parse_args()
    runs = options.runs
    WORK.mkdir(exist_ok=True)
    result: dict[str, Any] = {"growth": {}}
    with tempfile.TemporaryDirectory(prefix="bench-conflict-", dir=WORK) as folder:
        for markers in SIZES:
            table = unpack("mor_v9", Path(folder) / str(markers)).path
            plant_writers(table, markers)
            ours, floor_ms = measure_ours(table, runs, markers), measure_floor(table, runs)
            say(f"{markers} markers per writer in MARKERS0-19: {ours}; reading alone {floor_ms} ms")
            result["growth"][markers] = {"first_ms": ours["first_ms"], "floor_ms": floor_ms}
            if markers == RFC_MARKERS:
                result |= {"first_ms": ours["first_ms"], "recheck_ms": ours["recheck_ms"], "floor_ms": floor_ms}
                result |= {"first_calls": ours["first_calls"], "recheck_calls": ours["recheck_calls"]}
            if markers == RFC_MARKERS and not options.without_hudi:
                result["hudi_ms"], result["hudi_first_ms"] = measure_hudi(table, 50, markers)
                say(f"  Hudi's own checker: {result['hudi_ms']} ms; its first pass {result['hudi_first_ms']} ms")
        result |= {"first_150k_ms": ours["first_ms"], "recheck_150k_ms": ours["recheck_ms"], "floor_150k_ms": floor_ms}
        result["own_filter_150k_ms"] = ours["own_filter_ms"]
        result["plain_150k_ms"] = measure_plain(table, runs)
        direct = unpack("mor_v9", Path(folder) / "direct").path
        plant_writers(direct, RFC_MARKERS, direct_partitions=PARTITIONS)
        ours = measure_ours(direct, runs, RFC_MARKERS, is_direct=True)
        say(f"{RFC_MARKERS} direct markers per writer in {PARTITIONS} partitions: {ours}")
        result |= {"first_direct_ms": ours["first_ms"], "recheck_direct_ms": ours["recheck_ms"]}
    say(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
