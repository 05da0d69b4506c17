"""How many seconds of Spark work does a conflict of writers throw away? With Hudi's two checks, and with the guard.

On real Hudi, in one Spark session: `--writers` upserts of one city's orders begin one after another on a table of
`--keys` orders, the next as soon as the one before has its instant. Hudi lets one commit; what the others had worked
from their start until they failed is lost. `at_commit` is Hudi's check at the commit alone, `early` with Hudi's own
early conflict detection (direct markers, each one checked as it is made), `guard` the writer guard, which checks each
`--period` seconds and cancels the writer's Spark jobs, and `reserved` the guard's reservation of the city: a writer
begins its Spark work when it has it. A write announces its file groups when it has read its source and searched its
index, so that no check of file groups saves anything of that part; a reservation does.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / ".work"
sys.path[:0] = [str(ROOT), str(ROOT / "spark_jobs")]

from airflow_lake_provider.conflict.activity import ConflictTable  # noqa: E402
from airflow_lake_provider.conflict.guard import GuardWatch, Outlook  # noqa: E402
from airflow_lake_provider.conflict.guard_register import PartitionReservation  # noqa: E402
from airflow_lake_provider.storage.table_storage import open_storage  # noqa: E402
from airflow_lake_provider.timeline_server.snapshot import Depth, refresh  # noqa: E402
from local_stack import hudi_bundle, lake_writer  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_lake_provider.timeline_server.snapshot import TimelineSnapshot

DIRECT = {"hoodie.write.markers.type": "DIRECT", "hoodie.embed.timeline.server": "false"}
EARLY = {
    "hoodie.write.concurrency.early.conflict.detection.enable": "true",
    "hoodie.write.concurrency.early.conflict.check.commit.conflict": "true",
}
MODES = {"at_commit": DIRECT, "early": DIRECT | EARLY, "guard": DIRECT, "reserved": DIRECT}
CITY = "Bilbao"
PATIENCE_S = 300.0


@dataclass
class Write:
    """One upsert, and what became of it."""

    group: str
    instant: str = ""
    took_s: float = 0.0
    has_committed: bool = False
    was_ended: bool = False
    is_reserved: bool = False
    thread: threading.Thread | None = None


def run_write(spark: SparkSession, table: lake_writer.WrittenTable, write: Write, options: dict[str, str]) -> None:
    """Upsert one city's orders in a job group of its own."""
    reservation = reserve(table.base_path) if write.is_reserved else None
    spark.sparkContext.setJobGroup(write.group, "", interruptOnCancel=True)
    began_s = time.monotonic()
    orders = lake_writer.orders_of_commit(spark, table, table.commits)
    orders = orders.where(f"city = '{CITY}' and id < {table.keys}")
    settings = lake_writer.write_options(table, table.commits, None, options)
    try:
        orders.write.format("hudi").options(**settings).mode("append").save(table.base_path)
        write.has_committed = True
    except Exception as error:
        if not write.was_ended and "Conflict" not in str(error):
            print(f"  a writer failed otherwise: {str(error)[:300]}", file=sys.stderr, flush=True)
            raise
    finally:
        write.took_s = time.monotonic() - began_s
        if reservation is not None:
            reservation.release()


def reserve(base_path: str) -> PartitionReservation:
    """Wait until no other writer holds the city."""
    storage = open_storage(base_path)
    table = ConflictTable(storage, lambda: refresh(storage, None, Depth.LIST, now_ms()).snapshot)
    reservation = PartitionReservation(storage, table, [CITY])
    while reservation.take(now_ms()):
        time.sleep(0.5)
    return reservation


def guard_write(spark: SparkSession, base_path: str, write: Write, period_s: float) -> int:
    """Check a write until it is over, and cancel it when it has lost; return how many storage calls that took."""
    storage = open_storage(base_path)

    def read() -> TimelineSnapshot:
        return refresh(storage, None, Depth.LIST, now_ms()).snapshot

    watch = GuardWatch(ConflictTable(storage, read), read, lambda _: write.instant, 120.0)
    assert write.thread is not None
    while write.thread.is_alive():
        if write.was_ended or watch.check(now_ms()).outlook is Outlook.LOSES:
            write.was_ended = True
            spark.sparkContext.cancelJobGroup(write.group)
        write.thread.join(period_s)
    return storage.calls.lists + storage.calls.opens + storage.calls.stats


