"""What do table services cost the writer? The same stream of upsert commits to a merge-on-read table, several ways.

* none: no table service at all, single-writer mode
* inline: the writer compacts and cleans within its commits
* async: Hudi's own compaction and cleaning in other threads of the same application; that is why all of it streams: a
  batch writer of Hudi has no asynchronous compaction
* managed: by the provider, as a user has it on one machine: multi-writer mode, the lock, the callback; Airflow and the
  service jobs run next to the writer
* managed_niced: the same, with Airflow's and the jobs' priority below the writer's
* managed_elsewhere: Airflow takes the notices, but no job runs on this machine (services switched off): what
  the writer itself pays; the difference to managed is competition for the cores
* managed_elsewhere_synced: the same, with clocks that differ by 5 ms at most: in multi-writer mode Hudi waits that long
  (200 ms unless set) for each instant time

Each with the writer's wall time, the log files that a snapshot query has to merge at the end, and such a query's time.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import stat
import statistics
import sys
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from demo.scene import LOCK_OPTIONS
from local_stack.airflow import HUDI_JAR, LocalAirflow, scratch_env
from local_stack.hudi_bundle import SPARK_PYTHON, spark_env
from local_stack.processes import start, wait_until
from local_stack.writer_process import StandingWriter

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".work" / "bench-writer"
DELTA_COMMITS = 5
STREAM_TIMEOUT_S = 900
READS = 5

NO_SERVICES = {
    "hoodie.table.services.enabled": "false",
    "hoodie.datasource.compaction.async.enable": "false",
    "hoodie.compact.inline": "false",
    "hoodie.clean.automatic": "false",
    "hoodie.archive.automatic": "false",
}
# Alone with its table: no lock, no multi-writer mode.
ALONE = {
    "hoodie.write.concurrency.mode": "single_writer",
    "hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.InProcessLockProvider",
}
OWN_SERVICES = ALONE | {
    "hoodie.table.services.enabled": "true",
    "hoodie.compact.inline.max.delta.commits": str(DELTA_COMMITS),
    "hoodie.clean.automatic": "true",
    "hoodie.clean.commits.retained": "10",
    "hoodie.archive.automatic": "false",
}
MODES: dict[str, dict[str, str]] = {
    "none": NO_SERVICES | ALONE,
    "inline": OWN_SERVICES | {"hoodie.compact.inline": "true", "hoodie.datasource.compaction.async.enable": "false"},
    "async": OWN_SERVICES
    | {
        "hoodie.compact.inline": "false",
        "hoodie.datasource.compaction.async.enable": "true",
        "hoodie.clean.async.enabled": "true",
    },
    "managed": NO_SERVICES | LOCK_OPTIONS,
    "managed_niced": NO_SERVICES | LOCK_OPTIONS,
    "managed_elsewhere": NO_SERVICES | LOCK_OPTIONS,
    "managed_elsewhere_synced": NO_SERVICES | LOCK_OPTIONS | {"hoodie.time.generator.max_expected_clock_skew_ms": "5"},
}


@dataclass(frozen=True, slots=True)
class Result:
    """One mode. `s`: the writer's wall time; `compactions`: completed when the writer ended and all jobs had."""

    s: float
    log_files: int
    read_s: float
    compactions: int


