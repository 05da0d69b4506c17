"""What does the manager cost with 100, 1,000 and 10,000 registered tables? `make bench NAME=scale`.

Hand-made tables on local disk with ten delta commits each, the real loop, timelines and registry, PostgreSQL, and
Airflow's tables in it; runs are rows that nothing executes. Each size has a process and a database of its own.

`first_cpu_ms`: CPU of the process for each table as it is evaluated for the first time: storage is read.
`bytes_per_table`: growth of the resident memory by then, divided by tables. With few tables this is noise.
`quiet_cpu_s`: CPU seconds of one cycle in which nothing happens: a pass of the loop, a poll of the marks, the minute's
sweep. `quiet_statements`: what such a cycle sends to the database.
`cycle_cpu_s`: CPU seconds from `--commits` notices, of as many tables, to the last decision.
`commit_database_ms`, `commit_statements`, `commit_rows`: time in the database, statements, and rows written for each of
these commits: its notice, its evaluation, and a run for every fifth.
`slowest_query_ms`: the longest statement of that cycle.
`parse_s`: seconds in which Airflow parses the shipped DAGs, with so many tables registered.
`restart_commits_read`: files that the next process opens for the views of all tables, from what the first one saved;
`restart_cpu_s`, `restart_listings`: what these views cost it, with reading both files.

`fleet`: a whole Airflow with `--fleet` tables under load, and a store that hangs; see `benchmarks/scale_fleet.py`.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import logging
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.orm import sessionmaker

from benchmarks.bench_store import write_commit
from benchmarks.database import create_tables
from benchmarks.detection import WORK
from benchmarks.scale_fleet import FleetLoad, run_fleet
from local_stack.postgres import LocalPostgres
from tests.support.tables import HandMadeTable

ROOT = Path(__file__).resolve().parent.parent
SIZES = (100, 1_000, 10_000)
COMMITS = 10
"""Of each table before the first evaluation; every fifth write makes a compaction due."""
SEED = 20261123
NAME = "orders"
LOCK = {"hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider"}
PARSE = (
    "import time\nfrom airflow.dag_processing.dagbag import DagBag\n"
    "began = time.monotonic()\nbag = DagBag(dag_folder={folder!r})\n"
    "assert bag.dags and not bag.import_errors, bag.import_errors\nprint(time.monotonic() - began)"
)


# --- Tables


def make_tables(folder: Path, tables: int) -> list[Path]:
    """Write tables with `COMMITS` commits each, the last ones some minutes ago."""
    properties = (HandMadeTable.create(folder / "prototype").path / ".hoodie" / "hoodie.properties").read_bytes()
    now_s, paths = time.time(), []
    for number in range(tables):
        path = folder / f"{number // 1000:03d}" / f"table-{number:06d}"
        (path / ".hoodie" / "timeline").mkdir(parents=True)
        (path / ".hoodie" / "hoodie.properties").write_bytes(properties)
        for commit in range(COMMITS):
            write_commit(path, commit, now_s - 600 - 60 * (COMMITS - commit))
        paths.append(path)
    return paths


# --- What the database is asked


@dataclass
class Sent:
    """Statements that were sent, rows that they wrote, and the time until they were answered."""

    statements: int = 0
    rows: int = 0
    took_s: float = 0.0
    slowest_s: float = 0.0
    began: dict[int, float] = field(default_factory=dict)


@contextmanager
def recorded(engine: Engine) -> Iterator[Sent]:
    sent = Sent()

    def begin(_connection: Any, cursor: Any, *_: Any) -> None:
        sent.began[id(cursor)] = time.monotonic()

    def end(_connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        took_s = time.monotonic() - sent.began.pop(id(cursor))
        sent.statements += 1
        sent.took_s += took_s
        sent.slowest_s = max(sent.slowest_s, took_s)
        if statement.lstrip()[:6].upper() in {"INSERT", "UPDATE", "DELETE"}:
            sent.rows += max(0, cursor.rowcount)

    event.listen(engine, "before_cursor_execute", begin)
    event.listen(engine, "after_cursor_execute", end)
    try:
        yield sent
    finally:
        event.remove(engine, "before_cursor_execute", begin)
        event.remove(engine, "after_cursor_execute", end)


# --- One manager, in a process of its own


def build_manager(engine: Engine, folder: Path, most: int) -> Any:
    """Return loop, feed and sweep of one API server, with Airflow's tables but without its DAGs."""
    from airflow_lake_provider.config.policies import TablePolicy
    from airflow_lake_provider.config.service_policies import CompactionPolicy
    from airflow_lake_provider.config.settings import LakeSettings
    from airflow_lake_provider.config.tables_config import TablesConfig
    from airflow_lake_provider.manager.db.database import DatabaseClock
    from airflow_lake_provider.manager.db.registry import Registry
    from airflow_lake_provider.manager.loop.reconciler import ManagerLoop
    from airflow_lake_provider.manager.loop.timeline_feed import RegistryFeed, TimelineServerGateway
    from airflow_lake_provider.manager.runs.airflow_runs import SERVICE_DAG_ID, WATCH_DAG_ID, DagState, LakeDags
    from airflow_lake_provider.manager.supervision.monitoring import DeadlineSweep
    from airflow_lake_provider.planner.table_view import TableViewCache
    from airflow_lake_provider.plugins.dag_runs import AirflowRunGateway
    from airflow_lake_provider.plugins.run_history import AirflowInstanceGateway
    from airflow_lake_provider.timeline_server.cache import SharedTimelines
    from airflow_lake_provider.timeline_server.schedule import SharedLimits
    from airflow_lake_provider.timeline_server.server import ServerOptions, TimelineServer

    class Runs(AirflowRunGateway):
        """Its runs are rows: there is no DAG to parse them."""

        def find_lake_dags(self, session: Any) -> LakeDags:
            super().find_lake_dags(session)
            return LakeDags({SERVICE_DAG_ID: DagState.ACTIVE, WATCH_DAG_ID: DagState.ACTIVE}, int(time.time() * 1000))

        def create_run(self, session: Any, run_id: str, conf: dict[str, Any], note: str) -> None:
            insert = """insert into dag_run (dag_id, queued_at, state, run_id, run_type, conf, run_after, span_status,
            clear_number) values ('lake_table_service', now(), 'queued', :run_id, 'manual', cast(:conf as jsonb), now(),
            'not_started', 0)"""
            session.execute(text(insert), {"run_id": run_id, "conf": json.dumps(conf)})

    settings = LakeSettings(allowed_roots=(str(folder),))
    make = sessionmaker(engine)
    registry = Registry(make, DatabaseClock(make))
    policy = TablePolicy(compaction=CompactionPolicy(delta_commits=COMMITS + 5), hudi_options=LOCK)
    tables = TablesConfig(defaults=policy)
    timelines = SharedTimelines(SharedLimits(max_tables=max(SharedLimits().max_tables, most)))
    feed = RegistryFeed(registry, lambda: tables)
    server = TimelineServer(timelines, ServerOptions((str(folder),), ("x",)), feed)
    loop = ManagerLoop(
        settings, registry, TimelineServerGateway(server), TableViewCache(timelines), Runs(), lambda: tables
    )
    sweep = DeadlineSweep(registry, AirflowInstanceGateway(), load_tables=lambda: tables)
    return registry, loop, feed, sweep


