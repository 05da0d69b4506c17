"""`/lake/api`: what it answers, in which order, whom it refuses, and that pages lose no table while tables change."""

from __future__ import annotations

import json
import os
import re
import time
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import HTTPException
from fastapi.testclient import TestClient
from sqlalchemy import event, insert, text, update
from sqlalchemy.engine import Engine

from airflow_lake_provider.config.access import Audience, TokensSource
from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.config.tables_file import build_config, parse_tables, parse_tables_file
from airflow_lake_provider.config.tables_source import SettingInForce, TablesSource, settings_in_force
from airflow_lake_provider.hudi.base_path import table_id_of
from airflow_lake_provider.hudi.commit_metadata import CommitMetadata, WriteStat
from airflow_lake_provider.hudi.instant import Instant
from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.manager.api.services import ManagerServices
from airflow_lake_provider.manager.db.backlog_history import KEEP_BACKLOG_MS, load_backlog_over_time, record_backlog
from airflow_lake_provider.manager.db.health import keep_short, refresh_health
from airflow_lake_provider.manager.db.operations import RecordedRun, RunPage, RunReport, RunSearch
from airflow_lake_provider.manager.db.registry import Registry
from airflow_lake_provider.manager.db.rows import Notice, Source
from airflow_lake_provider.manager.db.schema import lake_run, lake_search
from airflow_lake_provider.manager.db.search import (
    find_summary,
    search_files,
)
from airflow_lake_provider.manager.db.sinks import Sinks
from airflow_lake_provider.manager.health.health import Health, KnownFacts, TableState, judge, parse_health
from airflow_lake_provider.manager.runs.airflow_runs import SERVICE_DAG_ID, WATCH_DAG_ID, DagState, LakeDags
from airflow_lake_provider.manager.runs.run_ids import run_id_of
from airflow_lake_provider.manager.scheduling.run_scheduler import RunScheduler
from airflow_lake_provider.manager.supervision.monitoring import DeadlineSweep
from airflow_lake_provider.planner.rules import Decision, Verdict
from airflow_lake_provider.planner.write_history import BaseFiles
from airflow_lake_provider.shared.actions import Action, State
from airflow_lake_provider.ui.answers import Viewer
from airflow_lake_provider.ui.app import create_pages, escape_cell
from airflow_lake_provider.ui.table_facts import headline, lane_of, services_of_row, sizes_of
from tests.support.evaluated_tables import decided, evaluated
from tests.support.patience import patient
from tests.unit.manager.conftest import FakeClock, FakeInstanceGateway, FakeRunGateway

ROUTES = (
    "/api/overview", "/api/tables", "/api/tables/{id}", "/api/tables/{id}/timeline", "/api/tables/{id}/history",
    "/api/tables/{id}/policy",
    "/api/operations", "/api/operations.csv", "/api/backlog", "/api/backlog/history", "/api/bill", "/api/bill.csv",
    "/app/lake.js",
)  # fmt: skip


@pytest.fixture
def client(services: ManagerServices) -> httpx.Client:
    return TestClient(create_pages(lambda: services, lambda: None), raise_server_exceptions=False)


def names(answer: httpx.Response) -> list[str]:
    return [row["name"] for row in answer.json()["rows"]]


# --- Tables


def test_worst_table_comes_first_and_the_larger_backlog_within_a_state(
    client: httpx.Client, registry: Registry
) -> None:
    def backlog(log_bytes: int) -> dict[str, Any]:
        return decided("compaction", "not_due", evidence={"log_bytes": log_bytes, "base_bytes": 1000})

    evaluated(registry, "/lake/quiet", backlog(10))
    evaluated(registry, "/lake/heavy", backlog(900))
    evaluated(registry, "/lake/running", decided("clean", "due", run="already_active"))
    evaluated(registry, "/lake/blocked", decided("compaction", "blocked"), backlog(1))
    evaluated(registry, "/lake/failing", decided("clustering", "due", run="backing_off", run_reason="failed"))
    evaluated(registry, "/lake/gone", problem="no table here")
    registry.register(Notice("/lake/new", "new", Source.HINT))
    worst = ["gone", "failing", "blocked", "running", "new", "heavy", "quiet"]
    assert names(client.get("/api/tables")) == worst
    assert names(client.get("/api/tables", params={"sort": "name"})) == sorted(worst)
    assert names(client.get("/api/tables", params={"sort": "backlog", "limit": 2})) == ["heavy", "quiet"]
    assert names(client.get("/api/tables", params={"reverse": True})) == worst[::-1]
    assert names(client.get("/api/tables", params={"sort": "name", "reverse": True})) == sorted(worst)[::-1]


def test_silent_and_large_tables_come_first_and_those_without_a_commit_last(
    client: httpx.Client, registry: Registry
) -> None:
    for name, last_commit_ms, file_bytes in (("fresh", 900, 10), ("silent", 5, 700), ("empty", None, 0)):
        table_id = evaluated(registry, f"/lake/{name}")
        with registry.transaction() as session:
            keep_short(session, table_id, search_files(BaseFiles(2, file_bytes), last_commit_ms))
    assert names(client.get("/api/tables", params={"sort": "commit"})) == ["silent", "fresh", "empty"]
    rows = client.get("/api/tables", params={"sort": "size"}).json()["rows"]
    assert [(row["name"], row["files"], row["file_bytes"]) for row in rows][:2] == [
        ("silent", 2, 700),
        ("fresh", 2, 10),
    ]


def test_filters_combine_and_total_counts_all_pages(client: httpx.Client, registry: Registry) -> None:
    for number in range(5):
        evaluated(registry, f"/lake/a{number}", decided("clean", "blocked"))
        evaluated(registry, f"/lake/b{number}")
    found = client.get("/api/tables", params={"q": "/lake/A", "state": ["blocked", "new"], "limit": 2}).json()
    assert ([row["name"][0] for row in found["rows"]], found["total"]) == (["a", "a"], 5)
    assert client.get("/api/tables", params={"state": "healthy"}).json()["total"] == 5
    assert client.get("/api/tables", params={"database": "none"}).json()["total"] == 0