class Bench:
    """All modes, one after another, each with a table of its own."""

    def __init__(self, commits: int, keys: int, rows: int) -> None:
        self.commits = commits
        self.keys = keys
        self.rows = rows
        self.lake = HOME / "lake"
        self.lake.mkdir(parents=True)

    def run(self, mode: str, number: int) -> tuple[Path, float]:
        """Write one table; return where it is and the writer's seconds."""
        name = f"{mode}_{number}"
        with ExitStack() as stack:
            airflow = self._start_airflow(mode, name, stack) if mode.startswith("managed") else None
            seconds = self._stream(mode, name, airflow)
            if airflow is not None and not mode.startswith("managed_elsewhere"):
                wait_until(lambda: is_at_rest(airflow, name), 300, "the end of the table's services")
        return self.lake / name, seconds

    def _stream(self, mode: str, name: str, airflow: LocalAirflow | None) -> float:
        home = HOME / "streams" / name
        (home / "tmp").mkdir(parents=True)
        table = {"name": name, "base_path": str(self.lake / name), "commits": self.commits}
        settings: dict[str, Any] = {
            "table": {**table, "keys": self.keys, "rows": self.rows},
            "work_dir": str(home),
            "hudi_options": MODES[mode],
            "spark_conf": {"spark.jars": str(HUDI_JAR)},
        }
        if airflow is not None:
            settings["callback"] = {"url": airflow.callback_url, "token": airflow.callback_token}
        (home / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
        writer = start(
            "stream",
            [str(SPARK_PYTHON), str(ROOT / "local_stack" / "lake_stream.py"), str(home / "settings.json")],
            home / "stream.log",
            env=spark_env() | scratch_env(home / "tmp"),
        )
        try:
            if writer.process.wait(timeout=STREAM_TIMEOUT_S):
                raise RuntimeError(f"{name} failed:\n{writer.log_tail()}")
        finally:
            writer.stop()
        lines = writer.log_path.read_text(encoding="utf-8", errors="replace").splitlines()
        return float(json.loads(next(line for line in lines if line.startswith('{"seconds"')))["seconds"])

    def _start_airflow(self, mode: str, name: str, stack: ExitStack) -> LocalAirflow:
        home = HOME / "airflows" / name
        home.mkdir(parents=True)
        options = "\n".join(f"    {key}: '{value}'" for key, value in LOCK_OPTIONS.items())
        is_on = str(not mode.startswith("managed_elsewhere")).lower()
        (home / "tables.yaml").write_text(
            "defaults:\n"
            f"  compaction: {{enabled: {is_on}, delta_commits: {DELTA_COMMITS}, log_to_base_ratio: null}}\n"
            f"  clean: {{enabled: {is_on}, commits: {DELTA_COMMITS}, retained_commits: 10}}\n"
            f"  archive: {{enabled: false}}\n  hudi_options:\n{options}\n",
            encoding="utf-8",
        )
        airflow = LocalAirflow(home / "airflow", (self.lake,), home / "tables.yaml")
        airflow.settings["AIRFLOW_CONN_SPARK_DEFAULT"] = json.dumps({"conn_type": "spark", "host": "local[1]"})
        if mode == "managed_niced":
            airflow.settings["PATH"] = f"{niced_spark(home)}{os.pathsep}{airflow.env()['PATH']}"
        stack.callback(airflow.stop)
        airflow.migrate()
        airflow.start()
        airflow.wait_for_dags()
        if mode == "managed_niced":
            for server in airflow.servers.values():
                os.setpriority(os.PRIO_PGRP, server.process.pid, 19)
        return airflow


def niced_spark(home: Path) -> Path:
    """Return a folder whose spark-submit is the real one with the lowest priority."""
    folder = home / "bin"
    folder.mkdir()
    program = folder / "spark-submit"
    program.write_text(f'#!/bin/sh\nexec nice -n 19 "{ROOT}/.venv-spark/bin/spark-submit" "$@"\n', encoding="utf-8")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return folder


def is_at_rest(airflow: LocalAirflow, name: str) -> bool:
    """Whether the table was evaluated after its last commit, and has no service that is due or at work."""
    runs = airflow.service_runs()
    if not runs or any(run["state"] in {"queued", "running"} for run in runs):
        return False
    tables = [table for table in airflow.tables() if table["table_name"] == name]
    return bool(tables) and not any(
        table["dirty"] or any(decision["verdict"] == "due" for decision in table["decisions"]) for table in tables
    )


def count_log_files(table: Path) -> int:
    """Return how many log files are newer than their file group's newest base file."""
    newest: dict[str, str] = {}
    for path in table.glob("*/*.parquet"):
        file_id, _, rest = path.name.partition("_")
        instant = rest.rpartition("_")[2].removesuffix(".parquet")
        newest[file_id] = max(newest.get(file_id, ""), instant)
    logs = [path.name[1:].split("_") for path in table.glob("*/.*.log.*") if not path.name.endswith(".crc")]
    return sum(parts[1].partition(".")[0] > newest.get(parts[0], "") for parts in logs)


def say(text: str) -> None:
    print(text, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commits", type=int, default=20, help="upsert commits of each stream")
    parser.add_argument("--keys", type=int, default=20_000, help="rows of the table before the stream")
    parser.add_argument("--rows", type=int, default=4_000, help="rows of each commit")
    parser.add_argument("--repeats", type=int, default=3, help="streams of each mode; the median counts")
    parser.add_argument("--modes", nargs="+", choices=tuple(MODES), default=tuple(MODES))
    options = parser.parse_args()
    shutil.rmtree(HOME, ignore_errors=True)
    bench = Bench(options.commits, options.keys, options.rows)
    written: dict[str, list[tuple[Path, float]]] = {mode: [] for mode in options.modes}
    # In turn, so that a machine that grows slower is slower for all.
    for number in range(options.repeats):
        for mode in options.modes:
            written[mode].append(bench.run(mode, number))
            say(f"{mode}: {written[mode][-1][1]:.1f} s for {options.commits} commits")
    results = read_all(written)
    summary: dict[str, object] = {f"{mode}_s": result.s for mode, result in results.items()}
    summary["details"] = {mode: asdict(result) for mode, result in results.items()}
    say(json.dumps(summary))
    return 0


def read_all(written: dict[str, list[tuple[Path, float]]]) -> dict[str, Result]:
    """Read every table with one warm session, and put everything together."""
    reader = StandingWriter(HOME / "reader")
    try:
        reader.wait_until_ready()
        results = {}
        for tables in written.values():
            reader.read(tables[-1][0])
        for mode, tables in written.items():
            path = tables[-1][0]
            reads = [float(reader.read(path)["seconds"]) for _ in range(READS)]
            results[mode] = Result(
                s=round(statistics.median(seconds for _, seconds in tables), 2),
                log_files=count_log_files(path),
                read_s=round(statistics.median(reads), 3),
                compactions=len(list((path / ".hoodie" / "timeline").glob("*.commit"))),
            )
            say(f"{mode}: {results[mode]}")
        return results
    finally:
        reader.stop()


if __name__ == "__main__":
    sys.exit(main())
