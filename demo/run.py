"""`make demo`: start Airflow, let real Hudi writers commit, watch services work, and print what was gained.

The story: Hudi's own callback announces commits; the manager decides, with a reason; DAG runs work through
spark-submit while the writers continue. An index is built next to a writer; the driver of a compaction is killed and
its run recovers; one notice is dropped on purpose and the heartbeat finds the commit; one table's changes arrive in a
Kafka topic. At the end every claim is checked against the tables' timelines and rows, and a query is timed.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Any

from demo.changes import ChangesInKafka
from demo.gain import CommitTimes, QueryTimes, commit_times, parse_query, service_periods, start_query
from demo.parts import IndexNextToWriter, KilledDriver, address_of
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
from demo.show import Show, TableLine
from local_stack.airflow import LocalAirflow
from local_stack.processes import ServerProcess, free_port

FAVOURITE_PORT = 8080
STORY_TIMEOUT_S = 900
_POLL_S = 1.0
"""Each poll asks the API server for runs, tasks and tables, which all work on the story's two cores."""


class Demo:
    """One run of the story."""

    def __init__(self, home: Path, show: Show) -> None:
        self.show = show
        self.lake = home / "lake"
        self.stop_file = home / "enough"
        self.airflow = LocalAirflow(home / "airflow", (self.lake,), tables_file=home / "tables.yaml", port=pick_port())
        self.writers: list[ServerProcess] = []
        self.changes = ChangesInKafka(self.airflow, self.lake, self.writers, show.say)
        self.killed = KilledDriver(self.airflow, self.lake / BUSY_TABLE, show)
        self.index = IndexNextToWriter(self.lake / BUSY_TABLE, show)

    @property
    def page(self) -> str:
        """The address of the Lake's page."""
        return f"{self.airflow.url}/plugin/lake"

    def addresses(self) -> str:
        """Return the addresses worth opening after the story, one line each."""
        busy = address_of(self.airflow, self.lake / BUSY_TABLE)
        return "\n".join(
            f"  {address:<72} {what}"
            for address, what in (
                (self.page, "all tables, the worst first"),
                (busy, f"{BUSY_TABLE}: its timeline with the killed compaction"),
                (f"{self.page}/operations", "every run: why, how long, files before and after"),
            )
        )

    def play(self) -> bool:
        """Play the whole story; return whether every part of it went well."""
        self.show.say(f"open {self.page} (no login; it answers in about half a minute)", "bold")
        self.lake.mkdir(parents=True)
        assert self.airflow.tables_file is not None
        with ThreadPoolExecutor(1) as starter:
            broker = starter.submit(self.changes.open, self.airflow.home.parent / "kafka")
            self.show.say("creating Airflow's database with the provider's tables")
            self.airflow.migrate()
        write_tables_file(self.airflow.tables_file, self.lake, broker.result())
        # A writer takes as long to start. A notice that finds no manager is lost, and a heartbeat finds its commit.
        self.show.say("starting Airflow, and two stock PySpark writers with nothing but settings")
        self.start_writers()
        self.airflow.start()
        self.airflow.wait_for_dags()
        self.show.say("Airflow is up")
        self.show.open(f"The lake at {self.page}")
        self.killed.start()
        self.wait("the story's parts", self.is_played)
        self.stop_file.touch()
        self.show.say(f"all parts are played: the writer of {BUSY_TABLE} ends; waiting until nothing is due any more")
        self.wait("the table services", lambda: not self.writing() and self.settled())
        return self.end()

    def start_writers(self) -> None:
        for name, tables, stop_file in (
            ("first-writer", FIRST_WRITER, self.stop_file),
            ("second-writer", SECOND_WRITER, None),
        ):
            self.writers.append(start_writer(name, tables, self.lake, self.airflow, stop_file))

    def is_played(self) -> bool:
        """Whether all that needs a living writer has happened."""
        # A writer that has ended early leaves nothing to wait for.
        return self.changes.ended and (not self.writers[0].alive() or (self.killed.ended and self.index.is_built))

    def writing(self) -> bool:
        return any(writer.alive() for writer in self.writers)

    def wait(self, what: str, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + STORY_TIMEOUT_S
        while not ready():
            self.narrate()
            self.changes.advance()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what} took longer than {STORY_TIMEOUT_S} s; logs are in {self.airflow.home}/logs")
            time.sleep(_POLL_S)
        self.narrate()

    def narrate(self) -> None:
        """Show what is new."""
        self.show.update(self.lines())
        for writer in self.writers:
            for commit in commits_of(writer):
                if commit["table"] == DROPPED_TABLE and not commit["notice"]:
                    self.show.once("dropped", f"{DROPPED_TABLE}: the notice of its last commit is DROPPED on purpose")
        runs, tasks = self.airflow.service_runs(), self.tasks()
        for run in runs:
            table, service = run["conf"]["table_name"], run["conf"]["service"]
            if run["state"] in {"running", "success", "failed"}:
                self.show.once(f"begin {run['dag_run_id']}", f"{table}: {service} begins: {run['conf']['reason']}")
            if run["state"] in {"success", "failed"}:
                seconds = _seconds(run)
                said = f"{table}: {service} is done after {seconds:.0f} s" if run["state"] == "success" else ""
                self.show.once(f"end {run['dag_run_id']}", said or f"{table}: {service} FAILED after {seconds:.0f} s")
        self.killed.advance(runs, tasks)
        self.index.advance()

    def lines(self) -> list[TableLine]:
        """Return the tables as the Lake's page shows them, the worst first."""
        answer = self.airflow.airflow_get("/lake/api/tables")
        commits = [commit["table"] for writer in self.writers for commit in commits_of(writer)]
        return [
            TableLine(row["name"], commits.count(row["name"]), row["log_bytes"], row["state"], row["headline"])
            for row in ([] if answer is None else answer["rows"])
        ]

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

    def end(self) -> bool:
        """Print what happened and what was gained, and check it; return whether all checks hold."""
        runs, tasks = self.airflow.service_runs(), self.tasks()
        starts = {run: datetime.fromisoformat(task["start_date"]) for run, task in tasks.items() if task["start_date"]}
        reports = [report_table(self.lake / table.name, self.runs_of(runs, table.name), starts) for table in TABLES]
        query = self.time_query(next(report for report in reports if report.name == DROPPED_TABLE))
        self.show.close()
        print("\nWhat happened\n")
        print_table(reports)
        print(f"\nWhat arrived in Kafka{' (nothing: ' + self.changes.failure + ')' if self.changes.failure else ''}\n")
        self.changes.print_arrivals()
        times = commit_times(self.writers, service_periods(runs, tasks))
        print("\nWhat was gained, measured in this run\n")
        for line in gains(reports, query, times):
            print(f"  {line}")
        print()
        results = self.check(reports, runs, query)
        for text, holds in results:
            print(f"  {'ok  ' if holds else 'FAIL'}  {text}")
        return all(holds for _, holds in results)

    def time_query(self, report: TableReport) -> QueryTimes | None:
        """Time a query of a table before and after its compaction, with no other job at work."""
        reader = start_query(self.airflow, self.lake / report.name, report)
        if reader is None:
            return None
        self.show.say(f"{report.name}: timing a query before and after its compaction")
        try:
            reader.process.wait(timeout=STORY_TIMEOUT_S)
        finally:
            reader.stop()
        return parse_query(reader.log_path.read_text(encoding="utf-8"))

    def check(
        self, reports: list[TableReport], runs: list[dict[str, Any]], query: QueryTimes | None
    ) -> list[tuple[str, bool]]:
        by_name = {report.name: report for report in reports}
        dropped, busy = by_name[DROPPED_TABLE], by_name[BUSY_TABLE]
        compactions = [instant for report in reports for instant in report.compactions]
        compacting = [run for run in runs if run["conf"]["service"] == "compaction"]
        written = [commit["table"] for writer in self.writers for commit in commits_of(writer)]
        return [
            ("all writers ended without an error", all(writer.process.returncode == 0 for writer in self.writers)),
            (
                f"every one of {len(written)} commits is on its table's timeline",
                all(len(report.writes) == written.count(report.name) > 0 for report in reports),
            ),
            (
                f"{busy.overlapped_commits} commits of {BUSY_TABLE} began while one of its compactions ran",
                busy.overlapped_commits > 0,
            ),
            *self.killed.check(),
            *self.index.check(),
            (f"{DROPPED_TABLE}: the dropped notice was repaired, the table is compacted", bool(dropped.compactions)),
            (
                f"{DROPPED_TABLE}: its compaction left no log file of {dropped.log_files_before}",
                dropped.log_files_after == 0 < dropped.log_files_before,
            ),
            (
                f"{DROPPED_TABLE}: the query finds the same rows before and after the compaction",
                query is not None and query.is_same_answer,
            ),
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

    def tasks(self) -> dict[str, dict[str, Any]]:
        """Return the last try of each run's task, by run."""
        answer = self.airflow.airflow_get("/api/v2/dags/lake_table_service/dagRuns/~/taskInstances", limit=100)
        return {} if answer is None else {task["dag_run_id"]: task for task in answer["task_instances"]}

    def stop(self) -> None:
        self.show.close()
        self.killed.stop()
        for writer in self.writers:
            writer.stop()
        self.airflow.stop()
        self.changes.stop()


def gains(reports: list[TableReport], query: QueryTimes | None, times: CommitTimes) -> list[str]:
    """Return one sentence for each gain."""
    found = []
    if query is not None:
        found.append(
            f"a query of {DROPPED_TABLE} ({query.rows:,} rows): {query.before_s:.2f} s before its compaction, "
            f"{query.after_s:.2f} s after it"
        )
    found += [
        f"{report.name}: up to {report.log_files_before} log files ({report.log_bytes_before / 1024:,.0f} KiB) "
        f"that each reader had to merge; now {report.log_files_after}"
        for report in reports
        if report.name == DROPPED_TABLE  # the other writers went on
    ]
    return [*found, times.text()]


def _seconds(run: dict[str, Any]) -> float:
    began, ended = (datetime.fromisoformat(run[key]) for key in ("start_date", "end_date"))
    return (ended - began).total_seconds()


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
    demo = Demo(home, Show())
    well = False
    try:
        well = demo.play()
        failed = f"a part of it FAILED; logs are in {demo.airflow.home}/logs"
        demo.show.say("the story is complete" if well else failed)
        if not options.exit:
            print(f"\nServed until Ctrl-C:\n{demo.addresses()}", flush=True)
            signal.pause()
    except KeyboardInterrupt:
        demo.show.close()
        demo.show.say("stopping")
    finally:
        # A second signal must not leave half of the processes behind.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        demo.stop()
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
