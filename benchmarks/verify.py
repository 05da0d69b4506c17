"""What does it cost that services compare rows before they commit? `make bench NAME=verify`.

A merge-on-read table of `--groups` file groups with `--rows` rows each, a fifth of them updated twice, is copied for
each run; the job compacts, log-compacts and clusters the copies in one warm Spark session, with `verify` off, sample
and all in turn, `--runs` times each.

`cpu_s` and `seconds` are medians over the runs, of the driver's processor time (all tasks run in it) and of wall time;
`sample_share` and `all_share` are how much more processor time the mean run takes than one without a comparison.
`compared` is how many parts each run compared.

With `--sizes N` it compacts tables of eight sizes instead, `N` times each, with `verify: sample`, and takes the time
of the comparison within the same run: one after another, two runs differ by more than a sample costs. `--long N` does
so with a table whose compaction takes more than a minute. Of each size every run but the first is of a table that has
been served before, so that it has only what its runs have saved for comparisons. `cpu` is processor time and `wall` the
clock's; their shares are those of the comparison next to all else of the mean run. By `size`, `own` is the median of
what a run takes without the comparison, and `shares` are those of the single runs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.job_contract import VERIFY, JobRequest, Mode, Outcome, Service, ServiceRequest, Verify
from local_stack import hudi_bundle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

ROOT = Path(__file__).resolve().parent.parent
PLANNED = {
    "hoodie.clustering.plan.strategy.small.file.limit": "1000000000",
    "hoodie.clustering.plan.strategy.max.num.groups": "100",
    "hoodie.log.compaction.blocks.threshold": "1",
}
SIZES = ((1, 10_000), (4, 10_000), (16, 10_000), (1, 100_000), (4, 50_000), (8, 50_000), (1, 400_000), (2, 400_000))
"""File groups of a table, and rows of each, from what is always compared whole to what is so now and then."""
LONG_SIZES = ((4, 600_000),)
"""The same of tables whose compaction takes more than a minute on two cores."""
SAVED = ".hoodie/.aux/lake_verify.json"
_COMPARED = re.compile(r"compared (\w+) of \d+ rewritten parts")


def main() -> int:
    """Start Spark's Python, and print its line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=6, help="file groups, each in a partition of its own")
    parser.add_argument("--rows", type=int, default=200_000, help="rows of a file group")
    parser.add_argument("--columns", type=int, default=0, help="columns of 64 letters besides, for wide rows")
    parser.add_argument("--runs", type=int, default=5, help="runs of each service with each value of verify")
    parser.add_argument("--sizes", type=int, default=0, help="runs of each of eight sizes, with a sample only")
    parser.add_argument("--long", type=int, default=0, help="runs of a large size, with a sample only")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        if options.sizes or options.long:
            sizes = LONG_SIZES if options.long else SIZES
            print(json.dumps(run_sizes(sizes, options.columns, options.sizes or options.long)))
        else:
            print(json.dumps(run_all(options.groups, options.rows, options.columns, options.runs)))
        return 0
    sizes = [f"--{name}={getattr(options, name)}" for name in ("groups", "rows", "columns", "runs", "sizes", "long")]
    command = [str(hudi_bundle.SPARK_PYTHON), "-m", "benchmarks.verify", "--inside", *sizes]
    return subprocess.run(command, cwd=ROOT, env=hudi_bundle.spark_env(), check=False).returncode


def run_all(groups: int, rows: int, columns: int, runs: int) -> dict[str, Any]:
    """Run everything in one Spark session; return the closing figures."""
    with open_session() as (spark, folder):
        source = folder / "orders"
        write_table(spark, source, groups, rows, columns)
        size_bytes = sum(file.stat().st_size for file in source.glob("p*/*"))
        found: dict[tuple[Service, Verify], list[tuple[float, float, str]]] = {}
        for number in range(runs + 1):
            for service in (Service.COMPACTION, Service.LOGCOMPACTION, Service.CLUSTERING):
                for verify in Verify:
                    copy = folder / "copy"
                    shutil.copytree(source, copy)
                    measured = run_one(spark, copy, service, verify)
                    shutil.rmtree(copy)
                    print(service, verify, *measured, file=sys.stderr, flush=True)
                    if number:  # the first of each is to warm up
                        found.setdefault((service, verify), []).append(measured)
    return {"groups": groups, "rows": groups * rows, "columns": columns, "bytes": size_bytes, **summarise(found)}


