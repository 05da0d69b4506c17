"""Clustering takes the partitions for which its rule holds, each gets its turn, and counts outlive the timeline."""

from __future__ import annotations

import random
from collections import Counter
from types import MappingProxyType

import pytest

from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.config.service_policies import ArchivePolicy, ClusteringPolicy
from airflow_lake_provider.hudi.commit_metadata import CommitMetadata
from airflow_lake_provider.hudi.instant import Instant
from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.planner.decide import decide, remember_shown, service_options
from airflow_lake_provider.planner.facts import TableFacts
from airflow_lake_provider.planner.last_runs import (
    NO_LAST_RUNS,
    LastRuns,
    RunEnd,
    last_runs_to_text,
    parse_last_runs,
)
from airflow_lake_provider.planner.rules import Decision, Verdict
from airflow_lake_provider.planner.small_files import NO_SMALL_FILES, KnownSmallFiles, parse_small_files
from airflow_lake_provider.planner.table_view import TableView
from airflow_lake_provider.shared.actions import Action, State
from airflow_lake_provider.shared.hudi_settings import LOCK_PROVIDER
from airflow_lake_provider.shared.partition_filter import (
    FILTER_MODE,
    MAX_GROUPS,
    SELECTED,
    SINGLE_GROUP,
    SMALL_FILE_LIMIT,
    SORT_COLUMNS,
    STRATEGY_CLASS,
    TARGET_FILE_BYTES,
)
from tests.unit.planner.views import NOW_MS, at, base, commit, completed, view

Write = tuple[Instant, CommitMetadata]


def policy(small_files: int | None = 3, commits: int | None = None, **options: str) -> TablePolicy:
    rules = ClusteringPolicy(enabled=True, small_files=small_files, commits=commits, small_file_bytes=1000)
    return TablePolicy(clustering=rules, hudi_options={LOCK_PROVIDER: "x.ZookeeperBasedLockProvider", **options})


def write(second: int, partition: str, files: int = 1, size_bytes: int = 100) -> Write:
    stats = (base(f"{partition}-{second}-{n}", size_bytes, partition, is_new=True) for n in range(files))
    return completed(second, Action.COMMIT), commit(*stats, operation="BULK_INSERT")


def table(*writes: Write, plans: tuple[Instant, ...] = ()) -> TableView:
    return view(*writes, plans=plans, table_type="COPY_ON_WRITE")


def decision(of: TableView, rules: TablePolicy, last_runs: LastRuns = NO_LAST_RUNS) -> Decision:
    return next(d for d in decide(TableFacts(of), rules, NOW_MS, last_runs) if d.service is Service.CLUSTERING)


def seen(of: TableView, rules: TablePolicy, last_runs: LastRuns = NO_LAST_RUNS) -> LastRuns:
    return parse_last_runs(last_runs_to_text(remember_shown(TableFacts(of), rules, last_runs, NOW_MS)))


# --- What the plan takes


def test_plan_takes_the_worst_partitions_for_which_the_rule_holds() -> None:
    of = table(write(1, "a", 3), write(2, "b", 5), write(3, "c", 2), write(4, "d", 4), write(5, "e", 9, 5000))
    due = decision(of, policy(**{MAX_GROUPS: "2"}))
    assert due.verdict is Verdict.DUE
    assert "5 files below 1,000 bytes in partition 'b' (rule: 3); the plan takes 2 partitions" in due.reason
    assert dict(due.options) == {
        SMALL_FILE_LIMIT: "1000",
        SINGLE_GROUP: "false",
        FILTER_MODE: "SELECTED_PARTITIONS",
        SELECTED: "b,d",
    }
    assert (due.evidence["partitions"], due.evidence["all_small_files"]) == (2, 9)
    assert due.evidence["all_small_file_bytes"] == 900, "the price is that of the plan"
    assert decision(of, policy()).options[SELECTED] == "a,b,d", "not c, for which the rule does not hold"


def test_rule_of_commits_takes_partitions_with_something_to_merge() -> None:
    of = table(write(1, "a", 1), write(2, "b", 2), write(3, "c", 1), write(4, "c", 1))
    due = decision(of, policy(small_files=None, commits=4))
    assert due.options[SELECTED] == "b,c"


def test_partitions_that_are_left_are_due_without_a_further_write() -> None:
    writes = [write(1, "a", 3), write(2, "b", 3)]
    replaced = tuple(("a", f"a-1-{n}") for n in range(3))
    clustering = (
        completed(5, Action.REPLACECOMMIT),
        commit(base("new", 300, "a"), operation="CLUSTER", replaced=replaced),
    )
    due = decision(table(*writes, clustering), policy(**{MAX_GROUPS: "1"}))
    assert (due.verdict, due.options[SELECTED]) == (Verdict.DUE, "b")
    assert due.key_instant == at(6), "another one than that of the run before"


