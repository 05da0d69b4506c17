"""Why a service did not run last night: what kept it, from when until when, and its runs."""

from __future__ import annotations

import hashlib
import json
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine, event, func, select

from airflow_lake_provider.cli import table_reports
from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.hudi.base_path import table_id_of
from airflow_lake_provider.instant_clock import DAY_MS
from airflow_lake_provider.manager.api.services import ManagerServices
from airflow_lake_provider.manager.db import history
from airflow_lake_provider.manager.db.history import KEEP_DAYS, LEAST_MS, load_history
from airflow_lake_provider.manager.db.operations import RunReport, report_run
from airflow_lake_provider.manager.db.registry import Registry
from airflow_lake_provider.manager.db.rows import EvaluationResult, Notice, Source
from airflow_lake_provider.manager.db.schema import lake_history
from airflow_lake_provider.manager.loop.reconciler import ManagerLoop
from airflow_lake_provider.manager.read_model import HistoryReport
from airflow_lake_provider.manager.supervision.monitoring import DeadlineSweep
from airflow_lake_provider.timeline_server.server import ServerOptions, TimelineServer
from tests.support.paused_dags import paused
from tests.support.tables import HandMadeTable
from tests.unit.manager.conftest import (
    SERVICE_TOKEN,
    WORKING_DAGS,
    FakeClock,
    FakeInstanceGateway,
    FakeRunGateway,
    serve,
)

ORDERS = "/lake/orders"


def decision(registry: Registry, situation: str, reason: str = "the reason", **more: Any) -> dict[str, Any]:
    verdict = "due" if situation in {"budget", "window", "running"} else "not_due"
    times = {"since_ms": registry.now_ms(), "situation_ms": registry.now_ms()}
    return {"service": "compaction", "verdict": verdict, "reason": reason, "situation": situation, **times, **more}


def evaluate(registry: Registry, *decisions: dict[str, Any], problem: str = "", path: str = ORDERS) -> None:
    registry.mark_dirty(Notice(path, "orders", Source.HINT))
    (lease,) = registry.acquire(1, 60)
    failed = {"failed": True, "problem": problem, "retry_ms": registry.now_ms()} if problem else {}
    registry.release(lease, EvaluationResult(registry.now_ms(), decisions_json=json.dumps(decisions), **failed))


