"""Many streams in one driver: how long a commit waits until it is in its sink, and what that costs.

`python -m benchmarks.streams --sizes 1 20 200 --minutes 3` prints one JSON line with, for each number of streams, the
keys `streams, commits, lag_p50_s, lag_p99_s, lag_max_s, slowest_stream_s, first_lag_p99_s, cpu_s_per_stream_minute,
cpu_s_per_commit, total_cpu_s, lost, failures`.

One table is written by Hudi beforehand (`--type`) and copied for each stream; each copy gets one of its commits (100
updated and 10 new rows, in four partitions) every `--interval` seconds, file by file, so writers cost nothing. For each
number of streams there is a driver of its own. It is the real one, through spark-submit on two cores, and so is the
task's half (`StreamRuns`); in the manager's place stands a list of what is due, so neither notices nor evaluations are
in these figures. Sinks are files. A commit's lag ends when the driver reports that its run has ended, which is after
the sink had it. A stream's first commit, with which its table is opened, is `first_lag_p99_s`, and is left out of the
others. CPU seconds are those of the driver, of JVM and Python, and of this process: `cpu_s_per_stream_minute` from the
end of the first interval to that of the last, the others from the driver's first question to the last commit, with the
opening of all tables. `slowest_stream_s` is the greatest mean of one stream; `lost` are commits that were not in their
sink two minutes after the last interval.
"""

from __future__ import annotations

import argparse
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
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_lake_provider.execution.engines.job_files import JobFolder
from airflow_lake_provider.execution.engines.packaging import find_package
from airflow_lake_provider.execution.streams import StreamRuns
from airflow_lake_provider.job_contract import WORK_AT_ONCE, WORK_IDLE_S, WORK_MAX_AGE_S, to_json
from airflow_lake_provider.replication.checkpoint import from_text
from airflow_lake_provider.replication.job import CHANNEL, Channel, ReplicationRequest
from airflow_lake_provider.replication.sink import SinkSettings, create_sink
from airflow_lake_provider.replication.transactions import Order
from benchmarks.ranks import rank
from benchmarks.streams_tables import FIRST_CHECKPOINT, MadeTable
from local_stack import hudi_bundle

ROOT = Path(__file__).resolve().parent.parent
TICKS = os.sysconf("SC_CLK_TCK")


class Fleet:
    """The tables with their sinks, in the manager's place: it has the hook's methods that `StreamRuns` calls."""

    def __init__(self, table: Path, folder: Path, streams: int) -> None:
        self.folder = folder
        self.table = MadeTable(table)
        self.names = [f"t{number:04d}" for number in range(streams)]
        self.released: dict[str, list[float]] = {name: [] for name in self.names}
        self.lags: dict[str, list[float]] = {name: [] for name in self.names}
        self.problems: list[str] = []
        self.checkpoints: dict[str, str] = {}
        self.waits_until_s: dict[str, float] = {}
        self._guard = threading.Lock()

    def make(self) -> None:
        first = from_text((self.table.path.parent / FIRST_CHECKPOINT).read_text(encoding="utf-8"))
        for name in self.names:
            self.table.copy(self.path_of(name))
            sink = create_sink("file", SinkSettings(f"{name}.file", "orders", options=self.options_of(name)))
            sink.open()
            sink.commit(replace(first, stream=f"{name}.file", sequence=1))
            sink.close()

    def path_of(self, name: str) -> Path:
        return self.folder / "lake" / name

    def options_of(self, name: str) -> dict[str, str]:
        return {"path": str(self.folder / "sinks" / name)}

    def release(self, name: str, number: int) -> None:
        self.table.release(self.path_of(name), number)
        with self._guard:
            self.released[name].append(time.monotonic())

    def begin_due_sinks(self, run_id: str, running: Sequence[str], most: int, snapshots: int) -> list[dict[str, Any]]:
        del run_id, snapshots
        with self._guard:
            now_s = time.monotonic()
            late = {
                name: times[len(self.lags[name])]
                for name, times in self.released.items()
                if len(self.lags[name]) < len(times)
                and f"{name}.file" not in running
                and self.waits_until_s.get(name, 0.0) <= now_s
            }
            chosen = sorted(late, key=lambda name: late[name])[:most]
            return [self._due(name) for name in chosen]

    def report_progress(self, table_id: str, sink: str, progress: Mapping[str, Any]) -> None:
        del sink
        if not progress.get("ended"):
            return
        now_s = time.monotonic()
        with self._guard:
            if progress["problem"]:
                self.problems.append(str(progress["problem"]))
                # As the manager does: a sink that failed waits.
                self.waits_until_s[table_id] = now_s + 30
            if progress["checkpoint"]:
                self.checkpoints[table_id] = progress["checkpoint"]
                commit = from_text(progress["checkpoint"]).commit
                has = self.table.instants.index(commit.requested_time) if commit is not None else 0
                times, lags = self.released[table_id], self.lags[table_id]
                lags += [now_s - at for at in times[len(lags) : has]]

    def list_sinks(self, table_id: str) -> list[dict[str, Any]]:
        text = self.checkpoints.get(table_id, "")
        hold = from_text(text).hold if text else ""
        return [{"name": "file", "needs_snapshot": False, "hold": hold, "checkpoint_text": text}]

    def _due(self, name: str) -> dict[str, Any]:
        named = {"table_id": name, "base_path": str(self.path_of(name)), "table_name": "orders", "database": ""}
        sink = {"name": "file", "sink": "file", "mode": "changes", "key": [], "options": self.options_of(name)}
        more = {"max_hold_s": None, "max_held_bytes": None, "begins_with_snapshot": False, "changed_time": "1"}
        return {**named, **sink, **more, "begun": {"needs_snapshot": False, "request": "", "generation": 1}}


