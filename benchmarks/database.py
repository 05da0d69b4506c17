"""What does each query cost that manager, pages and commands run, in a large and old metadata database?

Fills a PostgreSQL with DAG runs of one DAG and tables of a lake, runs each operation, and explains (ANALYZE) every
statement that it sent. `visited` counts the rows that all scans read, whether they were kept or not: that is what
grows with history, on any machine. Times are printed for people.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.orm import sessionmaker

from airflow_lake_provider.config.access import Audience
from airflow_lake_provider.config.tables_config import TablesConfig
from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.manager.db.database import DatabaseClock
from airflow_lake_provider.manager.db.operations import load_newest_runs
from airflow_lake_provider.manager.db.registry import Registry
from airflow_lake_provider.manager.db.rows import EvaluationResult, Notice, Source
from airflow_lake_provider.manager.db.schema import metadata
from airflow_lake_provider.manager.db.search import Sort, TableSearch, load_numbers, page_of_tables
from airflow_lake_provider.manager.db.sinks import Sinks
from airflow_lake_provider.manager.health.health import TableState
from airflow_lake_provider.manager.loop.timeline_feed import RegistryFeed
from airflow_lake_provider.manager.runs.run_ids import run_id_of
from airflow_lake_provider.manager.supervision.repair_round import RepairRound
from airflow_lake_provider.storage.table_storage import open_storage
from local_stack.postgres import LocalPostgres

ACTIVE_RUNS = 400

_NOW_MS = "(extract(epoch from now()) * 1000)::bigint"
_TABLE_ID = "'t' || {0} || '-' || substr(md5(({0})::text), 1, 16)"
_FILL = (
    "set session_replication_role = replica",
    f"""insert into lake_table (table_id, base_path, table_name, database_name, owner, identified_ms, has_database,
    registered_ms, dirty_seq, dirty_since_ms, notices, last_notice_ms, last_notice_source, last_notice_instant,
    claim_until_ms, evaluated_ms, evaluation_failures, next_evaluation_ms, retry_ms, completed_time, view_version,
    decisions, problem, holes, examined_ms)
    select {_TABLE_ID.format("i")}, 's3a://bucket/lake/t' || i, 't' || i, 'db' || (i % 50), '', 1, true, 1, 5,
    case when i % 100 = 0 then {_NOW_MS} - i end, 5, {_NOW_MS} - i * 1000, 'commit_callback', '', 0, {_NOW_MS} - 600000,
    0, {_NOW_MS} + i * 100 - 60000, case when i % 3 = 0 then {_NOW_MS} + i * 1000 end, '20261121120001000', 'v',
    '[' || repeat('{{"service": "compaction", "verdict": "not_due", "reason": "' || repeat(md5(i::text), 10) || '"}},',
    8) || '{{"service": "clean", "verdict": "' || case when i % 50 = 0 then 'due' else 'not_due' end || '"}}]',
    '', case when i % 500 = 0 then 1 else 0 end, {_NOW_MS} - (i % 600) * 1000 from generate_series(1, :tables) i""",
    """insert into lake_search (table_id, table_name, identity, search_text)
    select table_id, table_name, 's3://bucket/lake/' || table_name || '/', table_name || chr(10) || database_name ||
    chr(10) || base_path from lake_table""",
    f"""insert into dag_run (dag_id, queued_at, start_date, end_date, state, run_id, run_type, conf, run_after,
    span_status, clear_number)
    select 'lake_table_service', now(), now(), case when i <= :ended then now() end,
    case when i > :ended + {ACTIVE_RUNS - 16} then 'running' when i > :ended then 'queued' when i % 50 = 0 then 'failed'
    else 'success' end, {_TABLE_ID.format("(i % :tables + 1)")} || '.'
    || (array['compaction', 'clean', 'archive', 'clustering'])[i / :tables % 4 + 1]
    || '.2026112' || lpad(i::text, 10, '0'),
    'manual', '{{"base_path": "s3a://bucket/lake/x", "service": "compaction", "instants": [], "pool": "heavy"}}'::jsonb,
    now() - (:runs - i) * interval '1 second', 'not_started', 0 from generate_series(1, :runs) i""",
    # lake_watch has not run since: the search for its last sweep must not pass the runs of services.
    """insert into dag_run (dag_id, queued_at, logical_date, start_date, end_date, state, run_id, run_type, conf,
    run_after, span_status, clear_number, id)
    select 'lake_watch', now(), now() - i * interval '1 minute', now(), now() - i * interval '1 minute', 'success',
    'scheduled__' || i, 'scheduled', '{}'::jsonb, now(), 'not_started', 0, -i from generate_series(1, 1000) i""",
    """insert into task_instance (id, task_id, dag_id, run_id, map_index, state, try_number, max_tries, pool,
    pool_slots, span_status)
    select gen_random_uuid(), 'run_service', dag_id, run_id, -1, case state when 'queued' then null else state end, 1,
    4, 'default_pool', 1, 'not_started' from dag_run where dag_id = 'lake_table_service'""",
    """insert into lake_run (run_id, table_id, created_ms, ended_ms, outcome, bytes_out)
    select run_id, split_part(run_id, '.', 1), id, id, 'completed', id from dag_run
    where dag_id = 'lake_table_service'""",
    f"""insert into lake_sink (table_id, sink, is_configured, retire_ms, hold, ttl_s, renewed_ms, needs_snapshot,
    paused, checkpoint, completed_time, running_until_ms, failures, retry_ms, problem)
    select {_TABLE_ID.format("i")}, 'kafka', true, null, '0', 604800, {_NOW_MS}, false, false, '', '20261121120001000',
    0, 0, 0, '' from generate_series(1, :tables) i""",
    "analyze",
)


def create_tables(engine: Engine) -> None:
    """Create Airflow's tables and the provider's in an empty database."""
    import airflow.models.tasklog  # noqa: F401 - dag_run refers to its table
    from airflow.models.base import Base
    from airflow.utils.db import import_all_models

    import_all_models()
    Base.metadata.create_all(engine)
    metadata.create_all(engine)


def fill(engine: Engine, runs: int, tables: int) -> None:
    """Insert `runs` DAG runs of `tables` tables; the newest `ACTIVE_RUNS` are active."""
    sizes = {"runs": runs, "tables": tables, "ended": runs - ACTIVE_RUNS}
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for statement in _FILL:
            named = set(re.findall(r"(?<!:):([a-z]+)", statement))
            connection.execute(text(statement), {name: sizes[name] for name in named & set(sizes)})


# --- Operations of the manager, the pages and the commands


def operations(engine: Engine) -> dict[str, Callable[[], object]]:
    """Return what runs, by name; each call is one tick or one request."""
    from airflow_lake_provider.plugins.dag_runs import AirflowRunGateway
    from airflow_lake_provider.plugins.run_history import AirflowInstanceGateway

    make = sessionmaker(engine)
    registry = Registry(make, DatabaseClock(make))
    gateway, instances = AirflowRunGateway(), AirflowInstanceGateway()
    with make() as session:
        query = "select table_id from lake_table where table_name in ('t21', 't22') order by table_name"
        table_id, other_id = session.execute(text(query)).scalars().all()
    feed, sinks = RegistryFeed(registry, TablesConfig), Sinks(registry)
    repairs = RepairRound(registry, TablesConfig, open_storage)
    run_ids = [run_id_of(table_id, Service.COMPACTION, "20261121120001000", number) for number in range(2, 10)]
    list(feed.poll())
    team = Audience(("s3://bucket/lake/t1", "s3://bucket/lake/t2"), ("s3a://bucket/lake/t2",))
    last_id = registry.list_names(1000)[-1].table_id
    page_ids = [row.table_id for row in registry.list_names(40)]

    def in_session(call: Callable[[Any], object]) -> Callable[[], object]:
        def run() -> object:
            with registry.transaction() as session:
                return call(session)

        return run

    def evaluate() -> None:
        for lease in registry.acquire(1, 60, except_stores=["hdfs://a"], except_tables=[other_id]):
            registry.release(lease, EvaluationResult(registry.now_ms() + 600_000))

    return {
        "notice": lambda: registry.mark_dirty(Notice("s3a://bucket/lake/t1", "t1", Source.HINT)),
        "loop: acquire and release a lease": evaluate,
        "decision: state of the DAGs": in_session(gateway.find_lake_dags),
        "decision: active runs of a table": in_session(lambda s: gateway.find_active_runs(s, table_id)),
        "decision: runs of an instant": in_session(lambda s: gateway.find_runs_by_id(s, run_ids)),
        "decision: active runs of all tables, for limits": in_session(lambda s: gateway.find_active_runs(s)),
        "decision: what a sink holds": lambda: sinks.find_hold(table_id),
        "timelines: tables with new notices": lambda: list(feed.poll()),
        "sweep: waiting tables": registry.count_waiting,
        "sweep: late tables": registry.list_waiting,
        "sweep: active runs with their tasks": in_session(lambda s: instances.list_runs(s, "", 0)),
        "sweep: holes": registry.count_holes,
        "sweep: missing tables": lambda: registry.list_missing(1),
        "sweep: unknown tables": lambda: registry.list_unknown([table_id, other_id, "none"]),
        "sweep: next repairs": repairs._list_due,
        "claim: names of 1,000 tables": registry.list_names,
        "claim: sinks of 1,000 tables": lambda: sinks.list_between("", last_id),
        "claim: renew holds": lambda: sinks.renew(table_id, other_id),
        "health": lambda: registry.list_silent(1),
        "silent tables": lambda: registry.list_silent(1000),
        "page and runs command: instances of a table": in_session(lambda s: instances.list_runs(s, table_id, 20)),
        "page: instances of a table without runs": in_session(lambda s: instances.list_runs(s, "none-1", 20)),
        "page: first tables": lambda: page_of_tables(registry, TableSearch(sort=Sort.NAME)),
        "page: tables by text": lambda: page_of_tables(registry, TableSearch("t432")),
        "page: tables of a state": lambda: page_of_tables(registry, TableSearch(states=(TableState.BLOCKED,))),
        "page: tables of a team": lambda: page_of_tables(registry, TableSearch(audience=team)),
        "page: worst tables": lambda: page_of_tables(registry, TableSearch()),
        "page: newest runs of 40 tables": in_session(lambda s: load_newest_runs(s, page_ids)),
        "page: the lake in numbers": lambda: load_numbers(registry, Audience()),
        "command: table by name": lambda: registry.find_by_name("t4321"),
        "command: 1,000 tables": registry.list_tables,
    }


# --- What an operation sends, and what that costs


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one operation: statements that it sent, rows that their scans visited, what they scanned in full."""

    statements: int
    visited: int
    full_scans: frozenset[str]
    took_ms: float


