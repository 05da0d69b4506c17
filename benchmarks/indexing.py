"""What does an index build cost the table's writers? Ours against a writer that builds inside its own commit.

A copy-on-write table of 1,000,000 rows gets a record index and column statistics, once by the index service next to a
writer that commits 100 rows again and again, once by the same writer, with the indexes in its settings (Hudi alone).

`build_s` is the job without the start of its Spark, plan and cheap check included; the builder is a process of its own
with a lower priority, as writer and builder share the machine. `writer_stall_s` is by how much the longest commit
during the build exceeds the median commit before it; `sync_stall_s` the same of the commit that builds. `recover_s`
is the run after a builder was killed (-9) half way, its heartbeat expired; Hudi alone never recovers. A look-up is a
query for one key, median of five, without and with the record index.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "spark_jobs"), str(ROOT)]

from local_stack.hudi_bundle import JAR, SPARK_PYTHON  # noqa: E402

WORK = ROOT / ".work"
ROWS = 1_000_000
STREAMING_OFF = {"hoodie.metadata.streaming.write.enabled": "false"}
IN_THE_WRITER = {
    "hoodie.metadata.index.column.stats.enable": "true",
    "hoodie.metadata.global.record.level.index.enable": "true",
}
INDEXES = ("column_stats", "record_index")


class Lake:
    """One Spark session with the benchmark's table, and copies of it."""

    def __init__(self, folder: Path, rows: int) -> None:
        from local_stack import lake_writer

        self.writer = lake_writer
        self.jobs = importlib.import_module("run_services")
        self.folder = folder
        self.spark = lake_writer.open_session(
            {"spark.master": "local[2]", "spark.jars": str(JAR), "spark.driver.memory": "4g"}
        )
        path = str(folder / "source")
        self.table = lake_writer.WrittenTable("orders", path, "COW", 9, keys=rows, rows=100, hudi_options=STREAMING_OFF)
        options = lake_writer.write_options(self.table, 0, None, {"hoodie.datasource.write.operation": "bulk_insert"})
        lake_writer.write_commit(self.spark, self.table, 0, options)

    def copy(self, name: str) -> Any:
        folder = self.folder / name
        shutil.copytree(self.table.base_path, folder)
        return replace(self.table, base_path=str(folder))

    def commit(self, table: Any, number: int, **options: str) -> float:
        began = time.monotonic()
        settings = self.writer.write_options(table, number, None, {}) | options
        self.writer.write_commit(self.spark, table, number, settings)
        return time.monotonic() - began

    def request(self, table: Any) -> Any:
        from airflow_lake_provider import job_contract as contract
        from airflow_lake_provider.indexing.index_spec import parse_indexes, requested_options

        lock = {key: value for key, value in self.writer.MANAGED_LAKE.items() if key.startswith("hoodie.write.lock.")}
        return contract.JobRequest(
            "bench",
            table.base_path,
            "orders",
            (
                contract.ServiceRequest(
                    contract.Service.INDEXING,
                    contract.Mode.SCHEDULE_AND_EXECUTE,
                    options=requested_options(parse_indexes(INDEXES)),
                ),
            ),
            str(self.folder / "result.json"),
            lock,
        )

    def build(self, table: Any) -> float:
        began = time.monotonic()
        (result,) = self.jobs.run_job(self.spark, self.request(table)).services
        assert result.outcome.value == "completed", result.message
        return time.monotonic() - began

    def look_up_ms(self, table: Any, *, with_index: bool) -> float:
        flag = str(with_index).lower()
        options = {"hoodie.metadata.enable": flag, "hoodie.enable.data.skipping": flag}
        options["hoodie.metadata.global.record.level.index.enable"] = flag
        took = []
        for number in range(6):
            began = time.monotonic()
            key = f"{(number + 1) * 7919 % self.table.keys}"
            reader = self.spark.read.format("hudi").options(**options).load(table.base_path)
            assert reader.where(f"id = {key}").count() == 1
            took.append((time.monotonic() - began) * 1000)
        return statistics.median(took[1:])


