"""One action on several tables: bounded, with a line for each, by who may do it to each of them alone."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from sqlalchemy.exc import OperationalError

from airflow_lake_provider.config.access import TokensSource
from airflow_lake_provider.config.tables_source import TablesSource
from airflow_lake_provider.hudi.base_path import table_id_of
from airflow_lake_provider.manager.api.services import ManagerServices
from airflow_lake_provider.manager.bulk import MAX_TABLES
from airflow_lake_provider.manager.db.registry import Registry
from airflow_lake_provider.manager.db.rows import EvaluationResult, Notice, Source
from airflow_lake_provider.manager.db.search import find_summary
from airflow_lake_provider.manager.runs.airflow_runs import SERVICE_DAG_ID, DagState, LakeDags
from airflow_lake_provider.ui.answers import Viewer
from airflow_lake_provider.ui.app import create_pages
from tests.unit.manager.conftest import FakeRunGateway

OPERATOR = Viewer("olga", may_run=True, may_pause=True)
TABLES = """
tables:
  - {name: seen, mode: observe}
  - {name: asleep, paused: 'ann: a move'}
  - {name: gold_*, label: gold, pool: heavy}
"""
NAMES = ("orders", "held", "seen", "asleep", "gold_1", "gold_2")


@pytest.fixture
def ids(services: ManagerServices, registry: Registry, lake: Path, tmp_path: Path) -> dict[str, str]:
    """Return the ids of the tables by name; `held` has a blocked clean."""
    (tmp_path / "tables.yaml").write_text(TABLES, encoding="utf-8")
    object.__setattr__(services, "tables", TablesSource(str(tmp_path / "tables.yaml")))
    object.__setattr__(services, "reports", replace(services.reports, tables=services.tables))
    for name in NAMES:
        notice = Notice(
            str(lake / name), name, Source.COMMIT_CALLBACK, (), "shop", "ann" if name != "orders" else "bob"
        )
        registry.mark_dirty(notice)
    for lease in registry.acquire(len(NAMES), 60):
        decision = {"service": "clean", "verdict": "not_due", "reason": "2 writes"}
        if lease.table_name == "held":
            decision |= {"verdict": "blocked", "reason": "due, but held: set a=b"}
        registry.release(lease, EvaluationResult(registry.now_ms() + 600_000, decisions_json=json.dumps([decision])))
    return {name: table_id_of(str(lake / name)) for name in NAMES}


class Pages:
    """The pages of one user, with the audit log."""

    def __init__(self, services: ManagerServices, viewer: Viewer = OPERATOR) -> None:
        self.audit: list[tuple[str, dict[str, str]]] = []
        record = lambda _user, event, details: self.audit.append((event, dict(details)))  # noqa: E731
        self.client: httpx.Client = TestClient(create_pages(lambda: services, lambda: viewer, record))

    def send(self, action: str, **body: Any) -> httpx.Response:
        return self.client.post(f"/api/bulk/{action}", json=body)

    def lines(self, action: str, **body: Any) -> dict[str, tuple[str, str]]:
        answer = self.send(action, **body)
        assert answer.status_code == 200, answer.text
        return {line["table"]: (line["verdict"], line["reason"]) for line in answer.json()["lines"]}


def test_dry_run_says_what_would_start_and_why_the_rest_is_refused(
    services: ManagerServices, ids: dict[str, str], gateway: FakeRunGateway
) -> None:
    pages = Pages(services)
    lines = pages.lines("run", matching={}, service="clean", dry_run=True)
    assert lines["orders"] == ("done", "not due: 2 writes")
    assert lines["held"] == ("refused", "due, but held: set a=b")
    assert lines["seen"][1].startswith("the manager starts nothing on this table: mode: observe")
    assert lines["asleep"] == ("refused", "clean is paused by ann: a move: resume it first")
    assert (gateway.runs, pages.audit) == ([], [])
    began = pages.lines("run", table_ids=list(ids.values()), service="clean", why="a test")
    assert {name: verdict for name, (verdict, _) in began.items()} == {
        name: verdict for name, (verdict, _) in lines.items()
    }
    assert sorted(conf["table_name"] for conf in gateway.confs) == ["gold_1", "gold_2", "orders"]
    assert {conf["pool"] for conf in gateway.confs} == {"", "heavy"}
    assert {conf["reason"] for conf in gateway.confs} == {"a test"}
    ((event, details),) = pages.audit
    assert (event, details["tables"], details["service"]) == ("lake.run_services", "3", "clean")
    again = pages.lines("run", table_ids=[ids["orders"]], service="clean")
    assert again["orders"][0] == "nothing"
    assert len(gateway.runs) == 3


def test_failure_of_one_table_is_its_own_line(
    services: ManagerServices, ids: dict[str, str], gateway: FakeRunGateway
) -> None:
    gateway.fails_with = OperationalError("INSERT", {}, Exception("gone"))
    lines = Pages(services).lines("run", table_ids=[ids["orders"], ids["gold_1"]], service="compaction")
    assert lines["orders"][1] == "Airflow's database failed (OperationalError): see the table's page, and try again"
    assert lines["gold_1"][0] == "done"
    gateway.dags = LakeDags({SERVICE_DAG_ID: DagState.PAUSED}, 0)
    object.__setattr__(services, "reports", replace(services.reports, find_lake_dags=lambda: gateway.dags))
    answer = Pages(services).send("run", table_ids=[ids["orders"]], service="clean", dry_run=True)
    assert "lake_table_service is paused" in answer.json()["problem"]


def test_table_outside_the_allowed_roots_gets_no_run(services: ManagerServices, registry: Registry) -> None:
    registry.register(Notice("/elsewhere/orders", "orders", Source.HINT))
    lines = Pages(services).lines("run", table_ids=[table_id_of("/elsewhere/orders")], service="clean")
    assert lines["orders"][0] == "refused"
    assert "outside the configured roots" in lines["orders"][1]


@pytest.mark.parametrize("service", ["savepoint", "orphans", "indexing"])
def test_service_that_needs_more_than_a_table_is_no_bulk_action(
    services: ManagerServices, ids: dict[str, str], service: str
) -> None:
    assert Pages(services).send("run", table_ids=[ids["orders"]], service=service).status_code == 422


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "give either table_ids or matching"),
        ({"table_ids": ["x"], "matching": {}}, "give either table_ids or matching"),
        ({"matching": {"owner": "zoe"}}, "no table matches"),
        ({"table_ids": ["x"] * (MAX_TABLES + 1)}, "at most 200"),
    ],
)
def test_choice_is_said_and_bounded(
    services: ManagerServices, ids: dict[str, str], body: dict[str, Any], said: str
) -> None:
    answer = Pages(services).send("snooze", until_ms=1, **body)
    assert answer.status_code == 422
    assert said in answer.text


def test_filters_choose_by_owner_and_label(services: ManagerServices, ids: dict[str, str]) -> None:
    pages = Pages(services)
    assert set(pages.lines("snooze", matching={"label": "gold"}, until_ms=None)) == {"gold_1", "gold_2"}
    assert set(pages.lines("snooze", matching={"owner": "bob"}, until_ms=None)) == {"orders"}
    assert set(pages.lines("snooze", matching={"owner": "bob", "label": "gold", "q": ""} | {"owner": "ann"})) == {
        "gold_1", "gold_2",
    }  # fmt: skip


def test_pause_and_resume_of_many_tables_leave_the_rest_of_the_variable_and_write_nothing(
    services: ManagerServices, ids: dict[str, str], lake: Path
) -> None:
    pages = Pages(services)
    before = json.dumps({"tables": [{"name": "gold_*", "queue": "big"}, {"name": "other"}]})
    body = {"matching": {}, "paused": True, "why": "a move", "until_ms": 4_000_000_000_000}
    answer = pages.send("pause", text=before, **body).json()
    verdicts = {line["table"]: line["verdict"] for line in answer["lines"]}
    assert verdicts == dict.fromkeys(NAMES, "done") | {"seen": "refused", "asleep": "nothing"}
    tables = {entry.get("base_path", entry.get("name")): entry for entry in json.loads(answer["text"])["tables"]}
    assert len(tables) == 6
    assert tables[str(lake / "gold_1")]["queue"] == "big"
    assert tables[str(lake / "gold_1")]["paused"].endswith(" UTC: a move")
    assert tables[str(lake / "orders")]["paused_until"].startswith("2096-")
    assert pages.audit == []
    resumed = pages.send("pause", text=answer["text"], matching={}, paused=False).json()
    lines = {line["table"]: (line["verdict"], line["reason"]) for line in resumed["lines"]}
    assert json.loads(resumed["text"]) == json.loads(before)
    assert lines["seen"] == ("nothing", "not paused")
    assert lines["asleep"][1].startswith("paused by ann: a move: no entry of the Variable")
    of_service = pages.send("pause", text="", table_ids=[ids["orders"]], paused=True, service="clean").json()
    assert set(json.loads(of_service["text"])["tables"][0]) == {"base_path", "clean"}
    assert pages.send("pause", text="# why\ntables: []", table_ids=[ids["orders"]], paused=True).status_code == 422


def test_snooze_silences_what_each_table_has_and_ends_it(
    services: ManagerServices, registry: Registry, ids: dict[str, str]
) -> None:
    pages = Pages(services)
    until_ms = registry.now_ms() + 3_600_000
    dry = pages.lines("snooze", table_ids=[ids["orders"], ids["held"]], until_ms=until_ms, dry_run=True)
    assert dry == {"orders": ("nothing", "no problem"), "held": ("done", "clean")}
    assert find_summary(registry, ids["held"]).state == "blocked"
    assert pages.lines("snooze", table_ids=[ids["held"]], until_ms=until_ms)["held"] == ("done", "clean")
    assert find_summary(registry, ids["held"]).state == "healthy"
    assert pages.lines("snooze", table_ids=[ids["held"]], until_ms=1)["held"][0] == "refused"
    assert pages.lines("snooze", table_ids=[ids["held"]], until_ms=None)["held"] == ("done", "clean")
    assert find_summary(registry, ids["held"]).state == "blocked"
    assert [event for event, _ in pages.audit] == ["lake.snooze_problems"] * 3


# --- Who may


def test_each_action_needs_its_right_and_a_page_of_this_site(
    services: ManagerServices, ids: dict[str, str], gateway: FakeRunGateway
) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "run": {"service": "clean"}, "pause": {"text": "", "paused": True}, "snooze": {"until_ms": None},
    }  # fmt: skip
    for action, body in bodies.items():
        one = {**body, "table_ids": [ids["orders"]]}
        right = {"may_run": False} if action == "run" else {"may_pause": False}
        assert Pages(services, replace(OPERATOR, **right)).send(action, **one).status_code == 403
        assert Pages(services).send(action, **one).status_code == 200
        headers = {"Sec-Fetch-Site": "cross-site"}
        answer = Pages(services).client.post(f"/api/bulk/{action}", json=one, headers=headers)
        # The text of a pause changes nothing.
        assert answer.status_code == (200 if action == "pause" else 403)
    assert len(gateway.runs) == 1


def test_tables_of_another_team_are_not_chosen_and_not_named(
    services: ManagerServices, ids: dict[str, str], gateway: FakeRunGateway, lake: Path, tmp_path: Path
) -> None:
    entry = {"name": "bank", "roots": [str(lake / "gold_1")], "viewers": ["role:Bank"], "rights": ["read"]}
    entry["sha256"] = [hashlib.sha256(b"x").hexdigest()]
    (tmp_path / "tokens.yaml").write_text(json.dumps({"tokens": [entry]}), encoding="utf-8")
    object.__setattr__(services, "tokens", TokensSource(path=str(tmp_path / "tokens.yaml")))
    pages = Pages(services)
    for action, body in (
        ("run", {"service": "clean"}),
        ("pause", {"text": "", "paused": True}),
        ("snooze", {"until_ms": None}),
    ):
        assert "gold_1" not in pages.lines(action, matching={}, **body)
        answer = pages.send(action, table_ids=[ids["orders"], ids["gold_1"], "none"], **body)
        *_, hidden, unknown = answer.json()["lines"]
        # As if there were none.
        assert hidden["verdict"] == unknown["verdict"] == "refused"
        assert {**hidden, "reason": hidden["reason"].replace(ids["gold_1"], "none")} == unknown | {
            "table_id": ids["gold_1"], "table": ids["gold_1"],
        }  # fmt: skip
    assert "gold_1" not in {conf["table_name"] for conf in gateway.confs}
    bank = Pages(services, replace(OPERATOR, roles=frozenset({"Bank"})))
    assert "gold_1" in bank.lines("snooze", matching={"label": "gold"}, until_ms=None)


def test_more_tables_than_the_maximum_are_refused_as_a_whole_and_that_many_served(
    services: ManagerServices, registry: Registry, gateway: FakeRunGateway, lake: Path
) -> None:
    for number in range(MAX_TABLES + 1):
        registry.register(Notice(str(lake / f"t{number:03}"), f"t{number:03}", Source.HINT))
    pages = Pages(services)
    answer = pages.send("run", service="clean", matching={})
    assert (answer.status_code, gateway.runs) == (422, [])
    assert "more than 200 tables match, the maximum at a time: narrow the filter" in answer.text
    narrowed = pages.lines("snooze", until_ms=None, matching={"q": "t19"}, dry_run=True)
    assert set(narrowed) == {f"t{number}" for number in range(190, 200)}
    chosen = [table_id_of(str(lake / f"t{number:03}")) for number in range(MAX_TABLES)]
    assert {verdict for verdict, _ in pages.lines("run", table_ids=chosen, service="clean").values()} == {"done"}
    assert len(gateway.runs) == MAX_TABLES
    text = pages.send("pause", table_ids=chosen, text="", paused=True).json()["text"]
    assert len(json.loads(text)["tables"]) == MAX_TABLES
