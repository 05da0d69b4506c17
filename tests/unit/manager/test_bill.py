"""The bill: what executors reported, by table, owner, label and service, next to what was predicted."""

from __future__ import annotations

import csv
import hashlib
import io
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine, event, select, update

from airflow_lake_provider.cli import lake_reports
from airflow_lake_provider.hudi.base_path import table_id_of
from airflow_lake_provider.instant_clock import DAY_MS
from airflow_lake_provider.manager.api.services import ManagerServices
from airflow_lake_provider.manager.db import bill
from airflow_lake_provider.manager.db.bill import KEEP_DAYS, BillBy
from airflow_lake_provider.manager.db.operations import Quote, RunReport, quote_columns, record_run, report_run
from airflow_lake_provider.manager.db.registry import Registry
from airflow_lake_provider.manager.db.schema import lake_bill, lake_search
from airflow_lake_provider.manager.reports import reports as manager_reports
from airflow_lake_provider.manager.supervision.monitoring import DeadlineSweep
from airflow_lake_provider.planner.price import Work
from airflow_lake_provider.timeline_server.server import ServerOptions, TimelineServer
from airflow_lake_provider.ui.app import create_pages
from tests.support.evaluated_tables import evaluated
from tests.unit.manager.conftest import SERVICE_TOKEN, FakeClock, FakeInstanceGateway, serve

ORDERS, EVENTS = "/lake/orders", "/lake/events"
QUOTE = Quote({"cores": 4}, Work(), "usual", 1.0, 0, 0, core_ms=50_000, bytes=900, label="gold")
DONE = RunReport(1, "completed", job_ms=10_000, files_in=12, bytes_in=800, files_out=2, bytes_out=700)


def run(
    registry: Registry,
    path: str,
    name: str,
    *tries: RunReport,
    service: str = "compaction",
    days_ago: int = 0,
    by_hand: bool = False,
) -> None:
    table_id = table_id_of(path)
    now_ms = registry.now_ms() - days_ago * DAY_MS
    with registry.transaction() as session:
        quote = {} if by_hand else quote_columns(QUOTE, "hint", ())
        record_run(session, table_id, name, service, now_ms, quote)
        for one in tries:
            report_run(session, table_id, name, service, one, now_ms)


@pytest.fixture
def billed(registry: Registry) -> Registry:
    for path, owner in ((ORDERS, "pay"), (EVENTS, "sales")):
        evaluated(registry, path)
        with registry.transaction() as session:
            mine = lake_search.c.table_id == table_id_of(path)
            session.execute(update(lake_search).where(mine).values(owner=owner))
    failed = RunReport(1, "failed", job_ms=1_000)
    run(registry, ORDERS, "a", failed, replace(DONE, try_number=2), replace(DONE, try_number=2))
    run(registry, ORDERS, "b", DONE, service="clustering", days_ago=3)
    run(registry, EVENTS, "c", RunReport(1, "nothing_to_do", job_ms=500))
    run(registry, EVENTS, "d", RunReport(1, "dry_run", job_ms=500))
    return registry


def ask(services: ManagerServices, token: str = SERVICE_TOKEN, **query: Any) -> list[dict[str, Any]]:
    headers = {"Authorization": f"Bearer {token}"}
    answer = TestClient(serve(lambda: services)).get("/reports/bill", params=query, headers=headers)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["lines"]
    return found


def test_bill_counts_each_try_once_and_what_came_of_it(services: ManagerServices, billed: Registry) -> None:
    orders, events = ask(services)
    assert orders == {
        "name": "orders", "base_path": ORDERS, "runs": 2, "failed_tries": 1, "core_s": 84.0, "expected_core_s": 100.0,
        "rewritten_bytes": 1400, "expected_bytes": 1800, "files_before": 24, "files_after": 4, "files_saved": 20,
    }  # fmt: skip
    assert (events["name"], events["runs"], events["core_s"], events["files_saved"]) == ("events", 1, 2.0, 0)


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("owner", [("pay", 84.0), ("sales", 2.0)]),
        ("label", [("gold", 86.0)]),
        ("service", [("compaction", 46.0), ("clustering", 40.0)]),
    ],
)
def test_bill_is_by_what_was_asked(
    services: ManagerServices, billed: Registry, by: str, expected: list[tuple[str, float]]
) -> None:
    assert [(line["name"], line["core_s"]) for line in ask(services, by=by)] == expected


def test_run_by_hand_has_no_prediction_and_keeps_the_label_of_its_table(
    services: ManagerServices, billed: Registry
) -> None:
    run(billed, ORDERS, "by hand", DONE, by_hand=True)
    run(billed, ORDERS, "the first of its service", DONE, service="clean", by_hand=True)
    assert [(line["name"], line["core_s"], line["expected_core_s"]) for line in ask(services, by="label")] == [
        ("gold", 106.0, 150.0)
    ]