def test_lists_of_the_owner_restrict_the_rule_and_the_plan() -> None:
    of = table(write(1, "a", 9), write(2, "b", 4), write(3, "c", 3))
    due = decision(of, policy(**{SELECTED: "b,c"}))
    assert "4 files below 1,000 bytes in partition 'b'" in due.reason
    assert due.options[SELECTED] == "b,c"
    assert decision(of, policy(**{SELECTED: "x"})).verdict is Verdict.NOT_DUE


@pytest.mark.parametrize(
    "option",
    [{FILTER_MODE: "RECENT_DAYS"}, {STRATEGY_CLASS: "com.acme.Plan"},
     {"hoodie.clustering.plan.strategy.partition.regex.pattern": "a.*"}],
)  # fmt: skip
def test_other_choices_of_the_owner_stay(option: dict[str, str]) -> None:
    due = decision(table(write(1, "a", 3)), policy(**option))
    assert dict(due.options) == {SMALL_FILE_LIMIT: "1000", SINGLE_GROUP: "false"}


@pytest.mark.parametrize("partition", ["", "a,b"])
def test_partition_that_cannot_be_named_is_left_to_hudi(partition: str) -> None:
    due = decision(table(write(1, partition, 3)), policy())
    assert (due.verdict, SELECTED in due.options) == (Verdict.DUE, False)


def test_files_alone_are_rewritten_only_to_be_sorted() -> None:
    of = table(write(1, "a", 3))
    assert SINGLE_GROUP not in decision(of, policy(**{SORT_COLUMNS: "ts"})).options
    assert SINGLE_GROUP not in decision(of, policy(**{SINGLE_GROUP: "true"})).options


def test_run_by_hand_takes_small_files_as_the_policy_counts_them() -> None:
    assert dict(service_options(Service.CLUSTERING, policy())) == {SMALL_FILE_LIMIT: "1000", SINGLE_GROUP: "false"}


# --- What is known besides the active timeline


def test_small_files_count_after_their_writes_were_archived() -> None:
    """Fifty partitions, one file in one of them with each commit, twelve commits on the active timeline."""
    chooses, writes, last_runs, counts = random.Random(1), [], NO_LAST_RUNS, Counter[str]()
    for second in range(48):
        partition = f"p{chooses.randrange(20)}"
        counts[partition] += 1
        writes.append(write(second, partition))
        last_runs = seen(table(*writes[-12:]), policy(4), last_runs)
        due = decision(table(*writes[-12:]), policy(4), last_runs)
        assert (due.verdict is Verdict.DUE) is (max(counts.values()) >= 4), due.reason
        assert min(4, max(counts.values())) <= due.evidence["small_files"] <= max(counts.values())
    assert due.options[SELECTED].split(",") == sorted(p for p, n in counts.items() if n >= 4)
    assert decision(table(*writes[-12:]), policy(4)).verdict is Verdict.NOT_DUE, "the timeline alone shows too few"


def test_files_that_are_gone_do_not_count() -> None:
    rules = policy(3)
    first = [write(1, "a", 2), write(2, "b", 2)]
    last_runs = seen(table(*first), rules)
    overwritten = completed(10, Action.REPLACECOMMIT), commit(base("x", 5000, "a"), replaced=(("a", "a-1-0"),))
    grown = completed(12, Action.COMMIT), commit(base("b-2-0", 5000, "b"))
    later = [write(5, "a"), write(6, "b"), overwritten, grown]
    # Both writes of before are archived.
    last_runs = seen(table(first[1], *later), rules, last_runs)
    assert decision(table(*later), rules, last_runs).verdict is Verdict.NOT_DUE
    assert dict(last_runs.small_files.hashes).keys() == {"a", "b"}
    assert {p: len(last_runs.small_files.of(p)) for p in "ab"} == {"a": 2, "b": 2}


@pytest.mark.parametrize("change", ["gap", "restore", "limit"])
def test_what_may_be_wrong_is_forgotten(change: str) -> None:
    rules = policy(3)
    last_runs = seen(table(write(1, "a", 2)), rules)
    of = table(write(2 if change == "gap" else 1, "c"), write(20, "a", 1))
    assert decision(of, rules, last_runs).evidence["small_files"] == (1 if change == "gap" else 3)
    if change == "restore":
        of = table(write(1, "c"), write(20, "a", 1), plans=(completed(15, Action.RESTORE),))
    if change == "limit":
        rules = rules.replace(clustering=rules.clustering.replace(small_file_bytes=900))
    assert decision(of, rules, last_runs).evidence["small_files"] == 1


