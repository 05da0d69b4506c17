"""Clean, archive and clustering: when they are due, what holds them back, and in which order they come."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC
from types import MappingProxyType
from typing import Any

import pytest

from airflow_lake_provider.config.policies import DoctorPolicy, ReplicationPolicy, TablePolicy
from airflow_lake_provider.config.service_policies import ArchivePolicy, CleanPolicy, ClusteringPolicy, CompactionPolicy
from airflow_lake_provider.hudi.archive import list_active
from airflow_lake_provider.hudi.instant import Instant
from airflow_lake_provider.instant_clock import HOUR_MS, format_instant_time
from airflow_lake_provider.job_contract import CHECKPOINT_DAYS, RETAINED_HOURS, Mode, Service
from airflow_lake_provider.planner.decide import decide
from airflow_lake_provider.planner.facts import TableFacts
from airflow_lake_provider.planner.last_runs import NO_LAST_RUNS
from airflow_lake_provider.planner.retention import decide_clean
from airflow_lake_provider.planner.rules import Decision, Hold, Verdict, stable_key
from airflow_lake_provider.planner.table_view import TableView
from airflow_lake_provider.shared.actions import Action, State
from airflow_lake_provider.shared.hudi_settings import COMPACTION_TRIGGER
from airflow_lake_provider.timeline_head import find_archived_behind
from tests.support.service_tables import POLICY, cow
from tests.unit.planner.views import NOW_MS, at, base, commit, completed, log, pending, view


def ours(table: TableView, second: int) -> TableView:
    """Return the table with the heartbeat that this service leaves for each plan that it makes or executes."""
    return replace(table, heartbeats_ms=MappingProxyType({at(second): 0}))


def find(service: Service, table: TableView, policy: TablePolicy = POLICY, hold: Hold | None = None) -> Decision:
    return next(decision for decision in decide(TableFacts(table, hold), policy, NOW_MS) if decision.service is service)


def held(instant: str) -> Hold:
    return Hold(instant, "mirror", NOW_MS + 3_600_000)


@pytest.mark.parametrize(
    ("table", "verdict", "text"),
    [
        pytest.param(cow(2), Verdict.NOT_DUE, "2 writes and no clean yet (rule: 3)", id="too-few"),
        pytest.param(cow(3), Verdict.DUE, "3 writes and no clean yet", id="due"),
        pytest.param(cow(5, cleaned=7), Verdict.NOT_DUE, f"1 write since clean {at(7)}", id="cleaned-lately"),
        pytest.param(cow(9, cleaned=9), Verdict.DUE, f"since clean {at(9)}", id="due-again"),
        pytest.param(
            cow(9, plans=(pending(30, Action.CLUSTERING),)), Verdict.NOT_DUE, "pending clustering", id="never-overtakes"
        ),
        pytest.param(
            ours(cow(1, plans=(pending(30, Action.CLEAN),)), 30), Verdict.DUE, f"plan {at(30)} is pending", id="left"
        ),
    ],
)
def test_clean_is_due_by_writes_and_never_overtakes_clustering(table: TableView, verdict: Verdict, text: str) -> None:
    decision = find(Service.CLEAN, table)
    assert decision.verdict is verdict
    assert text in decision.reason


def test_clean_carries_the_retention_and_a_key_that_stays_between_buckets() -> None:
    due = [find(Service.CLEAN, cow(count)) for count in range(3, 9)]
    assert dict(due[0].options) == {
        "hoodie.clean.policy": "KEEP_LATEST_COMMITS",
        "hoodie.clean.commits.retained": "2",
    }
    assert [decision.key_instant for decision in due] == [at(4), at(4), at(4), at(10), at(10), at(10)]


def test_clean_waits_for_a_clustering_and_not_for_an_insert_overwrite() -> None:
    assert find(Service.CLEAN, cow(9, plans=(pending(30, Action.REPLACECOMMIT),))).verdict is Verdict.DUE
    decision = find(Service.CLEAN, cow(9, plans=(pending(30, Action.CLUSTERING),)))
    assert f"pending clustering {at(30)}" in decision.reason


def test_clean_of_a_table_within_its_retention_is_not_due() -> None:
    policy = POLICY.replace(clean=CleanPolicy(commits=3, retained_commits=3))
    assert "the last 3 are kept" in find(Service.CLEAN, cow(3), policy).reason


def test_clean_of_a_merge_on_read_table_waits_for_a_replaced_file_slice() -> None:
    logs = [(completed(2 * n), commit(log("a", 10))) for n in range(6)]
    assert "only delta commits" in find(Service.CLEAN, view(*logs)).reason
    compacted = (completed(20, Action.COMMIT), commit(base("a", 60), operation="COMPACT"))
    assert find(Service.CLEAN, view(*logs, compacted)).verdict is Verdict.DUE


@pytest.mark.parametrize(
    ("table", "instant", "verdict"),
    [
        pytest.param(cow(20), "0", Verdict.NOT_DUE, id="everything"),
        pytest.param(cow(20), at(20), Verdict.NOT_DUE, id="all-but-what-is-too-new"),
        pytest.param(cow(20), at(24), Verdict.DUE, id="some-may-go"),
        pytest.param(cow(20, cleaned=25), at(24), Verdict.NOT_DUE, id="gone-with-the-clean-before"),
        pytest.param(cow(20, cleaned=25), at(26), Verdict.DUE, id="sink-went-on-since"),
        pytest.param(ours(cow(20, plans=(pending(50, Action.CLEAN),)), 50), "0", Verdict.DUE, id="planned-already"),
    ],
)
def test_clean_that_would_delete_nothing_for_a_sink_is_held_back_by_it(
    table: TableView, instant: str, verdict: Verdict
) -> None:
    decision = find(Service.CLEAN, table, hold=held(instant))
    assert decision.verdict is verdict
    if verdict is Verdict.NOT_DUE:
        assert "held back: sink mirror holds everything" in decision.reason
        assert "until 2026-11-21 13:01:00 UTC" in decision.reason
        assert (decision.evidence["held_by"], decision.evidence["held_from"]) == ("mirror", instant)
        assert decision.evaluate_again_ms == NOW_MS + 3_600_000


def by_hours(*ages_h: int) -> TableView:
    """Return a table with one write for each age, which rewrites the same file."""
    writes = []
    for age_h in ages_h:
        name = format_instant_time(NOW_MS - age_h * HOUR_MS, UTC)
        write = Instant(name, Action.COMMIT, State.COMPLETED, name, f"{name}_{name}.commit")
        writes.append((write, commit(base("a", 5000))))
    return view(*writes, table_type="COPY_ON_WRITE")


def test_retention_by_hours_is_counted_from_now_and_reaches_archiving() -> None:
    policy = POLICY.replace(clean=CleanPolicy(commits=3, policy="hours", retained_hours=24))
    young = by_hours(*range(23, 0, -2))
    decision = find(Service.CLEAN, young, policy)
    assert (decision.verdict, "those of the last 24 h are kept" in decision.reason) == (Verdict.NOT_DUE, True)
    assert "keeps those of the last 24 h" in find(Service.ARCHIVE, young, policy).reason
    grown = by_hours(*range(60, 0, -2))
    decision = find(Service.CLEAN, grown, policy)
    assert decision.verdict is Verdict.DUE
    assert dict(decision.options) == {
        "hoodie.clean.policy": "KEEP_LATEST_COMMITS",
        "hoodie.clean.commits.retained": "1",
        RETAINED_HOURS: "24",
    }
    assert find(Service.ARCHIVE, grown, policy).verdict is Verdict.DUE
    # What a sink still needs counts when it is more than the hours keep.
    assert "held back" in find(Service.CLEAN, grown, policy, held("0")).reason


def test_retention_by_versions_counts_no_commits() -> None:
    policy = POLICY.replace(clean=CleanPolicy(commits=3, policy="versions", retained_versions=2))
    decision = find(Service.CLEAN, cow(3), policy)
    assert decision.verdict is Verdict.DUE
    assert decision.options["hoodie.clean.policy"] == "KEEP_LATEST_FILE_VERSIONS"
    assert decision.options["hoodie.clean.fileversions.retained"] == "2"
    # Nothing was replaced since all was cleaned; a write that replaces a file leaves something again.
    cleaned = NO_LAST_RUNS.cleaned(TableFacts(cow(5)).find_retained_from(0))
    for table, verdict in ((cow(5), Verdict.NOT_DUE), (cow(9), Verdict.DUE)):
        facts = TableFacts(table)
        rollback = next(d for d in decide(facts, policy, NOW_MS) if d.service is Service.ROLLBACK)
        assert decide_clean(facts, policy, rollback, NOW_MS, cleaned).verdict is verdict


def test_archive_is_held_back_with_the_clean() -> None:
    assert "held back: sink mirror" in find(Service.ARCHIVE, cow(20, cleaned=37), hold=held(at(20))).reason
    assert find(Service.ARCHIVE, cow(20, cleaned=37), hold=held(at(34))).verdict is Verdict.DUE


def test_hold_within_the_retention_changes_nothing() -> None:
    policy = POLICY.replace(clean=CleanPolicy(commits=3, retained_commits=15))
    assert find(Service.CLEAN, cow(20, cleaned=25), policy, held(at(34))).verdict is Verdict.DUE


def test_archive_comes_behind_a_clean_that_is_due_and_is_due_without_one() -> None:
    table = cow(9)
    due = [
        decision.service for decision in decide(TableFacts(table), POLICY, NOW_MS) if decision.verdict is Verdict.DUE
    ]
    assert due == [Service.CLEAN, Service.ARCHIVE]
    uncleaned = POLICY.replace(clean=CleanPolicy(enabled=False, retained_commits=2))
    assert find(Service.ARCHIVE, table, uncleaned).verdict is Verdict.DUE


def test_archive_keeps_its_key_between_buckets() -> None:
    cleaned = [find(Service.ARCHIVE, cow(count, cleaned=2 * count - 3)) for count in (6, 7, 8, 16, 17)]
    assert cleaned[0].verdict is Verdict.NOT_DUE
    assert {decision.verdict for decision in cleaned[1:]} == {Verdict.DUE}
    assert [decision.key_instant for decision in cleaned[1:]] == [at(12), at(12), at(30), at(30)]
    assert dict(cleaned[1].options) == {
        "hoodie.keep.min.commits": "4",
        "hoodie.keep.max.commits": "6",
        "hoodie.archive.beyond.savepoint": "false",
        "hoodie.clean.policy": "KEEP_LATEST_COMMITS",
        "hoodie.clean.commits.retained": "2",
        COMPACTION_TRIGGER: "TIME_ELAPSED",
        CHECKPOINT_DAYS: "30",
    }


@pytest.mark.parametrize(
    "oldest", [pending(0, Action.COMPACTION), completed(0, Action.SAVEPOINT)], ids=["pending", "savepoint"]
)
def test_archive_with_nothing_before_what_it_never_passes_is_not_due(oldest: Any) -> None:
    decision = find(Service.ARCHIVE, cow(9, plans=(oldest,), cleaned=15))
    assert decision.verdict is Verdict.NOT_DUE
    assert f"{at(0)}, which archiving never passes" in decision.reason


def small(count: int, partition: str = "p") -> tuple[Any, ...]:
    return tuple(
        (completed(2 * n, Action.COMMIT), commit(base(f"{partition}{n}", 500, partition))) for n in range(count)
    )


def test_clustering_is_due_by_the_small_files_of_one_partition() -> None:
    assert find(Service.CLUSTERING, view(*small(2), table_type="COPY_ON_WRITE")).verdict is Verdict.NOT_DUE
    due = find(Service.CLUSTERING, view(*small(3), table_type="COPY_ON_WRITE"))
    assert due.verdict is Verdict.DUE
    assert "3 files below 1,000 bytes in partition 'p' (rule: 3)" in due.reason
    spread = [(completed(20 + n, Action.COMMIT), commit(base("x", 500, f"day={n}"))) for n in range(5)]
    assert find(Service.CLUSTERING, view(*spread, table_type="COPY_ON_WRITE")).verdict is Verdict.NOT_DUE


def test_clustering_that_replaced_the_small_files_is_not_due_again() -> None:
    replaced = tuple(("p", f"p{n}") for n in range(3))
    clustered = (
        completed(20, Action.REPLACECOMMIT),
        commit(base("big", 1500), operation="CLUSTER", replaced=replaced),
    )
    decision = find(Service.CLUSTERING, view(*small(3), clustered, table_type="COPY_ON_WRITE"))
    assert decision.verdict is Verdict.NOT_DUE
    assert decision.evidence["last_clustering"] == at(21)


def test_clustering_by_commits_counts_from_the_last_one() -> None:
    policy = POLICY.replace(clustering=ClusteringPolicy(enabled=True, commits=4, small_files=None))
    assert find(Service.CLUSTERING, cow(3), policy).verdict is Verdict.NOT_DUE
    assert "4 writes since the last clustering (rule: 4)" in find(Service.CLUSTERING, cow(4), policy).reason


def test_clustering_is_not_planned_unless_asked_for() -> None:
    assert "clustering.enabled requests no new plans" in find(Service.CLUSTERING, cow(9), TablePolicy()).reason
    off = TablePolicy(clustering=ClusteringPolicy(enabled=False))
    assert "switched off" in find(Service.CLUSTERING, cow(9), off).reason


def test_clustering_plan_that_others_left_is_executed_unless_clustering_is_switched_off() -> None:
    """It blocks updates of its files, and cleaning with them; no other process may ever execute it."""
    left = cow(9, plans=(pending(30, Action.CLUSTERING),))
    unset = POLICY.replace(clustering=ClusteringPolicy(), doctor=DoctorPolicy(stuck_after_s=30))
    decision = find(Service.CLUSTERING, left, unset)
    assert (decision.verdict, decision.mode, decision.plan_instants) == (Verdict.DUE, Mode.EXECUTE, (at(30),))
    off = POLICY.replace(clustering=ClusteringPolicy(enabled=False))
    assert find(Service.CLUSTERING, left, off).verdict is Verdict.NOT_DUE


def test_decide_puts_pending_plans_first_and_archiving_last() -> None:
    plan = pending(40, Action.CLUSTERING)
    ranked = decide(TableFacts(ours(cow(9, plans=(plan,), cleaned=15), 40)), POLICY, NOW_MS)
    assert (ranked[0].service, ranked[0].mode, ranked[0].plan_instants) == (
        Service.CLUSTERING,
        Mode.EXECUTE,
        (at(40),),
    )
    ranked = decide(TableFacts(view(*small(9), table_type="COPY_ON_WRITE")), POLICY, NOW_MS)
    due = [decision.service for decision in ranked if decision.verdict is Verdict.DUE]
    assert due == [Service.CLUSTERING, Service.CLEAN, Service.ARCHIVE]


@pytest.mark.parametrize("service", [Service.CLUSTERING, Service.CLEAN])
def test_due_service_without_a_lock_is_blocked(service: Service) -> None:
    policy = POLICY.replace(hudi_options=MappingProxyType({}))
    decision = find(service, view(*small(9), table_type="COPY_ON_WRITE"), policy)
    assert decision.verdict is Verdict.BLOCKED
    assert "hoodie.write.lock.provider" in decision.reason


def test_stable_key_of_no_write_is_empty() -> None:
    assert stable_key((), 5) == ""


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        pytest.param(TablePolicy(clean=CleanPolicy(retained_commits=20)), "archive.min_commits (20)", id="clean"),
        pytest.param(TablePolicy(archive=ArchivePolicy(min_commits=30)), "archive.max_commits (30)", id="archive"),
        pytest.param(TablePolicy(clean=CleanPolicy(policy="hours")), "needs clean.retained_hours", id="no-hours"),
        pytest.param(TablePolicy(clean=CleanPolicy(policy="versions")), "needs clean.retained_versions", id="no-count"),
        pytest.param(TablePolicy(clean=CleanPolicy(retained_hours=2)), "needs clean.policy: hours", id="hours-unused"),
        pytest.param(
            TablePolicy(clean=CleanPolicy(retained_versions=2)), "needs clean.policy: versions", id="versions-unused"
        ),
        pytest.param(
            TablePolicy(
                clean=CleanPolicy(policy="versions", retained_versions=1), replication=(ReplicationPolicy(sink="noop"),)
            ),
            "cannot hold files back for replication",
            id="versions-and-replication",
        ),
    ],
)
def test_policy_that_contradicts_itself_says_so(policy: TablePolicy, text: str) -> None:
    assert text in (policy.find_problem() or "")
    assert TablePolicy().find_problem() is None


def test_no_service_is_due_that_would_make_the_loss_of_archived_writes_final() -> None:
    logs = [(completed(2 * n + 1), commit(log("a", 100))) for n in range(8)]
    table = view(*logs, plans=(completed(0, Action.INDEXING),))
    behind = find_archived_behind(list_active(table.timeline), [at(0)[:-3] + "500"], slices_by_completion=True)
    assert behind is not None
    eager = POLICY.replace(compaction=CompactionPolicy(delta_commits=3))
    assert find(Service.COMPACTION, table, eager).verdict is Verdict.DUE
    assert find(Service.ARCHIVE, table, eager).verdict is Verdict.DUE
    lossy = replace(table, archived_behind=behind)
    compaction = find(Service.COMPACTION, lossy, eager)
    assert (compaction.verdict, compaction.reason.endswith(behind.refuse())) == (Verdict.BLOCKED, True)
    archive = find(Service.ARCHIVE, lossy, eager.replace(archive=ArchivePolicy(min_commits=20, max_commits=30)))
    assert (archive.verdict, archive.key_instant) == (Verdict.DUE, at(0))
    assert "archiving takes that instant away" in archive.reason


def test_archiving_waits_for_what_lets_writes_pass_and_cannot_leave() -> None:
    logs = [(completed(2 * n + 1), commit(log("a", 100))) for n in range(8)]
    waiting = find(Service.ARCHIVE, view(*logs, plans=(pending(0, Action.INDEXING),)))
    assert (waiting.verdict, waiting.evidence["boundary"]) == (Verdict.NOT_DUE, at(0))
    assert f"nothing is older than the pending indexing {at(0)}" in waiting.reason
    cow_writes = [(completed(2 * n + 1, Action.COMMIT), commit(base("a", 100))) for n in range(8)]
    table = view(*cow_writes, plans=(pending(0, Action.INDEXING),), table_type="COPY_ON_WRITE")
    assert find(Service.ARCHIVE, table).verdict is Verdict.DUE


def test_archiving_keeps_the_newest_checkpoint_of_a_stream_and_says_so() -> None:
    def table(key: str) -> TableView:
        first = replace(commit(log("a", 100)), checkpoints=(key,))
        return view((completed(1), first), *((completed(2 * n + 1), commit(log("a", 100))) for n in range(1, 8)))

    kept = find(Service.ARCHIVE, table("streamer.checkpoint.key.v2"))
    assert kept.verdict is Verdict.NOT_DUE
    assert f"the commit {at(1)}, which has the newest checkpoint streamer.checkpoint.key.v2" in kept.reason
    assert find(Service.ARCHIVE, table("mine")).verdict is Verdict.DUE
    named = POLICY.replace(archive=ArchivePolicy(min_commits=4, max_commits=6, checkpoint_keys=("mine",)))
    assert find(Service.ARCHIVE, table("mine"), named).verdict is Verdict.NOT_DUE
    forgotten = POLICY.replace(archive=ArchivePolicy(min_commits=4, max_commits=6, checkpoint_days=0))
    assert find(Service.ARCHIVE, table("streamer.checkpoint.key.v2"), forgotten).verdict is Verdict.DUE


def test_archiving_counts_delta_commits_only_for_a_writer_that_compacts() -> None:
    """Insert overwrites are no delta commits: a trigger that counts keeps all of them."""
    writes = [(completed(2 * n, Action.REPLACECOMMIT), commit(base("a", 100))) for n in range(1, 10)]
    table = view((completed(0), commit(log("a", 100))), *writes)
    ours_ = find(Service.ARCHIVE, table)
    assert (ours_.verdict, ours_.options[COMPACTION_TRIGGER]) == (Verdict.DUE, "TIME_ELAPSED")
    writers = POLICY.replace(compaction=CompactionPolicy(enabled=False))
    kept = find(Service.ARCHIVE, table, writers)
    assert (kept.verdict, kept.evidence["boundary"]) == (Verdict.NOT_DUE, at(0))
    assert "a writer's trigger of compaction counts 5 delta commits" in kept.reason
