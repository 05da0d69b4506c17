"""The Lake pages without Airflow: the real app on a filled registry and a table on disk, in a page that has the same
globals as Airflow's. `python -m tests.support.lake_pages --tables 10000` serves them for people."""

from __future__ import annotations

import argparse
import json
import math
import random
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, HTMLResponse
from sqlalchemy import create_engine, insert
from sqlalchemy.orm import sessionmaker

from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.config.service_policies import IndexingPolicy
from airflow_lake_provider.config.settings import LakeSettings
from airflow_lake_provider.config.tables_config import TablesConfig
from airflow_lake_provider.config.tables_source import TablesSource
from airflow_lake_provider.hudi.base_path import table_id_of
from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.manager.api.services import ManagerServices
from airflow_lake_provider.manager.db.backlog_history import PERIOD_MS
from airflow_lake_provider.manager.db.database import ProcessClock
from airflow_lake_provider.manager.db.health import search_health
from airflow_lake_provider.manager.db.leases import Executors
from airflow_lake_provider.manager.db.operations import (
    OBSERVED,
    Quote,
    RecordedRun,
    RunHour,
    RunPage,
    RunReport,
    RunSearch,
)
from airflow_lake_provider.manager.db.registry import Registry
from airflow_lake_provider.manager.db.run_phases import Try, phases_of
from airflow_lake_provider.manager.db.schema import (
    lake_backlog,
    lake_bill,
    lake_history,
    lake_run,
    lake_search,
    lake_spent,
    lake_table,
    lake_waiting,
    metadata,
)
from airflow_lake_provider.manager.db.search import search_files, search_names, search_sizes
from airflow_lake_provider.manager.db.sinks import Sinks
from airflow_lake_provider.manager.health.health import (
    Health,
    KnownFacts,
    health_to_text,
    judge,
    parse_decisions,
    parse_health,
)
from airflow_lake_provider.manager.loop.reconciler import ManagerLoop
from airflow_lake_provider.manager.loop.timeline_feed import TimelineServerGateway
from airflow_lake_provider.manager.runs.airflow_runs import (
    SERVICE_DAG_ID,
    WATCH_DAG_ID,
    DagState,
    LakeDags,
    RunFacts,
    RunState,
)
from airflow_lake_provider.manager.runs.run_ids import is_run_of, run_id_of
from airflow_lake_provider.manager.supervision.monitoring import DeadlineSweep
from airflow_lake_provider.manager.supervision.repair_round import RepairRound
from airflow_lake_provider.planner.price import Work
from airflow_lake_provider.planner.table_view import TableViewCache
from airflow_lake_provider.planner.write_history import BaseFiles
from airflow_lake_provider.storage.table_storage import open_storage
from airflow_lake_provider.timeline_server.cache import SharedTimelines
from airflow_lake_provider.timeline_server.server import ServerOptions, TimelineServer
from airflow_lake_provider.ui.answers import Viewer
from airflow_lake_provider.ui.app import create_pages
from local_stack.processes import free_port
from tests.support.tables import HandMadeTable

ROOT = Path(__file__).parents[2]
HOST_SCRIPT = ROOT / ".work" / "frontend" / "dist-host" / "host.js"
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
MIB = 1024 * 1024

# Airflow's variables, as its page has them (read off Airflow 3.3.2's theme).
_PAGE = """<!doctype html><html lang="en" class="{theme}" style="height:100%"><head>
<meta charset="utf-8"><base href="/"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Airflow</title><style>
html.light{{--chakra-colors-bg:#ffffff;--chakra-colors-bg-subtle:#fafafa;--chakra-colors-bg-muted:#f4f4f5;
--chakra-colors-fg:#09090b;--chakra-colors-fg-muted:#52525b;--chakra-colors-border:#e4e4e7}}
html.dark{{--chakra-colors-bg:#0d0e11;--chakra-colors-bg-subtle:#15161a;--chakra-colors-bg-muted:#1e2025;
--chakra-colors-fg:#fafafa;--chakra-colors-fg-muted:#a1a1aa;--chakra-colors-border:#2c2e34}}
body{{margin:0;height:100%;font-family:Inter,system-ui,sans-serif;background:var(--chakra-colors-bg)}}</style></head>
<body><div id="root" style="height:100%"></div><script src="/host.js"></script></body></html>"""


