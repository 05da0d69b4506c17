"""The metrics of the whole lake: which token sees what, how many series there are, what dashboard and rules use."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import event, insert, update
from sqlalchemy.engine import Engine

from airflow_lake_provider.hudi.base_path import table_id_of
from airflow_lake_provider.manager.api.services import ManagerServices
from airflow_lake_provider.manager.db.registry import Registry
from airflow_lake_provider.manager.db.schema import lake_search, lake_sink, lake_table
from airflow_lake_provider.manager.db.search import search_names, search_sizes
from airflow_lake_provider.manager.db.sinks import Sinks
from airflow_lake_provider.manager.health.health import SEVERITY, TableState
from airflow_lake_provider.manager.reports.lake_metrics import MAX_LABEL, MAX_OWNERS, MAX_SINKS, MAX_TABLES, label_of
from tests.support.dashboard_expressions import DOCS, expressions
from tests.support.evaluated_tables import decided, evaluated
from tests.support.lake_pages import RecordedRuns, create_services, fill
from tests.support.team_tokens import bearer
from tests.unit.manager.conftest import CALLBACK_TOKEN, SERVICE_TOKEN, serve

SERVICE = {"Authorization": f"Bearer {SERVICE_TOKEN}"}
HOUR_MS = 3_600_000

Samples = dict[str, list[tuple[dict[str, str], float]]]


def read(text: str) -> Samples:
    """Return the samples by metric, as Prometheus' own client reads them."""
    families = {family.name: family for family in text_string_to_metric_families(text)}
    return {name: [(one.labels, one.value) for one in family.samples] for name, family in families.items()}


