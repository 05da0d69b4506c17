"""A problem that a person has silenced: shown, counted nowhere, no message; back by itself, hiding no worse one."""

from __future__ import annotations

import json
from argparse import Namespace
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from airflow_lake_provider.cli import snooze as command
from airflow_lake_provider.errors import MalformedRequestError
from airflow_lake_provider.manager.api.services import ManagerServices
from airflow_lake_provider.manager.db.registry import Registry
from airflow_lake_provider.manager.db.search import find_summary
from airflow_lake_provider.manager.db.snoozes import MAX_SNOOZE_MS, Snoozes
from airflow_lake_provider.manager.health.health import (
    FailedRun,
    FoundBy,
    Health,
    KnownFacts,
    MarkKind,
    OpenFinding,
    ProblemKey,
    Snooze,
    TableState,
    judge,
    parse_health,
)
from airflow_lake_provider.manager.supervision.monitoring import DeadlineSweep
from airflow_lake_provider.ui.answers import Viewer
from airflow_lake_provider.ui.app import create_pages
from tests.support.planted_problems import (
    PATH,
    Inbox,
    plant_breach,
    plant_decision,
    plant_failed_run,
    plant_finding,
    plant_sink,
    register,
)
from tests.unit.manager.conftest import SERVICE_TOKEN, FakeClock, FakeInstanceGateway, serve

BLOCKED = {"service": "clean", "verdict": "blocked", "reason": "due, but held"}
KEY = ProblemKey(TableState.BLOCKED, FoundBy.SERVICE, "clean")
DAY_S = 86_400


# --- The rule


def test_silenced_problem_is_shown_last_marked_and_counts_for_no_state() -> None:
    facts = KnownFacts([BLOCKED], snoozes=[Snooze(KEY, "ann: known", 1, 50)])
    health = judge(facts, Health(), 10)
    assert (health.state, health.problems[0].snoozed_until_ms) == (TableState.HEALTHY, 50)
    (mark,) = health.marks
    assert (mark.kind, mark.service, mark.why, mark.ends_ms) == (MarkKind.SNOOZED, "clean", "ann: known", 50)
    again = judge(facts, health, 50)
    assert (again.state, again.problems[0].snoozed_until_ms, again.marks) == (TableState.BLOCKED, None, ())


def test_another_problem_and_a_worse_state_of_the_same_are_not_silenced() -> None:
    snoozes = [Snooze(KEY, "ann", 1, 50)]
    other = {"service": "archive", "verdict": "blocked", "reason": "due, but held"}
    health = judge(KnownFacts([BLOCKED, other], snoozes=snoozes), Health(), 10)
    assert (health.state, [one.subject for one in health.problems]) == (TableState.BLOCKED, ["archive", "clean"])
    failing = {"service": "clean", "verdict": "due", "run": "abandoned"}
    assert judge(KnownFacts([failing], snoozes=snoozes), Health(), 10).state is TableState.FAILING
    finding = {FoundBy.DOCTOR: [OpenFinding("rows_differ", "", "differ", "")]}
    health = judge(KnownFacts([BLOCKED], found=finding, snoozes=snoozes), Health(), 10)
    assert (health.state, health.problems[0].source) == (TableState.STUCK, FoundBy.DOCTOR)


def test_service_that_fails_stays_silenced_while_it_is_due_and_while_it_is_not() -> None:
    snoozes = [Snooze(ProblemKey.of(TableState.FAILING, FoundBy.RUN, "clean"), "ann", 1, 50)]
    due = {"service": "clean", "verdict": "due", "run": "backing_off"}
    assert judge(KnownFacts([due], snoozes=snoozes), Health(), 10).state is TableState.HEALTHY
    run = KnownFacts(failed_runs=[FailedRun("clean", "r1", "no memory", 9)], snoozes=snoozes)
    assert judge(run, Health(), 10).state is TableState.HEALTHY


def test_store_that_does_not_answer_is_silenced_and_a_table_that_is_gone_is_not() -> None:
    snoozes = [Snooze(ProblemKey(TableState.UNREADABLE, FoundBy.EVALUATION, ""), "ann", 1, 50)]
    assert judge(KnownFacts(problem="no answer", snoozes=snoozes), Health(), 10).state is TableState.HEALTHY
    missing = KnownFacts(problem="no table", missing_since_ms=5, snoozes=snoozes)
    assert judge(missing, Health(), 10).state is TableState.UNREADABLE


# --- In the registry, on the page, by the command, and to people


def silence(registry: Registry, table_id: str, seconds: float) -> None:
    problems = parse_health(registry.get(table_id).health).problems
    Snoozes(registry).add(table_id, [one.key for one in problems], "ann", registry.now_ms() + int(seconds * 1000))


def test_silenced_problem_notifies_no_one_and_does_so_again_when_the_snooze_has_ended(
    registry: Registry, clock: FakeClock
) -> None:
    inbox = Inbox()
    sweep = DeadlineSweep(registry, FakeInstanceGateway(), notifier=inbox)
    table_id = register(registry)
    plant_breach(registry, table_id)
    sweep.sweep()
    assert len(inbox.messages) == 1
    silence(registry, table_id, DAY_S)
    for _ in range(3):
        clock.advance(1000)
        sweep.sweep()
    # It has not ended either, so it is not called resolved.
    assert (len(inbox.messages), inbox.ended) == (1, [])
    assert find_summary(registry, table_id).state == "healthy"
    clock.advance(DAY_S)
    sweep.sweep()
    assert (len(inbox.messages), inbox.ended, find_summary(registry, table_id).state) == (2, [], "misconfigured")
    assert parse_health(registry.get(table_id).health).marks == ()


