"""The part of `scale` with a real Airflow: ten thousand tables on ten stores, of which one hangs.

PostgreSQL, an API server, scheduler, DAG processor and triggerer as processes; the tables are registered, as after a
restart. Each minute brings `--rate` commits, and their notices, to as many tables; in the middle of a window one
percent of all tables become due at once. The engine only sleeps. The first window is without a fault; in the second
one no call to one of the ten stores returns. Figures of a window are of the other nine stores' tables:

`decided_p50_s`, `decided_p99_s`: from sending the notice to the recorded evaluation, for tables that are not due.
`run_p50_s`, `run_p99_s`: from sending the notice to the DAG run, for tables that became due.
`lost`: commits without an evaluation after them, ten seconds after the window.
`api_cpu_s_per_min`: CPU seconds of the API server, with manager and timelines, per minute of the window.
`api_resident_mib`: its resident memory at the end of the window.
`slowest_lake_query_ms`, `slowest_query_ms`: the longest statement on the provider's tables, and of all, in the window.
"""

from __future__ import annotations

import math
import os
import random
import re
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
from sqlalchemy import Engine, create_engine, insert, select, text

from airflow_lake_provider.hudi.base_path import identity_of, table_id_of
from airflow_lake_provider.manager.db.rows import Source
from airflow_lake_provider.manager.db.schema import lake_run, lake_search, lake_table
from benchmarks import bench_store, sleeping_engine
from benchmarks.detection import WORK, instant_time
from benchmarks.ranks import rank_if_any
from local_stack.airflow import ROOT, LocalAirflow
from local_stack.postgres import LocalPostgres
from local_stack.processes import wait_until
from tests.support.tables import HandMadeTable

COMMITS = 10
THRESHOLD = COMMITS + 5
NAME = "orders"
SEED = 20261124
QUIET_S = 3600.0
GRACE_S = 10.0
SENDERS = 8
LOG_FROM_MS = 10
ONE_AT_ONCE = {"AIRFLOW__LAKE__MAX_ACTIVE_SERVICES": "1"}
"""Each service takes seconds of a worker's CPU, which the manager's figures must not wait for."""
POLICY = """
defaults:
  compaction: {{delta_commits: {threshold}, log_to_base_ratio: null}}
  clean: {{enabled: false}}
  archive: {{enabled: false}}
  hudi_options:
    hoodie.write.lock.provider: org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider
"""


@dataclass(frozen=True, slots=True)
class FleetLoad:
    """What happens: tables, commits a minute, and the minutes of each window."""

    tables: int
    rate: int
    calm_minutes: float
    hanging_minutes: float


@dataclass
class Sent:
    """A notice of a commit; clocks are seconds since the epoch."""

    base_path: str
    at_s: float
    is_due: bool

    @property
    def is_healthy(self) -> bool:
        """Whether its store never hangs."""
        return not self.base_path.startswith("bench://store0/")


@dataclass
class Site:
    """A running Airflow and its tables."""

    airflow: LocalAirflow
    engine: Engine
    postgres: LocalPostgres
    stores: Path
    paths: list[str] = field(default_factory=list)
    commits: dict[str, int] = field(default_factory=dict)

    def write(self, base_path: str) -> str:
        """Add a commit; return its requested time."""
        from benchmarks.bench_store import write_commit

        number = self.commits[base_path] = self.commits.get(base_path, COMMITS) + 1
        now_s = time.time()
        write_commit(Path(bench_store.local_path(base_path)), number, now_s)
        return instant_time(now_s - 2)

    def announce(self, client: httpx.Client, base_path: str, requested: str) -> None:
        """Send a notice as Hudi's callback does."""
        body = {"commitTime": requested, "tableName": NAME, "basePath": base_path}
        headers = {"HUDI-CALLBACK-KEY": self.airflow.callback_token}
        client.post(self.airflow.callback_url, json=body, headers=headers).raise_for_status()


# --- Tables on disk and in the registry