class Processes:
    """The driver's processes, and what they have spent."""

    def __init__(self, first: subprocess.Popen[bytes]) -> None:
        self._group = first.pid

    def cpu_s(self) -> float:
        spent = 0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == self._group:
                spent += sum(int(number) for number in fields[11:15])
        return spent / TICKS


def start_driver(folder: Path, channel: str, at_once: int) -> subprocess.Popen[bytes]:
    options = {CHANNEL: channel, WORK_AT_ONCE: str(at_once), WORK_IDLE_S: "600", WORK_MAX_AGE_S: "36000"}
    request = ReplicationRequest("", "streams", "", Order("streams"), str(folder / "result.json"), options=options)
    (folder / "request.json").write_text(to_json(request), encoding="utf-8")
    env = hudi_bundle.spark_env()
    conf = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.scheduler.mode": "FAIR",
        "spark.sql.shuffle.partitions": "2",
        "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
        "spark.kryo.registrator": "org.apache.spark.HoodieSparkKryoRegistrar",
        "spark.sql.extensions": "org.apache.spark.sql.hudi.HoodieSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.hudi.catalog.HoodieCatalog",
    }
    command = [f"{env['SPARK_HOME']}/bin/spark-submit", "--master", "local[2]", "--jars", str(hudi_bundle.JAR)]
    command += ["--driver-memory", "2g", "--driver-java-options", "-XX:+UseSerialGC"]
    command += [part for key, value in conf.items() for part in ("--conf", f"{key}={value}")]
    command += ["--py-files", str(find_package()), str(ROOT / "spark_jobs" / "replicate.py")]
    with (folder / "driver.log").open("ab") as log:
        return subprocess.Popen(
            [*command, str(folder / "request.json")],
            stdout=log,
            stderr=log,
            cwd=folder,
            env=env,
            start_new_session=True,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=[1, 20, 200], help="how many streams, one after another"
    )
    parser.add_argument("--minutes", type=float, default=3.0, help="how long commits come, the first interval included")
    parser.add_argument("--interval", type=float, default=60.0, help="seconds between two commits of a stream")
    parser.add_argument("--type", choices=("COW", "MOR"), default="COW", help="of the table")
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--keep-log", default="", help="where the driver's output goes")
    options = parser.parse_args()
    commits = max(2, round(options.minutes * 60 / options.interval))
    result: dict[str, Any] = {"type": options.type}
    with tempfile.TemporaryDirectory(prefix="lake-streams-bench-") as name:
        folder = Path(name)
        os.environ["AIRFLOW__LAKE__ALLOWED_ROOTS"] = name
        env = hudi_bundle.spark_env() | {"PYTHONPATH": f"{ROOT}:{ROOT / 'spark_jobs'}"}
        maker = [
            str(hudi_bundle.SPARK_PYTHON),
            "-m",
            "benchmarks.streams_tables",
            str(folder),
            str(commits),
            options.type,
        ]
        subprocess.run(maker, cwd=ROOT, env=env, stdout=subprocess.DEVNULL, check=True, timeout=600)
        for size in options.sizes:
            fleet = Fleet(folder / "table", folder / str(size), size)
            fleet.make()
            result[str(size)] = run(fleet, options.at_once, commits, options.interval)
            print(f"{size} streams: {result[str(size)]}", file=sys.stderr, flush=True)
            if options.keep_log:
                Path(options.keep_log).write_bytes((fleet.folder / "driver.log").read_bytes())
            shutil.rmtree(fleet.folder)
    print(json.dumps(result))
    return 0