@dataclass(frozen=True, slots=True)
class Cost:
    """What a run took without its comparison, and the comparison itself: processor time, and the clock's."""

    own_cpu_s: float
    own_wall_s: float
    cpu_s: float
    wall_s: float
    compared: str


def run_sizes(sizes: Sequence[tuple[int, int]], columns: int, runs: int) -> dict[str, Any]:
    """Compact tables of different sizes with the default sample; return what the comparison costs in the mean."""
    found: dict[str, list[Cost]] = {}
    with open_session() as (spark, folder), comparison_timed(spark) as times:
        for groups, rows in sizes:
            write_table(spark, folder / f"{groups}-{rows}", groups, rows, columns)
        for number in range(runs + 1):
            for groups, rows in sizes:
                copy = folder / "copy"
                shutil.copytree(folder / f"{groups}-{rows}", copy)
                times.clear()
                wall_s, used_s, compared = run_one(spark, copy, Service.COMPACTION, Verify.SAMPLE)
                (folder / f"{groups}-{rows}" / SAVED).write_bytes((copy / SAVED).read_bytes())
                shutil.rmtree(copy)
                of_wall_s, of_cpu_s = sum(wall for wall, _ in times), sum(cpu for _, cpu in times)
                cost = Cost(used_s - of_cpu_s, wall_s - of_wall_s, of_cpu_s, of_wall_s, compared)
                print(f"{groups} x {rows}", cost, file=sys.stderr, flush=True)
                if number:  # the first of each is to warm up
                    found.setdefault(f"{groups} x {rows}", []).append(cost)
    every = [cost for costs in found.values() for cost in costs]
    return {
        "runs": len(every),
        "columns": columns,
        "cpu_share": round(sum(cost.cpu_s for cost in every) / sum(cost.own_cpu_s for cost in every), 3),
        "wall_share": round(sum(cost.wall_s for cost in every) / sum(cost.own_wall_s for cost in every), 3),
        "size": {size: summarise_costs(costs) for size, costs in found.items()},
    }


def summarise_costs(costs: Sequence[Cost]) -> dict[str, Any]:
    """Return the figures of the runs of one size."""
    return {
        "own_cpu_s": round(median(cost.own_cpu_s for cost in costs), 1),
        "own_wall_s": round(median(cost.own_wall_s for cost in costs), 1),
        "cpu_shares": [round(cost.cpu_s / cost.own_cpu_s, 3) for cost in costs],
        "wall_shares": [round(cost.wall_s / cost.own_wall_s, 3) for cost in costs],
        "compared": [int(cost.compared) for cost in costs],
    }


