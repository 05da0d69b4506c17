"""One round: a new table, real commits, faults at their steps; then all must come to rest, and is judged."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass, field

from airflow_lake_provider.hudi.base_path import table_id_of
from local_stack.processes import PATIENCE
from tests.system.crashes.driver_watch import find_overlaps
from tests.system.crashes.faults import Fault, RoundPlan
from tests.system.crashes.stage import DELTA_COMMITS, OPTIONS, Stage
from tests.system.crashes.table_watch import TableWatch

STEP_TIMEOUT_S = 120.0 * PATIENCE
REST_TIMEOUT_S = 300.0 * PATIENCE
KEYS, ROWS = 12_000, 400


@dataclass
class RoundReport:
    """What happened. A round is good when `violations` is empty."""

    plan: RoundPlan
    story: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        return "\n".join([f"seed {self.plan.seed}", *self.story, *(f"VIOLATED: {text}" for text in self.violations)])


class Round:
    """Plays one plan on the stage."""

    def __init__(self, stage: Stage, plan: RoundPlan) -> None:
        name = f"orders_{plan.seed}"
        path = stage.lake / name
        self.stage = stage
        self.plan = plan
        self.report = RoundReport(plan)
        self.table = TableWatch(stage, name, table_id_of(str(path)), path, DELTA_COMMITS - 1)
        self._began_s = time.monotonic()
        self._is_over = threading.Event()

    def play(self) -> RoundReport:
        self.stage.configure(self.table.path)
        self.stage.postman.begin(self.plan)
        faults = threading.Thread(target=self._inject, name="faults")
        faults.start()
        try:
            self._write()
        except BaseException:
            self._is_over.set()
            raise
        finally:
            faults.join()
        self.stage.postman.wait()
        self._say("nothing goes wrong from here on")
        self._wait_for_rest()
        self._judge()
        self.stage.bury()
        return self.report

    def _write(self) -> None:
        table = {"name": self.table.name, "base_path": str(self.table.path), "keys": KEYS, "rows": ROWS}
        callback = {"url": self.stage.postman.url, "token": self.stage.airflow.callback_token}
        for commit in range(DELTA_COMMITS):
            seconds = self.stage.writer.write(table, commit, callback, OPTIONS)
            self._say(f"commit {commit} took {seconds:.1f} s")
            self.report.counts["commits"] += 1

    def _inject(self) -> None:
        for fault in self.plan.faults:
            deadline = time.monotonic() + STEP_TIMEOUT_S
            while not self.table.has_reached(fault.step):
                if time.monotonic() > deadline:
                    self._say(f"not within {STEP_TIMEOUT_S:.0f} s: {fault.step}")
                    return
                if self._is_over.wait(0.1):
                    return
                self._revive()
            self._strike(fault)

    def _strike(self, fault: Fault) -> None:
        time.sleep(fault.delay_s)
        is_hit = self.stage.kill(fault.victim, self.table.table_id)
        self._say(f"{fault}{'' if is_hit else ': no process was there'}")
        self.report.counts[f"kills of {fault.victim}" if is_hit else "kills that found no process"] += 1
        self.report.counts["clocks moved"] += bool(fault.clock_s)
        time.sleep(fault.down_s)
        self.stage.restart(fault)

    def _wait_for_rest(self) -> None:
        deadline = time.monotonic() + REST_TIMEOUT_S
        overdue: set[str] = set()
        while unrest := self.table.find_unrest():
            late = self.table.find_overdue()
            if late and late.partition(" for ")[0] not in overdue:
                overdue.add(late.partition(" for ")[0])
                self.report.violations.append(late)
            self._revive()
            if time.monotonic() > deadline:
                self.report.violations.append(f"not at rest after {REST_TIMEOUT_S:.0f} s: {unrest}")
                return
            time.sleep(1)
        self._say("at rest")

    def _revive(self) -> None:
        for server in self.stage.airflow.revive():
            self._say(f"the {server} ended by itself, and was started again")
            self.report.counts["servers that ended by themselves"] += 1

    def _judge(self) -> None:
        table, report = self.table, self.report
        drivers = self.stage.watch.drivers(table.table_id)
        report.violations += [f"two executors at once: {pair}" for pair in find_overlaps(drivers)]
        for said, plans in (("the timeline", table.completions()), ("the drivers' logs", table.said_completed())):
            twice = [plan for plan, count in Counter(plans).items() if count > 1]
            report.violations += [f"{said} show plan {plan} completed twice" for plan in twice]
        found = self.stage.writer.read(table.path)
        expected = KEYS + (DELTA_COMMITS - 1) * (ROWS // 10)
        if (found["rows"], found["ids"]) != (expected, expected):
            report.violations.append(f"{expected} rows were written, found {found['rows']} of {found['ids']} ids")
        fates = Counter(letter.fate for letter in self.stage.postman.letters_of(table.name))
        report.counts.update({f"notices {fate}": count for fate, count in fates.items()})
        report.counts["tries"] += table.tries()
        report.counts["drivers"] += len(drivers)
        report.counts["plans completed"] += len(table.completions())
        runs = table.runs() or []
        report.counts["runs"] += len(runs)
        report.counts["runs failed"] += sum(run["state"] == "failed" for run in runs)
        self._say(f"{len(runs)} runs, {table.tries()} tries, {len(drivers)} drivers, plans {table.completions()}")

    def _say(self, text: str) -> None:
        self.report.story.append(f"{time.monotonic() - self._began_s:7.1f} s  {text}")
