"""What the decisions rest on, and that an evaluation computes it once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC
from types import MappingProxyType

import pytest

from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.config.service_policies import ClusteringPolicy, LogCompactionPolicy
from airflow_lake_provider.hudi import timeline as timeline_module
from airflow_lake_provider.hudi.commit_metadata import CommitMetadata
from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.planner import write_history as write_history_module
from airflow_lake_provider.planner.decide import decide, load_facts, remember_shown
from airflow_lake_provider.planner.facts import TableFacts
from airflow_lake_provider.planner.last_runs import NO_LAST_RUNS
from airflow_lake_provider.planner.rules import Hold
from airflow_lake_provider.planner.table_view import TableViewCache
from airflow_lake_provider.shared.actions import Action, State
from airflow_lake_provider.ui.table_facts import sizes_of
from tests.unit.planner.views import NOW_MS, at, base, commit, completed, log, pending, view


def test_backlog_of_logs_above_sized_bases_counts_files_and_bytes() -> None:
    backlog = TableFacts(
        view(
            (completed(1, Action.COMMIT), commit(base("a", 1000), base("b", 500), operation="BULK_INSERT")),
            (completed(3), commit(log("a", 100))),
            (completed(5), commit(log("a", 50), log("b", 25))),
        )
    ).backlog
    assert (backlog.delta_commits, backlog.log_files, backlog.log_bytes, backlog.base_bytes) == (2, 3, 175, 1500)
    assert backlog.newest_write == at(5)
    assert backlog.last_compaction is None


def test_backlog_after_a_compaction_keeps_only_what_completed_after_its_plan() -> None:
    """A delta commit that completes while the compaction runs goes to the next file slice: it still waits."""
    backlog = TableFacts(
        view(
            (completed(1), commit(base("a", 1000))),
            (completed(3), commit(log("a", 100))),
            (completed(7, took_s=2), commit(log("a", 40))),
            (completed(6, Action.COMMIT, took_s=10), commit(base("a", 1100), operation="COMPACT")),
            (completed(20), commit(log("a", 60))),
        )
    ).backlog
    assert (backlog.delta_commits, backlog.log_files, backlog.log_bytes, backlog.base_bytes) == (2, 2, 100, 1100)
    assert backlog.last_compaction == at(6)


def test_backlog_of_a_slow_writer_requested_before_the_plan_counts_by_completion() -> None:
    backlog = TableFacts(
        view(
            (completed(1), commit(base("a", 1000))),
            (completed(4, took_s=20), commit(log("a", 70))),
            (completed(6, Action.COMMIT, took_s=2), commit(base("a", 1000), operation="COMPACT")),
        )
    ).backlog
    assert (backlog.delta_commits, backlog.log_bytes) == (1, 70)


def test_backlog_of_file_groups_whose_base_was_archived_leaves_them_out_of_the_ratio() -> None:
    backlog = TableFacts(view((completed(1), commit(log("old", 900), base("new", 100))))).backlog
    assert (backlog.log_files, backlog.log_bytes, backlog.base_bytes, backlog.unsized_file_groups) == (1, 0, 100, 1)
    assert backlog.log_to_base_ratio == 0.0


def test_backlog_of_replaced_file_groups_forgets_them() -> None:
    backlog = TableFacts(
        view(
            (completed(1), commit(base("a", 1000))),
            (completed(3), commit(log("a", 100))),
            (
                completed(5, Action.REPLACECOMMIT),
                commit(base("c", 900), operation="CLUSTER", replaced=(("p", "a"),)),
            ),
        )
    ).backlog
    assert (backlog.log_files, backlog.base_bytes) == (0, 900)


def test_compaction_that_was_planned_before_its_file_group_was_replaced_adds_nothing() -> None:
    facts = TableFacts(
        view(
            (completed(1), commit(base("a", 1000))),
            (completed(3), commit(log("a", 100))),
            (completed(6, Action.REPLACECOMMIT), commit(base("c", 900, is_new=True), replaced=(("p", "a"),))),
            (completed(5, Action.COMMIT, took_s=10), commit(base("a", 1100), operation="COMPACT")),
        )
    )
    assert (facts.history.backlog.base_bytes, dict(facts.history.base_file_bytes)) == (900, {("p", "c"): 900})
    assert sizes_of(facts.view, UTC)[-1].base_bytes == 900


def test_backlog_of_an_empty_table_has_no_ratio() -> None:
    backlog = TableFacts(view()).backlog
    assert backlog.log_to_base_ratio is None
    assert backlog.newest_write is None


def test_replaced_files_are_bases_merged_logs_and_what_replaced_file_groups_held() -> None:
    facts = TableFacts(
        view(
            (completed(1), commit(base("a", 1000), base("b", 500))),
            (completed(3), commit(log("a", 100))),
            (completed(5), commit(log("a", 50), log("b", 25))),
            # Completes while the compaction runs: it belongs to the next file slice.
            (completed(7, took_s=2), commit(log("a", 7))),
            (completed(6, Action.COMMIT, took_s=10), commit(base("a", 1100), operation="COMPACT")),
            (
                completed(20, Action.REPLACECOMMIT),
                commit(base("c", 900, is_new=True), operation="CLUSTER", replaced=(("p", "b"),)),
            ),
        )
    )
    assert facts.count_replaced(at(6), at(20)) == (1 + 2, 1000 + 150)
    assert facts.count_replaced(at(20), at(30)) == (1 + 1, 500 + 25)


def test_base_file_older_than_the_active_timeline_counts_as_large_as_the_next_one() -> None:
    facts = TableFacts(
        view(
            (completed(3), commit(log("a", 100))),
            (completed(6, Action.COMMIT), commit(base("a", 1100), operation="COMPACT")),
            (completed(8, Action.REPLACECOMMIT), commit(operation="DELETE_PARTITION", replaced=(("p", "old"),))),
        )
    )
    assert facts.count_replaced(at(5), at(8)) == (2, 1200)
    assert facts.count_replaced(at(8), at(20)) == (1, 0)


@dataclass(frozen=True)
class CountedCommits(Mapping[str, CommitMetadata]):
    commits: Mapping[str, CommitMetadata]
    reads: Counter[str] = field(default_factory=Counter)

    def __getitem__(self, requested_time: str) -> CommitMetadata:
        self.reads[requested_time] += 1
        return self.commits[requested_time]

    def __iter__(self) -> Iterator[str]:
        return iter(self.commits)

    def __len__(self) -> int:
        return len(self.commits)


def test_evaluation_sorts_and_replays_the_writes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """All nine decisions, none of them answered early, and with heartbeats that are read after the first question."""
    writes = [(completed(n), commit(log("a", 1000), base("b", n))) for n in range(40)]
    table = view(*writes, plans=(pending(45, Action.COMMIT, State.INFLIGHT),), metadata_partitions=("files",))
    commits = CountedCommits(table.commits)
    table = replace(table, commits=commits, metadata_timeline=table.timeline)
    counts: Counter[str] = Counter()
    for module, name in ((write_history_module, "replay_writes"), (timeline_module, "_completion_key")):
        real = getattr(module, name)

        def counted(*args: object, _real: Callable[..., object] = real, _name: str = name) -> object:
            counts[_name] += 1
            return _real(*args)

        monkeypatch.setattr(module, name, counted)
    views = TableViewCache()
    monkeypatch.setattr(views, "supplement", lambda view, **_wanted: replace(view, heartbeats_ms={}, touched_ms={}))
    policy = TablePolicy(
        logcompaction=LogCompactionPolicy(enabled=True),
        clustering=ClusteringPolicy(enabled=True),
        hudi_options=MappingProxyType({"hoodie.write.lock.provider": "x.ZookeeperBasedLockProvider"}),
    )
    facts = load_facts(views, table, policy, NOW_MS, Hold(at(30), "sink", NOW_MS))
    last_runs = remember_shown(facts, policy, NO_LAST_RUNS.cleaned(at(1)), NOW_MS)
    assert len(decide(facts, policy, NOW_MS, last_runs)) == len(Service)
    assert counts == {"replay_writes": 1, "_completion_key": len(writes)}
    assert set(commits.reads.values()) == {2}, "once for what it wrote, once for what it replaced"