def resident_bytes() -> int:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    pages = Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def measure(folder: Path, url: str, paths: list[Path], commits: int) -> dict[str, Any]:
    """Register, evaluate, rest, commit; return the figures of one size."""
    from airflow_lake_provider.manager.db.rows import Notice, Source

    engine = create_engine(url)
    registry, loop, feed, sweep = build_manager(engine, folder, len(paths))
    logging.disable(logging.INFO)  # Airflow's formatter would be a good part of what is measured
    warm, paths = paths[0], paths[1:]
    registry.mark_dirty(Notice(str(warm), NAME, Source.COMMIT_CALLBACK))
    loop.drain()
    list(feed.poll())
    empty_bytes, began_s = resident_bytes(), time.process_time()
    for path in paths:
        registry.mark_dirty(Notice(str(path), NAME, Source.COMMIT_CALLBACK))
    evaluated = loop.drain(len(paths) + 1)
    first_s = time.process_time() - began_s
    assert evaluated >= len(paths) - 1, f"{evaluated} of {len(paths)} tables were evaluated"
    list(feed.poll())
    used_bytes = resident_bytes() - empty_bytes
    with engine.begin() as connection:
        # What was written just now is not what an hour's quiet leaves.
        connection.execute(text("update lake_table set last_notice_ms = last_notice_ms - 3600000"))
    quiet: list[float] = []
    for _ in range(3):
        with recorded(engine) as idle:
            began_s = time.process_time()
            loop.drain()
            list(feed.poll())
            sweep.sweep()
            quiet.append(time.process_time() - began_s)
    chosen = random.Random(SEED).sample(paths, min(commits, len(paths)))
    for number, path in enumerate(chosen):
        for commit in range(6 if number % 5 == 0 else 1):
            write_commit(path, COMMITS + commit, time.time() - 10 + commit)
    with recorded(engine) as sent:
        began_s = time.process_time()
        for path in chosen:
            registry.mark_dirty(Notice(str(path), NAME, Source.COMMIT_CALLBACK))
        assert loop.drain(len(chosen) + 1) == len(chosen)
        cycle_s = time.process_time() - began_s
    with engine.begin() as connection:
        runs = connection.execute(text("select count(*) from dag_run")).scalar_one()
    engine.dispose()
    of_commit = len(chosen)
    return {
        "first_cpu_ms": round(1000 * first_s / len(paths), 2),
        "bytes_per_table": round(used_bytes / len(paths)),
        "resident_mib": round(resident_bytes() / 2**20),
        "quiet_cpu_s": round(min(quiet), 3),
        "quiet_statements": idle.statements,
        "cycle_cpu_s": round(cycle_s, 2),
        "commits": of_commit,
        "runs": runs,
        "commit_database_ms": round(1000 * sent.took_s / of_commit, 2),
        "commit_statements": round(sent.statements / of_commit, 1),
        "commit_rows": round(sent.rows / of_commit, 2),
        "slowest_query_ms": round(1000 * sent.slowest_s, 1),
    }