def run_trial(spark: SparkSession, table: lake_writer.WrittenTable, mode: str, args: argparse.Namespace) -> list[Write]:
    """Let writers meet on a table; return them."""
    from pyspark import InheritableThread

    writes = []
    guards = []
    for number in range(args.writers):
        write, before = Write(f"{mode}-{number}-{time.monotonic_ns()}"), find_instants(table)
        write.is_reserved = mode == "reserved"
        write.thread = InheritableThread(target=run_write, args=(spark, table, write, MODES[mode]))
        write.thread.start()
        deadline_s = time.monotonic() + PATIENCE_S
        while not (new := find_instants(table) - before):
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{mode}: writer {number} has no instant")
            time.sleep(0.02)
        (write.instant,) = new
        writes.append(write)
        if mode == "guard":
            guards.append(InheritableThread(target=guard_write, args=(spark, table.base_path, write, args.period)))
            guards[-1].start()
    for thread in (*(write.thread for write in writes), *guards):
        if thread is not None:
            thread.join()
    return writes


def find_instants(table: lake_writer.WrittenTable) -> set[str]:
    return {path.name.split(".")[0] for path in Path(table.base_path).glob(".hoodie/timeline/*commit.requested")}


def now_ms() -> int:
    return int(time.time() * 1000)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Run all trials, the modes in turn; return the sums."""
    spark = lake_writer.open_session(
        {"spark.master": "local[2]", "spark.driver.memory": "3g", "spark.jars": str(hudi_bundle.JAR)}
    )
    lost_s = dict.fromkeys(MODES, 0.0)
    committed = dict.fromkeys(MODES, 0)
    ended = 0
    with tempfile.TemporaryDirectory(prefix="bench-guard-", dir=WORK) as name:
        template = lake_writer.WrittenTable("orders", f"{name}/orders", "COW", commits=2, keys=args.keys, rows=80)
        for commit in (0, 1):
            lake_writer.write_commit(spark, template, commit, lake_writer.write_options(template, commit, None, {}))
        for trial in range(-1, args.trials):  # the first one warms up, and is not counted
            for mode in MODES:
                folder = Path(name) / f"{mode}-{trial}"
                shutil.copytree(template.base_path, folder)
                writes = run_trial(spark, replace(template, base_path=str(folder)), mode, args)
                shutil.rmtree(folder, ignore_errors=True)
                lost = [round(write.took_s, 1) for write in writes if not write.has_committed]
                print(f"trial {trial}: {mode} lost {lost} s", flush=True)
                if trial >= 0:
                    lost_s[mode] += sum(write.took_s for write in writes if not write.has_committed)
                    committed[mode] += sum(write.has_committed for write in writes)
                    ended += sum(write.was_ended and not write.has_committed for write in writes)
    spark.stop()
    better_s = min(lost_s["at_commit"], lost_s["early"])
    return {
        "trials": args.trials,
        "writers": args.writers,
        "keys": args.keys,
        "period_s": args.period,
        **{f"{mode}_lost_s": round(seconds, 2) for mode, seconds in lost_s.items()},
        **{f"{mode}_committed": count for mode, count in committed.items()},
        "guard_ended": ended,
        "better_lost_s": round(better_s, 2),
        "share": round(lost_s["guard"] / better_s, 3) if better_s else None,
        "reserved_share": round(lost_s["reserved"] / better_s, 3) if better_s else None,
    }


def main() -> int:
    """Print the result; with Spark's Python when this one has none."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=4)
    parser.add_argument("--writers", type=int, default=3)
    parser.add_argument("--keys", type=int, default=400_000)
    parser.add_argument("--period", type=float, default=0.5)
    parser.add_argument("--with-spark", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.with_spark:
        print(json.dumps(measure(args)))
        return 0
    command = [str(hudi_bundle.SPARK_PYTHON), "-m", "benchmarks.guard", "--with-spark", *sys.argv[1:]]
    # Hudi reports each rejected write with its whole stack.
    with (
        (WORK / "bench-guard.log").open("wb") as log,
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True) as spark,
    ):
        for line in spark.stdout or ():
            print(line, end="", flush=True)
    if spark.returncode:
        print("see .work/bench-guard.log")
    return spark.returncode


if __name__ == "__main__":
    sys.exit(main())