@dataclass
class RecordedRuns:
    """Airflow's side: the runs that the pages list, newest first."""

    rows: list[RecordedRun] = field(default_factory=list)

    def list_runs(self, session: object, table_id: str, most_ended: int) -> Sequence[RunFacts]:
        return [
            RunFacts(run.run_id, RunState(run.state), run.created_ms, run.ended_ms, {"service": run.service})
            for run in self.rows
            if not table_id or is_run_of(run.run_id, table_id)
        ][: most_ended + 1]

    def end_run(self, session: object, run_id: str, reason: str) -> bool:
        return False

    def page_of_runs(self, session: object, search: RunSearch) -> RunPage:
        found = [
            run
            for run in self.rows
            if search.table_id in {"", run.table_id}
            and search.service in {"", run.service}
            and search.run_id in {"", run.run_id}
            and search.state in {"", run.state}
            and search.text in f"{run.table_name} {run.database}"
            and (search.since_ms or 0) <= run.created_ms
            and (search.until_ms is None or run.created_ms < search.until_ms)
            and (search.before is None or (run.created_ms, run.run_id) < search.before)
        ]
        shown = tuple(found[: search.limit])
        return RunPage(shown, (shown[-1].created_ms, shown[-1].run_id) if len(found) > len(shown) else None)

    def count_runs(self, session: object, since_ms: int, audience: object) -> Sequence[RunHour]:
        found: dict[tuple[int, str, str], RunHour] = {}
        for run in self.rows:
            if run.created_ms >= since_ms:
                key = run.created_ms // HOUR_MS * HOUR_MS, run.service, run.state
                before = found.get(key, RunHour(*key, 0, 0.0))
                run_s = ((run.ended_ms or run.created_ms) - run.created_ms) / 1000
                job_s, files = before.job_s + run.report.job_ms / 1000, before.files_in + (run.report.files_in or 0)
                bytes_out = before.bytes_out + (run.report.bytes_out or 0)
                found[key] = RunHour(*key, before.runs + 1, before.run_s + run_s, job_s, files, bytes_out)
        return list(found.values())


class _NoRuns:
    def find_lake_dags(self, session: object) -> LakeDags:
        return LakeDags({SERVICE_DAG_ID: DagState.ACTIVE, WATCH_DAG_ID: DagState.ACTIVE}, int(time.time() * 1000))


def create_services(folder: Path, runs: RecordedRuns) -> ManagerServices:
    """Build a manager's services on a SQLite file in the folder."""
    engine = create_engine(f"sqlite:///{folder}/airflow.db", connect_args={"check_same_thread": False})
    metadata.create_all(engine)
    registry = Registry(sessionmaker(engine), ProcessClock(lambda: datetime.now(UTC)))
    settings = LakeSettings(service_tokens=("service-token",), allowed_roots=(str(folder),))
    options = ServerOptions(allowed_roots=settings.allowed_roots, service_tokens=settings.service_tokens)
    timeline_server = TimelineServer(SharedTimelines(now_ms=registry.now_ms), options)
    views = TableViewCache(timeline_server.timelines)
    tables = TablesConfig(defaults=TablePolicy(indexing=IndexingPolicy(indexes=("column_stats",))))
    gateway: Any = _NoRuns()
    instances: Any = runs
    file = folder / "tables.yaml"
    file.write_text(
        "defaults:\n  clean: {commits: 12}\n  compaction: {delta_commits: 10, log_to_base_ratio: 0.4}\n"
        "budgets:\n  all: {core_hours_per_day: 120}\n  queues: {heavy: {slots: 4, bytes_per_day: 2000000000000}}\n"
    )
    return ManagerServices(
        settings,
        registry,
        Executors(registry, lease_s=60),
        ManagerLoop(settings, registry, TimelineServerGateway(timeline_server), views, gateway, lambda: tables),
        timeline_server,
        TablesSource(str(file)),
        views,
        instances,
        DeadlineSweep(registry, instances),
        RepairRound(registry, TablesConfig, open_storage),
    )