def view_all(folder: Path, paths: list[Path]) -> dict[str, Any]:
    """Make every table's view from the files of the process before, and leave such files; return what it cost."""
    from airflow_lake_provider.planner.table_view import CommitFile, TableViewCache
    from airflow_lake_provider.timeline_server import saved
    from airflow_lake_provider.timeline_server.cache import SharedTimelines
    from airflow_lake_provider.timeline_server.schedule import SharedLimits

    began_s = time.process_time()
    timelines = SharedTimelines(SharedLimits(max_tables=max(SharedLimits().max_tables, len(paths))))
    views = TableViewCache(timelines)
    kept = CommitFile(folder / "server.commits", views.memory)
    kept.restore()
    saved.restore(timelines, folder / "server.timelines")
    commits = sum(len(views.refresh(str(path)).commits) for path in paths)
    cpu_s = time.process_time() - began_s
    assert commits >= COMMITS * len(paths), f"{commits} commits of {len(paths)} tables"
    saved.save(timelines, folder / "server.timelines")
    kept.save()
    return {
        "restart_commits_read": timelines.calls.opens,
        "restart_listings": timelines.calls.lists,
        "restart_cpu_s": round(cpu_s, 2),
    }


def _run(pipe: Any, target: Callable[..., dict[str, Any]], *arguments: Any) -> None:
    pipe.send(target(*arguments))


def in_a_process(target: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    context = multiprocessing.get_context("spawn")
    mine, far = context.Pipe()
    process = context.Process(target=_run, args=(far, target, *arguments))
    process.start()
    far.close()
    try:
        result: dict[str, Any] = mine.recv()
    finally:
        process.join()
    return result


def parse_s(url: str, home: Path) -> float:
    """Return how long Airflow takes to parse the shipped DAGs, the best of three processes."""
    env = os.environ | {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": url,
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-c", PARSE.format(folder=str(ROOT / "dags"))]
    times = []
    for _ in range(3):
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
        times.append(float(done.stdout.strip().splitlines()[-1]))
    return min(times)


def main() -> int:
    """Print a line for each size, and all figures as JSON at the end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="numbers of tables, apart by commas")
    parser.add_argument("--commits", type=int, default=100)
    parser.add_argument(
        "--without-parse", action="store_true", help="without the time in which Airflow parses the DAGs"
    )
    parser.add_argument("--fleet", type=int, default=10_000, help="tables of the whole Airflow; 0: without that part")
    parser.add_argument("--rate", type=int, default=100, help="commits a minute there")
    parser.add_argument("--calm", type=float, default=5.0, help="minutes there before a store hangs")
    parser.add_argument("--hanging", type=float, default=15.0, help="minutes there while a store hangs")
    options = parser.parse_args()
    WORK.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="lake-scale-", dir=WORK))
    server, found = LocalPostgres(), {}
    server.start()
    try:
        engine = create_engine(server.url)
        create_tables(engine)
        engine.dispose()
        for size in map(int, filter(None, options.sizes.split(","))):
            paths = make_tables(folder / str(size), size + 1)
            url = server.create_database(f"scale{size}", "airflow")
            found[str(size)] = in_a_process(measure, folder, url, paths, options.commits)
            in_a_process(view_all, folder / str(size), paths)
            found[str(size)] |= in_a_process(view_all, folder / str(size), paths)
            if not options.without_parse:
                found[str(size)]["parse_s"] = round(parse_s(url, folder / "airflow"), 2)
            print(f"{size} tables: {found[str(size)]}", file=sys.stderr, flush=True)
            shutil.rmtree(folder / str(size))
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
    if options.fleet:
        load = FleetLoad(options.fleet, options.rate, options.calm, options.hanging)
        found["fleet"] = run_fleet(load)
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