@pytest.mark.parametrize("sort", ["worst", "backlog", "name", "commit", "size"])
@pytest.mark.parametrize("reverse", [False, True])
def test_tables_that_do_not_change_are_on_exactly_one_page_while_others_change(
    client: httpx.Client, registry: Registry, engine: Engine, sort: str, reverse: bool
) -> None:
    for number in range(23):
        log_bytes = number % 3 * 100
        evidence = {"log_bytes": log_bytes, "base_bytes": 1}
        evaluated(registry, f"/lake/t{number:02}", decided("compaction", "not_due", evidence=evidence))
    moving = table_id_of("/lake/t11")
    seen: list[str] = []
    after = ""
    for flip in range(1, 20):
        page = client.get("/api/tables", params={"sort": sort, "reverse": reverse, "limit": 4, "after": after}).json()
        seen += [row["name"] for row in page["rows"]]
        after = page["next"]
        if not after:
            break
        # Between two pages one table becomes the worst, then the best, and so on.
        with engine.begin() as connection:
            values = {"severity": flip % 2 * 100, "log_bytes": flip % 2 * 10_000, "table_name": f"{'az'[flip % 2]}11"}
            connection.execute(update(lake_search).where(lake_search.c.table_id == moving).values(**values))
        registry.register(Notice(f"/lake/later{flip}", f"later{flip}", Source.HINT))
    assert after == "", "the pages have no end"
    still = [name for name in seen if name.startswith("t") and name != "t11"]
    assert sorted(still) == sorted(f"t{number:02}" for number in range(23) if number != 11)


def test_key_of_another_order_is_refused_with_a_sentence(client: httpx.Client, registry: Registry) -> None:
    for number in range(3):
        evaluated(registry, f"/lake/t{number}")
    key = client.get("/api/tables", params={"limit": 1}).json()["next"]
    for sort, after in (("name", key), ("worst", "bm9uc2Vuc2U="), ("worst", "%%%"), ("worst", "W251bGxd")):
        answer = client.get("/api/tables", params={"sort": sort, "after": after})
        assert answer.status_code == 422
        assert answer.json()["error"] == "MalformedRequestError"


def test_page_of_tables_reads_no_more_rows_than_it_shows(registry: Registry, engine: Engine) -> None:
    """SQLite's own plan: the order comes from an index, also behind a key; nothing is sorted."""
    from airflow_lake_provider.manager.db.search import KEY_TYPES, Sort, TableSearch, page_of_tables

    for number in range(3):
        evaluated(registry, f"/lake/t{number}")
    sent: list[tuple[str, Any]] = []
    event.listen(engine, "before_cursor_execute", lambda *a: sent.append((a[2], a[3])))
    for sort, reverse in product(Sort, (False, True)):
        first = page_of_tables(registry, TableSearch(sort=sort, limit=1, is_reverse=reverse))
        page_of_tables(registry, TableSearch(sort=sort, limit=1, is_reverse=reverse, after=first.after))
        assert len(first.after) == len(KEY_TYPES[sort])
    pages = [(statement, values) for statement, values in sent if "ORDER BY" in statement]
    assert len(pages) == 4 * len(Sort)
    with engine.connect() as connection:
        for statement, values in pages:
            plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values).all()
            said = " ".join(row[-1] for row in plan)
            assert "USING INDEX" in said
            assert "TEMP B-TREE" not in said


# --- The last run and the trend of each row


def ended(session: Any, table_id: str, number: int, service: str, at_ms: int, outcome: str, size: int | None) -> None:
    run_id = run_id_of(table_id, Service(service), str(number))
    session.execute(
        insert(lake_run).values(
            run_id=run_id, table_id=table_id, created_ms=number, service=service, number=number, ended_ms=at_ms,
            outcome=outcome, bytes_out=size,
        )
    )  # fmt: skip


def test_row_shows_the_last_run_that_ended_and_what_the_newest_rewrites_wrote(
    client: httpx.Client, registry: Registry
) -> None:
    busy, quiet = evaluated(registry, "/lake/busy"), evaluated(registry, "/lake/quiet")
    with registry.transaction() as session:
        for number in range(1, 41):
            ended(session, busy, number, "compaction", 1000 * number, "completed", 100 + number)
        ended(session, busy, 41, "clean", 900_000, "nothing_to_do", None)
        ended(session, busy, 42, "clustering", 950_000, "failed", 7)
        ended(session, busy, 43, "compaction", 990_000, "dry_run", 8)
        # Created last, and still at work.
        values = {"run_id": "open", "table_id": busy, "created_ms": 44, "service": "archive"}
        session.execute(insert(lake_run).values(values))
    rows = {row["name"]: row for row in client.get("/api/tables").json()["rows"]}
    assert rows["busy"]["last_run"] == {
        "service": "clustering", "outcome": "failed", "ended_ms": 950_000,
        "run_id": run_id_of(busy, Service.CLUSTERING, "42"),
    }  # fmt: skip
    assert rows["busy"]["rewritten"] == [100 + number for number in range(29, 41)]
    assert (rows["quiet"]["last_run"], rows["quiet"]["rewritten"]) == (None, [])
    assert client.get(f"/api/tables/{busy}").json()["row"]["rewritten"] == rows["busy"]["rewritten"]
    assert client.get(f"/api/tables/{quiet}").json()["row"]["last_run"] is None


def test_pages_ask_for_runs_of_the_tables_that_they_show_and_not_again_within_seconds(
    client: httpx.Client, registry: Registry, engine: Engine, clock: FakeClock
) -> None:
    for number in range(60):
        evaluated(registry, f"/lake/t{number:02}")
    sent: list[tuple[str, Any]] = []

    def note(*sent_: Any) -> None:
        if "lake_run" in sent_[2]:
            sent.append((sent_[2], sent_[3]))

    event.listen(engine, "before_cursor_execute", note)
    page = {"sort": "name", "limit": 40}
    client.get("/api/tables", params=page)
    assert [len([one for one in values if str(one).startswith("t")]) for _, values in sent] == [20, 20]
    client.get("/api/tables", params=page)
    assert len(sent) == 2
    clock.advance(11)
    client.get("/api/tables", params=page)
    assert len(sent) == 4
    with engine.connect() as connection:
        plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {sent[0][0]}", sent[0][1]).all()
    said = " ".join(row[-1] for row in plan)
    assert "USING INDEX idx_lake_run_table" in said
    assert "SCAN lake_run" not in said