# --- Made-up tables: a day of commits and services on disk, and rows of the registry


def stamp(time_ms: int) -> str:
    """Return a time as an instant time in UTC."""
    moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    return f"{moment:%Y%m%d%H%M%S}{time_ms % 1000:03d}"


class MadeUpHistory:
    """Writes the timeline of a merge-on-read table: 30 hours of commits, compaction, cleaning, clustering."""

    def __init__(self, path: Path, now_ms: int, seed: int = 7) -> None:
        self.table = HandMadeTable.create(path)
        self.folder = path / ".hoodie" / "timeline"
        self.random = random.Random(seed)
        self.now_ms = now_ms
        self.services: list[tuple[str, int, int | None, str]] = []

    def write(self) -> None:
        at, commits = self.now_ms - 30 * HOUR_MS, 0
        groups = [f"g{number:02}" for number in range(24)]
        base = {group: self.random.randint(60, 120) * MIB for group in groups}
        logs: dict[str, int] = dict.fromkeys(groups, 0)
        while at < self.now_ms - 240_000:
            took = self.random.randint(4_000, 38_000)
            touched = self.random.sample(groups, self.random.randint(3, 14))
            sizes = {group: self.random.randint(1, 7) * MIB for group in touched}
            self._write(
                at, at + took, "deltacommit", "UPSERT", [(g, f".{g}_0.log.{commits}_0", s) for g, s in sizes.items()]
            )
            for group, size in sizes.items():
                logs[group] += size
            commits += 1
            at += took + self.random.randint(120_000, 900_000)
            if commits % 11 == 0:
                took = self.random.randint(90_000, 420_000)
                for group in groups:
                    base[group] += logs[group] // 3
                    logs[group] = 0
                self._write(
                    at, at + took, "commit", "COMPACT", [(g, f"{g}_{commits}.parquet", s) for g, s in base.items()]
                )
                self.services.append(
                    ("compaction", at, at + took, "10 delta commits since the last compaction (rule: 10)")
                )
                at += took + 20_000
            if commits % 14 == 0:
                (self.folder / f"{stamp(at)}_{stamp(at + 9_000)}.clean").write_text("{}")
                self.services.append(("clean", at, at + 9_000, "12 writes since the last clean (rule: 12)"))
                at += 30_000
            if commits % 47 == 0:
                took = 780_000
                replaced = {"p": groups[:6]}
                self._write(
                    at,
                    at + took,
                    "replacecommit",
                    "CLUSTER",
                    [("n" + g, f"n{g}_{commits}.parquet", 110 * MIB) for g in groups[:5]],
                    replaced,
                )
                self.services.append(("clustering", at, at + took, "31 small files in partition p (rule: 10)"))
                at += took
            if commits % 60 == 0:
                (self.folder / f"{stamp(at)}_{stamp(at + 900)}.savepoint").write_text("{}")
                self.services.append(
                    ("archive", at, at + 21_000, "34 writes on the active timeline (rule: more than 30)")
                )
                at += 60_000
        pending = stamp(self.now_ms - 150_000)
        (self.folder / f"{pending}.compaction.requested").write_bytes(b"{}")
        (self.folder / f"{pending}.compaction.inflight").write_bytes(b"")
        self.services.append(
            ("compaction", self.now_ms - 150_000, None, "11 delta commits since the last compaction (rule: 10)")
        )
        hole = stamp(self.now_ms - 5 * HOUR_MS)
        (self.folder / f"{hole}.deltacommit.requested").write_bytes(b"")
        (self.folder / f"{hole}.deltacommit.inflight").write_bytes(b"")

    def _write(
        self, begin: int, end: int, action: str, operation: str, files: list[tuple[str, str, int]], replaced: Any = None
    ) -> None:
        stats = [
            {"fileId": g, "path": f"p/{name}", "totalWriteBytes": size, "fileSizeInBytes": size}
            for g, name, size in files
        ]
        body = {
            "operationType": operation,
            "partitionToWriteStats": {"p": stats},
            "partitionToReplaceFileIds": replaced or {},
        }
        (self.folder / f"{stamp(begin)}_{stamp(end)}.{action}").write_text(json.dumps(body))


