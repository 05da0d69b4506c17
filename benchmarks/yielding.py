"""How often does an upsert lose that begins while a clustering of its file groups runs? With and without our watch.

On real Hudi, in one Spark session: a clustering plans and runs, and once its plan is on the timeline an upsert of one
city begins, whose source takes `source_s` to read. Hudi decides whether it commits. `lost` counts upserts that Hudi
refused, of `--trials` for each source; `hudi` is the clustering alone, `ours` the one that gives way.
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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / ".work"
sys.path[:0] = [str(ROOT), str(ROOT / "spark_jobs")]

from airflow_lake_provider.job_contract import (  # noqa: E402
    WRITERS_FIRST,
    JobRequest,
    Mode,
    Outcome,
    Service,
    ServiceRequest,
)
from local_stack import hudi_bundle, lake_writer  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOURCES_S = (0.0, 2.0, 5.0, 10.0)
LOCK = {key: value for key, value in lake_writer.MANAGED_LAKE.items() if key.startswith("hoodie.write.lock.")}


def upsert(spark: SparkSession, table: lake_writer.WrittenTable, source_s: float) -> bool:
    """Update one city's orders from a source that takes so long; return whether Hudi let it commit."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import LongType

    def read_slowly(key: int) -> int:
        time.sleep(source_s)
        return key

    slow = F.udf(read_slowly, LongType()).asNondeterministic()
    orders = lake_writer.orders_of_commit(spark, table, table.commits).where("city = 'Bilbao'").limit(1).coalesce(1)
    orders = orders.withColumn("customer", slow(F.col("customer")))
    settings = lake_writer.write_options(table, table.commits, None, {})
    try:
        orders.write.format("hudi").options(**settings).mode("append").save(table.base_path)
    except Exception as error:
        if "ClusteringUpdateException" not in str(error) and "WriteConflictException" not in str(error):
            raise
        return False
    return True


def cluster(spark: SparkSession, table: lake_writer.WrittenTable, *, gives_way: bool) -> bool:
    """Plan and execute a clustering; return whether it completed."""
    import run_services

    options = {WRITERS_FIRST: "true"} if gives_way else {}
    request = ServiceRequest(Service.CLUSTERING, Mode.SCHEDULE_AND_EXECUTE, (), options)
    job = JobRequest("yielding", table.base_path, table.name, (request,), f"{table.base_path}.result", LOCK)
    return bool(run_services.run_job(spark, job).services[0].outcome is Outcome.COMPLETED)


def run_trial(
    spark: SparkSession, template: lake_writer.WrittenTable, folder: Path, source_s: float, *, gives_way: bool
) -> tuple[bool, bool]:
    """Return whether the upsert and the clustering came through."""
    shutil.copytree(template.base_path, folder)
    table = replace(template, base_path=str(folder))
    with ThreadPoolExecutor(1) as pool:
        clustering = pool.submit(cluster, spark, table, gives_way=gives_way)
        while not list(folder.glob(".hoodie/timeline/*.clustering.requested")) and not clustering.done():
            time.sleep(0.01)
        time.sleep(random.uniform(0, 1))
        has_committed = upsert(spark, table, source_s)
        has_clustered = clustering.result()
    shutil.rmtree(folder)
    return has_committed, has_clustered


def measure(trials: int, keys: int) -> dict[str, Any]:
    """Run all trials; return the counts."""
    spark = lake_writer.open_session(
        {"spark.master": "local[2]", "spark.driver.memory": "3g", "spark.jars": str(hudi_bundle.JAR)}
    )
    result: dict[str, Any] = {"trials": trials, "keys": keys}
    with tempfile.TemporaryDirectory(prefix="bench-yielding-", dir=WORK) as name:
        template = lake_writer.WrittenTable("orders", f"{name}/orders", "COW", commits=2, keys=keys, rows=80)
        for commit in (0, 1):
            lake_writer.write_commit(spark, template, commit, lake_writer.write_options(template, commit, None, {}))
        for gives_way in (False, True):
            for source_s in SOURCES_S:
                key = f"{'ours' if gives_way else 'hudi'}_{source_s:g}_s"
                # A folder of its own for each: the heartbeat of a refused upsert may come once more.
                ends = [
                    run_trial(spark, template, Path(name) / f"{key}-{n}", source_s, gives_way=gives_way)
                    for n in range(trials)
                ]
                result[key] = {
                    "lost": sum(not committed for committed, _ in ends),
                    "clustered": sum(clustered for _, clustered in ends),
                }
                print(key, result[key], file=sys.stderr, flush=True)
    spark.stop()
    return result


def main() -> int:
    """Print the result; with Spark's Python when this one has none."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=4)
    parser.add_argument("--keys", type=int, default=400_000)
    parser.add_argument("--with-spark", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.with_spark:
        print(json.dumps(measure(args.trials, args.keys)))
        return 0
    command = [str(hudi_bundle.SPARK_PYTHON), "-m", "benchmarks.yielding", "--with-spark", *sys.argv[1:]]
    with (WORK / "bench-yielding.log").open("wb") as log:
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, check=False)
    sys.stdout.buffer.write(done.stdout.splitlines()[-1] + b"\n" if done.stdout else b"see .work/bench-yielding.log\n")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
