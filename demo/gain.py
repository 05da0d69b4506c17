"""What was gained, measured in this run: a query's seconds before and after a compaction, files, and commit times."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

from demo.report import TableReport
from demo.scene import ROOT, commits_of
from local_stack.airflow import HUDI_JAR, LocalAirflow, scratch_env
from local_stack.hudi_bundle import SPARK_PYTHON, spark_env
from local_stack.processes import ServerProcess, start


@dataclass(frozen=True, slots=True)
class QueryTimes:
    """One query over the same rows, before and after a compaction."""

    before_s: float
    after_s: float
    rows: int
    is_same_answer: bool


def start_query(airflow: LocalAirflow, base_path: Path, report: TableReport) -> ServerProcess | None:
    """Start the reader that times the query around the table's last compaction; None when there is none."""
    if not report.compactions:
        return None
    compaction = report.compactions[-1].requested_time
    before = max((write for write in report.writes if write < compaction), default="")
    script = str(ROOT / "demo" / "query_times.py")
    return start(
        "query-times",
        [str(SPARK_PYTHON), script, str(base_path), str(HUDI_JAR), before, compaction],
        airflow.home / "logs" / "query-times.log",
        env=spark_env() | scratch_env(airflow.home / "tmp") | {"PYTHONPATH": str(ROOT / "local_stack")},
        cwd=airflow.home,
    )


def parse_query(output: str) -> QueryTimes | None:
    """Return what `query_times.py` printed; None when it did not come to its end."""
    lines = [json.loads(line) for line in output.splitlines() if line.startswith('{"instant"')]
    if len(lines) != 2:
        return None
    before, after = lines
    same = (before["rows"], before["sum"]) == (after["rows"], after["sum"]) and before["rows"] > 0
    return QueryTimes(before["seconds"], after["seconds"], after["rows"], same)


@dataclass(frozen=True, slots=True)
class CommitTimes:
    """How long commits took, in seconds: those with no service at work on their table, and the others."""

    alone_s: tuple[float, ...]
    next_to_a_service_s: tuple[float, ...]

    @property
    def delayed(self) -> int:
        """How many commits next to a service took over a second longer than the slowest one alone."""
        slowest_s = max(self.alone_s, default=0.0)
        return sum(taken_s > slowest_s + 1 for taken_s in self.next_to_a_service_s)

    def text(self) -> str:
        """Return one sentence of it."""
        if not self.alone_s or not self.next_to_a_service_s:
            return "commits delayed by a service: unknown; all of them began next to one, or none did"
        return (
            f"commits delayed by a service: {self.delayed or 'none'} of {len(self.next_to_a_service_s)} "
            f"(median {median(self.next_to_a_service_s):.1f} s, at most {max(self.next_to_a_service_s):.1f} s; "
            f"with no service at work {median(self.alone_s):.1f} s and {max(self.alone_s):.1f} s)"
        )


def commit_times(writers: list[ServerProcess], services: Mapping[str, list[tuple[float, float]]]) -> CommitTimes:
    """Sort the writers' commits; `services` are the periods of each table's services, in seconds of the epoch.

    The first commit of each table is left out: it creates the table, in a JVM that has just started.
    """
    alone_s, next_to_a_service_s = [], []
    for writer in writers:
        commits = commits_of(writer)
        for commit in commits[len({commit["table"] for commit in commits}) :]:
            ended_s = datetime.fromisoformat(commit["ended_at"]).timestamp()
            began_s = ended_s - commit["seconds"]
            busy = any(began_s < end and begin < ended_s for begin, end in services.get(commit["table"], ()))
            (next_to_a_service_s if busy else alone_s).append(float(commit["seconds"]))
    return CommitTimes(tuple(alone_s), tuple(next_to_a_service_s))


def service_periods(
    runs: list[dict[str, Any]], tasks: Mapping[str, dict[str, Any]]
) -> dict[str, list[tuple[float, float]]]:
    """Return when services worked on each table, by its name, in seconds of the epoch."""
    found: dict[str, list[tuple[float, float]]] = {}
    for run in runs:
        task = tasks.get(run["dag_run_id"], {})
        if run["start_date"] and task.get("end_date"):
            period = tuple(datetime.fromisoformat(text).timestamp() for text in (run["start_date"], task["end_date"]))
            found.setdefault(run["conf"]["table_name"], []).append((period[0], period[1]))
    return found
