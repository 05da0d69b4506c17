"""How far a table has come, as seen on storage and in Airflow, and what must not last."""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_lake_provider.manager.runs.run_ids import is_run_of
from airflow_lake_provider.planner.table_view import TableView, TableViewCache
from airflow_lake_provider.shared.actions import Action
from local_stack.processes import PATIENCE
from tests.system.crashes.faults import Step
from tests.system.crashes.stage import Stage

ACTIVE = {"queued", "running"}
LIMITS_S = {"Airflow does not answer": 60.0, "dirty": 45.0, "queued": 60.0, "running": 240.0, "plan without run": 90.0}
"""How long one state may last once nothing goes wrong any more, on two cores."""


@dataclass
class TableWatch:
    """One table of one round."""

    stage: Stage
    name: str
    table_id: str
    path: Path
    last_commit: int
    _since: dict[tuple[str, ...], float] = field(default_factory=dict)

    @property
    def timeline(self) -> Path:
        return self.path / ".hoodie" / "timeline"

    def has_reached(self, step: Step) -> bool:
        """Whether the step is behind the table's first compaction."""
        return {
            Step.COMMITTING: lambda: len(self.stage.postman.letters_of(self.name)) > 0,
            Step.NOTICED: lambda: len(self._commits()) > self.last_commit,
            Step.STARTED: lambda: bool(self.runs()),
            Step.SUBMITTED: lambda: bool(self.stage.watch.drivers(self.table_id)),
            Step.PLANNED: lambda: self._has_file("*.compaction.requested"),
            Step.INFLIGHT: lambda: self._has_file("*.compaction.inflight"),
            Step.WRITING: self._has_markers,
            Step.COMPLETED: lambda: self._has_file("*.commit"),
            Step.JUDGED: lambda: any(run["state"] == "success" for run in self.runs() or ()),
        }[step]()

    def view(self) -> TableView:
        return TableViewCache().refresh(str(self.path))

    def row(self) -> dict[str, Any] | None:
        """Return the registry's row; None while no server answers or knows the table."""
        return self.stage.airflow.get(f"/v1/hoodie/tables/{self.table_id}")

    def runs(self) -> list[dict[str, Any]] | None:
        """Return the table's runs; None while no server answers. Asked in loops, so it takes its time."""
        time.sleep(0.3)
        answer = self.stage.airflow.airflow_get(
            "/api/v2/dags/lake_table_service/dagRuns",
            limit=20,
            run_id_prefix_pattern=f"{self.table_id.rpartition('-')[0]}.",
        )
        return None if answer is None else list(answer["dag_runs"])

    def find_unrest(self) -> str:
        """Return what is not settled yet; empty when the last commit is reflected and nothing is at work."""
        view, row, runs = self.view(), self.row(), self.runs()
        if row is None or runs is None:
            return "Airflow does not answer"
        if active := [run["dag_run_id"] for run in runs if run["state"] in ACTIVE]:
            return f"runs {active} have not ended"
        latest = view.timeline.latest_completed()
        if row["dirty"] or latest is None or row["completed_time"] != latest.completed_time:
            return f"the registry knows the table up to {row['completed_time']}"
        if view.timeline.pending(Action.COMPACTION) or not self.compactions(view):
            return "the compaction is not completed"
        return f"{len(living)} drivers live" if (living := self.stage.watch.living(self.table_id)) else ""

    def find_overdue(self) -> str:
        """Return a state that has lasted for too long; empty when there is none. Asked again and again."""
        now_s = time.monotonic()
        states = self._states()
        self._since = {state: self._since.get(state, now_s) for state in states}
        for state, since_s in self._since.items():
            limit_s = LIMITS_S[state[0]] * PATIENCE
            if now_s - since_s > limit_s:
                return f"{' '.join(state)} for {now_s - since_s:.0f} s, allowed are {limit_s:.0f} s"
        return ""

    def compactions(self, view: TableView) -> list[str]:
        """Return the requested times of completed compactions."""
        return [time_ for time_, metadata in view.commits.items() if metadata.operation == "COMPACT"]

    def completions(self) -> list[str]:
        """Return the plan of each completed file on the timeline: one that is there twice was completed twice."""
        return [path.name.partition("_")[0] for path in self.timeline.glob("*.commit")]

    def said_completed(self) -> list[str]:
        """Return the plan of each line "completed in" of all drivers' logs."""
        found: list[str] = []
        for log in (self.stage.airflow.home / "logs").glob("dag_id=*/run_id=*/**/*.log"):
            run_id = next(part for part in log.parts if part.startswith("run_id=")).removeprefix("run_id=")
            if not is_run_of(run_id, self.table_id):
                continue
            found += re.findall(r"compaction (\d{17}) completed in", log.read_text(encoding="utf-8", errors="replace"))
        return found

    def tries(self) -> int:
        jobs = self.stage.airflow.home / "lake" / "jobs"
        return sum(is_run_of(path.relative_to(jobs).parts[0], self.table_id) for path in jobs.rglob("request.json"))

    def _states(self) -> set[tuple[str, ...]]:
        row, runs = self.row(), self.runs()
        if runs is None:
            return {("Airflow does not answer",)}
        states = {(run["state"], run["dag_run_id"]) for run in runs if run["state"] in ACTIVE}
        if row is None or row["dirty"]:
            states.add(("dirty", json.dumps(row and row["last_notice_instant"])))
        if not states:
            states = {("plan without run", plan.requested_time) for plan in self.view().timeline.pending()}
        return states

    def _commits(self) -> list[Path]:
        return list(self.timeline.glob("*.deltacommit"))

    def _has_file(self, pattern: str) -> bool:
        return any(True for _ in self.timeline.glob(pattern))

    def _has_markers(self) -> bool:
        plans = [path.name.partition(".")[0] for path in self.timeline.glob("*.compaction.inflight")]
        return any((self.path / ".hoodie" / ".temp" / plan).exists() for plan in plans) or self._has_file("*.commit")