def run(fleet: Fleet, at_once: int, commits: int, interval_s: float) -> dict[str, Any]:
    """Release all commits, wait for them, and return the figures."""
    runs = StreamRuns(fleet, "bench", JobFolder(str(fleet.folder), "bench", 1), at_once)  # type: ignore[arg-type]
    channel = Channel(runs.answer)
    with channel:
        process = start_driver(fleet.folder, channel.path, at_once)
        processes = Processes(process)
        try:
            while not runs.asked:
                if process.poll() is not None:
                    raise RuntimeError((fleet.folder / "driver.log").read_text(errors="replace")[-3000:])
                time.sleep(0.05)
            began_s, first_s = time.monotonic(), processes.cpu_s() + own_cpu_s()
            before_s, steady_s = first_s, began_s
            for number in range(1, commits + 1):
                if number == 2:
                    before_s, steady_s = processes.cpu_s() + own_cpu_s(), time.monotonic()
                for at, name in enumerate(fleet.names):
                    due_s = began_s + (number - 1 + at / len(fleet.names)) * interval_s
                    time.sleep(max(0.0, due_s - time.monotonic()))
                    fleet.release(name, number)
            end_s = began_s + commits * interval_s
            time.sleep(max(0.0, end_s - time.monotonic()))
            spent_s, minutes = processes.cpu_s() + own_cpu_s() - before_s, (time.monotonic() - steady_s) / 60
            deadline_s = time.monotonic() + 120
            while any(len(lags) < commits for lags in fleet.lags.values()) and time.monotonic() < deadline_s:
                time.sleep(0.1)
            whole_s = processes.cpu_s() + own_cpu_s() - first_s
        finally:
            channel.close()
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(60)
    if fleet.problems:
        print("\n".join(fleet.problems[:5]), file=sys.stderr)
    later = sorted(lag for lags in fleet.lags.values() for lag in lags[1:])
    first = [lags[0] for lags in fleet.lags.values() if lags]
    return {
        "streams": len(fleet.names),
        "commits": commits * len(fleet.names),
        "interval_s": interval_s,
        "at_once": at_once,
        "lag_p50_s": round(statistics.median(later), 2),
        "lag_p99_s": round(rank(later, 0.99), 2),
        "lag_max_s": round(later[-1], 2),
        "slowest_stream_s": round(max(statistics.mean(lags[1:]) for lags in fleet.lags.values() if lags[1:]), 2),
        "first_lag_p99_s": round(rank(first, 0.99), 2),
        "cpu_s_per_stream_minute": round(spent_s / minutes / len(fleet.names), 3),
        "cpu_s_per_commit": round(whole_s / (commits * len(fleet.names)), 3),
        "total_cpu_s": round(whole_s, 1),
        "lost": commits * len(fleet.names) - sum(len(lags) for lags in fleet.lags.values()),
        "failures": len(fleet.problems),
    }


def own_cpu_s() -> float:
    """Return the CPU seconds of this process."""
    times = os.times()
    return times.user + times.system


if __name__ == "__main__":
    sys.exit(main())
