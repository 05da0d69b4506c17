"""`make demo`: start Airflow, let real Hudi writers commit, watch compactions, and print what happened.

The story: Hudi's own callback announces commits; the manager decides, with a reason; DAG runs compact through
spark-submit while the writers continue; one notice is dropped on purpose and the heartbeat finds the commit; one
table's changes arrive in a Kafka topic. At the end every claim is checked against the tables' timelines and rows.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Any

from demo.changes import ChangesInKafka
from demo.report import TableReport, print_table, report_table
from demo.scene import (
    BUSY_TABLE,
    DROPPED_TABLE,
    FIRST_WRITER,
    ROOT,
    SECOND_WRITER,
    TABLES,
    commits_of,
    start_writer,
    write_tables_file,
)
from local_stack.airflow import LocalAirflow
from local_stack.processes import ServerProcess, free_port

FAVOURITE_PORT = 8080
STORY_TIMEOUT_S = 900


class Demo:
    """One run of the story."""

    def __init__(self, home: Path) -> None:
        self.lake = home / "lake"
        self.airflow = LocalAirflow(home / "airflow", (self.lake,), tables_file=home / "tables.yaml", port=pick_port())
        self.writers: list[ServerProcess] = []
        self.changes = ChangesInKafka(self.airflow, self.lake, self.writers, self.say)
        self.began = time.monotonic()
        self.seen: set[str] = set()

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self.began:6.1f} s] {text}", flush=True)

    def once(self, key: str, text: str) -> None:
        if key not in self.seen:
            self.seen.add(key)
            self.say(text)

    def play(self) -> bool:
        """Play the whole story; return whether every part of it went well."""
        self.lake.mkdir(parents=True)
        assert self.airflow.tables_file is not None
        broker = self.changes.open(self.airflow.home.parent / "kafka")
        write_tables_file(self.airflow.tables_file, self.lake, broker)
        self.say("creating Airflow's database with the provider's tables")
        self.airflow.migrate()
        self.say(f"starting Airflow on {self.airflow.url}")
        self.airflow.start()
        for name, tables in (("first-writer", FIRST_WRITER), ("second-writer", SECOND_WRITER)):
            self.writers.append(start_writer(name, tables, self.lake, self.airflow))
        self.airflow.wait_for_dags()
        self.say("Airflow is up; two stock PySpark writers commit, with nothing but settings")
        self.wait("the writers", lambda: self.changes.is_written and not any(writer.alive() for writer in self.writers))
        self.say("the writers have ended; waiting until nothing is due any more")
        self.wait("the table services", lambda: self.changes.ended and self.settled())
        return self.print_story()

    def wait(self, what: str, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + STORY_TIMEOUT_S
        while not ready():
            self.narrate()
            self.changes.advance()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what} took longer than {STORY_TIMEOUT_S} s; logs are in {self.airflow.home}/logs")
            time.sleep(1)
        self.narrate()

    def narrate(self) -> None:
        """Print what is new."""
        for writer in self.writers:
            for commit in commits_of(writer):
                how = "announced" if commit["notice"] else "its notice is DROPPED on purpose"
                self.once(
                    f"commit {commit['table']} {commit['commit']}",
                    f"{commit['table']}: commit {commit['commit'] + 1} took {commit['seconds']:.1f} s, {how}",
                )
        for table in self.airflow.tables():
            for decision in table["decisions"]:
                if decision.get("run") == "already_active":
                    continue
                self.once(
                    f"decision {table['table_name']} {decision['verdict']} {decision['reason']}",
                    f"{table['table_name']}: {decision['service']} {decision['verdict'].replace('_', ' ')}: "
                    f"{decision['reason']}",
                )
        for run in self.airflow.service_runs():
            self.once(f"run {run['dag_run_id']} {run['state']}", f"run {run['dag_run_id']}: {run['state']}")

    def settled(self) -> bool:
        """Whether every table was evaluated after its last commit and has neither an active nor a due service."""
        runs = self.airflow.service_runs()
        if any(run["state"] in {"queued", "running"} for run in runs):
            return False
        tables = {table["table_name"]: table for table in self.airflow.tables()}
        if set(tables) != {table.name for table in TABLES}:
            return False
        if not any(run["conf"]["table_name"] == DROPPED_TABLE for run in runs):
            return False
        return all(
            not table["dirty"]
            # A clean may run and find nothing to delete: it has had its run, and is due again with the next commit.
            and all(
                decision["verdict"] != "due" or decision.get("run") == "already_ran" for decision in table["decisions"]
            )
            for table in tables.values()
        )

    def print_story(self) -> bool:
        """Print what happened and check it; return whether all checks hold."""
        runs = self.airflow.service_runs()
        starts = self.task_starts()
        reports = [report_table(self.lake / table.name, self.runs_of(runs, table.name), starts) for table in TABLES]
        print("\nWhat happened\n")
        print_table(reports)
        print("\nWhy\n")
        for run in runs:
            print(f"  {run['conf']['table_name']:<11}{run['state']:<9}{run['conf']['reason']}")
        for table in self.airflow.tables():
            for decision in table["decisions"]:
                print(f"  {table['table_name']:<11}{decision['verdict']:<9}{decision['reason']}")
        print(f"\nWhat arrived in Kafka{' (nothing: ' + self.changes.failure + ')' if self.changes.failure else ''}\n")
        self.changes.print_arrivals()
        print()
        results = self.check(reports, runs)
        for text, holds in results:
            print(f"  {'ok  ' if holds else 'FAIL'}  {text}")
        return all(holds for _, holds in results)

    def check(self, reports: list[TableReport], runs: list[dict[str, Any]]) -> list[tuple[str, bool]]:
        by_name = {report.name: report for report in reports}
        dropped, busy = by_name[DROPPED_TABLE], by_name[BUSY_TABLE]
        compactions = [instant for report in reports for instant in report.compactions]
        compacting = [run for run in runs if run["conf"]["service"] == "compaction"]
        return [
            ("all writers ended without an error", all(writer.process.returncode == 0 for writer in self.writers)),
            (
                "every commit is on its table's timeline",
                all(by_name[table.name].commits == table.commits for table in TABLES),
            ),
            (f"{BUSY_TABLE} has at least 12 commits and was compacted", busy.commits >= 12 and bool(busy.compactions)),
            (
                f"{busy.overlapped_commits} commits of {BUSY_TABLE} began while one of its compactions ran",
                busy.overlapped_commits > 0,
            ),
            (f"{DROPPED_TABLE}: the dropped notice was repaired, the table is compacted", bool(dropped.compactions)),
            ("every DAG run succeeded", all(run["state"] == "success" for run in runs)),
            (
                f"{len(compactions)} compactions for {len(compacting)} runs, each once, none left pending",
                len(compactions) == len(compacting) and not any(report.pending for report in reports),
            ),
            ("compaction of customers was never due: copy-on-write", not self.runs_of(compacting, "customers")),
            *self.changes.check(),
        ]

    @staticmethod
    def runs_of(runs: list[dict[str, Any]], table: str) -> list[dict[str, Any]]:
        return [run for run in runs if run["conf"]["table_name"] == table]

    def task_starts(self) -> dict[str, datetime]:
        answer = self.airflow.airflow_get("/api/v2/dags/lake_table_service/dagRuns/~/taskInstances", limit=100)
        instances = [] if answer is None else answer["task_instances"]
        return {i["dag_run_id"]: datetime.fromisoformat(i["start_date"]) for i in instances if i["start_date"]}

    def stop(self) -> None:
        for writer in self.writers:
            writer.stop()
        self.airflow.stop()
        self.changes.stop()


def pick_port() -> int:
    """Return the default port if it is free, else any free one."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", FAVOURITE_PORT))
        except OSError:
            return free_port()
        return FAVOURITE_PORT


def _interrupt(number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)


def main() -> int:
    parser = argparse.ArgumentParser(description="Show commits turning into finished table services.")
    parser.add_argument("--exit", action="store_true", help="end after the story instead of serving until Ctrl-C")
    options = parser.parse_args()
    # Also when started in the background, where a shell makes SIGINT ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    home = ROOT / ".work" / "demo"
    shutil.rmtree(home, ignore_errors=True)
    demo = Demo(home)
    well = False
    try:
        well = demo.play()
        demo.say("the story is complete" if well else f"a part of it FAILED; logs are in {demo.airflow.home}/logs")
        if not options.exit:
            print(
                f"\nAirflow's UI: {demo.airflow.url}  (DAG lake_table_service; no login)"
                f"\nAll tables, with what is due and why: {demo.airflow.url}/plugin/lake"
                "\nCtrl-C ends it.",
                flush=True,
            )
            signal.pause()
        else:
            print(f"\nAirflow's UI was at {demo.airflow.url}", flush=True)
    except KeyboardInterrupt:
        demo.say("stopping")
    finally:
        # A second signal must not leave half of the processes behind.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        demo.stop()
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