def scrape(services: ManagerServices, headers: dict[str, str] = SERVICE) -> Samples:
    answer = TestClient(serve(lambda: services)).get("/metrics", headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return read(answer.text)


def value_of(samples: Samples, name: str, **labels: str) -> float:
    (found,) = [value for of, value in samples[name] if labels.items() <= of.items()]
    return found


def test_numbers_are_those_of_the_registry(services: ManagerServices, registry: Registry) -> None:
    since = {"since_ms": registry.now_ms() - HOUR_MS}
    sizes = {"log_bytes": 700, "base_bytes": 9}
    evaluated(registry, "/lake/orders", decided("compaction", "blocked", evidence=sizes, **since))
    evaluated(registry, "/lake/well")
    with registry.transaction() as session:
        for rows in (lake_table, lake_search):
            session.execute(update(rows).where(rows.c.table_id == table_id_of("/lake/orders")).values(owner="pay"))
    Sinks(registry).configure(table_id_of("/lake/orders"), {"kafka": 86_400})
    with registry.transaction() as session:
        session.execute(update(lake_sink).values(due_ms=registry.now_ms() - 120_000, failures=4))
    found = scrape(services)
    assert value_of(found, "lake_tables", state="blocked") == 1
    assert value_of(found, "lake_tables", state="stuck") == 0
    assert value_of(found, "lake_tables_need_attention") == 1
    assert value_of(found, "lake_log_bytes") == 700
    assert value_of(found, "lake_oldest_due_seconds") == 3600
    assert value_of(found, "lake_owner_tables_need_attention", owner="pay") == 1
    assert value_of(found, "lake_owner_tables", owner="none") == 1
    orders = {"table": "orders", "path": "/lake/orders", "owner": "pay"}
    assert value_of(found, "lake_table_severity", **orders) == SEVERITY[TableState.BLOCKED]
    assert value_of(found, "lake_table_severity", table="well") == 0
    assert value_of(found, "lake_table_due_seconds", service="compaction", state="blocked", **orders) == 3600
    assert value_of(found, "lake_table_problem_seconds", subject="compaction", source="service", **orders) == 3600
    assert value_of(found, "lake_sink_lag_seconds", sink="kafka", table="orders") == 120
    assert value_of(found, "lake_sink_without_progress_seconds", sink="kafka") == 0
    assert value_of(found, "lake_sink_failed_runs", sink="kafka") == 4
    assert value_of(found, "lake_last_sweep_seconds") == 0


def test_number_of_series_does_not_follow_the_number_of_tables(services: ManagerServices, registry: Registry) -> None:
    decisions = json.dumps([decided("compaction", "due", run="waiting", since_ms=5)])
    rows = [
        {
            "table_id": f"t{number:04}", "base_path": f"/lake/t{number:04}", "table_name": f"t{number:04}",
            "owner": f"o{number % 200}", "registered_ms": 0, "decisions": decisions,
        }
        for number in range(1000)
    ]  # fmt: skip
    with registry.transaction() as session:
        session.execute(insert(lake_table), rows)
        names = [search_names(row["table_name"], "", row["base_path"], row["owner"]) for row in rows]
        short = [
            {"table_id": row["table_id"], "severity": number % 5, **name, **search_sizes(decisions)}
            for number, (row, name) in enumerate(zip(rows, names, strict=True))
        ]
        session.execute(insert(lake_search), short)
    for row in rows[:80]:
        Sinks(registry).configure(str(row["table_id"]), {"kafka": 60})
    found = scrape(services)
    assert len(found["lake_table_severity"]) == MAX_TABLES
    assert len(found["lake_owner_tables"]) == MAX_OWNERS
    assert len(found["lake_sink_lag_seconds"]) == MAX_SINKS
    assert {int(of["table"][1:]) % 5 for of, _ in found["lake_table_severity"]} == {4}
    assert sum(map(len, found.values())) < 1000


@pytest.mark.parametrize(
    "name", ['a"} 1\nlake_tables 9', "a\\", "a\u202eb", "a\x1b[31m", "x" * 400, "a\u2028b", "a\rb"]
)
def test_name_from_outside_is_one_label_of_one_line(services: ManagerServices, registry: Registry, name: str) -> None:
    evaluated(registry, f"/lake/{name}")
    ((labels, _),) = scrape(services)["lake_table_severity"]
    assert labels["table"] == label_of(name)
    assert len(labels["table"]) <= MAX_LABEL + 9
    assert labels["table"].replace("\n", "").isprintable()


def test_long_names_stay_unlike_each_other() -> None:
    assert label_of("x" * 400) != label_of("x" * 401)


def test_owners_that_are_shown_alike_are_no_second_sample(services: ManagerServices, registry: Registry) -> None:
    owners = {"/lake/a": "", "/lake/b": "none", "/lake/c": "x\x1b", "/lake/d": "x\\x1b"}
    for path, owner in owners.items():
        evaluated(registry, path)
        with registry.transaction() as session:
            for rows in (lake_table, lake_search):
                session.execute(update(rows).where(rows.c.table_id == table_id_of(path)).values(owner=owner))
    for samples in scrape(services).values():
        names = [tuple(sorted(labels.items())) for labels, _ in samples]
        assert len(names) == len(set(names))
    assert {labels["owner"] for labels, _ in scrape(services)["lake_owner_tables"]} == {"none", "'none'", "x\\x1b"}


def test_team_reads_its_own_tables_and_no_figure_of_all(
    manager: ManagerServices,
    registry: Registry,
    lake: Path,
) -> None:
    evaluated(registry, f"{lake}/shop/orders", decided("clean", "blocked"))
    evaluated(registry, f"{lake}/bank/accounts", decided("clean", "blocked"))
    Sinks(registry).configure(table_id_of(f"{lake}/bank/accounts"), {"kafka": 60})
    found = scrape(manager, bearer("reader"))
    assert [of["table"] for of, _ in found["lake_table_severity"]] == ["orders"]
    assert value_of(found, "lake_tables_need_attention") == 1
    assert found["lake_sink_lag_seconds"] == []
    for name in ("lake_problems", "lake_last_sweep_seconds", "lake_budget_pressure"):
        assert found[name] == []
    assert len(scrape(manager)["lake_table_severity"]) == 2


@pytest.mark.parametrize(("headers", "status"), [({}, 401), ({"Authorization": f"Bearer {CALLBACK_TOKEN}"}, 403)])
def test_token_that_may_not_read_gets_nothing(services: ManagerServices, headers: dict[str, str], status: int) -> None:
    assert TestClient(serve(lambda: services)).get("/metrics", headers=headers).status_code in {status, 401}


def test_second_scrape_within_seconds_costs_the_database_nothing(services: ManagerServices, engine: Engine) -> None:
    scrape(services)
    statements: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    scrape(services)
    assert statements == []


# --- Dashboard and rules

_NAME = re.compile(r"\blake_\w+")
_LABELS = re.compile(r"(?:by|on|without) \(([^)]*)\)")


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> Samples:
    """What a manager of a made-up lake with problems of every kind sends."""
    folder = tmp_path_factory.mktemp("lake")
    runs = RecordedRuns()
    services = create_services(folder, runs)
    fill(services.registry, folder, 300, services.registry.now_ms(), runs)
    return scrape(services, {"Authorization": "Bearer service-token"})


@pytest.mark.parametrize(("where", "expression"), list(expressions()))
def test_every_metric_and_label_of_dashboard_and_rules_is_sent(where: str, expression: str, sent: Samples) -> None:
    names = _NAME.findall(expression)
    assert names or "up{" in expression, where
    labels = {label for name in names for of, _ in sent[name] for label in of}
    assert all(sent[name] for name in names), where
    for group in _LABELS.findall(expression):
        assert {label.strip() for label in group.split(",") if label.strip()} <= labels, where


def test_every_metric_is_documented_and_none_else_is(sent: Samples) -> None:
    page = (DOCS / "monitoring.md").read_text(encoding="utf-8")
    assert {name for name in re.findall(r"`(lake_[a-z_]+)", page) if not name.startswith("lake_timeline")} >= set(sent)
    rows = set(re.findall(r"`(lake_\w+)[`{]", page.partition("## Prometheus")[2].partition("\n## ")[0]))
    assert rows - {"lake_token", "lake_watch"} == set(sent)


def test_panels_of_the_dashboard_do_not_overlap() -> None:
    dashboard: dict[str, Any] = json.loads((DOCS / "monitoring" / "grafana-dashboard.json").read_text())
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
