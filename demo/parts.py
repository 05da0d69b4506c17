"""Two parts of the story: a driver is killed and its run recovers; an index is built while a writer writes."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil

from airflow_lake_provider.hudi.base_path import table_id_of
from airflow_lake_provider.hudi.instant import Instant
from airflow_lake_provider.planner.table_view import TableView, TableViewCache
from airflow_lake_provider.shared.actions import Action
from demo.scene import BUSY_TABLE, INDEX
from demo.show import Show
from local_stack.airflow import LocalAirflow

_POLL_S = 0.05
_LISTED = "hoodie.table.metadata.partitions="


def view_of(base_path: Path) -> TableView:
    return TableViewCache().refresh(str(base_path))


@dataclass
class KilledDriver:
    """Kill -9 of the Spark job that compacts the busy table, in the middle of its plan."""

    airflow: LocalAirflow
    base_path: Path
    show: Show
    instant: str = ""
    """The plan whose job was killed."""
    run_id: str = ""
    killed_s: float = 0.0
    """Of `time.monotonic()`."""
    recovered_s: float = 0.0
    """From the kill to the end of the run; 0 until then."""
    tries: int = 0
    state: str = ""
    is_over: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        """Wait for the job in the background: it has its plan inflight for a few seconds only."""
        threading.Thread(target=self._wait_and_kill, daemon=True).start()

    def stop(self) -> None:
        self.is_over.set()

    @property
    def ended(self) -> bool:
        return self.recovered_s > 0

    def advance(self, runs: list[dict[str, Any]], tasks: Mapping[str, dict[str, Any]]) -> None:
        """Say what became of the run."""
        if not self.run_id or self.ended:
            return
        task = tasks.get(self.run_id, {})
        if task.get("state") == "up_for_retry":
            self.show.once("retry", f"{BUSY_TABLE}: the run has noticed it; Airflow tries again", "yellow")
        elif task.get("state") == "running" and task["try_number"] > 1:
            self.show.once("next try", f"{BUSY_TABLE}: try {task['try_number']} resumes plan {self.instant}", "yellow")
        self.tries = max(self.tries, task.get("try_number") or 0)
        self.state = next((run["state"] for run in runs if run["dag_run_id"] == self.run_id), "")
        if self.state in {"success", "failed"}:
            self.recovered_s = time.monotonic() - self.killed_s
            what = "has recovered" if self.state == "success" else "HAS FAILED"
            self.show.say(
                f"{BUSY_TABLE}: the run {what} {self.recovered_s:.0f} s after the kill, on try {self.tries}",
                "bold green",
            )

    def check(self) -> list[tuple[str, bool]]:
        """Return what must hold at the end."""
        completed = [i for i in view_of(self.base_path).timeline.completed() if i.requested_time == self.instant]
        return [
            (
                f"a driver was killed in the middle of a compaction; its run recovered on try {self.tries}, "
                f"{self.recovered_s:.0f} s later, without a person",
                self.state == "success" and self.tries > 1,
            ),
            (f"the plan that it left, {self.instant or 'none'}, is completed, once", len(completed) == 1),
        ]

    def _wait_and_kill(self) -> None:
        timeline = self.base_path / ".hoodie" / "timeline"
        while not self.is_over.wait(_POLL_S):
            instant = find_compaction(timeline)
            family = find_job(self.airflow.home / "lake" / "jobs", self.base_path.name) if instant else {}
            # A driver may end by itself at this moment: then the next compaction's is killed.
            run_id = next((run for run, processes in family.items() if kill_all(processes)), "")
            if not run_id:
                continue
            self.killed_s = time.monotonic()
            self.show.say(f"{BUSY_TABLE}: kill -9 of the Spark job, in the middle of compaction {instant}", "bold red")
            page = address_of(self.airflow, self.base_path)
            self.show.say(f"{BUSY_TABLE}: its run recovers within about a minute: see {page}", "bold")
            # `advance`, of another thread, reports the run from now on: the kill has been reported before.
            self.instant, self.run_id = instant, run_id
            return


def address_of(airflow: LocalAirflow, base_path: Path) -> str:
    """Return the address of a table's page."""
    return f"{airflow.url}/plugin/lake/tables/{quote(table_id_of(str(base_path)))}"


def find_compaction(timeline: Path) -> str:
    """Return the instant of the compaction that is executed now; empty when there is none."""
    begun = {path.name.partition(".")[0] for path in timeline.glob("*.compaction.inflight")}
    ended = {path.name.partition("_")[0] for path in timeline.glob("*.commit")}
    return max(begun - ended, default="")


def kill_all(processes: Iterable[psutil.Process]) -> bool:
    """Kill these processes; return whether one of them was still there."""
    killed = False
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
            killed = True
    return killed


def find_job(jobs: Path, table: str) -> dict[str, list[psutil.Process]]:
    """Return the processes of the compaction that runs now on a table, by run: the driver's Python and its JVM.

    Each has the path of its request, `<jobs>/<run>/<try>/request.json`, among its arguments.
    """
    found: dict[str, list[psutil.Process]] = {}
    for process in psutil.process_iter(["cmdline"]):
        for argument in process.info["cmdline"] or ():
            run = argument.removeprefix(f"{jobs}/").partition("/")[0] if argument.startswith(f"{jobs}/") else ""
            if run.startswith(f"{table}.compaction."):
                found.setdefault(run, []).append(process)
    return found


@dataclass
class IndexNextToWriter:
    """The manager builds what the tables file lists, while the busy table's writer goes on."""

    base_path: Path
    show: Show

    @property
    def build(self) -> Instant | None:
        found = [i for i in view_of(self.base_path).timeline.completed() if i.action is Action.INDEXING]
        return found[0] if found else None

    @property
    def is_built(self) -> bool:
        return self.build is not None

    def commits_meanwhile(self) -> list[Instant]:
        """Return the writes that began after the build's plan and before its end."""
        build = self.build
        if build is None:
            return []
        return [
            write
            for write in view_of(self.base_path).timeline.completed_writes
            if build.requested_time < write.requested_time < (build.completed_time or "")
        ]

    def advance(self) -> None:
        """Say when the build begins and ends."""
        index = next((i for i in view_of(self.base_path).timeline.instants if i.action is Action.INDEXING), None)
        if index is not None:
            self.show.once("index", f"{BUSY_TABLE}: {INDEX} is being built; the writer goes on", "cyan")
        if self.build is not None:
            self.show.once(
                "built",
                f"{BUSY_TABLE}: {INDEX} is ready; {len(self.commits_meanwhile())} commits began meanwhile",
                "bold green",
            )

    def check(self) -> list[tuple[str, bool]]:
        """Return what must hold at the end; Hudi's own property names the indexes that readers may use."""
        properties = (self.base_path / ".hoodie" / "hoodie.properties").read_text(encoding="utf-8")
        listed = next((line for line in properties.splitlines() if line.startswith(_LISTED)), "")
        ready = INDEX in listed.partition("=")[2].split(",")
        return [(f"{INDEX} was built while {len(self.commits_meanwhile())} commits of the writer began", ready)]
