"""Which notifier gets which event."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.manager.health.health import FoundBy, Health, Problem, TableState
from airflow_lake_provider.manager.health.sink_events import SinkEvent, SinkEventKind
from airflow_lake_provider.manager.health.table_problems import (
    TableOfProblems,
    TableProblem,
    parse_problem,
    problem_of_sink,
    problem_to_text,
    problems_of,
)
from airflow_lake_provider.manager.supervision.notifications import Digest
from airflow_lake_provider.notifications.event import (
    EventKind,
    LakeEvent,
    Severity,
    event_of_digest,
    event_of_failure,
    event_of_problem,
    event_of_sink,
)
from airflow_lake_provider.notifications.routing import Route

AT = "2026-11-21T12:00:00+00:00"
ORDERS = TableOfProblems("t", "/lake/orders", "orders", "pay", is_identified=True)


def ignore(event: LakeEvent) -> None:
    pass


def problem(
    owner: str = "pay",
    state: TableState = TableState.BLOCKED,
    source: FoundBy = FoundBy.SERVICE,
    subject: str = "clean",
) -> TableProblem:
    return TableProblem("t", "/lake/orders", "orders", owner, source, state, subject, "because", 0)


def event(owner: str = "pay", state: TableState = TableState.BLOCKED, kind: EventKind = EventKind.STUCK) -> LakeEvent:
    return event_of_problem(kind, problem(owner, state), AT)


FAILED = event_of_failure({"params": {"base_path": "/lake/a", "table_owner": "pay"}}, AT)
RELEASED = event_of_sink(SinkEvent(SinkEventKind.RELEASED, "/lake/a", "kafka", "over", 1, "pay"), AT)
SNAPSHOT = event_of_sink(SinkEvent(SinkEventKind.SNAPSHOT, "/lake/a", "kafka", "new", 1, "pay"), AT)


@pytest.mark.parametrize(
    ("rule", "given", "is_wanted"),
    [
        ({}, event(), True),
        ({"owners": ["pay"]}, event("pay"), True),
        ({"owners": ["pay"]}, FAILED, True),
        ({"owners": ["pay"]}, event("sales"), False),
        ({"owners": ["sal*", "pay"]}, event("sales"), True),
        ({"owners": ["pay"]}, event(""), False),
        ({"owners": ["none"]}, event(""), True),
        ({"kinds": ["resolved"]}, event(), False),
        ({"kinds": ["resolved"]}, event(kind=EventKind.RESOLVED), True),
        ({"min_severity": "critical"}, event(), False),
        ({"min_severity": "critical"}, event(state=TableState.STUCK), True),
        ({"min_severity": "critical"}, event(state=TableState.UNREADABLE, kind=EventKind.RESOLVED), True),
        ({"min_severity": "critical"}, RELEASED, True),
        ({"min_severity": "warning"}, SNAPSHOT, False),
        ({"min_severity": "warning"}, FAILED, True),
    ],
)
def test_route_selects_by_owner_kind_and_severity(rule: dict[str, Any], given: LakeEvent, is_wanted: bool) -> None:
    assert (Route(ignore, **rule).select(given) is not None) is is_wanted


def test_problems_of_one_owner_leave_a_digest_to_the_others() -> None:
    many = [problem("loud", TableState.STUCK) for _ in range(900)]
    digest = event_of_digest(Digest(901, 901, [*many, problem("sales")]), AT)
    mine = Route(ignore, owners=["sales"], kinds=["digest"]).select(digest)
    assert mine is not None
    assert [line["owner"] for line in mine.to_dict()["lines"]] == ["sales"]
    assert len(digest.to_dict()["lines"]) == 200
    assert digest.text.endswith("\nand 701 more")


def test_name_of_a_table_makes_no_line_of_its_own() -> None:
    hostile = "orders\nstuck: accounts (bank): call +1 555\u202e"
    one = replace(problem(), table=hostile)
    texts = [event_of_digest(Digest(1, 1, [one]), AT).text, event_of_problem(EventKind.STUCK, one, AT).text]
    assert [text.count("\n") for text in texts] == [1, 0]
    assert not any("\u202e" in text for text in texts)


def test_digest_is_asked_for_and_has_the_lines_of_its_owners() -> None:
    digest = event_of_digest(Digest(600, 2, [problem("pay", TableState.STUCK), problem("sales")]), AT)
    assert digest.severity is Severity.INFO
    assert Route(ignore).select(digest) is None
    mine = Route(ignore, owners=["sales"], kinds=["digest"]).select(digest)
    assert mine is not None
    assert mine.text.splitlines() == [
        "2 of 600 tables need a person",
        "blocked: orders (sales): because (since 1970-01-01 00:00:00 UTC)",
    ]
    assert [line["owner"] for line in mine.to_dict()["lines"]] == ["sales"]


@pytest.mark.parametrize(
    "rule", [{"kinds": ["stucked"]}, {"kinds": "stuck"}, {"min_severity": "high"}, {"owners": "a"}]
)
def test_wrong_route_is_refused_with_what_there_is(rule: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(rule))):
        Route(ignore, **rule)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (problem(), ("clean", "", "", ())),
        (problem(source=FoundBy.DOCTOR, subject="lost_files 20261101"), ("lost_files", "", "", ("20261101",))),
        (problem(source=FoundBy.DEADLINE, subject="clean t.clean.1"), ("clean", "t.clean.1", "", ())),
        (problem(source=FoundBy.DEADLINE, subject="sink_stands_still kafka"), ("replication", "", "kafka", ())),
        (problem(source=FoundBy.SINK, subject="kafka"), ("replication", "", "kafka", ())),
        (problem(source=FoundBy.WRITERS, subject="lock"), ("conformance", "", "", ())),
    ],
)
def test_event_names_service_run_sink_and_instant(given: TableProblem, expected: tuple[Any, ...]) -> None:
    found = event_of_problem(EventKind.STUCK, given, AT)
    assert (found.service, found.run_id, found.sink, found.instants) == expected
    assert parse_problem(problem_to_text(given)) == given


def test_problem_of_a_sinks_event_is_that_of_the_tables_health() -> None:
    for kind, source, subject in (
        (SinkEventKind.FAILING, FoundBy.SINK, "kafka"),
        (SinkEventKind.STANDS_STILL, FoundBy.DEADLINE, "sink_stands_still kafka"),
    ):
        found = problem_of_sink("t", SinkEvent(kind, "/lake/orders", "kafka", "away", 7, "pay"))
        state = TableState.FAILING if source is FoundBy.SINK else TableState.STUCK
        (same,) = problems_of(ORDERS, Health(problems=(Problem(state, source, subject, "away", "", 3, None),)))
        assert found is not None
        assert found.key == same.key
    assert problem_of_sink("t", SinkEvent(SinkEventKind.SNAPSHOT, "/lake/orders", "kafka", "new", 7)) is None


def test_problems_of_services_are_notified_together_when_the_first_is_due() -> None:
    one = Problem(TableState.BLOCKED, FoundBy.SERVICE, "clean", "a", "", 10, 100)
    other = Problem(TableState.BLOCKED, FoundBy.SERVICE, "compaction", "b", "set x", 5, None)
    (found,) = problems_of(ORDERS, Health(problems=(one, other)))
    assert (found.subject, found.reason, found.since_ms, found.due_ms) == ("clean, compaction", "a; b; set x", 5, 110)


def test_announced_name_selects_no_policy() -> None:
    known = Health(problems=(Problem(TableState.STUCK, FoundBy.DOCTOR, "x", "a", "", 1),))
    (found,) = problems_of(replace(ORDERS, table_name="muted", is_identified=False), known)
    assert found.table == "orders"