def test_problem_that_began_silenced_is_a_message_only_after_the_snooze(registry: Registry, clock: FakeClock) -> None:
    inbox = Inbox()
    sweep = DeadlineSweep(registry, FakeInstanceGateway(), notifier=inbox)
    table_id = register(registry)
    plant_finding(registry, table_id)
    silence(registry, table_id, DAY_S)
    sweep.sweep()
    assert inbox.messages == []
    registry.keep_findings(table_id, FoundBy.DOCTOR, [])
    clock.advance(DAY_S)
    sweep.sweep()
    assert (inbox.messages, inbox.ended) == ([], [])


def test_event_of_a_silenced_sink_is_kept_until_the_snooze_ends(registry: Registry, clock: FakeClock) -> None:
    sent: list[str] = []

    class OfSinks(Inbox):
        def sink(self, event: Any, on_notified: Any) -> None:
            sent.append(event.kind)
            on_notified()

    sweep = DeadlineSweep(registry, FakeInstanceGateway(), notifier=OfSinks())
    table_id = register(registry)
    plant_sink(registry, table_id)
    silence(registry, table_id, 3600)
    sweep.sweep()
    assert sent == []
    clock.advance(3601)
    sweep.sweep()
    assert len(sent) == 1


def test_only_a_problem_that_is_there_is_silenced_and_for_90_days_at_most(registry: Registry) -> None:
    table_id = register(registry)
    plant_decision(registry, table_id)
    snoozes = Snoozes(registry)
    now_ms = registry.now_ms()
    for ends_ms in (now_ms, now_ms + MAX_SNOOZE_MS + 10_000):
        with pytest.raises(MalformedRequestError, match="in the future, at most 90 days ahead"):
            snoozes.add(table_id, [KEY], "ann", ends_ms)
    with pytest.raises(MalformedRequestError, match="no problem archive \\(blocked\\) any more"):
        snoozes.add(table_id, [KEY._replace(subject="archive")], "ann", now_ms + 1000)
    assert snoozes.find(table_id) == []
    snoozes.add(table_id, [KEY], "ann", now_ms + 60_000)
    registry.forget(table_id)
    assert snoozes.find(table_id) == []


def client_of(services: ManagerServices, viewer: Viewer, audit: list[tuple[str, str]]) -> httpx.Client:
    record = lambda user, event, details: audit.append((user, event))  # noqa: E731
    return TestClient(create_pages(lambda: services, lambda: viewer, record))


def test_page_silences_a_problem_for_who_may_pause_and_ends_it(services: ManagerServices, registry: Registry) -> None:
    table_id = register(registry)
    plant_decision(registry, table_id)
    audit: list[tuple[str, str]] = []
    path = f"/api/tables/{table_id}/snooze"
    body = {"state": "blocked", "source": "service", "subject": "clean", "why": "on Monday"}
    body |= {"until_ms": registry.now_ms() + 3_600_000}
    assert client_of(services, Viewer("vera"), audit).post(path, json=body).status_code == 403
    client = client_of(services, Viewer("olga", may_pause=True), audit)
    assert client.post(path, json=body, headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert audit == []
    assert client.post(path, json=body).status_code == 204
    (row,) = client.get("/api/tables", params={"mark": "snoozed"}).json()["rows"]
    assert (row["state"], row["headline"]) == ("healthy", "Healthy: nothing is due.")
    assert row["problems"][0]["snoozed_until_ms"] == body["until_ms"]
    assert row["marks"][0]["why"] == "olga: on Monday"
    assert next(one["tables"] for one in client.get("/api/overview").json()["marked"] if one["mark"] == "snoozed") == 1
    assert client.post(path, json=body | {"subject": "archive"}).status_code == 422
    assert client.post(path, json=body | {"until_ms": None}).status_code == 204
    assert client.get(f"/api/tables/{table_id}").json()["row"]["state"] == "blocked"
    assert audit == [("olga", "lake.snooze_problem")] * 2


def test_tasks_learn_which_services_failures_are_silenced(services: ManagerServices, registry: Registry) -> None:
    table_id = register(registry)
    plant_failed_run(registry, table_id)
    manager = TestClient(serve(lambda: services), headers={"Authorization": f"Bearer {SERVICE_TOKEN}"})
    assert manager.get(f"/tables/{table_id}").json()["silenced_services"] == []
    silence(registry, table_id, 3600)
    assert manager.get(f"/tables/{table_id}").json()["silenced_services"] == ["clustering"]


def test_command_silences_what_the_table_has_now_and_ends_it(
    services: ManagerServices,
    registry: Registry,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    table_id = register(registry)
    plant_decision(registry, table_id)
    plant_finding(registry, table_id)
    monkeypatch.setattr(command, "open_registry", lambda: registry)
    monkeypatch.setattr(command, "find_table", lambda _table: PATH)
    monkeypatch.setattr(command, "getpass", SimpleNamespace(getuser=lambda: "ann"))

    def run(**changed: Any) -> str:
        given = {"table": "orders", "lasts": "", "problem": "", "reason": "", "end": False, "output": "text"}
        command.snooze(Namespace(**given | changed))
        return capsys.readouterr().out

    assert "clean is blocked: held: set a=b" in run()
    assert run(problem="rows_differ", lasts="2d", reason="known").count("snoozed until") == 1
    assert find_summary(registry, table_id).state == "blocked"
    found = json.loads(run(lasts="2d", output="json"))
    assert (len(found), all(one["snoozed_until"] for one in found)) == (2, True)
    assert find_summary(registry, table_id).state == "healthy"
    assert "snoozed" not in run(end=True)
    assert find_summary(registry, table_id).state == "stuck"
    with pytest.raises(SystemExit, match="has no such problem"):
        run(problem="archive", lasts="1h")