def lines_of(registry: Registry, at_ms: int | None = None, path: str = ORDERS) -> list[tuple[str, str, Any]]:
    with registry.transaction() as session:
        found = load_history(session, table_id_of(path), at_ms)
    length = ((one.until_ms or registry.now_ms()) - one.from_ms for one in found)
    return [(one.service, one.situation, ms // 1000) for one, ms in zip(found, length, strict=True)]


def test_service_that_waited_for_its_dag_says_so_with_its_run_behind_it(
    lake: Path, registry: Registry, gateway: FakeRunGateway, make_loop: Callable[[], ManagerLoop], clock: FakeClock
) -> None:
    table = HandMadeTable.create(lake / "orders")
    for second in range(1, 5):
        table.commit(second)
    mark = registry.mark_dirty(Notice(str(table.path), "orders", Source.HINT))
    gateway.dags = paused("lake_table_service")
    loop = make_loop()
    loop.drain()
    for _ in range(4):
        clock.advance(31)
        loop.drain()
    night_ms = registry.now_ms()
    gateway.dags = WORKING_DAGS
    clock.advance(31)
    loop.drain()
    began_ms = registry.now_ms()
    (run,) = gateway.runs
    clock.advance(90)
    with registry.transaction() as session:
        done = RunReport(1, "completed", job_ms=1_000)
        report_run(session, mark.table_id, run.run_id, "compaction", done, registry.now_ms())
        at_night = load_history(session, mark.table_id, night_ms)
        found = load_history(session, mark.table_id)
    (waited,) = (one for one in at_night if one.service == "compaction")
    assert (waited.what, waited.until_ms - waited.from_ms) == ("waiting for its DAG", 155_000)
    assert waited.due_ms == waited.from_ms
    assert "DAG lake_table_service is paused, so no service runs: unpause it" in waited.reason
    assert "(due: 4 delta commits" in waited.reason
    (ran,) = (one for one in found if one.situation == "running")
    assert (ran.from_ms, ran.until_ms) == (began_ms, began_ms + 90_000)
    assert ran.reason == f"run {run.run_id}: completed"
    assert {one.service for one in at_night} >= {"clean", "archive", "clustering"}, "also what was not due"


@pytest.mark.parametrize(
    ("outcome", "said"), [("completed", "completed; an earlier try failed: lost"), ("failed", "failed, lost")]
)
def test_error_of_an_earlier_try_is_named_as_such(
    registry: Registry, clock: FakeClock, outcome: str, said: str
) -> None:
    mark = registry.mark_dirty(Notice(ORDERS, "orders", Source.HINT))
    with registry.transaction() as session:
        for number, found in enumerate(("failed", outcome), 1):
            report = RunReport(number, found, error="lost" if found == "failed" else "")
            report_run(session, mark.table_id, "r1", "compaction", report, registry.now_ms())
        (ran,) = load_history(session, mark.table_id)
    assert ran.reason == f"run r1: {said}"


def test_row_is_kept_when_the_situation_changes_and_not_at_each_evaluation(
    registry: Registry, clock: FakeClock, engine: Engine
) -> None:
    first = decision(registry, "budget", "waits for core hours: 9 left")
    evaluate(registry, first)
    sent: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda _connection, _cursor, text, *_: sent.append(text))
    clock.advance(600)
    evaluate(registry, first)
    clock.advance(600)
    evaluate(registry, first | {"reason": "another number of the same"})
    assert not [text for text in sent if "lake_history" in text], "what goes on costs no statement"
    clock.advance(600)
    evaluate(registry, decision(registry, "window"))
    clock.advance(60)
    assert lines_of(registry) == [("compaction", "window", 60), ("compaction", "budget", 1800)]


def test_what_lasted_less_than_a_minute_is_not_kept(registry: Registry, clock: FakeClock) -> None:
    evaluate(registry, decision(registry, "budget"))
    clock.advance(LEAST_MS / 1000 - 1)
    evaluate(registry, decision(registry, "not_due"))
    assert lines_of(registry) == [("compaction", "not_due", 0)]


def test_table_that_could_not_be_read_says_so_and_keeps_what_was_so_before(
    registry: Registry, clock: FakeClock
) -> None:
    evaluate(registry, decision(registry, "window"))
    clock.advance(100)
    evaluate(registry, problem="the store does not answer")
    clock.advance(500)
    evaluate(registry, decision(registry, "not_due"))
    assert lines_of(registry) == [
        ("compaction", "not_due", 0),
        ("", "unreadable", 500),
        ("compaction", "window", 600),
    ]


def test_history_is_bounded_in_lines_and_days(
    registry: Registry, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "MAX_LINES", 5)
    for number in range(20):
        evaluate(registry, decision(registry, ("budget", "window")[number % 2]))
        clock.advance(61)

    def count() -> int:
        with registry.transaction() as session:
            return session.scalar(select(func.count()).select_from(lake_history)) or 0

    assert count() == 5
    sweep = DeadlineSweep(registry, FakeInstanceGateway())
    clock.advance(KEEP_DAYS * DAY_MS / 1000 - 4 * 61)
    sweep.sweep()
    assert 0 < count() < 5
    clock.advance(DAY_MS / 1000)
    sweep.sweep()
    assert count() == 0
    registry.forget(table_id_of(ORDERS))


def test_forgotten_table_leaves_no_history(registry: Registry, clock: FakeClock) -> None:
    evaluate(registry, decision(registry, "window"))
    clock.advance(100)
    evaluate(registry, decision(registry, "not_due"))
    registry.forget(table_id_of(ORDERS))
    assert lines_of(registry) == []


def ask(services: ManagerServices, token: str = SERVICE_TOKEN, **query: Any) -> Any:
    headers = {"Authorization": f"Bearer {token}"}
    return TestClient(serve(lambda: services)).get("/reports/history", params=query, headers=headers)


def test_token_with_roots_gets_the_history_of_its_own_tables(
    services: ManagerServices, registry: Registry, clock: FakeClock, tmp_path: Path
) -> None:
    evaluate(registry, decision(registry, "window"))
    evaluate(registry, decision(registry, "budget"), path="/lake/events")
    file = tmp_path / "tokens.yaml"
    digest = hashlib.sha256(b"of-sales").hexdigest()
    file.write_text(f"tokens: [{{name: sales, roots: [/lake/events], rights: [read], sha256: [{digest}]}}]")
    settings = services.settings.replace(tokens_file=str(file))
    options = ServerOptions(settings.allowed_roots, settings.service_tokens, tokens_file=str(file))
    own = replace(
        services,
        settings=settings,
        timeline_server=TimelineServer(services.timeline_server.timelines, options),
    )
    assert ask(own, "of-sales", table=ORDERS).status_code in {403, 404}
    assert [one["situation"] for one in ask(own, "of-sales", table="/lake/events").json()["lines"]] == ["budget"]
    assert [one["what"] for one in ask(services, table=ORDERS).json()["lines"]] == [
        "waiting for the maintenance window"
    ]


def test_command_prints_one_moment_and_refuses_what_is_no_time(
    services: ManagerServices,
    registry: Registry,
    clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    evaluate(registry, decision(registry, "window", run_reason="waits for the maintenance window (nights)"))
    clock.advance(3600)
    evaluate(registry, decision(registry, "not_due"))

    def load(_kind: type, table: str, at_ms: str | None = None) -> HistoryReport:
        return services.reports.history(table, None if at_ms is None else int(at_ms))

    monkeypatch.setattr(table_reports, "load_report", load)
    args = Namespace(table=ORDERS, at="2026-11-21 12:30", service="", limit=None, output="text")
    table_reports.history(args)
    assert capsys.readouterr().out == (
        "2026-11-21 12:00:00 UTC to 2026-11-21 13:00:00 UTC  compaction waiting for the maintenance window, "
        "due since 2026-11-21 12:00:00 UTC\n  waits for the maintenance window (nights) (due: the reason)\n"
    )
    args.at = "last night"
    with pytest.raises((LakeError, SystemExit), match=r"no time|1"):
        table_reports.history(args)
    for early in ("0001-01-01", "0001-01-01T00:00+14:00", "1969-12-31"):
        with pytest.raises(LakeError, match="before 1970"):
            table_reports._parse_moment(early)
    noon = datetime(2026, 11, 21, 12, 30, tzinfo=UTC)
    assert table_reports._parse_moment("2026-11-21T13:30+01:00") == noon.timestamp() * 1000