def _decisions(kind: str, number: int, now_ms: int, run_id: str = "") -> list[dict[str, Any]]:
    chance = random.Random(number)
    delta, writes, log = chance.randint(0, 9), chance.randint(0, 11), chance.randint(0, 4000) * MIB
    base = chance.randint(4000, 90_000) * MIB
    sizes = {"delta_commits": delta, "log_files": delta * 9, "log_bytes": log, "base_bytes": base}
    compaction: dict[str, Any] = {
        "service": "compaction", "verdict": "not_due", "evidence": sizes, "since_ms": now_ms - 3 * HOUR_MS,
        "reason": f"{delta} delta commits since the last compaction (rule: 10); log files hold {log / MIB:,.0f} MiB, "
        f"{log / base:.0%} of their base files (rule: 40%)",
    }  # fmt: skip
    clean: dict[str, Any] = {
        "service": "clean", "verdict": "not_due", "reason": f"{writes} writes since the last clean (rule: 12)",
        "evidence": {"writes_since_clean": writes}, "since_ms": now_ms - HOUR_MS,
    }  # fmt: skip
    archive: dict[str, Any] = {
        "service": "archive", "verdict": "not_due", "reason": "24 writes on the active timeline (rule: more than 30)",
        "evidence": {"active_writes": 24}, "since_ms": now_ms - 9 * HOUR_MS,
    }  # fmt: skip
    clustering: dict[str, Any] = {
        "service": "clustering", "verdict": "not_due", "since_ms": now_ms - 2 * HOUR_MS, "evidence": {"small_files": 3},
        "reason": "clustering.enabled requests no new plans; a plan that another process leaves is executed",
    }  # fmt: skip
    indexing: dict[str, Any] = {
        "service": "indexing", "verdict": "not_due", "reason": "indexing.indexes requests no index", "evidence": {},
    }  # fmt: skip
    if kind == "running":
        compaction |= {"verdict": "due", "run": "already_active", "run_id": run_id, "run_reason": "the run is running"}
        sizes["delta_commits"] = 11
        compaction["reason"] = "11 delta commits since the last compaction (rule: 10)"
    if kind == "waiting":
        reason = "waits for the maintenance window (01:00 to 05:00 UTC), which opens at 01:00 UTC"
        clean |= {"verdict": "due", "run": "waiting", "run_id": "", "run_reason": reason}
    if kind == "blocked":
        reason = "10 delta commits, but no hoodie.write.lock.provider is configured: set it in hudi_options"
        compaction |= {"verdict": "blocked", "reason": reason}
    if kind == "failing":
        reason = "2 runs for this plan failed, the last with out_of_memory; next try in 240 s"
        compaction |= {"verdict": "due", "run": "backing_off", "run_id": run_id, "run_reason": reason}
    decisions = [compaction, clean, archive, clustering, indexing]
    of_run = {"already_active": "running", "waiting": "window", "backing_off": "backing_off"}
    for one in decisions:
        situation = of_run.get(one.get("run", ""), "lock" if one["verdict"] == "blocked" else one["verdict"])
        one |= {"since_ms": one.get("since_ms", now_ms - 40 * HOUR_MS), "situation": situation}
        one["situation_ms"] = one["since_ms"]
    return decisions


