"""What does an index build cost the table's writers? Ours against a writer that builds inside its own commit.

A copy-on-write table of 1,000,000 rows gets a record index and column statistics: by the index service next to a
writer that commits 100 rows again and again; the same next to one that streams its metadata writes, which commits each
few seconds as a stream does (`streaming`); and by a writer with the indexes in its settings (Hudi alone).

`build_s` is the job without the start of its Spark, plan and cheap check included; the builder is a process of its own
with a lower priority, as writer and builder share the machine. `build_per_inline` is that in units of what the build
adds to the commit of the writer that builds by itself, in a JVM that has written before and next to no other process.
`build_cpu_s` and `cpu_per_inline` are the same in seconds of processor, in which waiting does not count.

`writer_hold_p99_s`: each time that the writer asked for the table's lock during the build, the seconds until it had the
lock, if the builder held it in between, and 0 if not; of those the 99th percentile, and `writer_hold_max_s` the
longest. Hudi's transaction manager logs both processes' requests. `hold_per_commit` is the longest one in units of the
median commit before the build. `writer_stall_s` is by how much the longest commit during the build exceeds that
median, whatever made it longer; `sync_stall_s` the same of the commit that builds.

`recover_s` is the run after a builder was killed (-9) half way, its heartbeat expired; Hudi alone never recovers. A
look-up is a query for one key, median of five, without and with the record index.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "spark_jobs"), str(ROOT)]

from benchmarks.ranks import rank  # noqa: E402
from local_stack.hudi_bundle import JAR, SPARK_PYTHON  # noqa: E402

WORK = ROOT / ".work"
ROWS = 1_000_000
STREAMING_OFF = {"hoodie.metadata.streaming.write.enabled": "false"}
IN_THE_WRITER = {
    "hoodie.metadata.index.column.stats.enable": "true",
    "hoodie.metadata.global.record.level.index.enable": "true",
}
INDEXES = ("column_stats", "record_index")
FIRST_COMMITS = 4
STREAM_PAUSE_S = 3.0
"""Between two commits of the streaming writer: a stream's trigger has an interval, and a build needs a quiet moment."""

# --- When two processes asked for the table's lock, had it and left it, from the log of Hudi's transaction manager

WRITERS_LOCKS, BUILDERS_LOCKS = "locks-of-the-writer.log", "locks-of-the-builder.log"
LOG_SETTINGS = """\
rootLogger.level = error
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{{yy/MM/dd HH:mm:ss}} %p %c{{1}}: %m%n
appender.locks.type = File
appender.locks.name = locks
appender.locks.fileName = {path}
appender.locks.layout.type = PatternLayout
appender.locks.layout.pattern = %d{{UNIX_MILLIS}} [%t] %m%n
logger.locks.name = org.apache.hudi.client.transaction.TransactionManager
logger.locks.level = info
logger.locks.additivity = false
logger.locks.appenderRef.locks.ref = locks
"""
_LOGGED = re.compile(r"(\d+) \[(.*?)\] State change (starting|started|ended) ")


@dataclass(frozen=True, slots=True)
class LockUse:
    """One use of the table's lock, in ms since the epoch."""

    asked_ms: int
    had_ms: int
    left_ms: int


def parse_lock_uses(lines: Iterable[str]) -> list[LockUse]:
    """Return the uses that a log has whole, by their end: not one that never got the lock, or never left it."""
    asked: dict[str, int] = {}
    had: dict[str, tuple[int, int]] = {}
    uses = []
    for line in lines:
        if (found := _LOGGED.match(line)) is None:
            continue
        at_ms, thread, what = int(found[1]), found[2], found[3]
        if what == "starting":
            asked[thread] = at_ms
        elif what == "started" and thread in asked:
            had[thread] = (asked.pop(thread), at_ms)
        elif what == "ended" and thread in had:
            uses.append(LockUse(*had.pop(thread), at_ms))
    return uses


def find_waits_s(writer: Iterable[LockUse], builder: Sequence[LockUse]) -> list[float]:
    """Return for each use of the writer how long it waited for the lock; 0 where the builder did not hold it then."""
    return [
        (mine.had_ms - mine.asked_ms) / 1000
        if any(other.had_ms < mine.had_ms and other.left_ms > mine.asked_ms for other in builder)
        else 0.0
        for mine in writer
    ]


def open_logged_session(lake_writer: Any, folder: Path, locks: str, memory: str) -> Any:
    """Open a session whose driver logs its uses of the lock to a file in the folder."""
    settings = folder / f"{locks}.properties"
    settings.write_text(LOG_SETTINGS.format(path=folder / locks), encoding="utf-8")
    options = lake_writer.SPARK_CONF["spark.driver.extraJavaOptions"]
    return lake_writer.open_session(
        {
            "spark.master": "local[2]",
            "spark.jars": str(JAR),
            "spark.driver.memory": memory,
            "spark.driver.extraJavaOptions": f"{options} -Dlog4j2.configurationFile=file://{settings}",
        }
    )


def read_lock_uses(path: Path) -> list[LockUse]:
    uses = parse_lock_uses(path.read_text(encoding="utf-8").splitlines())
    assert uses, f"{path}: Hudi's transaction manager logged nothing"
    return uses