def test_tables_are_found_by_owner_and_the_owners_are_counted(
    client: httpx.Client, services: ManagerServices, registry: Registry, lake: Path, orders: str
) -> None:
    object.__setattr__(services, "instance_gateway", Runs([]))
    registry.mark_dirty(Notice("/lake/new", "new", Source.COMMIT_CALLBACK, (), "sales", "ops"))
    registry.mark_dirty(Notice("/lake/other", "other", Source.COMMIT_CALLBACK))
    overview = client.get("/api/overview").json()
    assert {one["owner"]: one["tables"] for one in overview["owners"]} == {"shop": 1, "ops": 1}
    assert overview["databases"] == [{"database": "sales", "tables": 2}]
    assert names(client.get("/api/tables", params={"owner": "ops"})) == ["new"]
    assert client.get("/api/tables", params={"owner": "nobody"}).json()["total"] == 0
    # The writer's next commit names another owner.
    services.loop.notify(Notice(str(lake / "orders"), "orders", Source.COMMIT_CALLBACK, (), "sales", "finance"))
    services.loop.drain()
    found = client.get("/api/tables", params={"owner": "finance"}).json()
    assert [row["owner"] for row in found["rows"]] == ["finance"]


# --- Summaries


@pytest.mark.parametrize(
    ("decisions", "problem", "state"),
    [
        pytest.param([], "", TableState.HEALTHY, id="nothing-to-decide"),
        pytest.param([decided("clean", "not_due")], "", TableState.HEALTHY, id="not-due"),
        pytest.param([decided("clean", "due", run="already_ran")], "", TableState.HEALTHY, id="found-nothing-to-do"),
        pytest.param([decided("clean", "due", run="start")], "", TableState.RUNNING, id="started"),
        pytest.param([decided("clean", "due")], "", TableState.WAITING, id="due-without-a-run"),
        pytest.param([decided("clean", "due", run="abandoned")], "", TableState.FAILING, id="given-up"),
        pytest.param(
            [decided("clean", "due", run="abandoned"), decided("ttl", "blocked")], "", TableState.FAILING, id="worst"
        ),
        pytest.param([decided("clean", "due", run="start")], "cannot", TableState.UNREADABLE, id="problem"),
    ],
)
def test_state_of_a_table_is_that_of_its_worst_service(
    decisions: list[dict[str, Any]], problem: str, state: TableState
) -> None:
    assert judge(KnownFacts(decisions, problem), Health(), 1).state is state


def test_real_evaluation_fills_the_summary(client: httpx.Client, registry: Registry, orders: str) -> None:
    row, summary = registry.get(orders), find_summary(registry, orders)
    assert (summary.state, summary.severity) == ("running", 20)
    shown = client.get("/api/tables").json()["rows"][0]
    assert (shown["state"], shown["database"], shown["owner"]) == ("running", "sales", "shop")
    assert shown["headline"].startswith("Compaction runs: 3 delta commits")
    meters = {one["service"]: one["meters"] for one in shown["services"]}
    assert {"found": 3, "threshold": 5, "unit": "delta commits"} in meters["compaction"]
    assert parse_health(row.health).state is TableState.RUNNING


def test_last_commit_is_that_of_the_timeline_and_no_notice_changes_it(
    client: httpx.Client, services: ManagerServices, clock: FakeClock, lake: Path, orders: str
) -> None:
    timeline = client.get(f"/api/tables/{orders}/timeline").json()
    newest_ms = max(one["completed_ms"] for one in timeline["instants"])
    before = client.get("/api/tables").json()["rows"][0]
    assert before["last_commit_ms"] == newest_ms
    clock.advance(90)
    services.loop.notify(Notice(str(lake / "orders"), "orders", Source.HINT))
    services.loop.drain()
    after = client.get("/api/tables").json()["rows"][0]
    assert after["last_commit_ms"] == newest_ms
    assert after["last_notice_ms"] == before["last_notice_ms"] + 90_000


def test_headline_says_what_comes_next() -> None:
    decisions = json.dumps([
        decided("clean", "not_due", evidence={"writes_since_clean": 1}),
        decided("compaction", "not_due", evidence={"delta_commits": 4, "log_bytes": 0, "base_bytes": 10}),
    ])  # fmt: skip
    said = headline(Health(TableState.HEALTHY), services_of_row(decisions, TablePolicy(), 0))
    assert said == "Healthy: compaction comes next, 4 of 5 delta commits."


def test_rule_that_is_reached_and_has_nothing_to_do_does_not_come_next() -> None:
    decisions = json.dumps([
        decided("clean", "not_due", evidence={"writes_since_clean": 20}),
        decided("compaction", "not_due", evidence={"delta_commits": 1, "log_bytes": 0, "base_bytes": 10}),
    ])  # fmt: skip
    said = headline(Health(TableState.HEALTHY), services_of_row(decisions, TablePolicy(), 0))
    assert said == "Healthy: compaction comes next, 1 of 5 delta commits."


# --- One table


def test_table_has_services_runs_and_timeline(client: httpx.Client, orders: str) -> None:
    table = client.get(f"/api/tables/{orders}").json()
    assert table["services"][0]["service"] == "compaction"
    assert table["notices"] == 1
    timeline = client.get(f"/api/tables/{orders}/timeline").json()
    assert [one["lane"] for one in timeline["instants"]] == ["commits"] * 3
    assert [one["log_bytes"] for one in timeline["sizes"]] == [100, 200, 300]
    assert timeline["instants"][0]["completed_ms"] - timeline["instants"][0]["requested_ms"] == 500


def test_table_that_is_gone_has_a_timeline_that_says_so(client: httpx.Client, registry: Registry) -> None:
    registry.register(Notice("/nowhere/orders", "orders", Source.HINT))
    answer = client.get(f"/api/tables/{table_id_of('/nowhere/orders')}/timeline")
    assert answer.status_code == 200
    assert "/nowhere/orders" in answer.json()["problem"]


def test_unknown_table_is_answered_as_json(client: httpx.Client) -> None:
    for path in ("", "/timeline", "/policy"):
        answer = client.get(f"/api/tables/no-such-table{path}")
        assert (answer.status_code, answer.json()["error"]) == (404, "TableUnknownError")