@contextmanager
def open_session() -> Iterator[tuple[Any, Path]]:
    """Yield a Spark session, and a folder that is gone afterwards."""
    sys.path.insert(0, str(ROOT / "spark_jobs"))
    from tests.support.spark_session import open_test_session

    folder = Path(tempfile.mkdtemp(prefix="lake-verify-"))
    spark = open_test_session(folder / "session", {"spark.driver.memory": "4g"})
    try:
        yield spark, folder
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def comparison_timed(spark: Any) -> Iterator[list[tuple[float, float]]]:
    """Yield a list that gets the wall and processor time of each part of a comparison."""
    from lake_jobs.verify import execution

    times: list[tuple[float, float]] = []

    def timed(part: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            began_s, began_cpu_s = time.monotonic(), cpu_s(spark)
            try:
                return part(*arguments)
            finally:
                times.append((time.monotonic() - began_s, cpu_s(spark) - began_cpu_s))

        return run

    parts: Any = execution
    check, compare = parts.check_inputs, parts.compare
    parts.check_inputs, parts.compare = timed(check), timed(compare)
    try:
        yield times
    finally:
        parts.check_inputs, parts.compare = check, compare


def write_table(spark: Any, path: Path, groups: int, rows: int, columns: int) -> None:
    """Write the table: one base file for each file group, and two log files."""
    settings = {
        "hoodie.table.name": "orders",
        "hoodie.datasource.write.table.type": "MERGE_ON_READ",
        "hoodie.datasource.write.recordkey.field": "id",
        "hoodie.datasource.write.partitionpath.field": "city",
        "hoodie.datasource.write.precombine.field": "ts",
        "hoodie.table.services.enabled": "false",
        "hoodie.compact.inline": "false",
        "hoodie.upsert.shuffle.parallelism": "2",
        "hoodie.bulkinsert.shuffle.parallelism": str(groups),
    }
    for commit in range(3):
        count = groups * rows if commit == 0 else groups * rows // 5
        orders = spark.range(0, count, 1, 4).selectExpr(
            "id",
            f"concat('p', id % {groups}) city",
            f"cast(hash(id, {commit}) as double) amount",
            "sha2(string(id), 256) note",
            f"sha2(string(id + {commit}), 256) other",
            f"{commit}L ts",
            *(f"sha2(string(id + {at}), 256) wide_{at}" for at in range(columns)),
        )
        if commit == 0:
            orders = orders.repartition(groups, "city")
        operation = {"hoodie.datasource.write.operation": "upsert" if commit else "bulk_insert"}
        orders.write.format("hudi").options(**settings, **operation).mode("append").save(str(path))


def run_one(spark: Any, table: Path, service: Service, verify: Verify) -> tuple[float, float, str]:
    """Run a service; return seconds of wall time and of processor time, and how many parts were compared."""
    from importlib import import_module

    from local_stack.lake_writer import MANAGED_LAKE

    lock = {key: value for key, value in MANAGED_LAKE.items() if key.startswith("hoodie.write.lock.")}
    wanted = ServiceRequest(service, Mode.SCHEDULE_AND_EXECUTE, (), {VERIFY: verify.value, **PLANNED})
    request = JobRequest(f"orders.{service}/{time.monotonic_ns()}", str(table), "orders", (wanted,), "", lock)
    began_cpu_s, began_s = cpu_s(spark), time.monotonic()
    (result,) = import_module("run_services").run_job(spark, request).services
    seconds, used_s = time.monotonic() - began_s, cpu_s(spark) - began_cpu_s
    assert result.outcome is Outcome.COMPLETED, result.message
    found = _COMPARED.search(result.message)
    return seconds, used_s, found[1].replace("none", "0") if found else "0"


def cpu_s(spark: Any) -> float:
    """Return the processor time of Spark's JVM and of this process so far."""
    beans = spark._jvm.java.lang.management.ManagementFactory
    pid = int(beans.getRuntimeMXBean().getName().split("@")[0])
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") + sum(os.times()[:2])


def summarise(found: dict[tuple[Service, Verify], list[tuple[float, float, str]]]) -> dict[str, Any]:
    """Return the figures by service."""
    figures: dict[str, Any] = {}
    for service in dict.fromkeys(service for service, _ in found):
        without = mean(used for _, used, _ in found[service, Verify.OFF])
        mine: dict[str, Any] = {}
        for verify in Verify:
            runs = found[service, verify]
            mine[verify.value] = {
                "seconds": round(median(seconds for seconds, _, _ in runs), 2),
                "cpu_s": round(median(used for _, used, _ in runs), 2),
                "compared": [int(compared) for _, _, compared in runs],
            }
            if verify is not Verify.OFF:
                mine[f"{verify.value}_share"] = round(mean(used for _, used, _ in runs) / without - 1, 3)
        figures[service.value] = mine
    return figures


if __name__ == "__main__":
    sys.exit(main())