def measure(engine: Engine, operation: Callable[[], object]) -> Cost:
    """Run an operation, then explain each of its statements in a transaction that is rolled back."""
    with _recorded(engine) as sent:
        began_s = time.monotonic()
        operation()
        took_ms = (time.monotonic() - began_s) * 1000
    visited, full_scans = 0, set[str]()
    connection = engine.raw_connection()
    try:
        for statement, parameters in sent:
            if statement.lstrip().upper().startswith("INSERT"):
                continue
            cursor = connection.cursor()
            cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}", parameters)
            for node in _nodes(cursor.fetchone()[0][0]["Plan"]):
                lost = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
                visited += (node["Actual Rows"] + lost) * node["Actual Loops"]
                if node["Node Type"].endswith("Seq Scan"):
                    full_scans.add(node["Relation Name"])
            connection.rollback()
    finally:
        connection.close()
    return Cost(len(sent), visited, frozenset(full_scans), took_ms)


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    # A bitmap's index scan names rows that its heap scan visits.
    if "Scan" in plan["Node Type"] and plan["Node Type"] != "Bitmap Index Scan":
        yield plan
    for below in plan.get("Plans", ()):
        yield from _nodes(below)


@contextmanager
def _recorded(engine: Engine) -> Iterator[list[tuple[str, Any]]]:
    sent: list[tuple[str, Any]] = []

    def record(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        sent.append((statement, parameters))

    event.listen(engine, "before_cursor_execute", record)
    try:
        yield sent
    finally:
        event.remove(engine, "before_cursor_execute", record)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each operation, and all figures as JSON at the end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2_000_000)
    parser.add_argument("--tables", type=int, default=20_000)
    sizes = parser.parse_args(arguments)
    server = LocalPostgres()
    server.start()
    engine = create_engine(server.url)
    try:
        create_tables(engine)
        fill(engine, sizes.runs, sizes.tables)
        found = {name: measure(engine, operation) for name, operation in operations(engine).items()}
    finally:
        engine.dispose()
        server.stop()
    for name, cost in found.items():
        scans = f"  reads all of {', '.join(sorted(cost.full_scans))}" if cost.full_scans else ""
        print(f"{name:48} {cost.statements:4} statements {cost.visited:9,} rows {cost.took_ms:8.1f} ms{scans}")
    print(json.dumps({name: {"visited": c.visited, "statements": c.statements} for name, c in found.items()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