def make_tables(stores: Path, tables: int) -> list[str]:
    """Write the tables; return their base paths."""
    from benchmarks.bench_store import write_commit

    properties = (HandMadeTable.create(stores / "prototype").path / ".hoodie" / "hoodie.properties").read_bytes()
    paths, now_s = [], time.time()
    for number in range(tables):
        store, name = f"store{number % bench_store.STORES}", f"table-{number:06d}"
        path = stores / store / name
        (path / ".hoodie" / "timeline").mkdir(parents=True)
        (path / ".hoodie" / "hoodie.properties").write_bytes(properties)
        for commit in range(COMMITS):
            write_commit(path, commit, now_s - QUIET_S - 60 * (COMMITS - commit))
        paths.append(f"bench://{store}/{name}")
    return paths


def register(engine: Engine, paths: list[str]) -> None:
    """Fill the registry as an hour's quiet after evaluations leaves it."""
    now_ms = int(time.time() * 1000)
    quiet_ms = now_ms - int(QUIET_S * 1000)
    tables, searches = [], []
    for path in paths:
        names = {"table_id": table_id_of(path), "table_name": NAME, "database_name": ""}
        tables.append(
            names
            | {
                "base_path": path,
                "identified_ms": quiet_ms,
                "has_database": False,
                "registered_ms": quiet_ms,
                "dirty_seq": 1,
                "notices": 1,
                "last_notice_ms": quiet_ms,
                "last_notice_source": Source.COMMIT_CALLBACK.value,
                "evaluated_ms": quiet_ms,
                "next_evaluation_ms": now_ms + 6 * 3_600_000,
                "completed_time": instant_time(now_ms / 1000),
                "examined_ms": now_ms,
            }
        )
        searches.append(names | {"identity": f"{identity_of(path)}/", "search_text": f"{NAME}\n\n{path}"})
    with engine.begin() as connection:
        connection.execute(insert(lake_table), tables)
        connection.execute(insert(lake_search), searches)
        connection.execute(text("analyze"))


# --- A window of load, and its figures