def test_log_files_written_next_to_a_compaction_stay_in_the_backlog() -> None:
    class View:
        class properties:
            time_zone = "UTC"

        class timeline:
            completed_writes = (
                Instant("20261121120001000", Action.DELTACOMMIT, State.COMPLETED, "20261121120002000", "a"),
                Instant("20261121120004000", Action.DELTACOMMIT, State.COMPLETED, "20261121120005000", "b"),
                Instant("20261121120003000", Action.COMMIT, State.COMPLETED, "20261121120006000", "c"),
            )

        commits = {  # noqa: RUF012
            "20261121120001000": CommitMetadata("UPSERT", (WriteStat("p", "f", "p/.f_1.log.1_0", 100, 100),)),
            "20261121120004000": CommitMetadata("UPSERT", (WriteStat("p", "f", "p/.f_3.log.1_0", 30, 30),)),
            "20261121120003000": CommitMetadata("COMPACT", (WriteStat("p", "f", "p/f_3.parquet", 500, 500),)),
        }

    view: Any = View
    assert [(one.log_bytes, one.log_files, one.base_bytes) for one in sizes_of(view, UTC)] == [
        (100, 1, 0), (130, 2, 0), (30, 1, 500)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("action", "operation", "lane"),
    [
        (Action.COMMIT, "COMPACT", "compaction"),
        (Action.DELTACOMMIT, "LOG_COMPACT", "logcompaction"),
        (Action.REPLACECOMMIT, "CLUSTER", "clustering"),
        (Action.REPLACECOMMIT, "INSERT_OVERWRITE", "commits"),
        (Action.COMMIT, "UPSERT", "commits"),
    ],
)
def test_completed_service_is_in_its_own_lane(action: Action, operation: str, lane: str) -> None:
    instant = Instant("20261121120001000", action, State.COMPLETED, "20261121120002000", "a")
    assert lane_of(instant, CommitMetadata(operation, ())) == lane


# The file's lines count from 1; each value's line is named here by hand.
FILE = """\
defaults:
  compaction: {delta_commits: 7, log_to_base_ratio: 0.5}
  spark_conf: {spark.hadoop.fs.s3a.secret.key: secret://connection/s3/password}
  maintenance_window: {days: [sat], begin: "22:00", end: "06:00", time_zone: UTC}
tables:
- base_path: /lake/orders
  clean:
    commits: 3
  compaction:
    delta_commits: 7
- name: other
"""
VARIABLE = """\
defaults:
  retries: 9
tables:
  - base_path: /lake/orders
    clean: {commits: 5}
"""


@pytest.mark.parametrize(
    ("name", "value", "source", "place"),
    [
        pytest.param(
            "compaction.delta_commits",
            "7",
            "entry 1 of the tables file (base_path: /lake/orders)",
            "tables.yaml:10",
            id="the entry repeats the defaults' value",
        ),
        pytest.param(
            "compaction.log_to_base_ratio", "0.5", "defaults of the tables file", "tables.yaml:2", id="defaults"
        ),
        pytest.param(
            "clean.commits",
            "5",
            "entry 1 of Variable lake_tables (base_path: /lake/orders)",
            "Variable lake_tables:5",
            id="the Variable is on top",
        ),
        pytest.param("retries", "9", "defaults of Variable lake_tables", "Variable lake_tables:2", id="its defaults"),
        pytest.param("archive.max_commits", "30", "built in", "", id="nothing sets it"),
        pytest.param(
            "maintenance_window.begin", '"22:00:00"', "defaults of the tables file", "tables.yaml:4", id="window"
        ),
        pytest.param(
            "spark_conf.spark.hadoop.fs.s3a.secret.key",
            '"secret://connection/s3/password"',
            "defaults of the tables file",
            "tables.yaml:3",
            id="a reference to a secret is none",
        ),
    ],
)
def test_policy_names_the_line_that_sets_each_value(name: str, value: str, source: str, place: str) -> None:
    tables = build_config(parse_tables(FILE, "tables.yaml"), parse_tables(VARIABLE, "Variable lake_tables"))
    found = {one.name: one for one in settings_in_force(tables, "/lake/orders", "orders")}
    assert found[name] == SettingInForce(name, value, source, place)


def test_line_of_a_whole_section_is_that_of_the_part_that_was_written() -> None:
    tables = parse_tables_file("defaults:\n  maintenance_window:\n    days: [sat]\n", "tables.yaml")
    found = {one.name: one.place for one in settings_in_force(tables, "/lake/orders", "orders")}
    assert found["maintenance_window.end"] == "tables.yaml:3"
    assert found["compaction.delta_commits"] == ""


# --- Operations and the overview


class Runs:
    """Airflow's side: runs of two tables, one by hand."""

    def __init__(self, rows: list[RecordedRun]) -> None:
        self.rows = rows
        self.counted = 0

    def page_of_runs(self, _: object, search: RunSearch) -> RunPage:
        behind = [row for row in self.rows if search.before is None or (row.created_ms, row.run_id) < search.before]
        shown = [row for row in behind if search.state in {"", row.state}][: search.limit]
        more = len(behind) > len(shown) and shown
        return RunPage(tuple(shown), (shown[-1].created_ms, shown[-1].run_id) if more else None)

    def count_runs(self, _: object, since_ms: int, audience: object) -> list[Any]:
        self.counted += 1
        return []


def run_of(number: int, reason: str = "because", by: str = "manager") -> RecordedRun:
    return RecordedRun(
        f"t.clean.{number}", "lake_table_service", "t", "orders", "shop", "clean", "success", by, reason,
        number, number + 1, number + 2, 1, RunReport(1, "completed", 1500, 9, 900, None, None, "no memory"),
    )  # fmt: skip