def measure(folder: Path, rows: int) -> dict[str, float]:
    """Run all parts in one session; return the keys of the benchmark."""
    lake = Lake(folder, rows)
    next_to, inside, killed = lake.copy("next_to"), lake.copy("inside"), lake.copy("killed")
    usual_s = statistics.median([lake.commit(next_to, number) for number in range(1, 5)])
    before_ms = lake.look_up_ms(next_to, with_index=False)
    commits: list[float] = []
    ended = threading.Event()

    def write() -> None:
        number = 5
        while not ended.is_set():
            commits.append(lake.commit(next_to, number))
            number += 1

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    build_s = build_in_process(lake, next_to)
    ended.set()
    writer.join()
    after_ms = lake.look_up_ms(next_to, with_index=True)
    sync_s = lake.commit(inside, 1, **IN_THE_WRITER)
    kill_builder(lake, killed)
    return {
        "build_s": round(build_s, 1),
        "commits_during_build": len(commits),
        "usual_commit_s": round(usual_s, 2),
        "writer_stall_s": round(max(commits) - usual_s, 2),
        "sync_stall_s": round(sync_s - usual_s, 2),
        "recover_s": round(lake.build(killed), 1),
        "lookup_before_ms": round(before_ms),
        "lookup_after_ms": round(after_ms),
    }


def build_command(lake: Lake, table: Any) -> list[str]:
    return [sys.executable, str(Path(__file__)), "--build", table.base_path, "--rows", str(lake.table.keys)]


def build_in_process(lake: Lake, table: Any) -> float:
    """Have a process of its own build, and wait for it; return its seconds without the start of Spark."""
    command = ["nice", "-n", "10", *build_command(lake, table)]
    run = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True, timeout=1800)
    print(run.stdout, end="", flush=True)
    return float(json.loads(run.stdout.splitlines()[-1])["build_s"])


def kill_builder(lake: Lake, table: Any) -> None:
    """Have a process of its own build, and kill it while it writes the first index."""
    builder = subprocess.Popen(build_command(lake, table), cwd=ROOT, stdout=subprocess.DEVNULL, start_new_session=True)
    timeline = Path(table.base_path) / ".hoodie" / "metadata" / ".hoodie" / "timeline"
    plans = Path(table.base_path) / ".hoodie" / "timeline"
    deadline = time.monotonic() + 300
    while True:
        times = [path.name.split(".")[0] for path in plans.glob("*.indexing.inflight")]
        if any((timeline / f"{instant}.deltacommit.inflight").exists() for instant in times):
            break
        assert time.monotonic() < deadline
        assert builder.poll() is None
        time.sleep(0.005)
    os.killpg(builder.pid, signal.SIGKILL)
    builder.wait()
    for left in (*(Path(table.base_path) / ".hoodie" / ".heartbeat").iterdir(),):
        os.utime(left, (1000, 1000))
    (Path(table.base_path) / ".hoodie" / "lock").unlink(missing_ok=True)


def build_only(base_path: str, rows: int) -> None:
    lake = Lake.__new__(Lake)
    from local_stack import lake_writer

    lake.writer, lake.jobs, lake.folder = lake_writer, importlib.import_module("run_services"), Path(base_path).parent
    conf = {"spark.master": "local[2]", "spark.jars": str(JAR), "spark.driver.memory": "3g"}
    lake.spark = lake_writer.open_session(conf)
    table = lake_writer.WrittenTable("orders", base_path, "COW", 9, keys=rows, hudi_options=STREAMING_OFF)
    print(json.dumps({"build_s": lake.build(table)}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--spark", action="store_true", help="run here, in a Python that has pyspark")
    parser.add_argument("--build", default="", help="only build the indexes of this table")
    arguments = parser.parse_args()
    if arguments.build:
        build_only(arguments.build, arguments.rows)
        return
    if not arguments.spark:
        command = [str(SPARK_PYTHON), str(Path(__file__)), "--spark", "--rows", str(arguments.rows)]
        sys.exit(subprocess.run(command, cwd=ROOT, check=False).returncode)
    WORK.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=WORK) as folder:
        print(json.dumps(measure(Path(folder), arguments.rows)))


if __name__ == "__main__":
    main()
