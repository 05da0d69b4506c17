"""What is remembered of the services' last runs, and what follows from it."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.config.service_policies import CleanPolicy, ClusteringPolicy, TtlPolicy
from airflow_lake_provider.hudi.commit_metadata import WriteStat, parse_commit_metadata
from airflow_lake_provider.job_contract import Mode, Service
from airflow_lake_provider.planner.decide import decide, remember_shown
from airflow_lake_provider.planner.facts import TableFacts, may_have_replaced
from airflow_lake_provider.planner.last_runs import (
    MAX_OVERTAKEN,
    NO_LAST_RUNS,
    OVERTAKEN_FIRST,
    LastRuns,
    RunEnd,
    in_fair_order,
    last_runs_to_text,
    parse_last_runs,
)
from airflow_lake_provider.planner.rules import Decision, DecisionBasis, Verdict
from airflow_lake_provider.planner.table_view import TableView
from airflow_lake_provider.shared.actions import Action
from tests.unit.planner.views import NOW_MS, at, base, commit, completed, log, pending, view

POLICY = TablePolicy(
    clean=CleanPolicy(commits=3, retained_commits=2),
    hudi_options=MappingProxyType({"hoodie.write.lock.provider": "x.ZookeeperBasedLockProvider"}),
)


def due(service: Service, *plans: str, key: str = "1", basis: str = "") -> Decision:
    mode = Mode.EXECUTE if plans else Mode.SCHEDULE_AND_EXECUTE
    return Decision(service, Verdict.DUE, "due", mode, key, plans, basis=DecisionBasis(basis))


def ran(*services: Service, end: RunEnd = RunEnd.SUCCESS) -> LastRuns:
    last_runs = NO_LAST_RUNS
    for number, service in enumerate(services):
        last_runs = last_runs.started(due(service), f"run-{number}").ended(f"run-{number}", end, 1)
    return last_runs


def new(file_id: str) -> WriteStat:
    return replace(base(file_id, 100), is_new_group=True)


def appended(count: int, *more: Any) -> TableView:
    writes = [(completed(2 * n, Action.COMMIT), commit(new(f"g{n}"), operation="BULK_INSERT")) for n in range(count)]
    return view(*writes, *more, table_type="COPY_ON_WRITE")


def find(table: TableView, service: Service, last_runs: LastRuns, policy: TablePolicy = POLICY) -> Decision:
    facts = TableFacts(table)
    decisions = decide(facts, policy, NOW_MS, remember_shown(facts, policy, last_runs, NOW_MS))
    return next(decision for decision in decisions if decision.service is service)


def test_turns_are_the_same_after_the_registry() -> None:
    last_runs = ran(Service.CLEAN, Service.ARCHIVE).started(due(Service.TTL), "run-9").cleaned(at(7))
    assert parse_last_runs(last_runs_to_text(last_runs)) == last_runs


@pytest.mark.parametrize("text", [None, "", "[]", "{", '{"of":{"clean":{"number":1}}}', '{"of":{"sweep":{}}}'])
def test_turns_that_are_not_understood_are_none(text: str | None) -> None:
    assert parse_last_runs(text) == NO_LAST_RUNS


def order(last_runs: LastRuns, *decisions: Decision) -> list[Service]:
    return [decision.service for decision in in_fair_order(decisions, last_runs)]


def test_failed_runs_are_counted_until_one_succeeds_and_void_ones_are_not() -> None:
    last_runs, counts = NO_LAST_RUNS, []
    for number, (end, is_void) in enumerate(
        [(RunEnd.FAILED, False), (RunEnd.FAILED, True), (RunEnd.FAILED, False), (RunEnd.SUCCESS, False)]
    ):
        last_runs = last_runs.started(due(Service.INDEXING, key=str(number)), f"run-{number}")
        last_runs = last_runs.ended(f"run-{number}", end, 1, is_void=is_void)
        counts.append(last_runs.of[Service.INDEXING].failures)
    assert counts == [1, 1, 2, 0]


def test_service_whose_last_run_is_longest_ago_comes_first() -> None:
    decisions = due(Service.COMPACTION), due(Service.CLEAN), due(Service.ARCHIVE)
    assert order(NO_LAST_RUNS, *decisions) == [Service.COMPACTION, Service.CLEAN, Service.ARCHIVE]
    last_runs = ran(Service.ARCHIVE, Service.CLEAN, Service.COMPACTION)
    assert order(last_runs, *decisions) == [Service.ARCHIVE, Service.CLEAN, Service.COMPACTION]


def test_plan_that_is_pending_overtakes_a_service_only_so_often() -> None:
    decisions = due(Service.CLUSTERING, at(1)), due(Service.CLEAN)
    last_runs = ran(Service.CLEAN)
    for _ in range(OVERTAKEN_FIRST):
        assert order(last_runs, *decisions)[0] is Service.CLUSTERING
        last_runs = last_runs.started(decisions[0], "run")
    assert order(last_runs, *decisions)[0] is Service.CLEAN


def test_no_due_service_is_overtaken_more_often_than_is_said() -> None:
    """All are due at all times, those with plans as well."""
    decisions = [due(service, *([at(1)] if number % 2 else [])) for number, service in enumerate(Service)]
    last_runs, overtaken, most = NO_LAST_RUNS, dict.fromkeys(Service, 0), 0
    for number in range(100):
        first = in_fair_order(decisions, last_runs)[0]
        last_runs = last_runs.started(first, f"run-{number}").ended(f"run-{number}", RunEnd.SUCCESS, 1)
        overtaken = {service: count + 1 for service, count in overtaken.items()} | {first.service: 0}
        most = max(most, *overtaken.values())
    assert most <= MAX_OVERTAKEN


def test_clean_of_a_table_that_is_only_appended_to_is_tried_once() -> None:
    first = find(appended(6), Service.CLEAN, NO_LAST_RUNS)
    assert first.verdict is Verdict.DUE, "what lies before its timeline is unknown"
    last_runs = NO_LAST_RUNS.started(first, "run-1").ended("run-1", RunEnd.SUCCESS, NOW_MS)
    for count in (6, 7, 12, 25):
        clean = find(appended(count), Service.CLEAN, last_runs)
        assert clean.verdict is Verdict.NOT_DUE
        assert "nothing to clean: no write before the last 2 replaced a file" in clean.reason
    failed = NO_LAST_RUNS.started(first, "run-1").ended("run-1", RunEnd.FAILED, NOW_MS)
    assert find(appended(12), Service.CLEAN, failed).verdict is Verdict.DUE, "a failed run answers nothing"


@pytest.mark.parametrize(
    ("metadata", "is_due"),
    [
        pytest.param(commit(new("x")), False, id="a-new-file-group"),
        pytest.param(commit(base("g1", 100)), True, id="a-file-is-rewritten"),
        pytest.param(commit(new("x"), operation="INSERT_OVERWRITE", replaced=(("p", "g1"),)), True, id="replaced"),
        pytest.param(commit(log("g1", 10)), False, id="a-log-file-is-added"),
        pytest.param(commit(new("g1"), operation="COMPACT"), True, id="log-files-are-merged"),
    ],
)
def test_clean_is_due_again_when_a_file_was_replaced_before_the_writes_that_are_kept(
    metadata: Any, is_due: bool
) -> None:
    first = find(appended(6), Service.CLEAN, NO_LAST_RUNS)
    last_runs = NO_LAST_RUNS.started(first, "run-1").ended("run-1", RunEnd.SUCCESS, NOW_MS)
    written = (completed(20, Action.COMMIT), metadata)
    newer = [(completed(22 + 2 * n, Action.COMMIT), commit(new(f"h{n}"))) for n in range(6)]
    assert find(appended(6, written, newer[0]), Service.CLEAN, last_runs).verdict is Verdict.NOT_DUE, "it is kept"
    assert (find(appended(6, written, *newer), Service.CLEAN, last_runs).verdict is Verdict.DUE) is is_due


def test_what_was_archived_before_it_was_asked_makes_the_clean_due_once_more() -> None:
    last_runs = NO_LAST_RUNS.cleaned(at(3))
    table = view(*[(completed(20 + 2 * n, Action.COMMIT), commit(new(f"g{n}"))) for n in range(6)], table_type="COW")
    assert find(table, Service.CLEAN, last_runs).verdict is Verdict.DUE
    assert find(table, Service.CLEAN, NO_LAST_RUNS.cleaned(at(21))).verdict is Verdict.NOT_DUE


def test_clean_keeps_from_the_oldest_pending_write_and_savepoint_on() -> None:
    assert TableFacts(appended(6)).find_retained_from(2) == at(9)
    assert TableFacts(appended(6)).find_retained_from(6) == ""
    for held in (pending(4, Action.COMMIT), completed(4, Action.SAVEPOINT)):
        table = view(*[(completed(2 * n, Action.COMMIT), commit()) for n in range(6)], plans=(held,))
        assert TableFacts(table).find_retained_from(2) == at(4)


def test_only_the_word_null_says_that_a_file_group_is_new() -> None:
    def parsed(**stat: Any) -> bool:
        stats = {"p": [{"fileId": "a", "path": "p/a_0-1-0_0.parquet", **stat}]}
        return may_have_replaced(parse_commit_metadata({"partitionToWriteStats": stats}, "1.commit"))

    assert not parsed(prevCommit="null")
    assert parsed(prevCommit=at(1))
    assert parsed(prevCommit=None)
    assert parsed()
    assert may_have_replaced(None)


def test_run_that_found_nothing_says_so_next_to_its_rule() -> None:
    table = view(*[(completed(2 * n, Action.COMMIT), commit(base("a", 100))) for n in range(12)], table_type="COW")
    first = find(table, Service.CLEAN, NO_LAST_RUNS)
    last_runs = NO_LAST_RUNS.started(first, "run-1").ended("run-1", RunEnd.SUCCESS, NOW_MS)
    again = find(table, Service.CLEAN, replace(last_runs, cleaned_before=""))
    assert again.verdict is Verdict.NOT_DUE
    assert "nothing to do: run run-1 did what there was to do for this state of the table" in again.reason
    open_turns = NO_LAST_RUNS.started(first, "run-1")
    assert find(table, Service.CLEAN, open_turns).verdict is Verdict.DUE, "it may still run"


def test_run_that_executed_a_plan_says_nothing_about_a_new_one_when_the_plan_was_archived() -> None:
    """Before the plan, and after an archive took it off the timeline, the table rests on the same facts."""
    policy = POLICY.replace(clustering=ClusteringPolicy(enabled=True, commits=4))
    left_behind = pending(11, Action.CLUSTERING)
    writes = [(completed(2 * n, Action.COMMIT), commit(new(f"g{n}"))) for n in range(6)]
    with_plan = view(*writes, plans=(left_behind,), table_type="COPY_ON_WRITE")
    later = decide(TableFacts(with_plan), policy, NOW_MS + 3_600_000)
    first = next(decision for decision in later if decision.service is Service.CLUSTERING)
    assert first.plan_instants == (left_behind.requested_time,)
    last_runs = NO_LAST_RUNS.started(first, "run-1").ended("run-1", RunEnd.SUCCESS, NOW_MS)
    again = find(appended(6), Service.CLUSTERING, last_runs, policy)
    assert again.verdict is Verdict.DUE, again.reason
    in_vain = last_runs.started(again, "run-2").ended("run-2", RunEnd.SUCCESS, NOW_MS)
    assert find(appended(7), Service.CLUSTERING, in_vain, policy).verdict is Verdict.NOT_DUE


def test_expiry_is_searched_once_in_each_period() -> None:
    policy = POLICY.replace(ttl=TtlPolicy(retained_days=7))
    first = find(appended(3), Service.TTL, NO_LAST_RUNS, policy)
    last_runs = NO_LAST_RUNS.started(first, "run-1").ended("run-1", RunEnd.SUCCESS, NOW_MS)
    done = find(appended(3), Service.TTL, last_runs, policy)
    assert (done.verdict, done.evaluate_again_ms) == (Verdict.NOT_DUE, first.evaluate_again_ms)
    tomorrow = decide(TableFacts(appended(3)), policy, NOW_MS + 86_400_000, last_runs)
    assert next(d for d in tomorrow if d.service is Service.TTL).verdict is Verdict.DUE


def test_clean_does_not_wait_twice_for_a_rollback() -> None:
    dead = replace(
        view(
            *[(completed(2 * n, Action.COMMIT), commit(base("a", 9))) for n in range(9)],
            plans=(pending(30, Action.COMMIT),),
            table_type="COPY_ON_WRITE",
        ),
        heartbeats_ms=MappingProxyType({at(30): 0}),
    )
    policy = POLICY.replace(rollback=POLICY.rollback.replace(after_s=1))
    assert "the rollback of failed writes comes first" in find(dead, Service.CLEAN, NO_LAST_RUNS, policy).reason
    assert find(dead, Service.CLEAN, ran(Service.CLEAN, Service.ROLLBACK), policy).verdict is Verdict.DUE
    assert (
        "the rollback of failed writes comes first"
        in find(dead, Service.CLEAN, ran(Service.ROLLBACK, Service.CLEAN), policy).reason
    )
    given_up = ran(Service.ROLLBACK, Service.CLEAN, end=RunEnd.FAILED)
    assert find(dead, Service.CLEAN, given_up, policy).verdict is Verdict.DUE