def test_operations_have_pages_and_csv_has_them_all_without_formulas(
    client: httpx.Client, services: ManagerServices
) -> None:
    runs = Runs([run_of(3), run_of(2, reason="=cmd|' /C calc'!A0", by="+ada"), run_of(1)])
    object.__setattr__(services, "instance_gateway", runs)
    first = client.get("/api/operations", params={"limit": 2}).json()
    second = client.get("/api/operations", params={"limit": 2, "after": first["next"]}).json()
    assert [row["created_ms"] for row in (*first["rows"], *second["rows"])] == [3, 2, 1]
    assert second["next"] == ""
    answer = client.get("/api/operations.csv")
    assert answer.headers["content-type"].startswith("text/csv")
    lines = answer.text.splitlines()
    assert len(lines) == 4
    assert "'=cmd|" in lines[2]
    columns = dict(zip(lines[0].split(","), lines[1].split(","), strict=True))
    assert (columns["created_ms"], columns["created_at"]) == ("3", "1970-01-01T00:00:00.003+00:00")
    assert columns["error"] == "no memory"
    assert "'+ada" in lines[2]
    shown = {name: first["rows"][0][name] for name in ("outcome", "job_s", "files_in", "bytes_in", "files_out")}
    assert shown == {"outcome": "completed", "job_s": 1.5, "files_in": 9, "bytes_in": 900, "files_out": None}
    assert "outcome,job_s,files_in,bytes_in,files_out,bytes_out,caused_by,due_ms,expected_s," in lines[0]
    assert "completed,1.5,9,900,,,,,,,,," in lines[1]


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("=1+1", "'=1+1"),
        (" =1", "' =1"),
        ("\uff1dcmd", "'\uff1dcmd"),
        ("a;=cmd|' /C calc'!A0", "a;'=cmd|' /C calc'!A0"),
        ("a\t@x\n+y", "a\t'@x\n'+y"),
        ("\x1b[2J=1", "\\x1b[2J=1"),
        ("s3://lake/a-b=c", "s3://lake/a-b=c"),
        ("3 commits - 2 more", "3 commits - 2 more"),
    ],
)
def test_no_part_of_a_cell_is_a_formula_whatever_separates_the_columns(text: str, cell: str) -> None:
    assert escape_cell(text) == cell


def test_long_cell_takes_no_longer_than_its_length() -> None:
    began_s = time.thread_time()
    assert escape_cell("\t" * 60_000 + "x").count("'") == 60_000
    assert escape_cell("; " * 60_000 + " " * 60_000) == "; " * 60_000 + " " * 60_000
    assert time.thread_time() - began_s < patient(2)


def test_overview_counts_and_is_computed_once_for_many_pages(
    client: httpx.Client, services: ManagerServices, registry: Registry, clock: FakeClock, gateway: FakeRunGateway
) -> None:
    runs = Runs([])
    object.__setattr__(services, "instance_gateway", runs)
    evaluated(registry, "/lake/a", decided("clean", "blocked"))
    evidence = {"log_bytes": 70, "base_bytes": 1}
    evaluated(registry, "/lake/b", decided("compaction", "not_due", evidence=evidence))
    first = client.get("/api/overview").json()
    assert first["tables"] == 2
    assert {one["state"]: one["tables"] for one in first["states"] if one["tables"]} == {"blocked": 1, "healthy": 1}
    assert first["backlog_bytes"] == 70
    evaluated(registry, "/lake/c")
    assert client.get("/api/overview").json()["tables"] == 2
    clock.advance(6)
    assert client.get("/api/overview").json()["tables"] == 3
    assert runs.counted == 1


