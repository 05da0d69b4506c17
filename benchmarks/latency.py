"""How long from a commit's notice to its service: answered -> task started -> plan on the timeline -> completed.

A stock Hudi writer commits to a merge-on-read table whose every commit makes a compaction due; the next commit comes
when the compaction is completed and its run has ended. Times are those of the parties: the manager's row (answered),
Airflow (run, task), the timeline's files (plan, completed). Seconds, counted from the answer. For an idle machine. The
standing application of engine `warm` is started by the commits that warm up.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from airflow_lake_provider.hudi.base_path import table_id_of
from demo.scene import LOCK_OPTIONS
from local_stack.airflow import LocalAirflow
from local_stack.postgres import LocalPostgres
from local_stack.processes import wait_until
from local_stack.writer_process import StandingWriter

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".work" / "bench-latency"
RUN_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Latency:
    """One commit; seconds after the manager's answer."""

    decided_s: float
    """The DAG run exists."""
    queued_s: float
    """The scheduler gave the task to its executor."""
    started_s: float
    """The task's process runs."""
    planned_s: float
    completed_s: float
    ended_s: float
    """The run has succeeded: the timeline was read."""


class Bench:
    """One Airflow, one writer, one table."""

    def __init__(self, airflow: LocalAirflow, writer: StandingWriter) -> None:
        self.airflow = airflow
        self.writer = writer
        self.path = airflow.allowed_roots[0] / "orders"
        self.table_id = table_id_of(str(self.path))
        self._runs: set[str] = set()

    def write(self, commit: int, *, is_announced: bool = True) -> None:
        """Write one commit; commit 0 has only base files, so there is nothing to compact after it."""
        callback = {"url": self.airflow.callback_url, "token": self.airflow.callback_token}
        table = {"name": "orders", "base_path": str(self.path), "keys": 2000, "rows": 200}
        self.writer.write(table, commit, callback if is_announced else None, LOCK_OPTIONS)

    def measure(self, commit: int) -> Latency:
        """Write one commit and follow it to the end of its run."""
        before = {path.name for path in self._timeline.glob("*.commit")}
        self.write(commit)
        row = self.airflow.get(f"/v1/hoodie/tables/{self.table_id}")
        assert row is not None, "the manager does not know the table"
        answered_s = row["last_notice_ms"] / 1000
        wait_until(lambda: self._ended_run() is not None, RUN_TIMEOUT_S, f"the run of commit {commit}")
        run = self._ended_run()
        assert run is not None
        if run["state"] != "success":
            raise RuntimeError(f"run {run['dag_run_id']} ended as {run['state']}")
        self._runs.add(run["dag_run_id"])
        path = f"/api/v2/dags/lake_table_service/dagRuns/{run['dag_run_id']}/taskInstances/run_service"
        task = self.airflow.airflow_get(path)
        assert task is not None
        (completed,) = [path for path in self._timeline.glob("*.commit") if path.name not in before]
        requested = self._timeline / f"{completed.name.partition('_')[0]}.compaction.requested"
        seconds = (
            *(_seconds(text) for text in (run["queued_at"], task["queued_when"], task["start_date"])),
            requested.stat().st_mtime,
            completed.stat().st_mtime,
            _seconds(run["end_date"]),
        )
        return Latency(*(round(at_s - answered_s, 3) for at_s in seconds))

    def _ended_run(self) -> dict[str, Any] | None:
        """Return the one run that ended since the last commit."""
        # All times are on record: asking often would only take them from what is measured.
        time.sleep(1)
        answer = self.airflow.airflow_get(
            "/api/v2/dags/lake_table_service/dagRuns",
            limit=5,
            order_by="-id",
            run_id_prefix_pattern=f"{self.table_id.rpartition('-')[0]}.",
        )
        runs = [run for run in (answer or {"dag_runs": []})["dag_runs"] if run["dag_run_id"] not in self._runs]
        return next((run for run in runs if run["state"] in {"success", "failed"}), None)

    @property
    def _timeline(self) -> Path:
        return self.path / ".hoodie" / "timeline"


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def open_airflow(database_url: str, engine: str) -> LocalAirflow:
    """Prepare an Airflow where each commit makes a compaction due, and nothing else."""
    shutil.rmtree(HOME, ignore_errors=True)
    (HOME / "lake").mkdir(parents=True)
    options = "\n".join(f"    {key}: '{value}'" for key, value in LOCK_OPTIONS.items())
    (HOME / "tables.yaml").write_text(
        "defaults:\n  compaction: {delta_commits: 1, log_to_base_ratio: null}\n"
        f"  clean: {{enabled: false}}\n  archive: {{enabled: false}}\n  hudi_options:\n{options}\n",
        encoding="utf-8",
    )
    airflow = LocalAirflow(HOME / "airflow", (HOME / "lake",), HOME / "tables.yaml", database_url)
    airflow.settings["AIRFLOW__LAKE__ENGINE"] = engine
    airflow.migrate()
    return airflow


def summarise(latencies: list[Latency]) -> dict[str, float]:
    """Return p50 and p95 of every step."""
    result: dict[str, float] = {}
    for name in ("started", "planned", "completed", "decided", "queued", "ended"):
        values = sorted(getattr(latency, f"{name}_s") for latency in latencies)
        key = {"started": "start", "completed": "done"}.get(name, name)
        result[f"{key}_p50_s"] = round(statistics.median(values), 2)
        # The nearest rank: with twenty commits the second slowest.
        result[f"{key}_p95_s"] = round(values[max(0, -(-95 * len(values) // 100) - 1)], 2)
    return result


def say(text: str) -> None:
    print(text, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", type=int, default=20, help="commits that are measured, after two that warm up")
    parser.add_argument("--database", choices=("sqlite", "postgres"), default="sqlite", help="Airflow's database")
    parser.add_argument("--engine", choices=("spark-submit", "warm"), default="warm", help="what runs the compactions")
    options = parser.parse_args()
    with ExitStack() as stack:
        url = ""
        if options.database == "postgres":
            postgres = LocalPostgres()
            stack.callback(postgres.stop)
            postgres.start()
            url = postgres.url
        airflow = open_airflow(url, options.engine)
        stack.callback(airflow.stop)
        writer = StandingWriter(airflow.home)
        stack.callback(writer.stop)
        airflow.start()
        writer.wait_until_ready()
        airflow.wait_for_dags()
        bench = Bench(airflow, writer)
        latencies = []
        bench.write(0, is_announced=False)
        for commit in range(1, options.commits + 3):
            latency = bench.measure(commit)
            say(f"{'warm-up' if commit < 3 else f'commit {commit - 2}'}: {latency}")
            if commit >= 3:
                latencies.append(latency)
            time.sleep(1)
    say(
        json.dumps(
            {**summarise(latencies), "commits": len(latencies), "database": options.database, "engine": options.engine}
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
