"""Whatever stands still for longer than its lease, while PostgreSQL is killed: no plan runs twice, none is lost.

A seed chooses which process is paused, when and for how long: the API server, a worker, a driver, the standing
application, its task, or the triggerer. What Airflow gives up meanwhile gets its next try, or another run, and the
paused one wakes up next to it. Manager, database, leases, records, work queue, trigger and standing application are
real. Not real: drivers have no JVM and write no rows (`ledger_driver.py`), and the scheduler is played, so that a round
takes seconds. With real Spark: `test_fencing.py`.
`LAKE_PAUSE_ROUNDS` is the number of rounds, from seed `LAKE_PAUSE_SEED`.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine

from airflow_lake_provider.execution.engines.warm import application_key, job_from_dict
from airflow_lake_provider.hudi.base_path import table_id_of
from airflow_lake_provider.manager.db.schema import metadata
from local_stack.postgres import LocalPostgres
from local_stack.processes import PATIENCE, ServerProcess, accepts_connections, free_port, start, wait_until
from tests.integration.engines import ledger_driver
from tests.support.tables import HandMadeTable

pytestmark = [pytest.mark.integration, pytest.mark.soak(covered_by="tests/integration/engines/test_fencing.py")]

ROOT = Path(__file__).resolve().parents[3]
ROUNDS = int(os.environ.get("LAKE_PAUSE_ROUNDS", "3"))
FIRST_SEED = int(os.environ.get("LAKE_PAUSE_SEED", "1"))
LEASE_S = 6.0
OPTIONS = {"hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider"}
VICTIMS = ("api server", "worker", "driver", "application", "task of the application", "triggerer")
COLD, WARM = "cold", "warm"


def is_alive(pid: int) -> bool:
    return ledger_driver.start_ticks_of(pid) != ""


@dataclass
class Run:
    """A run of a table's service, or of the application's DAG, as Airflow sees it: one process after the other."""

    name: str
    table: Path
    engine: str
    kind: str = "task"
    try_number: int = 1
    pid: int = 0
    log: Path = Path()
    trigger: dict[str, Any] = field(default_factory=dict)
    event: dict[str, Any] | None = None
    returned: Any = None
    begins_at_s: float = 0.0


@dataclass
class World:
    """PostgreSQL, the manager and a nursery of tasks; what a round starts, and Airflow's part in it."""

    folder: Path
    postgres: LocalPostgres = field(default_factory=LocalPostgres)
    port: int = field(default_factory=free_port)
    manager: ServerProcess | None = None
    nursery: subprocess.Popen[str] | None = None
    born: list[int] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger.jsonl"

    def open(self) -> None:
        self.postgres.start()
        engine = create_engine(self.postgres.url)
        metadata.create_all(engine)
        engine.dispose()
        ledger_driver.install(self.folder / "bin", self.ledger)
        command = [sys.executable, "-m", "tests.integration.engines.manager_process", self.postgres.url, str(self.port)]
        command += [str(self.folder / "lake"), str(LEASE_S)]
        self.manager = start("manager", command, self.folder / "manager.log", env=self.env(), cwd=ROOT)
        with (self.folder / "nursery.log").open("w") as log:
            self.nursery = subprocess.Popen(
                [sys.executable, "-m", "tests.integration.engines.task_nursery"],
                env=self.env(), cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        wait_until(lambda: accepts_connections(self.port), 120, "the manager", [self.manager])

    def env(self) -> dict[str, str]:
        own = {key: value for key, value in os.environ.items() if not key.startswith(("AIRFLOW", "SPARK"))}
        lake = {"conn_type": "lake", "host": f"http://127.0.0.1:{self.port}", "password": "service-secret"}
        return own | {
            "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "AIRFLOW_HOME": str(self.folder / "airflow"),
            "AIRFLOW_CONN_LAKE_DEFAULT": json.dumps(lake),
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
            "AIRFLOW__LAKE__WORK_DIR": str(self.folder / "work"),
            "AIRFLOW__LAKE__ALLOWED_ROOTS": str(self.folder / "lake"),
            "AIRFLOW__LAKE__ALLOWED_RUN_OPTIONS": ",".join(OPTIONS),
            "AIRFLOW__LAKE__WARM_IDLE_S": "60",
            "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "0",
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        }

    def fork(self, order: dict[str, Any]) -> int:
        assert self.nursery is not None
        assert self.nursery.stdin is not None
        assert self.nursery.stdout is not None
        self.nursery.stdin.write(json.dumps(order) + "\n")
        self.nursery.stdin.flush()
        self.born.append(int(self.nursery.stdout.readline()))
        return self.born[-1]

    def close(self) -> None:
        for pid in self.born:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for line in ledger_driver.read(self.ledger):
            if ledger_driver.start_ticks_of(line["pid"]) == line["ticks"]:
                os.kill(line["pid"], signal.SIGKILL)
        if self.nursery is not None:
            self.nursery.kill()
            self.nursery.communicate()
        if self.manager is not None:
            self.manager.kill()
        with suppress(RuntimeError):  # a round that failed may have left it killed
            self.postgres.stop()


@dataclass
class Round:
    """One seed: two cold tables and two warm ones, pauses, and a database that is killed."""

    world: World
    seed: int
    runs: list[Run] = field(default_factory=list)
    given_up: list[int] = field(default_factory=list)
    """Processes that Airflow no longer waits for."""
    application: Run | None = None
    paused: list[tuple[float, int]] = field(default_factory=list)
    """When each wakes up."""
    story: list[str] = field(default_factory=list)
    processes: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.began_s = time.monotonic()
        self.work = self.world.folder / "lake" / f"round{self.seed}"
        for number, engine in enumerate((COLD, COLD, WARM, WARM)):
            table = HandMadeTable.create(self.work / f"{engine}{number}", name=f"{engine}{number}")
            for second in (1, 2, 3):
                table.commit(second)
            (table.path / ".hoodie" / "timeline" / f"{ledger_driver.PLAN}.compaction.requested").write_bytes(b"{}")
            self.runs.append(Run(f"r{self.seed}-{table.path.name}", table.path, engine))

    # --- Airflow's part

    def begin(self, run: Run) -> None:
        self.processes += 1
        run.log = self.work / f"{self.processes}-{run.name}-{run.kind}-{run.try_number}.log"
        order: dict[str, Any] = {"run_id": run.name, "try_number": run.try_number, "log": str(run.log)}
        if run.kind == "trigger":
            order |= {"kind": "trigger", "trigger": run.trigger}
        elif run.kind == "application":
            order |= {"kind": "application", "key": self.key}
        else:
            engine = {"engine": "warm"} if run.engine == WARM else {"engine": "spark-submit"}
            operator = {"base_path": str(run.table), "service": "compaction", "hudi_options": OPTIONS, **engine}
            order |= {"kind": "task", "operator": {**operator, "deferrable": True, "adds_event": False}}
            if run.event is not None:
                order["event"] = run.event
        run.pid = self.world.fork(order)

    @property
    def key(self) -> str:
        """The standing application's, which the items name."""
        carried = next(run.trigger["carried"] for run in self.runs if run.trigger)
        job = job_from_dict(carried["job"])
        return application_key(job.queue, job.conn_id, job.conf)

    def step(self) -> None:
        """Let Airflow see which processes have ended, and wake up those whose time has come."""
        now_s = time.monotonic()
        for due_s, pid in list(self.paused):
            if due_s <= now_s:
                self.paused.remove((due_s, pid))
                wake(pid)
        for run in [*self.runs, *([self.application] if self.application else [])]:
            if run.returned is None and now_s >= run.begins_at_s and not (run.pid and is_alive(run.pid)):
                self.go_on(run)
        if self.application is None and any(run.trigger for run in self.runs):
            self.application = Run(f"r{self.seed}-app", self.work, WARM, kind="application")

    def go_on(self, run: Run) -> None:
        if not run.pid:
            self.begin(run)
            return
        how, what = end_of(run.log)
        run.pid = 0
        if how == "RETURNED" and run.kind != "application":
            run.returned = what
        elif how == "DEFERRED":
            run.trigger, run.kind = what, "trigger"
        elif how == "EVENT":
            run.event, run.kind = what, "task"
        else:
            self.try_again(run)

    def try_again(self, run: Run) -> None:
        assert run.try_number < 60, f"{run.name} does not end\n{self.report()}"
        run.pid, run.event = 0, None
        run.kind = "task" if run.kind == "trigger" else run.kind
        run.try_number += 1
        run.begins_at_s = time.monotonic() + 1.0

    # --- The faults

    def find(self, victim: str) -> tuple[int, Run | None]:
        """Return a living process, and the run that it belongs to."""
        manager = self.world.manager
        assert manager is not None
        if victim == "api server":
            return manager.process.pid, None
        if victim in {"application", "task of the application"}:
            run = self.application
            if run is None or not run.pid:
                return 0, None
            return (run.pid if victim != "application" else driver_of(run.pid)), run
        wanted = {"worker": "task", "driver": "task", "triggerer": "trigger"}[victim]
        found = [run for run in self.runs if run.kind == wanted and run.pid and is_alive(run.pid)]
        if victim == "driver":
            with_driver = [(driver_of(run.pid), run) for run in found]
            drivers = [(pid, run) for pid, run in with_driver if pid]
            return self.rng.choice(drivers) if drivers else (0, None)
        run = self.rng.choice(found) if found else None
        return (run.pid if run else 0), run

    def pause(self, victim: str) -> bool:
        pid, run = self.find(victim)
        if not pid:
            return False
        length_s = LEASE_S * self.rng.choice((0.5, 1.2, 1.5, 2.0))
        stop(pid)
        self.say(f"{victim} {run.name if run else ''} stands still for {length_s:.1f} s")
        self.world.counts[f"{victim} beyond its lease" if length_s > LEASE_S else f"{victim} for less"] += 1
        self.paused.append((time.monotonic() + length_s, pid))
        if run is not None and pid == run.pid and length_s > LEASE_S:
            self.give_up(run)
        return True

    def give_up(self, run: Run) -> None:
        """Do what Airflow does with a process that has stood still: another one takes its part."""
        if run.kind == "trigger":
            self.begin(run)
            self.say(f"another triggerer waits for {run.name}")
            return
        self.given_up.append(run.pid)
        if self.rng.random() < 0.5:
            # On another machine, as far as the next one sees, which must wait for the lease's end.
            run.name += "x"
        self.try_again(run)
        run.begins_at_s = time.monotonic() + LEASE_S * self.rng.choice((0.2, 0.9, 1.1))
        self.say(f"{run.name} gets try {run.try_number}")

    # --- The round

    def play(self) -> None:
        faults: list[tuple[float, str]] = [
            (self.rng.uniform(0.2, 9.0), self.rng.choice(VICTIMS)) for _ in range(self.rng.choice((1, 2, 2, 3)))
        ]
        kill_s, down_s = self.rng.uniform(1.0, 9.0), self.rng.choice((0.0, 1.0, LEASE_S * 1.3))
        back_s = float("inf")
        is_over = False
        deadline_s = time.monotonic() + 150 * PATIENCE
        while not is_over:
            at_s = time.monotonic() - self.began_s
            if at_s >= kill_s and kill_s > 0:
                self.world.postgres.kill()
                self.say(f"PostgreSQL is killed, for {down_s:.1f} s")
                kill_s, back_s = -1.0, at_s + down_s
            if at_s >= back_s:
                self.world.postgres.start()
                back_s = float("inf")
            for fault in list(faults):
                if at_s >= fault[0] and (self.pause(fault[1]) or at_s > fault[0] + 20):
                    faults.remove(fault)
            self.step()
            is_done = all(run.returned is not None for run in self.runs)
            is_over = is_done and not self.paused and kill_s < 0 and back_s == float("inf")
            if is_done:
                faults.clear()
            assert time.monotonic() < deadline_s, f"not at rest\n{self.report()}"
            time.sleep(0.05)
        self.end()
        problems = self.judge()
        assert problems == [], f"{problems}\n{self.report()}"

    def end(self) -> None:
        """Wait until those that Airflow gave up have ended by themselves; end the application."""
        if self.application is not None and self.application.pid:
            for pid in (self.application.pid, driver_of(self.application.pid)):
                with suppress(ProcessLookupError):
                    if pid:
                        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not any(is_alive(pid) for pid in self.given_up), 90, f"their end: {self.given_up}")

    def ledger(self) -> list[dict[str, Any]]:
        """Return what drivers have noted in this round."""
        return [line for line in ledger_driver.read(self.world.ledger) if f"r{self.seed}-" in line["job"]]

    def judge(self) -> list[str]:
        ledger = self.ledger()
        problems = [
            f"{line['job']} of {line['table']} began next to {line['next_to']}"
            for line in ledger
            if line["what"] == "begin" and line["next_to"]
        ]
        for run in self.runs:
            table = run.table.name
            done = [line["job"] for line in ledger if (line["table"], line["what"]) == (table, "completed")]
            if len(done) != 1:
                problems.append(f"the plan of {table} was completed by {done}")
            timeline = run.table / ".hoodie" / "timeline"
            commits = [path.name for path in timeline.glob(f"{ledger_driver.PLAN}_*.commit")]
            if len(commits) != 1:
                problems.append(f"{table} has {commits}")
            problems += self.judge_history(run)
        return problems

    def judge_history(self, run: Run) -> Iterator[str]:
        """Compare what the manager remembers of a table: its runs, its items and its leases."""
        query = self.world.postgres.query
        table_id = table_id_of(str(run.table))
        where = f"where table_id = '{table_id}'"
        runs = [line.split("|") for line in query(f"select run_id, outcome, ended_ms from lake_run {where}")]
        mine = [outcome for run_id, outcome, _ in runs if run_id.endswith(run.name) or run.name in run_id]
        if not mine or mine[0] not in {"completed", "nothing_to_do"}:
            yield f"the history of {run.name} is {runs}"
        # None, where the worker died between its driver's end and its report: the next try finds nothing to do.
        if sum(outcome == "completed" for _, outcome, _ in runs) > 1:
            yield f"the completed plan of {run.table.name} is concluded by {runs}"
        live = query(f"select item_id, state from lake_work {where} and state in ('waiting', 'running')")
        if live:
            yield f"items of {run.table.name} live on: {live}"

    def say(self, text: str) -> None:
        self.story.append(f"{time.monotonic() - self.began_s:6.1f} s {text}")

    def report(self) -> str:
        tails = [f"--- {path.name}\n{path.read_text()[-1500:]}" for path in sorted(self.work.glob("*.log"))]
        lines = (json.dumps({key: value for key, value in line.items() if key != "ticks"}) for line in self.ledger())
        return "\n".join([f"seed {self.seed}", *self.story, *lines, *tails])


def end_of(log: Path) -> tuple[str, Any]:
    """Return how a process ended; one that was killed says nothing."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    how, _, what = lines[-1].partition(" ") if lines else ("", "", "")
    return (how, json.loads(what)) if how in {"RETURNED", "DEFERRED", "EVENT", "FAILED"} else ("KILLED", None)


def driver_of(parent: int) -> int:
    """Return the living child of a worker's process; 0 without one."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                fields = (entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
                if fields[0] not in "ZX" and int(fields[1]) == parent:
                    return int(entry.name)
    return 0


def stop(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)


def wake(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(tmp_path_factory.mktemp("paused"))
    try:
        world.open()
        yield world
    finally:
        world.close()
        print(f"\npauses: {dict(sorted(world.counts.items()))}")


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + ROUNDS))
def test_each_plan_runs_once_whichever_process_stands_still(world: World, seed: int) -> None:
    one = Round(world, seed)
    try:
        one.play()
    finally:
        for _, pid in one.paused:
            wake(pid)
