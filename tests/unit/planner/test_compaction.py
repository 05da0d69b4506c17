from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import pytest

from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.config.service_policies import CompactionPolicy
from airflow_lake_provider.job_contract import Mode
from airflow_lake_provider.planner.compaction import decide_compaction
from airflow_lake_provider.planner.facts import TableFacts
from airflow_lake_provider.planner.rules import Verdict
from airflow_lake_provider.planner.table_view import TableView
from airflow_lake_provider.shared.actions import Action, State
from tests.unit.planner.views import NOON_MS, NOW_MS, at, base, commit, completed, log, pending, view

LOCK = {"hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider"}


def policy(delta_commits: int | None = 3, ratio: float | None = None, min_log_bytes: int = 0) -> TablePolicy:
    rules = CompactionPolicy(delta_commits=delta_commits, log_to_base_ratio=ratio, min_log_bytes=min_log_bytes)
    return TablePolicy(compaction=rules, hudi_options=LOCK)


def table(delta_commits: int) -> TableView:
    writes = [(completed(1, Action.COMMIT), commit(base("a", 1000), operation="BULK_INSERT"))]
    writes += [(completed(3 + 2 * n), commit(log("a", 100))) for n in range(delta_commits)]
    return view(*writes)


@pytest.mark.parametrize(
    ("commits", "rules", "verdict", "words"),
    [
        pytest.param(2, policy(3), Verdict.NOT_DUE, "2 delta commits and no compaction yet (rule: 3)", id="below"),
        pytest.param(3, policy(3), Verdict.DUE, "3 delta commits and no compaction yet (rule: 3)", id="at-the-rule"),
        pytest.param(3, policy(None), Verdict.NOT_DUE, "(rule: off)", id="count-off"),
        pytest.param(
            4, policy(9, 0.5), Verdict.NOT_DUE, "400 bytes, 40% of their base files (rule: 50%)", id="ratio-below"
        ),
        pytest.param(5, policy(9, 0.5), Verdict.DUE, "500 bytes, 50% of their base files (rule: 50%)", id="ratio-at"),
        pytest.param(5, policy(9, 0.5, 501), Verdict.NOT_DUE, "5 delta commits", id="ratio-but-few-bytes"),
        pytest.param(
            5, policy(5, 0.5), Verdict.DUE, "5 delta commits and no compaction yet (rule: 5) and log", id="both"
        ),
    ],
)
def test_decide_compaction_by_rules(commits: int, rules: TablePolicy, verdict: Verdict, words: str) -> None:
    decision = decide_compaction(TableFacts(table(commits)), rules, NOW_MS)
    assert decision.verdict is verdict
    assert words in decision.reason


def test_decide_compaction_when_due_is_keyed_by_the_newest_write() -> None:
    decision = decide_compaction(TableFacts(table(3)), policy(3), NOW_MS)
    assert (decision.key_instant, decision.mode) == (at(7), Mode.SCHEDULE_AND_EXECUTE)
    assert decision.evidence["delta_commits"] == 3


@pytest.mark.parametrize("state", [State.REQUESTED, State.INFLIGHT])
def test_decide_compaction_of_a_pending_plan_executes_that_plan(state: State) -> None:
    """Whatever scheduled it: a writer inline, RFC-43's client that failed, or a run of ours that died."""
    plan = pending(9, Action.COMPACTION, state)
    found = view((completed(1), commit(log("a", 10))), plans=(plan,))
    if state is State.INFLIGHT:
        # What a dead executor leaves of its heartbeat.
        found = replace(found, heartbeats_ms=MappingProxyType({at(9): NOON_MS}))
    decision = decide_compaction(TableFacts(found), policy(delta_commits=100), NOW_MS)
    assert (decision.verdict, decision.mode) == (Verdict.DUE, Mode.EXECUTE)
    assert (decision.key_instant, decision.plan_instants) == (at(9), (at(9),))


def test_decide_compaction_of_copy_on_write_is_never_due() -> None:
    decision = decide_compaction(TableFacts(view(table_type="COPY_ON_WRITE")), policy(1), NOW_MS)
    assert decision.verdict is Verdict.NOT_DUE
    assert "copy-on-write" in decision.reason


def test_decide_compaction_when_switched_off_is_not_due() -> None:
    rules = TablePolicy(compaction=CompactionPolicy(enabled=False), hudi_options=LOCK)
    assert decide_compaction(TableFacts(table(9)), rules, NOW_MS).verdict is Verdict.NOT_DUE


def test_decide_compaction_without_lock_provider_is_blocked_with_the_setting_to_make() -> None:
    decision = decide_compaction(
        TableFacts(table(3)), TablePolicy(compaction=CompactionPolicy(delta_commits=3)), NOW_MS
    )
    assert decision.verdict is Verdict.BLOCKED
    assert "no hoodie.write.lock.provider is configured" in decision.reason