class Lake:
    """One Spark session with the benchmark's table, and copies of it."""

    def __init__(self, folder: Path, rows: int) -> None:
        from local_stack import lake_writer

        self.writer = lake_writer
        self.jobs = importlib.import_module("run_services")
        self.folder = folder
        self.spark = open_logged_session(lake_writer, folder, WRITERS_LOCKS, "4g")
        path = str(folder / "source")
        self.table = lake_writer.WrittenTable("orders", path, "COW", 9, keys=rows, rows=100, hudi_options=STREAMING_OFF)
        options = lake_writer.write_options(self.table, 0, None, {"hoodie.datasource.write.operation": "bulk_insert"})
        lake_writer.write_commit(self.spark, self.table, 0, options)

    def copy(self, name: str) -> Any:
        folder = self.folder / name / "orders"
        shutil.copytree(self.table.base_path, folder)
        return replace(self.table, base_path=str(folder))

    def commit(self, table: Any, number: int, **options: str) -> float:
        began = time.monotonic()
        settings = self.writer.write_options(table, number, None, {}) | options
        self.writer.write_commit(self.spark, table, number, settings)
        return time.monotonic() - began

    def usual_commit_s(self, table: Any) -> float:
        """Write the table's first commits; return how long one takes (median)."""
        return statistics.median([self.commit(table, number) for number in range(1, FIRST_COMMITS + 1)])

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

    def cpu_s(self) -> float:
        """Return how long this process and its JVM have used a processor."""
        from lake_jobs.driver.application import jvm_pid

        # The command's name, which may have spaces, ends with the last bracket.
        fields = Path(f"/proc/{jvm_pid(self.spark)}/stat").read_text(encoding="utf-8").rpartition(") ")[2].split()
        return time.process_time() + (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

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


def measure(folder: Path, rows: int) -> dict[str, Any]:
    """Run all parts in one session; return the keys of the benchmark."""
    lake = Lake(folder, rows)
    next_to, streaming, inside, killed = map(lake.copy, ("next_to", "streaming", "inside", "killed"))
    streaming = replace(streaming, hudi_options={})
    began_cpu_s = lake.cpu_s()
    usual_s = lake.usual_commit_s(next_to)
    usual_cpu_s = (lake.cpu_s() - began_cpu_s) / FIRST_COMMITS
    before_ms = lake.look_up_ms(next_to, with_index=False)
    found = build_next_to_writer(lake, next_to, usual_s, 0.0)
    after_ms = lake.look_up_ms(next_to, with_index=True)
    next_to_stream = build_next_to_writer(lake, streaming, lake.usual_commit_s(streaming), STREAM_PAUSE_S)
    began_cpu_s = lake.cpu_s()
    inline_s = lake.commit(inside, 1, **IN_THE_WRITER) - found["usual_commit_s"]
    inline_cpu_s = lake.cpu_s() - began_cpu_s - usual_cpu_s
    kill_builder(lake, killed)
    return {
        **found,
        "streaming": next_to_stream,
        "sync_stall_s": round(inline_s, 2),
        "build_per_inline": round(found["build_s"] / inline_s, 1),
        "sync_cpu_s": round(inline_cpu_s, 1),
        "cpu_per_inline": round(found["build_cpu_s"] / inline_cpu_s, 1),
        "recover_s": round(lake.build(killed), 1),
        "lookup_before_ms": round(before_ms),
        "lookup_after_ms": round(after_ms),
    }


def build_next_to_writer(lake: Lake, table: Any, usual_s: float, pause_s: float) -> dict[str, float]:
    """Build while a writer commits; return what both took. The table has its first commits."""
    commits: list[float] = []
    ended = threading.Event()

    def write() -> None:
        number = FIRST_COMMITS + 1
        while not ended.is_set():
            commits.append(lake.commit(table, number))
            number += 1
            ended.wait(pause_s)

    writer = threading.Thread(target=write, daemon=True)
    began_ms = time.time() * 1000
    writer.start()
    built = build_in_process(lake, table)
    ended_ms = time.time() * 1000
    ended.set()
    writer.join()
    uses = read_lock_uses(lake.folder / WRITERS_LOCKS)
    asked = [use for use in uses if began_ms <= use.asked_ms <= ended_ms]
    waits_s = find_waits_s(asked, read_lock_uses(Path(table.base_path).parent / BUILDERS_LOCKS))
    return {
        "build_s": round(built["build_s"], 1),
        "build_cpu_s": round(built["build_cpu_s"], 1),
        "commits_during_build": len(commits),
        "usual_commit_s": round(usual_s, 2),
        "writer_stall_s": round(max(commits) - usual_s, 2),
        "writer_hold_p99_s": round(rank(waits_s, 0.99), 2),
        "writer_hold_max_s": round(max(waits_s), 2),
        "lock_requests": len(waits_s),
        "hold_per_commit": round(max(waits_s) / usual_s, 2),
    }


def build_command(lake: Lake, table: Any) -> list[str]:
    return [sys.executable, str(Path(__file__)), "--build", table.base_path, "--rows", str(lake.table.keys)]


def build_in_process(lake: Lake, table: Any) -> dict[str, float]:
    """Have a process of its own build, and wait for it; return its seconds without the start of Spark, both kinds."""
    command = ["nice", "-n", "10", *build_command(lake, table)]
    run = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True, timeout=1800)
    print(run.stdout, end="", flush=True)
    return dict(json.loads(run.stdout.splitlines()[-1]))


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
    from lake_jobs.driver.java_names import prepare_java_names
    from local_stack import lake_writer

    # As each submitted job does.
    prepare_java_names()
    lake.writer, lake.jobs, lake.folder = lake_writer, importlib.import_module("run_services"), Path(base_path).parent
    lake.spark = open_logged_session(lake_writer, lake.folder, BUILDERS_LOCKS, "3g")
    table = lake_writer.WrittenTable("orders", base_path, "COW", 9, keys=rows, hudi_options=STREAMING_OFF)
    began_cpu_s = lake.cpu_s()
    build_s = lake.build(table)
    print(json.dumps({"build_s": build_s, "build_cpu_s": lake.cpu_s() - began_cpu_s}))


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