def test_run_that_only_made_a_plan_has_not_failed_and_has_done_none_of_the_predicted_work(
    services: ManagerServices, billed: Registry
) -> None:
    run(billed, EVENTS, "a plan", RunReport(1, "scheduled", job_ms=1_000))
    _, events = ask(services)
    assert (events["runs"], events["failed_tries"], events["core_s"], events["expected_core_s"]) == (2, 0, 6.0, 50.0)


def test_token_with_roots_gets_the_bill_of_its_own_tables(
    services: ManagerServices, billed: Registry, tmp_path: Path
) -> None:
    file = tmp_path / "tokens.yaml"
    digest = hashlib.sha256(b"of-sales").hexdigest()
    file.write_text(f"tokens: [{{name: sales, roots: [{EVENTS}], rights: [read], sha256: [{digest}]}}]")
    settings = services.settings.replace(tokens_file=str(file))
    options = ServerOptions(settings.allowed_roots, settings.service_tokens, tokens_file=str(file))
    server = TimelineServer(services.timeline_server.timelines, options)
    own = replace(services, settings=settings, timeline_server=server)
    found = {by: [(line["name"], line["core_s"]) for line in ask(own, "of-sales", by=by)] for by in BillBy}
    assert found == {
        "table": [("events", 2.0)],
        "owner": [("sales", 2.0)],
        "label": [("gold", 2.0)],
        "service": [("compaction", 2.0)],
    }


def test_bill_of_today_has_no_other_day(services: ManagerServices, billed: Registry) -> None:
    assert [line["core_s"] for line in ask(services, days=1)] == [44.0, 2.0]


def test_sweep_forgets_old_days_once_a_quarter_of_an_hour(billed: Registry, clock: FakeClock, engine: Engine) -> None:
    sweep = DeadlineSweep(billed, FakeInstanceGateway())

    sent: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda _connection, _cursor, text, *_: sent.append(text))

    def days() -> int:
        sweep.sweep()
        asked = len([text for text in sent if "lake_bill" in text])
        sweep.sweep()
        assert len([text for text in sent if "lake_bill" in text]) == asked, "the next sweep asks nothing"
        with billed.transaction() as session:
            return len(session.execute(select(lake_bill)).all())

    assert days() == 3
    clock.advance((KEEP_DAYS - 3) * DAY_MS // 1000)
    assert days() == 3, "the oldest day is the last one that is kept"
    clock.advance(DAY_MS // 1000)
    assert days() == 2


def test_bill_is_cut_behind_the_most_expensive_lines(
    services: ManagerServices, billed: Registry, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in (bill, manager_reports):
        monkeypatch.setattr(module, "MAX_LINES", 1)
    assert [line["name"] for line in ask(services)] == ["orders"]
    monkeypatch.setattr(lake_reports, "load_report", lambda _path, **_query: services.reports.bill(BillBy.TABLE, 30))
    lake_reports.bill(Namespace(by="table", days=30, output="text"))
    assert "these are the 1 most expensive lines; there are more" in capsys.readouterr().err


@pytest.mark.parametrize("days", [0, 32])
def test_command_refuses_days_that_are_not_kept(days: int) -> None:
    with pytest.raises(SystemExit, match="1 to 31"):
        lake_reports.bill(Namespace(by="table", days=days, output="text"))


def test_command_prints_a_table_and_csv_in_which_no_name_is_a_formula(
    services: ManagerServices, billed: Registry, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with billed.transaction() as session:
        session.execute(update(lake_search).values(table_name="=1+1"))
    load = services.reports.bill
    monkeypatch.setattr(lake_reports, "load_report", lambda _path, by, days: load(BillBy(by), int(days)))
    lake_reports.bill(Namespace(by="owner", days=30, output="text"))
    assert capsys.readouterr().out.splitlines()[1].split()[:4] == ["pay", "2", "1", "0.02"]
    lake_reports.bill(Namespace(by="table", days=30, output="csv"))
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["name"] for row in rows] == ["'=1+1", "'=1+1"]
    assert rows[0]["files_saved"] == "20"


def test_page_and_its_csv_have_the_same_lines_as_the_report(services: ManagerServices, billed: Registry) -> None:
    client = TestClient(create_pages(lambda: services, lambda: None))
    for by in BillBy:
        lines = client.get("/api/bill", params={"by": by, "days": 30}).json()["lines"]
        assert lines == ask(services, by=by)
        rows = list(csv.DictReader(io.StringIO(client.get("/api/bill.csv", params={"by": by}).text)))
        assert [(row["name"], float(row["core_s"])) for row in rows] == [(one["name"], one["core_s"]) for one in lines]
    assert client.get("/api/bill", params={"days": KEEP_DAYS + 1}).status_code == 422