def test_overview_says_that_the_net_is_paused_the_loop_stands_still_and_who_sent_refused_notices(
    services: ManagerServices, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    object.__setattr__(services, "instance_gateway", Runs([]))
    dags = LakeDags(
        {SERVICE_DAG_ID: DagState.ACTIVE, WATCH_DAG_ID: DagState.PAUSED}, services.registry.now_ms() - 600_000
    )
    monkeypatch.setattr(services.loop, "find_lake_dags", lambda: dags)
    loop = services.loop
    loop._is_running = True
    loop._passed_s = time.monotonic() - 7200
    for _ in range(3):
        services.refusals.record(403, "outside of its roots", "token bank")
    services.refusals.record(403, "no right", "token shop")
    problems = client_of(services, OPERATOR).get("/api/overview").json()["problems"]
    refused = "4 notices were refused with 403 in the last hour"
    for said in (
        "DAG lake_watch is paused", "loop has made no pass for 7,20",
        f"{refused}, sent by token bank (3), token shop (1) (the table lies outside",
    ):  # fmt: skip
        assert said in "\n".join(problems)
    # A user from whom a team's tables are hidden sees what concerns all, and no other team's token.
    tokens = [{"name": "bank", "roots": ["/lake/bank"], "rights": ["read"], "viewers": ["bo"], "sha256": ["0" * 64]}]
    (tmp_path / "tokens.yaml").write_text(json.dumps({"tokens": tokens}), encoding="utf-8")
    object.__setattr__(services, "tokens", TokensSource(path=str(tmp_path / "tokens.yaml")))
    problems = client_of(services, Viewer("sue")).get("/api/overview").json()["problems"]
    assert f"{refused} (the table lies outside" in "\n".join(problems)
    assert "token bank" not in str(problems)


def test_oldest_debt_is_the_oldest_service_that_is_due_and_does_not_run(
    client: httpx.Client, services: ManagerServices, registry: Registry, clock: FakeClock
) -> None:
    object.__setattr__(services, "instance_gateway", Runs([]))
    evaluated(registry, "/lake/healthy", decided("clean", "not_due", since_ms=100))
    evaluated(registry, "/lake/running", decided("clean", "due", run="already_active", since_ms=200))
    assert client.get("/api/overview").json()["oldest_due_ms"] is None
    evaluated(registry, "/lake/late", decided("clean", "blocked", since_ms=400))
    waits = decided("clean", "due", run="waiting", since_ms=300), decided("archive", "due", run="waiting", since_ms=350)
    evaluated(registry, "/lake/waits", *waits)
    clock.advance(6)
    assert client.get("/api/overview").json()["oldest_due_ms"] == 300


# --- The backlog: what waits, the budgets, and both over time


@pytest.fixture
def pressed(
    services: ManagerServices, registry: Registry, gateway: FakeRunGateway, clock: FakeClock, tmp_path: Path
) -> ManagerServices:
    """A budget that holds two runs of six; four wait, one of them of team HR; and one of an observed table."""
    (tmp_path / "tables.yaml").write_text("budgets: {all: {core_hours_per_day: 0.012}, labels: {lead: {slots: 1}}}")
    tables = TablesSource(str(tmp_path / "tables.yaml"))
    scheduler = RunScheduler(registry, gateway, tables.load)
    evidence = {"log_bytes": 2**20, "log_files": 10, "merged_groups": 5, "merged_base_bytes": 100 * 2**20}
    decision = Decision(Service.COMPACTION, Verdict.DUE, "due", key_instant="20261121120001000", evidence=evidence)
    for name in ("shop/a", "shop/b", "shop/c", "hr/salaries", "shop/d", "shop/e"):
        registry.mark_dirty(Notice(f"/lake/{name}", name.partition("/")[2], Source.COMMIT_CALLBACK))
        (lease,) = registry.acquire(1, 3600)
        scheduler.start(lease, TablePolicy(), decision)
        clock.advance(1)
    policy = TablePolicy()
    quotes = scheduler.backlog.price_observed(lease, policy, [decision])
    with registry.transaction() as session:
        scheduler.backlog.keep(session, lease.table_id, ["compaction"], [], quotes)
    tokens = tmp_path / "tokens.yaml"
    tokens.write_text(
        f"tokens:\n- {{name: hr, roots: [/lake/hr], rights: [read], viewers: [ada], sha256: ['{'0' * 64}']}}\n"
    )
    for name, value in (("tables", tables), ("tokens", TokensSource(path=str(tokens))), ("instance_gateway", Runs([]))):
        object.__setattr__(services, name, value)
    return services


def test_backlog_has_rank_price_expected_start_and_the_budgets(pressed: ManagerServices, registry: Registry) -> None:
    client = client_of(pressed, Viewer("ada"))
    found = client.get("/api/backlog").json()
    assert [(row["rank"], row["table"], row["ahead"]) for row in found["waiting"]] == [
        (1, "c", 0), (2, "salaries", 1), (3, "d", 2), (4, "e", 3)
    ]  # fmt: skip
    first = found["waiting"][0]
    assert first["seconds_low"] < first["seconds"] < first["seconds_high"]
    assert first["bytes_low"] < first["bytes"] < first["bytes_high"]
    assert (first["short_of"], first["urgency"], first["basis"]) == ("all tables", "usual", "the documented prior")
    assert first["expected_ms"] > registry.now_ms()
    assert first["expected_ms"] % 60_000 == 0
    assert first["why"].startswith("waits for core hours of all tables")
    (observed,) = found["observed"]
    assert (observed["table"], observed["short_of"], observed["due_because"]) == ("e", "", "due")
    assert {row["name"]: row["pressure"] for row in found["budgets"]} == {"all tables": "stop", "label lead": "ok"}
    (sentence,) = found["problems"]
    assert sentence.endswith("core hours a day, or relax the rules")
    assert sentence in client.get("/api/overview").json()["problems"]


def test_backlog_of_a_viewer_of_some_tables_names_no_other_and_shows_no_budget(
    pressed: ManagerServices, registry: Registry
) -> None:
    record_backlog(registry, registry.now_ms())
    client = client_of(pressed, Viewer("bob"))
    answer = client.get("/api/backlog")
    found = answer.json()
    assert "salaries" not in answer.text
    assert "/hr" not in answer.text
    assert [(row["rank"], row["table"]) for row in found["waiting"]] == [(1, "c"), (3, "d"), (4, "e")]
    assert (found["budgets"], found["is_limited"]) == ([], True)
    sentence = "more waits for the budget of all tables than it bears"
    assert found["problems"] == [sentence]
    assert client.get("/api/overview").json()["problems"][-1] == sentence
    assert client.get("/api/backlog/history").json() == {"rows": [], "is_limited": True}
    assert len(client_of(pressed, Viewer("ada")).get("/api/backlog/history").json()["rows"]) == 1


@pytest.mark.parametrize(
    ("hidden", "shown", "is_limited"),
    [
        pytest.param((), (), False, id="no team"),
        pytest.param(("/lake/hr",), (), True, id="another team's"),
        pytest.param(("/lake/hr/", "s3://Hr"), ("/lake", "s3://Hr"), False, id="all of them"),
        pytest.param(("/lake/hr", "/lake/hrx"), ("/lake/hr",), True, id="one of two"),
    ],
)
def test_audience_is_limited_when_a_table_may_be_hidden(
    hidden: tuple[str, ...], shown: tuple[str, ...], is_limited: bool
) -> None:
    assert Audience(hidden, shown).is_limited is is_limited


def test_backlog_shows_no_budget_while_the_tables_settings_are_wrong(pressed: ManagerServices, tmp_path: Path) -> None:
    (tmp_path / "wrong.yaml").write_text("budgets: {all: {core_hours: 1}}")
    object.__setattr__(pressed, "tables", TablesSource(str(tmp_path / "wrong.yaml")))
    found = client_of(pressed, Viewer("ada")).get("/api/backlog").json()
    assert (len(found["waiting"]), found["budgets"]) == (4, [])


def test_backlog_is_recorded_once_in_a_quarter_of_an_hour_and_for_15_days(
    pressed: ManagerServices, registry: Registry, engine: Engine, clock: FakeClock
) -> None:
    evaluated(registry, "/lake/t", decided("compaction", "not_due", evidence={"log_bytes": 70, "base_bytes": 1}))
    assert record_backlog(registry, registry.now_ms()) is True
    sent: list[str] = []
    listener = lambda _c, _cursor, statement, *_: sent.append(statement)  # noqa: E731
    event.listen(engine, "before_cursor_execute", listener)
    for _ in range(20):
        assert record_backlog(registry, registry.now_ms()) is False
    event.remove(engine, "before_cursor_execute", listener)
    assert {statement.split()[0] for statement in sent} == {"SELECT"}
    assert all("lake_backlog.time_ms = " in statement for statement in sent), "a sweep reads one row by its key"
    (moment,) = load_backlog_over_time(registry, 0)
    assert (moment.log_bytes, moment.waiting) == (70, 4)
    assert moment.core_ms == pytest.approx(4 * 21_000, rel=0.1)
    for pause_s, times in ((3600, 400), (900, 100)):
        for _ in range(times):
            clock.advance(pause_s)
            assert record_backlog(registry, registry.now_ms()) is True
    kept = load_backlog_over_time(registry, 0)
    assert 0 <= kept[0].time_ms - (registry.now_ms() - KEEP_BACKLOG_MS) <= 3_600_000
    client = client_of(pressed, Viewer("ada"))
    for days, rows in ((1, 97), (7, 101 + 7 * 24 - 25)):
        assert len(client.get("/api/backlog/history", params={"days": days}).json()["rows"]) in {rows, rows - 1}
    assert client.get("/api/backlog/history", params={"days": 8}).status_code == 422


def test_each_sweep_records_the_backlog(registry: Registry) -> None:
    DeadlineSweep(registry, FakeInstanceGateway()).sweep()
    assert len(load_backlog_over_time(registry, 0)) == 1


# --- ETags, refusals, texts of writers


def test_answer_is_sent_again_only_when_it_changed(
    client: httpx.Client, services: ManagerServices, registry: Registry, orders: str, clock: FakeClock
) -> None:
    object.__setattr__(services, "instance_gateway", _with_runs(services))
    for route in ROUTES:
        if route.startswith("/app") or route.endswith(".csv"):
            continue
        path = route.format(id=orders)
        first = client.get(path)
        assert first.status_code == 200, path
        assert first.headers["cache-control"] == "private, no-cache"
        clock.advance(1)  # time alone changes no answer
        again = client.get(path, headers={"If-None-Match": f'W/"x", {first.headers["etag"]}'})
        assert (again.status_code, again.content) == (304, b""), path
    tag = client.get(f"/api/tables/{orders}").headers["etag"]
    registry.mark_dirty(Notice(registry.get(orders).base_path, "orders", Source.COMMIT_CALLBACK))
    assert client.get(f"/api/tables/{orders}", headers={"If-None-Match": tag}).status_code == 200


def _with_runs(services: ManagerServices) -> Any:
    gateway: Any = services.instance_gateway
    gateway.page_of_runs = lambda *_: RunPage((run_of(1),), None)
    gateway.count_runs = lambda *_: []
    return gateway


def test_nothing_is_answered_to_users_without_access(services: ManagerServices, orders: str) -> None:
    def refuse() -> None:
        raise HTTPException(403, "no")

    client = TestClient(create_pages(lambda: services, refuse))
    for path in ROUTES:
        answer = client.get(path.format(id=orders))
        assert answer.status_code == 403
        assert "orders" not in answer.text


def test_tables_of_a_team_are_in_no_answer_to_others(
    services: ManagerServices, registry: Registry, tmp_path: Path
) -> None:
    """Hidden in the list, its counts and its facets, in one table's routes, and in the search."""
    secret = evaluated(registry, "/lake/hr/salaries", decided("clean", "blocked"))
    evaluated(registry, "/lake/shop/orders")
    tokens = tmp_path / "tokens.yaml"
    tokens.write_text(
        "tokens:\n- name: hr\n  roots: [/lake/hr]\n  rights: [read]\n  viewers: [ada, 'role:HR']\n"
        f"  sha256: ['{'0' * 64}']\n"
    )
    object.__setattr__(services, "tokens", TokensSource(path=str(tokens)))
    runs = _with_runs(services)
    asked: list[RunSearch] = []
    runs.page_of_runs = lambda _, search: (asked.append(search), RunPage((), None))[1]

    def of(*names: str) -> httpx.Client:
        viewer = Viewer(names[0], frozenset(names[1:]))
        return TestClient(create_pages(lambda: services, lambda: viewer))

    for client, sees in ((of("bob"), False), (of("ada"), True), (of("eve", "HR"), True)):
        assert names(client.get("/api/tables", params={"sort": "name"})) == ["orders", *["salaries"] * sees]
        assert client.get("/api/tables", params={"q": "salar"}).json()["total"] == sees
        overview = client.get("/api/overview").json()
        assert overview["tables"] == 1 + sees
        assert next(one["tables"] for one in overview["states"] if one["state"] == "blocked") == sees
        for path in ("", "/timeline", "/policy"):
            assert client.get(f"/api/tables/{secret}{path}").status_code == (200 if sees else 404)
        client.get("/api/operations")
        assert asked[-1].audience.covers("/lake/hr/salaries") is sees
    hidden, unknown = (of("bob").get(f"/api/tables/{one}").text for one in (secret, "salaries-0000000000000000"))
    assert hidden.replace(secret, "X") == unknown.replace("salaries-0000000000000000", "X")


def test_texts_of_writers_are_json_and_never_a_page(client: httpx.Client, registry: Registry) -> None:
    hostile = '/lake/"><script>alert(1)</script>'
    registry.mark_dirty(Notice(hostile, "<img src=x onerror=alert(1)>", Source.COMMIT_CALLBACK, (), "<b>", "<i>"))
    for path in ("/api/tables", f"/api/tables/{table_id_of(hostile)}", "/api/tables?q=<script>"):
        answer = client.get(path)
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert client.get("/api/tables").json()["rows"][0]["name"] == "<img src=x onerror=alert(1)>"


def test_nothing_but_the_app_is_served(client: httpx.Client) -> None:
    for name in ("lake.js", "lake.svg", "lake-dark.svg"):
        assert client.get(f"/app/{name}").status_code == 200
    for name in ("..%2Fapp.py", "app.py", "sources.sha256", "..%2f..%2ferrors.py"):
        assert client.get(f"/app/{name}").status_code == 404


def test_tables_of_a_wrong_tables_file_are_shown_all_the_same(
    client: httpx.Client, registry: Registry, orders: str
) -> None:
    with registry.transaction() as session:
        session.execute(text("update lake_table set problem = 'tables file is wrong'"))
        refresh_health(session, orders, registry.now_ms())
    assert "tables file is wrong" in client.get("/api/tables").json()["rows"][0]["headline"]


# --- Which users may act, and the two requests that the pages send to routes of their own

OPERATOR = Viewer("olga", may_forget=True, may_run=True, may_clear=True, may_index=True, may_pause=True)


def client_of(services: ManagerServices, viewer: Viewer) -> httpx.Client:
    return TestClient(create_pages(lambda: services, lambda: viewer))


def test_user_is_shown_with_what_airflow_allows(services: ManagerServices) -> None:
    assert client_of(services, OPERATOR).get("/api/me").json() == {
        "name": "olga", "may_run": True, "may_clear": True, "may_index": True, "may_pause": True, "may_forget": True,
        "variable": "lake_tables",
    }  # fmt: skip
    viewer = client_of(services, Viewer("vera")).get("/api/me").json()
    assert not any(viewer[name] for name in viewer if name.startswith("may_"))


def test_pause_is_prepared_and_nothing_is_written(services: ManagerServices, orders: str) -> None:
    client = client_of(services, OPERATOR)
    ends_ms = services.registry.now_ms() + 3_600_000
    body = {"text": "", "paused": True, "why": "a move", "until_ms": ends_ms}
    text_of = client.post(f"/api/tables/{orders}/pause", json=body).json()["text"]
    (entry,) = json.loads(text_of)["tables"]
    assert re.fullmatch(r"olga on \d{4}-\d\d-\d\d \d\d:\d\d UTC: a move", entry.pop("paused"))
    assert datetime.fromisoformat(entry.pop("paused_until")).timestamp() * 1000 == ends_ms
    assert entry == {"base_path": services.registry.get(orders).base_path}
    assert client.get(f"/api/tables/{orders}").json()["is_paused"] is False
    object.__setattr__(services, "tables", TablesSource("", lambda: text_of))
    table = client.get(f"/api/tables/{orders}").json()
    assert (table["is_paused"], table["observed"], table["paused_services"]) == (True, "", [])
    assert all(one["paused"].startswith("olga on ") for one in table["services"])
    refused = client.post(f"/api/tables/{orders}/pause", json={"text": "# mine\n", "paused": True})
    assert refused.status_code == 422
    assert "comments" in refused.json()["detail"]


def test_pause_of_a_service_is_prepared_with_the_users_name_and_why_and_shown_on_the_table(
    services: ManagerServices, orders: str, tmp_path: Path
) -> None:
    client = client_of(services, OPERATOR)
    path, body = (
        f"/api/tables/{orders}/pause",
        {"text": "", "paused": True, "service": "compaction", "why": "a backfill"},
    )
    text_of = client.post(path, json=body).json()["text"]
    (entry,) = json.loads(text_of)["tables"]
    assert set(entry) == {"base_path", "compaction"}
    assert re.fullmatch(r"olga on \d{4}-\d\d-\d\d \d\d:\d\d UTC: a backfill", entry["compaction"]["paused"])
    object.__setattr__(services, "tables", TablesSource("", lambda: text_of))
    table = client.get(f"/api/tables/{orders}").json()
    assert table["paused_services"] == ["compaction"]
    assert {one["service"]: one["paused"] for one in table["services"]}["compaction"] == entry["compaction"]["paused"]
    soon_ms = services.registry.now_ms() + 3_600_000
    text_of = client.post(path, json=body | {"text": text_of, "until_ms": soon_ms}).json()["text"]
    ((_, section),) = [one for one in json.loads(text_of)["tables"][0].items() if one[0] == "compaction"]
    assert datetime.fromisoformat(section["paused_until"]).timestamp() * 1000 == soon_ms
    again = client.post(path, json=body | {"text": text_of}).json()["text"]
    assert "paused_until" not in again
    for until_ms, service in ((5, "compaction"), (5, None)):
        refused = client.post(path, json=body | {"until_ms": until_ms, "service": service})
        assert (refused.status_code, "in the future" in refused.text) == (422, True)
    # What the file itself pauses cannot be resumed by the Variable that lies over it.
    (tmp_path / "t.yaml").write_text("defaults: {compaction: {paused: ops}}\ntables: []\n", encoding="utf-8")
    object.__setattr__(services, "tables", TablesSource(str(tmp_path / "t.yaml")))
    table = client.get(f"/api/tables/{orders}").json()
    assert table["paused_services"] == []
    assert {one["service"]: one["paused"] for one in table["services"]}["compaction"] == "ops"
    for wrong in ({"why": "two\nlines"}, {"service": "compactions"}, {"why": "x" * 201}, {"why": "***"}):
        assert client.post(path, json=body | wrong).status_code == 422, wrong
    # An entry that names its path would let a table run that discovery has found.
    object.__setattr__(services, "tables", TablesSource("", lambda: "defaults: {mode: observe}"))
    refused = client.post(path, json=body)
    assert refused.status_code == 422
    assert "mode: observe" in refused.json()["detail"]


def test_table_is_forgotten_by_a_user_with_the_right(
    services: ManagerServices, registry: Registry, orders: str
) -> None:
    path = f"/api/tables/{orders}/forget"
    assert client_of(services, Viewer("vera")).post(path, json={}).status_code == 403
    client = client_of(services, OPERATOR)
    # A page of another site can send a form with the user's cookie, and a browser says where from.
    assert client.post(path, content="{}", headers={"Content-Type": "text/plain"}).status_code in {403, 422}
    assert client.post(path, json={}, headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
    lease = services.executors.acquire(orders, Service.CLEAN, "run", 1)
    assert client.post(path, json={}).status_code == 409
    services.executors.release(orders, Service.CLEAN, lease.token)
    assert registry.find(orders) is not None
    assert client.post(path, json={}).status_code == 204
    assert registry.find(orders) is None
    assert client.post(path, json={}).status_code == 404


# --- What the table's store shows: stuck, at work, behind


def test_examination_shows_what_is_stuck_who_works_and_how_far_sinks_are_behind(
    services: ManagerServices, registry: Registry, lake: Path, orders: str
) -> None:
    client = client_of(services, OPERATOR)
    clear = client.get(f"/api/tables/{orders}/examination").json()
    assert clear == {"problems": [], "findings": [], "active": [], "lags": []}
    Sinks(registry).configure(orders, {"kafka": 3600})
    timeline = lake / "orders" / ".hoodie" / "timeline"
    for state in ("requested", "inflight"):
        file = timeline / f"20261121120000500.deltacommit.{state}"
        file.write_bytes(b"")
        os.utime(file, (registry.now_ms() / 1000 - 90_000,) * 2)
    found = client.get(f"/api/tables/{orders}/examination").json()
    assert found["problems"] == []
    (lag,) = found["lags"]
    assert (lag["sink"], lag["lag_commits"], lag["snapshot_rows"]) == ("kafka", 3, None)
    (active,) = found["active"]
    assert (active["instant"], active["state"]) == ("20261121120000500", "no heartbeat")
    (stuck,) = found["findings"]
    assert stuck["instant"] == "20261121120000500"
    assert stuck["call"] == {"service": "rollback", "mode": "execute", "instants": ["20261121120000500"]}
    # A store that answers nothing is said in a sentence, for each part.
    (lake / "orders").rename(lake / "gone")
    gone = client.get(f"/api/tables/{orders}/examination")
    assert gone.status_code == 200
    assert str(lake / "orders") in gone.json()["problems"][0]


def test_examination_compares_no_thousands_of_instants_with_each_other(
    services: ManagerServices, lake: Path, orders: str
) -> None:
    timeline = lake / "orders" / ".hoodie" / "timeline"
    for number in range(1_500):
        (timeline / f"2026112113{number:06}0.compaction.requested").write_text("{}")
    found = client_of(services, OPERATOR).get(f"/api/tables/{orders}/examination").json()
    assert found["active"] == []
    assert "1,500 instants are at work, too many to compare" in found["problems"][0]