def test_nothing_is_kept_of_a_table_that_is_not_clustered() -> None:
    assert seen(table(write(1, "a", 2)), TablePolicy()).small_files == NO_SMALL_FILES


def test_registry_keeps_a_bounded_text_with_the_worst_partitions() -> None:
    writes = [write(n % 60, f"year=2026/month=11/day={n:05d}", 1 + n % 4) for n in range(3000)]
    of = view(writes[0], table_type="COPY_ON_WRITE")
    stats = tuple(stat for _, metadata in writes for stat in metadata.stats)
    instant = completed(1, Action.COMMIT)
    of = view((instant, commit(*stats, operation="BULK_INSERT")), table_type="COPY_ON_WRITE")
    known = seen(of, policy(3)).small_files
    assert len(last_runs_to_text(seen(of, policy(3)))) < 30_000
    assert {len(known.of(p)) for p in known.hashes} == {3}
    assert len(known.hashes) > 300


@pytest.mark.parametrize("record", [None, 7, {}, {"of": 3}, {"of": {}, "limit": "x", "until": "", "all": 1}])
def test_record_of_another_release_is_nothing(record: object) -> None:
    assert parse_small_files(record) == NO_SMALL_FILES


# --- A run that finds nothing


def test_rule_of_commits_is_not_due_once_it_is_known_that_there_is_nothing_to_merge() -> None:
    rules = policy(small_files=None, commits=4)
    of = table(*(write(n, f"p{n}") for n in range(5)))
    due = decision(of, rules)
    assert (due.verdict, SELECTED in due.options) == (Verdict.DUE, False)  # before the timeline there may be more
    last_runs = NO_LAST_RUNS.started(due, "run-1").ended("run-1", RunEnd.SUCCESS, NOW_MS)
    of = table(*(write(n, f"p{n}") for n in range(30)))
    last_runs = seen(of, rules, last_runs)
    assert last_runs.small_files.is_complete
    found = decision(of, rules, last_runs)
    assert found.verdict is Verdict.NOT_DUE
    assert "no partition has two small files, so there is nothing to merge" in found.reason
    # The next small file of a partition is due at once, whatever the run found.
    again = decision(table(*(write(n, f"p{n}") for n in range(30)), write(31, "p7")), rules, last_runs)
    assert (again.verdict, again.options[SELECTED]) == (Verdict.DUE, "p7")


def test_run_in_named_partitions_says_nothing_about_others() -> None:
    rules = policy(small_files=None, commits=2)
    due = decision(table(write(1, "a", 2), write(2, "b")), rules)
    last_runs = NO_LAST_RUNS.started(due, "run-1").ended("run-1", RunEnd.SUCCESS, NOW_MS)
    assert not seen(table(write(1, "a", 2), write(2, "b")), rules, last_runs).small_files.is_complete


def test_known_files_are_no_part_of_the_plan_of_another_process() -> None:
    plan = Instant(at(30), Action.CLUSTERING, State.REQUESTED, None, f"{at(30)}.clustering.requested")
    of = TableFacts(table(write(1, "a", 9), plans=(plan,)))
    rules = policy().replace(doctor=policy().doctor.replace(stuck_after_s=1))
    found = next(d for d in decide(of, rules, NOW_MS) if d.service is Service.CLUSTERING)
    assert (found.plan_instants, dict(found.options)) == ((at(30),), {})


# --- Settings that contradict each other are refused when the file is read


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({TARGET_FILE_BYTES: "1000"}, "must be less than hoodie.clustering.plan.strategy.target.file.max.bytes"),
        ({"hoodie.clustering.plan.strategy.max.bytes.per.group": "999"}, "would count as small again"),
        ({SMALL_FILE_LIMIT: "300"}, "contradicts clustering.small_file_bytes (1000)"),
    ],
)
def test_contradictions_are_refused(options: dict[str, str], message: str) -> None:
    assert message in (policy(**options).find_problem() or "")
    others = policy(**options)
    assert others.replace(clustering=ClusteringPolicy(small_file_bytes=1000)).find_problem() is None


def test_archiving_at_each_commit_is_refused() -> None:
    assert "each commit would make a run" in (
        TablePolicy(archive=ArchivePolicy(min_commits=20, max_commits=21)).find_problem() or ""
    )
    assert TablePolicy(archive=ArchivePolicy(min_commits=20, max_commits=22)).find_problem() is None


def test_hashes_belong_to_their_partition() -> None:
    known = KnownSmallFiles(1000, at(1), hashes=MappingProxyType({"a": "0011223344556677"}))
    assert (known.of("a"), known.of("b")) == ({"00112233", "44556677"}, frozenset())
