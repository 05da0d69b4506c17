"""Each kind of problem that a table can have, planted in a registry, and an inbox of what people are notified of."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from sqlalchemy import insert, update

from airflow_lake_provider.hudi.base_path import table_id_of
from airflow_lake_provider.manager.db.health import refresh_health
from airflow_lake_provider.manager.db.registry import Registry
from airflow_lake_provider.manager.db.rows import EvaluationResult, Notice, Source
from airflow_lake_provider.manager.db.schema import lake_run, lake_table
from airflow_lake_provider.manager.db.sinks import RunProgress, Sinks
from airflow_lake_provider.manager.health.health import (
    FoundBy,
    OpenFinding,
)
from airflow_lake_provider.manager.health.table_problems import TableProblem
from airflow_lake_provider.manager.supervision.notifications import NoNotifier
from airflow_lake_provider.planner.conformance import (
    Conformity,
    Learnt,
    Requirement,
    Row,
    learnt_to_text,
)

PATH = "/lake/orders"


BROKEN = Row(Requirement.LOCK, Conformity.BROKEN, "two commits at once", ("a=b",), since_ms=5)


def broken_writers() -> str:
    return learnt_to_text(Learnt(rows=(BROKEN,)))


def register(registry: Registry) -> str:
    registry.mark_dirty(Notice(PATH, "orders", Source.HINT))
    evaluate(registry)
    return table_id_of(PATH)


def evaluate(registry: Registry, **result: Any) -> None:
    registry.mark_dirty(Notice(PATH, "orders", Source.HINT))
    (lease,) = registry.acquire(1, 60)
    registry.release(lease, EvaluationResult(registry.now_ms() + 600_000, **result))


def plant_decision(registry: Registry, table_id: str) -> None:
    decision = {"service": "clean", "verdict": "blocked", "reason": "due, but held: set a=b"}
    evaluate(registry, decisions_json=json.dumps([decision]))


def plant_failure(registry: Registry, table_id: str) -> None:
    evaluate(registry, problem="no answer", failed=True)


def plant_finding(registry: Registry, table_id: str) -> None:
    registry.keep_findings(table_id, FoundBy.DOCTOR, [OpenFinding("rows_differ", "", "rows differ", "compare them")])


def plant_breach(registry: Registry, table_id: str) -> None:
    evaluate(registry, conformance=broken_writers())


def plant_sink(registry: Registry, table_id: str) -> None:
    sinks = Sinks(registry)
    sinks.configure(table_id, {"events": 60.0})
    sinks.begin_run(table_id, "events", 60.0, "r1")
    sinks.record_progress(table_id, "events", RunProgress("r1", problem="Kafka is away", ended=True))


def plant_retired_sink(registry: Registry, table_id: str) -> None:
    Sinks(registry).configure(table_id, {"events": 60.0})
    Sinks(registry).configure(table_id, {})


def plant_failed_run(registry: Registry, table_id: str) -> None:
    now_ms = registry.now_ms()
    with registry.transaction() as session:
        run = {"run_id": "r1", "table_id": table_id, "service": "clustering", "outcome": "failed"}
        session.execute(insert(lake_run).values(**run, created_ms=now_ms - 9, ended_ms=now_ms))
        refresh_health(session, table_id, now_ms)


def plant_failed_sync(registry: Registry, table_id: str) -> None:
    decision = {"service": "sync", "verdict": "due", "run": "abandoned", "run_reason": "the catalog refuses it"}
    evaluate(registry, decisions_json=json.dumps([decision]))


def plant_own_settings(registry: Registry, table_id: str) -> None:
    evaluate(registry, left_out=("lake.engine=other of hoodie.properties is left out",))


def plant_missing(registry: Registry, table_id: str) -> None:
    evaluate(registry, problem="no table at the path", failed=True, is_missing=True)


def plant_delay(registry: Registry, table_id: str) -> None:
    with registry.transaction() as session:
        mine = lake_table.c.table_id == table_id
        session.execute(update(lake_table).where(mine).values(dirty_since_ms=registry.now_ms() - 3_600_000))


PLANTED: dict[Callable[[Registry, str], None], tuple[str, str]] = {
    plant_decision: ("blocked", "clean is blocked: held: set a=b"),
    plant_failure: ("unreadable", "no answer"),
    plant_finding: ("stuck", "rows differ"),
    plant_breach: ("misconfigured", "two commits at once"),
    plant_sink: ("failing", "Kafka is away"),
    plant_retired_sink: ("misconfigured", "no longer configured"),
    plant_failed_run: ("failing", "the last run of clustering failed"),
    plant_failed_sync: ("failing", "sync is given up for some hours: the catalog refuses it"),
    plant_own_settings: ("misconfigured", "lake.engine=other"),
    plant_missing: ("unreadable", "no table is at this path any more"),
    plant_delay: ("stuck", "for longer than allowed"),
}


NOTIFIED_BY_OTHERS = (plant_failure, plant_missing, plant_failed_run, plant_sink)
"""A later finding, the run's own task, or the sink's event notifies people."""


class Inbox(NoNotifier):
    def __init__(self) -> None:
        self.messages: list[TableProblem] = []
        self.ended: list[TableProblem] = []

    def problem(self, problem: TableProblem, on_notified: Callable[[], None]) -> None:
        self.messages.append(problem)
        on_notified()

    def resolved(self, problem: TableProblem, on_notified: Callable[[], None]) -> None:
        self.ended.append(problem)
        on_notified()