def schedule(site: Site, load: FleetLoad, minutes: float, chance: random.Random) -> list[tuple[float, str, bool]]:
    """Return seconds from the window's begin, table, and whether it becomes due; each table once in a window."""
    scattered, due = math.ceil(load.rate * minutes), max(1, load.tables // 100)
    chosen = chance.sample(site.paths, min(scattered + due, len(site.paths)))
    notices = [(60 * minutes * chance.random(), path, False) for path in chosen[due:]]
    return sorted([*notices, *((30 * minutes, path, True) for path in chosen[:due])])


def send(site: Site, notices: list[tuple[float, str, bool]]) -> list[Sent]:
    """Commit and announce as scheduled."""
    sent: list[Sent] = []
    guard = threading.Lock()
    began_s = time.time()

    def one(client: httpx.Client, path: str, is_due: bool) -> None:
        for _ in range(THRESHOLD - COMMITS if is_due else 1):
            requested = site.write(path)
            time.sleep(0.002)  # two commits never have the same time
        entry = Sent(path, time.time(), is_due)
        site.announce(client, path, requested)
        with guard:
            sent.append(entry)

    with httpx.Client(timeout=30, trust_env=False) as client, ThreadPoolExecutor(SENDERS) as pool:
        futures = []
        for offset_s, path, is_due in notices:
            time.sleep(max(0.0, began_s + offset_s - time.time()))
            futures.append(pool.submit(one, client, path, is_due))
        for future in futures:
            future.result()
    return sent


def run_window(site: Site, load: FleetLoad, minutes: float, chance: random.Random) -> dict[str, Any]:
    """Load the site for so long; return the window's figures."""
    log_from, cpu_s = log_size(site.postgres), cpu_of(site.airflow)
    began = time.monotonic()
    notices = schedule(site, load, minutes, chance)
    sent = send(site, notices)
    time.sleep(max(0.0, began + 60 * minutes - time.monotonic()))
    now_s = {name: seconds - cpu_s[name] for name, seconds in cpu_of(site.airflow).items()}
    resident = resident_bytes(site.airflow, "api-server")
    time.sleep(GRACE_S)
    healthy = [entry for entry in sent if entry.is_healthy]
    decided, runs = find_outcomes(site.engine)
    answered = [entry for entry in healthy if decided.get(entry.base_path, 0.0) >= entry.at_s]
    # A table that became due is evaluated again after its run.
    waits = [decided[entry.base_path] - entry.at_s for entry in answered if not entry.is_due]
    starts = [
        at_s - e.at_s
        for e in healthy
        if e.is_due and (at_s := min((s for s in runs.get(e.base_path, ()) if s >= e.at_s), default=0.0))
    ]
    lake_ms, all_ms = slowest_queries(site.postgres, log_from)
    return {
        "commits": len(healthy),
        "due": sum(entry.is_due for entry in healthy),
        "lost": len(healthy) - len(answered),
        "runs": len(starts),
        "decided_p50_s": rank_if_any(waits, 0.5),
        "decided_p99_s": rank_if_any(waits, 0.99),
        "run_p50_s": rank_if_any(starts, 0.5),
        "run_p99_s": rank_if_any(starts, 0.99),
        "api_cpu_s_per_min": round(now_s["api-server"] / minutes, 2),
        "scheduler_cpu_s_per_min": round(now_s["scheduler"] / minutes, 2),
        "api_resident_mib": resident >> 20,
        "slowest_lake_query_ms": lake_ms,
        "slowest_query_ms": all_ms,
    }


def find_outcomes(engine: Engine) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Return when each table was evaluated last, and when its runs were created; seconds since the epoch."""
    runs: dict[str, list[float]] = {}
    with engine.connect() as connection:
        rows = connection.execute(select(lake_table.c.base_path, lake_table.c.evaluated_ms))
        evaluated = {path: (ms or 0) / 1000 for path, ms in rows}
        joined = lake_run.join(lake_table, lake_run.c.table_id == lake_table.c.table_id)
        for path, created_ms in connection.execute(
            select(lake_table.c.base_path, lake_run.c.created_ms).select_from(joined)
        ):
            runs.setdefault(path, []).append(created_ms / 1000)
    return evaluated, runs


def members(airflow: LocalAirflow, component: str) -> list[psutil.Process]:
    """Return a component's process and its children."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(airflow.servers[component].process.pid)
        return [process, *process.children(recursive=True)]
    return []


def cpu_of(airflow: LocalAirflow) -> dict[str, float]:
    """Return CPU seconds so far of each component, with those of children that it has waited for."""
    return {name: sum(map(_cpu_s, members(airflow, name))) for name in airflow.servers}


def _cpu_s(process: psutil.Process) -> float:
    with suppress(psutil.NoSuchProcess):
        times = process.cpu_times()
        return float(times.user + times.system + times.children_user + times.children_system)
    return 0.0


def resident_bytes(airflow: LocalAirflow, component: str) -> int:
    """Return the resident memory of a component's processes."""
    total = 0
    for process in members(airflow, component):
        with suppress(psutil.NoSuchProcess):
            total += process.memory_info().rss
    return total


def log_size(postgres: LocalPostgres) -> int:
    assert postgres.folder is not None
    return (postgres.folder / "server.log").stat().st_size


def slowest_queries(postgres: LocalPostgres, log_from: int) -> tuple[float, float]:
    """Return the longest statement on the provider's tables, and of all, that the log has since; milliseconds."""
    assert postgres.folder is not None
    with (postgres.folder / "server.log").open("rb") as stream:
        stream.seek(log_from)
        log = stream.read().decode("utf-8", "replace")
    found = re.findall(r"duration: ([0-9.]+) ms +(?:statement|execute [^:]*): (.*(?:\n\t.*)*)", log)
    slowest = [(float(took), " ".join(statement.split())) for took, statement in found]
    of_lake = [entry for entry in slowest if re.search(r"\blake_[a-z]+\b", entry[1])]
    for took, statement in sorted(slowest)[-3:]:
        say(f"  {took:.0f} ms: {statement[:300]}")
    return max(of_lake, default=(0.0, ""))[0], max(slowest, default=(0.0, ""))[0]


# --- The whole


@contextmanager
def open_site(folder: Path, load: FleetLoad, settings: Mapping[str, str]) -> Iterator[Site]:
    """Start PostgreSQL and Airflow with the registered tables, and with more settings."""
    stores, home = folder / "stores", folder / "airflow"
    os.environ[bench_store.ROOT_VARIABLE] = str(stores)
    stores.mkdir(parents=True)
    paths = make_tables(stores, load.tables)
    bench_store.install(folder / "site")
    sleeping_engine.install(folder / "programs")
    (folder / "tables.yaml").write_text(POLICY.format(threshold=THRESHOLD), encoding="utf-8")
    postgres = LocalPostgres()
    postgres.start()
    airflow = LocalAirflow(home, (), folder / "tables.yaml", postgres.url)
    roots = ",".join(f"bench://store{number}" for number in range(bench_store.STORES))
    airflow.settings |= {
        "AIRFLOW__LAKE__ALLOWED_ROOTS": roots,
        "AIRFLOW__LAKE__MAX_TABLES_IN_MEMORY": str(max(10_000, load.tables)),
        "PYTHONPATH": f"{folder / 'site'}{os.pathsep}{ROOT}",
        "PATH": f"{folder / 'programs'}{os.pathsep}{airflow.env()['PATH']}",
        bench_store.ROOT_VARIABLE: str(stores),
        **settings,
    }
    engine = create_engine(postgres.url)
    try:
        airflow.migrate()
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text(f"alter system set log_min_duration_statement = {LOG_FROM_MS}"))
            connection.execute(text("select pg_reload_conf()"))
        register(engine, paths)
        airflow.start()
        airflow.wait_for_dags()
        yield Site(airflow, engine, postgres, stores, paths)
    finally:
        airflow.stop()
        engine.dispose()
        postgres.stop()


