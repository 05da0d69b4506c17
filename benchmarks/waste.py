"""How many Spark seconds does a contended workload throw away? With Hudi's check at the commit alone, and with ours.

Writers and clusterings of four cities' orders arrive at random, more than the table bears at once, in one Spark
session on real Hudi. A writer that is rejected at its commit begins again, and its work until then is thrown away.

`at_commit_s` is that sum when all begin at once; `ours_s` when each writer passes the pre-flight check of
`HudiConflictSensor` and each clustering asks for admission, as services do. Both with the same arrivals. In
parentheses the report says how long the whole took: waiting costs time, but no Spark seconds.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / ".work"
sys.path[:0] = [str(ROOT), str(ROOT / "spark_jobs")]

from airflow_lake_provider import job_contract  # noqa: E402
from airflow_lake_provider.config.service_policies import ConflictPolicy  # noqa: E402
from airflow_lake_provider.conflict.activity import ConflictTable  # noqa: E402
from airflow_lake_provider.conflict.admission import (  # noqa: E402
    AdmissionVerdict,
    ask_admission,
)
from airflow_lake_provider.conflict.guard_register import find_obstacles  # noqa: E402
from airflow_lake_provider.hudi.commit_metadata import load_commit_metadata  # noqa: E402
from airflow_lake_provider.storage.table_storage import open_storage  # noqa: E402
from airflow_lake_provider.timeline_server.snapshot import Depth, refresh  # noqa: E402
from local_stack import hudi_bundle, lake_writer  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPAN_S = 20.0
ATTEMPTS = 20
CLUSTERING_OPTIONS = {
    "hoodie.clustering.plan.strategy.small.file.limit": "100000000",
    "hoodie.clustering.updates.strategy": (
        "org.apache.hudi.client.clustering.update.strategy.SparkAllowUpdateStrategy"
    ),
}


@dataclass(frozen=True)
class Workload:
    """How much arrives within SPAN_S, and by which draw."""

    writers: int
    clusterings: int
    seed: int


@dataclass
class Tally:
    """What was thrown away, added up by all threads."""

    wasted_s: float = 0.0
    rejected: int = 0
    done: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, seconds: float, *, was_rejected: bool) -> None:
        with self.lock:
            self.wasted_s += seconds if was_rejected else 0.0
            self.rejected += was_rejected
            self.done += not was_rejected


def run_workload(spark: SparkSession, path: Path, workload: Workload, *, asks_first: bool) -> tuple[Tally, float]:
    """Play the workload on a new table; return the tally and how long it took."""
    table = lake_writer.WrittenTable("orders", str(path), "COW", commits=2, keys=400, rows=80)
    for commit in (0, 1):
        lake_writer.write_commit(spark, table, commit, lake_writer.write_options(table, commit, None, {}))
    draw, tally = random.Random(workload.seed), Tally()
    arrivals = [(draw.uniform(0, SPAN_S), draw.choice(lake_writer.CITIES)) for _ in range(workload.writers)]
    threads = [
        threading.Thread(target=write, args=(spark, table, city, after_s, tally, asks_first, workload.seed + n))
        for n, (after_s, city) in enumerate(arrivals)
    ]
    after_s = draw.uniform(0, SPAN_S)
    threads.append(
        threading.Thread(target=cluster, args=(spark, table, after_s, tally, asks_first, workload.clusterings))
    )
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return tally, time.monotonic() - began


def write(
    spark: SparkSession,
    table: lake_writer.WrittenTable,
    city: str,
    after_s: float,
    tally: Tally,
    asks_first: bool,
    seed: int,
) -> None:
    time.sleep(after_s)
    conflicts, draw = open_table(table), random.Random(seed)
    options = lake_writer.write_options(table, 2, None, {**CLUSTERING_OPTIONS})
    for _ in range(ATTEMPTS):
        while asks_first and find_obstacles(conflicts.read_activity(now_ms()), [city]):
            time.sleep(draw.uniform(0.2, 1.5))
        began = time.monotonic()
        try:
            orders = lake_writer.orders_of_commit(spark, table, 2).where(f"city = '{city}' and id < 400")
            orders.write.format("hudi").options(**options).mode("append").save(table.base_path)
        except Exception as error:  # noqa: BLE001 - distinguished below
            if "Conflict" not in str(error) and "ClusteringUpdate" not in str(error):
                print(f"  a writer failed otherwise: {str(error)[:300]}", flush=True)
            tally.add(time.monotonic() - began, was_rejected=True)
            continue
        tally.add(time.monotonic() - began, was_rejected=False)
        return


def cluster(
    spark: SparkSession,
    table: lake_writer.WrittenTable,
    after_s: float,
    tally: Tally,
    asks_first: bool,
    clusterings: int,
) -> None:
    import run_services

    time.sleep(after_s)
    conflicts = open_table(table)
    for _ in range(clusterings):
        options = dict(CLUSTERING_OPTIONS)
        while asks_first:
            admission = ask_admission(
                job_contract.Service.CLUSTERING, conflicts, commits_of(table), (), ConflictPolicy(), now_ms()
            )
            if admission.verdict is not AdmissionVerdict.WAIT:
                options |= admission.options
                break
            time.sleep(1.0)
        service = job_contract.ServiceRequest(
            job_contract.Service.CLUSTERING, job_contract.Mode.SCHEDULE_AND_EXECUTE, (), options
        )
        request = job_contract.JobRequest(
            "bench", table.base_path, table.name, (service,), f"{table.base_path}.result.json", lake_writer.MANAGED_LAKE
        )
        began = time.monotonic()
        result = run_services.run_job(spark, request).services[0]
        failed = result.outcome is job_contract.Outcome.FAILED
        tally.add(time.monotonic() - began, was_rejected=failed)
        time.sleep(2.0)


def open_table(table: lake_writer.WrittenTable) -> ConflictTable:
    storage = open_storage(table.base_path)
    return ConflictTable(storage, lambda: refresh(storage, None, Depth.LIST, now_ms()).snapshot)


def commits_of(table: lake_writer.WrittenTable) -> dict[str, Any]:
    storage = open_storage(table.base_path)
    snapshot = refresh(storage, None, Depth.LIST, now_ms()).snapshot
    return {
        instant.requested_time: load_commit_metadata(storage, snapshot.properties.timeline_path, instant)
        for instant in snapshot.timeline.completed_writes
    }


def now_ms() -> int:
    return int(time.time() * 1000)


def play(workload: Workload) -> int:
    """The side that has Spark: both workloads, on tables of their own, in one warm session."""
    spark = lake_writer.open_session({"spark.master": "local[4]", "spark.jars": str(hudi_bundle.JAR)})
    result: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="bench-waste-", dir=WORK) as folder:
        run_workload(spark, Path(folder) / "warm-up", Workload(1, 1, workload.seed), asks_first=False)
        for key, asks_first in (("at_commit_s", False), ("ours_s", True)):
            tally, took_s = run_workload(spark, Path(folder) / key, workload, asks_first=asks_first)
            result[key] = round(tally.wasted_s, 1)
            print(
                f"{key}: {tally.wasted_s:.1f} s thrown away by {tally.rejected} rejections, {tally.done} went through "
                f"(the whole took {took_s:.0f} s)",
                flush=True,
            )
    print(json.dumps(result), flush=True)
    spark.stop()
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--writers", type=int, default=10)
    parser.add_argument("--clusterings", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--with-spark", action="store_true", help="run here; without it in the environment of Spark")
    arguments = parser.parse_args()
    WORK.mkdir(exist_ok=True)
    if arguments.with_spark:
        return play(Workload(arguments.writers, arguments.clusterings, arguments.seed))
    command = [str(hudi_bundle.SPARK_PYTHON), "-m", "benchmarks.waste", "--with-spark", *sys.argv[1:]]
    with (WORK / "bench-waste.log").open("wb") as log:
        return subprocess.run(command, cwd=ROOT, stderr=log, check=False, timeout=1800).returncode


if __name__ == "__main__":
    sys.exit(main())