_NAMES = ("orders", "payments", "shipments", "customers", "clicks", "sessions", "refunds", "stock", "prices", "carts")
_DATABASES = ("shop", "finance", "web", "logistics")


def fill(registry: Registry, folder: Path, tables: int, now_ms: int, runs: RecordedRuns) -> str:
    """Fill the registry, and write the history of one table; return its id."""
    path = str(folder / "orders")
    history = MadeUpHistory(folder / "orders", now_ms)
    history.write()
    rows = [_row(path, "orders", "shop", "running", 1, now_ms)]
    for number in range(1, tables):
        kind = "healthy"
        if number % 97 == 5:
            kind = ("failing", "blocked", "unreadable")[number // 97 % 3]
        elif number % 23 == 3:
            kind = ("running", "waiting")[number // 23 % 2]
        name = f"{_NAMES[number % 10]}_{number:04}" if number >= 10 else _NAMES[number % 10]
        database = _DATABASES[number % 4]
        rows.append(_row(f"s3://lake/{database}/{name}", name, database, kind, number, now_ms))
    with registry.transaction() as session:
        for begin in range(0, len(rows), 500):
            part = rows[begin : begin + 500]
            session.execute(insert(lake_table), part)
            session.execute(insert(lake_search), [_short(row) for row in part])
    fill_backlog(registry, rows, now_ms)
    fill_records(registry, rows, now_ms)
    fill_bill(registry, rows, now_ms)
    table_id = table_id_of(path)
    for service, begin, end, reason in history.services:
        runs.rows.append(_run(table_id, "orders", "shop", service, begin, end, reason, "success" if end else "running"))
    chance = random.Random(3)
    for number in range(min(2000, tables * 4)):
        row = rows[number % len(rows)]
        service = chance.choices(("compaction", "clean", "clustering", "archive", "indexing"), (8, 6, 2, 3, 1))[0]
        begin = now_ms - int(chance.triangular(0, 24, 6) * HOUR_MS)
        state = "failed" if chance.random() < 0.02 else "success"
        by = "ada" if number % 40 == 0 else "manager"
        if row["table_id"] != table_id:
            took = chance.randint(15_000, 600_000)
            runs.rows.append(
                _run(
                    row["table_id"],
                    row["table_name"],
                    row["database_name"],
                    service,
                    begin,
                    begin + took,
                    "10 delta commits since the last compaction (rule: 10)",
                    state,
                    by,
                )
            )
    runs.rows.sort(key=lambda run: (run.created_ms, run.run_id), reverse=True)
    Sinks(registry).configure(table_id, {"kafka": 86_400})
    return table_id


ENDED_A_DAY = {"runs": 900, "failed_tries": 12, "core_ms": 400 * HOUR_MS, "bytes": 3_000_000 * MIB}


def fill_backlog(registry: Registry, rows: Sequence[dict[str, Any]], now_ms: int) -> None:
    """Fill what waits for the budget of all tables, what an observed table would run, and 15 days of the backlog."""
    chance = random.Random(11)
    waiting: list[dict[str, Any]] = []
    for number, row in enumerate(rows[3 :: len(rows) // 24 | 1]):
        scope = OBSERVED if number % 6 == 5 else ""
        service = ("compaction", "clean", "clustering")[number % 3]
        since_ms = now_ms - chance.randint(4, 30) * 600_000
        seconds, size = chance.randint(60, 5400), chance.randint(1, 900) * 40 * MIB
        price = {
            "seconds": [seconds, seconds * 0.7, seconds * 1.6], "bytes": [size, size * 0.8, size * 1.3],
            "points": chance.randint(2, 400), "benefit": {"log_bytes": size / 3, "files": 30.0},
            "cores": 4, "basis": "the table's last 12 runs of it",
        }  # fmt: skip
        reason = f"{10 + number} delta commits since the last compaction (rule: 10)"
        why = f"waits for core hours of all tables: it needs {seconds * 4 / 3600:,.2f}, and 0.31 are left"
        urgency = ("overdue", "growing", "usual")[number % 3]
        quote = Quote(price, Work(), urgency, 1.0, since_ms, since_ms, seconds * 4000, size, reason=reason)
        key = {"table_id": row["table_id"], "service": service}
        values = {
            "rank_ms": since_ms, "since_ms": since_ms, "seen_ms": now_ms, "core_ms": seconds * 4000, "bytes": size,
        }  # fmt: skip
        shown = {"short_of": scope or "all:", "reason": reason if scope else why, "quote": quote.to_text()}
        waiting.append({"scope": scope} | key | values | shown)
        if not scope:
            waiting.append({"scope": "all:"} | key | values | shown | {"reason": "", "quote": ""})
    hour_ms = now_ms - now_ms % HOUR_MS
    spent = [
        {"scope": "all:", "hour_ms": hour_ms - back * HOUR_MS, "core_ms": 5 * HOUR_MS, "bytes": 90_000 * MIB,
         "arrived_core_ms": 6 * HOUR_MS, "arrived_bytes": 95_000 * MIB}
        for back in range(24)
    ]  # fmt: skip
    moments = []
    now_bytes = sum(int(_short(row)["log_bytes"]) for row in rows)
    for number in range(15 * 96):
        wave = 1 + math.sin(number / 15) / 3 + chance.random() / 12
        time_ms = now_ms - now_ms % PERIOD_MS - number * PERIOD_MS
        size = int(now_bytes * wave)
        moments.append({"time_ms": time_ms, "log_bytes": size, "waiting": int(16 * wave), "core_ms": int(2e8 * wave)})
        done = time_ms % DAY_MS / DAY_MS
        moments[-1] |= {f"ended_{name}": int(part * done) for name, part in ENDED_A_DAY.items()}
    with registry.transaction() as session:
        for table, values in ((lake_waiting, waiting), (lake_spent, spent), (lake_backlog, moments)):
            if values:
                session.execute(insert(table), values)


def fill_bill(registry: Registry, rows: Sequence[dict[str, Any]], now_ms: int) -> None:
    """Fill what services of each table cost on three days, and a night on which the first table's compaction waited."""
    chance = random.Random(23)
    day_ms = now_ms - now_ms % DAY_MS
    lines = []
    for row in rows:
        for back in range(3):
            core_ms, size = chance.randint(1, 900) * 4_000, chance.randint(1, 4_000) * MIB
            sums = {"runs": 1 + back, "failed_tries": back % 2, "files_in": 40, "files_out": 4, "bytes_out": size}
            guess = {"core_ms": core_ms, "expected_core_ms": int(core_ms * 0.9), "expected_bytes": int(size * 1.1)}
            key = {"table_id": row["table_id"], "service": ("compaction", "clustering", "clean")[back]}
            lines.append({**key, "day_ms": day_ms - back * DAY_MS, "label": "gold", **sums, **guess})
    night_ms = now_ms - 9 * HOUR_MS
    due = "12 delta commits since the last compaction (rule: 10)"
    kept = [
        ("budget", 0, 3, f"waits for core hours of all tables: it needs 1.2, and 0.31 are left (due: {due})"),
        ("window", 3, 5, f"waits for the maintenance window (01:00 to 05:00 UTC) (due: {due})"),
    ]
    nights = [
        {
            "table_id": rows[0]["table_id"], "service": "compaction", "situation": situation, "due_ms": night_ms,
            "from_ms": night_ms + begin * HOUR_MS, "until_ms": night_ms + end * HOUR_MS, "reason": reason,
        }
        for situation, begin, end, reason in kept
    ]  # fmt: skip
    with registry.transaction() as session:
        session.execute(insert(lake_history), nights)
        for begin in range(0, len(lines), 500):
            session.execute(insert(lake_bill), lines[begin : begin + 500])


def fill_records(registry: Registry, rows: Sequence[dict[str, Any]], now_ms: int) -> None:
    """Fill what executors reported of the newest runs of most tables: sizes that grow, or shrink, and some failures."""
    chance = random.Random(5)
    records = []
    for number, row in enumerate(rows):
        size, growth = chance.randint(50, 4000) * MIB, chance.choice((0.9, 1.0, 1.12))
        for back in range(0 if number % 9 == 8 else 3 + number % 12):
            ended_ms = now_ms - back * 3 * HOUR_MS - chance.randint(60_000, 7_000_000)
            outcome = "failed" if back == 0 and number % 31 == 7 else "completed"
            written = None if outcome == "failed" else int(size * growth**-back * chance.uniform(0.85, 1.15))
            service = "clustering" if back % 4 == 3 else "compaction"
            key = {"run_id": f"{row['table_id']}.past{back}", "table_id": row["table_id"], "number": back}
            times = {"created_ms": ended_ms - 90_000, "ended_ms": ended_ms}
            records.append({**key, **times, "service": service, "outcome": outcome, "bytes_out": written})
    with registry.transaction() as session:
        for begin in range(0, len(records), 500):
            session.execute(insert(lake_run), records[begin : begin + 500])


def _run(
    table_id: str,
    name: str,
    database: str,
    service: str,
    begin: int,
    end: int | None,
    reason: str,
    state: str,
    by: str = "manager",
) -> RecordedRun:
    report = RunReport()
    if end is not None:
        files = 7 + (end - begin) // 20_000
        outcome = "completed" if state == "success" else "failed"
        report = RunReport(1, outcome, end - begin - 900, files, files * 9 * MIB, files // 3 + 1, files * 8 * MIB)
    tries = [Try(1, begin, end, state)]
    return RecordedRun(
        run_id_of(table_id, Service(service), stamp(begin)), SERVICE_DAG_ID, table_id, name, database, service, state,
        by, reason, begin - 1_400, begin, end, 1, report, phases=phases_of(begin - 1_400, tries, end),
    )  # fmt: skip


def _row(path: str, name: str, database: str, kind: str, number: int, now_ms: int) -> dict[str, Any]:
    problem = "s3://lake does not answer: connection timed out after 10 s" if kind == "unreadable" else ""
    run_id = run_id_of(table_id_of(path), Service.COMPACTION, stamp(now_ms - 150_000))
    decisions = json.dumps(_decisions(kind, number, now_ms, run_id))
    return {
        "table_id": table_id_of(path), "base_path": path, "table_name": name, "database_name": database,
        "owner": ("data-platform", "sales", "")[number % 3], "registered_ms": now_ms - 90 * 24 * HOUR_MS,
        "notices": 1200 + number, "last_notice_ms": now_ms - (number * 7919 % 7_200_000) - 9_000,
        "last_commit_ms": now_ms - (number * 7919 % 7_200_000) - 10_000,
        "last_notice_source": "commit_callback", "evaluated_ms": now_ms - 8_000,
        "next_evaluation_ms": now_ms + 10 * HOUR_MS, "decisions": decisions, "problem": problem,
        "health": health_to_text(judge(KnownFacts(parse_decisions(decisions), problem), Health(), now_ms)),
    }  # fmt: skip


def _short(row: dict[str, Any]) -> dict[str, Any]:
    names = search_names(row["table_name"], row["database_name"], row["base_path"], row["owner"])
    health = search_health(parse_health(row["health"]))
    sizes = search_sizes(row["decisions"])
    files = BaseFiles(len(row["table_name"]) * 40, 3 * sizes["base_bytes"])
    return {"table_id": row["table_id"], **names, **sizes, **search_files(files, row["last_commit_ms"]), **health}


# --- The server


ADMINISTRATOR = Viewer("ada", may_forget=True, may_run=True, may_clear=True, may_index=True, may_pause=True)


def viewer_of(request: Request) -> Viewer:
    """Return the user: an administrator, unless a cookie names another user who may only read."""
    name = request.cookies.get("user", "")
    return Viewer(name) if name else ADMINISTRATOR


def create_app(services: ManagerServices) -> FastAPI:
    """Build a page with the globals of Airflow's, the app below `/lake`, and Airflow's own pages as one line."""
    app = FastAPI()
    app.mount("/lake", create_pages(lambda: services, viewer_of))

    @app.get("/host.js")
    def host() -> FileResponse:
        return FileResponse(HOST_SCRIPT, media_type="text/javascript")

    @app.get("/{path:path}")
    def page(theme: str = "light") -> HTMLResponse:
        return HTMLResponse(_PAGE.format(theme="dark" if theme == "dark" else "light"))

    return app


@dataclass(frozen=True)
class ServedPages:
    """A running server, its services, and the id of the table that has a history."""

    url: str
    services: ManagerServices
    table_id: str
    folder: Path


@contextmanager
def serve(folder: Path, tables: int, port: int = 0) -> Iterator[ServedPages]:
    """Serve made-up tables in a thread of this process."""
    runs = RecordedRuns()
    services = create_services(folder, runs)
    table_id = fill(services.registry, folder, tables, int(time.time() * 1000), runs)
    port = port or free_port()
    server = uvicorn.Server(uvicorn.Config(create_app(services), host="127.0.0.1", port=port, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    try:
        yield ServedPages(f"http://127.0.0.1:{port}", services, table_id, folder)
    finally:
        server.should_exit = True
        thread.join(10)


WORDS = "words.json"
"""Next to the pictures of the documentation: which words the pages had when they were taken."""


def take_screens(pages: ServedPages, browser: Any, folder: Path | None = None) -> dict[str, list[str]]:
    """Open what the pictures of the documentation show, keep the pictures in a folder, and return each one's words.

    The words are those of headings, columns, links and labels: they change with the pages, and not with the tables.
    """
    from tests.support.browser import open_page

    shots = {
        "lake-tables": ("/plugin/lake", "light", 780),
        "lake-table": (f"/plugin/lake/tables/{pages.table_id}", "dark", 860),
        "lake-backlog": ("/plugin/lake/backlog", "light", 600),
    }
    words = {}
    for name, (path, theme, height) in shots.items():
        with open_page(browser, width=1440, height=height) as opened:
            opened.page.goto(f"{pages.url}{path}?theme={theme}")
            opened.page.locator(".table-list, svg .mark, table.backlog").first.wait_for()
            opened.page.wait_for_timeout(1000)
            texts = opened.page.locator("h2, h3, th, nav a, label").all_inner_texts()
            words[name] = sorted({text.strip().partition("\n")[0] for text in texts} - {""})
            if folder is not None:
                opened.page.screenshot(path=folder / f"{name}.png")
    return words


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=300)
    parser.add_argument("--port", type=int, default=8899)
    parser.add_argument("--screens", type=Path, help="keep the documentation's pictures there, and end")
    args = parser.parse_args()
    # Its name is in the documentation's pictures.
    with (
        tempfile.TemporaryDirectory(prefix="lake-", dir="/tmp") as folder,
        serve(Path(folder), args.tables, args.port) as pages,
    ):
        if args.screens is not None:
            from tests.support.browser import open_browser

            with open_browser() as browser:
                words = take_screens(pages, browser, args.screens)
            (args.screens / WORDS).write_text(json.dumps(words, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            return
        print(f"{pages.url}/plugin/lake and {pages.url}/plugin/lake/tables/{pages.table_id}")
        threading.Event().wait()


if __name__ == "__main__":
    main()