def wait_until_warm(site: Site) -> None:
    """Wait until every timeline is in memory."""

    def is_warm() -> bool:
        answer = site.airflow.get("/v1/hoodie/timeline/health")
        return answer is not None and answer["kept"] >= len(site.paths)

    began = time.monotonic()
    wait_until(is_warm, 600, "the timelines of all tables", [site.airflow.servers["api-server"]])
    say(f"timelines of {len(site.paths)} tables in memory after {time.monotonic() - began:.0f} s more")
    time.sleep(GRACE_S)


def run_fleet(load: FleetLoad) -> dict[str, Any]:
    """Return the figures of both windows."""
    folder = WORK / "bench-fleet"
    shutil.rmtree(folder, ignore_errors=True)
    chance = random.Random(SEED)
    result: dict[str, Any] = {"tables": load.tables, "commits_per_min": load.rate}
    began = time.monotonic()
    try:
        with open_site(folder, load, ONE_AT_ONCE) as site:
            say(f"Airflow with {load.tables} tables runs after {time.monotonic() - began:.0f} s")
            wait_until_warm(site)
            cpu_s = cpu_of(site.airflow)["api-server"]
            time.sleep(20)
            result["api_idle_cpu_s_per_min"] = round(3 * (cpu_of(site.airflow)["api-server"] - cpu_s), 2)
            result["calm"] = run_window(site, load, load.calm_minutes, chance)
            say(f"calm: {result['calm']}")
            (site.stores / bench_store.HANGING).touch()
            result["hanging"] = run_window(site, load, load.hanging_minutes, chance)
            say(f"hanging: {result['hanging']}")
            (site.stores / bench_store.HANGING).unlink()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return result


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
