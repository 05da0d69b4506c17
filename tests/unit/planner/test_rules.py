"""Rules and how they are combined."""

from __future__ import annotations

from datetime import UTC

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.config.service_policies import ArchivePolicy, CleanPolicy, CompactionPolicy
from airflow_lake_provider.instant_clock import format_instant_time, instant_time_ms
from airflow_lake_provider.job_contract import Mode, Service
from airflow_lake_provider.planner.rules import (
    Decision,
    Rule,
    Urgency,
    Verdict,
    combine_rules,
    rule_of_age,
    rule_of_count,
    urgency_of,
)
from tests.unit.planner.views import NOON_MS, NOW_MS, completed

RULES = st.lists(
    st.builds(
        Rule,
        text=st.sampled_from("abc"),
        holds=st.booleans(),
        is_on=st.booleans(),
        ripe_ms=st.none() | st.integers(1, 9),
    ).map(lambda rule: rule if rule.is_on else Rule(rule.text, holds=False, is_on=False)),
    max_size=4,
)


@given(rules=RULES)
def test_any_needs_one_rule_and_all_needs_every_one_that_is_on(rules: list[Rule]) -> None:
    active = [rule for rule in rules if rule.is_on]
    assert combine_rules(rules, "any").is_due is any(rule.holds for rule in active)
    assert combine_rules(rules, "all").is_due is (bool(active) and all(rule.holds for rule in active))


@given(rules=RULES, how=st.sampled_from(["any", "all"]))
def test_time_alone_makes_due_at_the_time_that_is_named_and_no_earlier(rules: list[Rule], how: str) -> None:
    def at(now_ms: int) -> bool:
        later = [
            Rule(rule.text, rule.holds or (rule.ripe_ms is not None and now_ms >= rule.ripe_ms), rule.is_on)
            for rule in rules
        ]
        return combine_rules(later, how).is_due

    ruling = combine_rules(rules, how)
    first = next((now_ms for now_ms in range(1, 11) if at(now_ms)), None)
    if not ruling.is_due and all(rule.is_on for rule in rules):
        assert ruling.evaluate_again_ms == first


def test_age_counts_from_the_first_that_waits_and_says_when_it_is_ripe() -> None:
    waiting = [completed(10), completed(20)]
    young = rule_of_age(waiting, 50, NOW_MS, UTC)
    assert young is not None
    assert (young.holds, young.ripe_ms) == (False, NOON_MS + 61_000)
    assert "waits for 49 s (rule: 50 s)" in young.text
    old = rule_of_age(waiting, 49, NOW_MS, UTC)
    assert old is not None
    assert old.holds
    assert rule_of_age(waiting, None, NOW_MS, UTC) is None
    nothing = rule_of_age([], 1, NOW_MS, UTC)
    assert nothing is not None
    assert not nothing.holds


@given(time_ms=st.integers(1_500_000_000_000, 1_900_000_000_000))
def test_instant_times_are_read_as_they_are_written(time_ms: int) -> None:
    assert instant_time_ms(format_instant_time(time_ms, UTC), UTC) == time_ms


@pytest.mark.parametrize("text", ["", "7", "00000000000000010", "no time at all"])
def test_what_is_no_time_is_none(text: str) -> None:
    assert instant_time_ms(text, UTC) is None


def due(service: Service, mode: Mode = Mode.SCHEDULE_AND_EXECUTE, *plans: str, **evidence: int) -> Decision:
    return Decision(service, Verdict.DUE, "due", mode, "1", plans, evidence)


@pytest.mark.parametrize(
    ("decision", "urgency"),
    [
        pytest.param(due(Service.ROLLBACK, Mode.EXECUTE, "1"), Urgency.UNBLOCKS, id="rollback"),
        pytest.param(due(Service.COMPACTION, Mode.WITHDRAW, "1"), Urgency.UNBLOCKS, id="withdrawal"),
        pytest.param(due(Service.CLUSTERING, Mode.EXECUTE, "1"), Urgency.UNBLOCKS, id="plan-that-blocks-updates"),
        pytest.param(due(Service.COMPACTION, Mode.EXECUTE, "1"), Urgency.OVERDUE, id="plan"),
        pytest.param(due(Service.COMPACTION, delta_commits=10), Urgency.OVERDUE, id="compaction-twice-over"),
        pytest.param(due(Service.COMPACTION, delta_commits=9), Urgency.USUAL, id="compaction"),
        pytest.param(due(Service.ARCHIVE, active_writes=60), Urgency.GROWING, id="archive-twice-over"),
        pytest.param(due(Service.ARCHIVE, active_writes=31), Urgency.USUAL, id="archive"),
        pytest.param(due(Service.CLEAN, writes_since_clean=10), Urgency.GROWING, id="clean-twice-over"),
        pytest.param(due(Service.CLEAN), Urgency.USUAL, id="clean"),
        pytest.param(due(Service.METACOMPACTION, writes_since=10**6), Urgency.GROWING, id="metadata-far-behind"),
        pytest.param(due(Service.CLUSTERING), Urgency.MASS, id="rewrite"),
        pytest.param(due(Service.TTL), Urgency.MASS, id="expiry"),
        pytest.param(due(Service.INDEXING), Urgency.MASS, id="index"),
        pytest.param(due(Service.SAVEPOINT), Urgency.MASS, id="savepoint"),
        pytest.param(due(Service.CLEAN, Mode.EXECUTE, "1"), Urgency.GROWING, id="plan-of-a-clean"),
    ],
)
def test_urgency_is_that_of_what_waits_for_the_service(decision: Decision, urgency: Urgency) -> None:
    policy = TablePolicy(
        compaction=CompactionPolicy(delta_commits=5),
        archive=ArchivePolicy(max_commits=30),
        clean=CleanPolicy(commits=5),
    )
    assert urgency_of(decision, policy) is urgency


def test_rule_that_is_off_puts_nothing_behind() -> None:
    policy = TablePolicy(compaction=CompactionPolicy(delta_commits=None, log_to_base_ratio=1.0))
    assert urgency_of(due(Service.COMPACTION, delta_commits=1000), policy) is Urgency.USUAL


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1 delta commits since compaction 1", "1 delta commit since compaction 1 (rule: 1)"),
        ("1 writes and no clean yet", "1 write and no clean yet (rule: 1)"),
        ("11 writes and no clean yet", "11 writes and no clean yet (rule: 1)"),
        ("0 delta commits and no compaction yet", "0 delta commits and no compaction yet (rule: 1)"),
    ],
)
def test_reason_that_counts_one_is_in_the_singular(text: str, said: str) -> None:
    assert rule_of_count(text, int(text.split()[0]), 1).text == said
