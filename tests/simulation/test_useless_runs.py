"""Few runs find nothing to do, whatever a table is written like; and what is due by a table's files gets its run.

The manager's own rules decide about random tables. The model keeps the files as Hudi does, by Hudi's rules:
`CleanPlanner` (KEEP_LATEST_COMMITS), `TimelineArchiverV2`, `PartitionAwareClusteringPlanStrategy`. Runs begin at once
and succeed; `test_every_service_gets_its_turn.py` has the bad luck. `LAKE_RANDOM_TABLES` and `LAKE_RANDOM_COMMITS` set
the number of tables, and of commits of each.
"""

from __future__ import annotations

import os
import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import MappingProxyType

import pytest

from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.config.service_policies import ClusteringPolicy, CompactionPolicy
from airflow_lake_provider.hudi.commit_metadata import CommitMetadata, WriteStat
from airflow_lake_provider.hudi.instant import Instant
from airflow_lake_provider.hudi.properties import build_table_properties
from airflow_lake_provider.hudi.timeline import Timeline
from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.planner.decide import decide, remember_shown
from airflow_lake_provider.planner.facts import TableFacts
from airflow_lake_provider.planner.last_runs import NO_LAST_RUNS, LastRuns, RunEnd, last_runs_to_text, parse_last_runs
from airflow_lake_provider.planner.rules import Decision, Verdict
from airflow_lake_provider.planner.table_view import TableView
from airflow_lake_provider.shared.actions import Action, State
from airflow_lake_provider.shared.hudi_settings import LOCK_PROVIDER
from airflow_lake_provider.shared.partition_filter import SELECTED, SINGLE_GROUP, SMALL_FILE_LIMIT

TABLES = int(os.environ.get("LAKE_RANDOM_TABLES", "24"))
COMMITS = int(os.environ.get("LAKE_RANDOM_COMMITS", "60"))
BEGIN = datetime(2026, 11, 1, tzinfo=UTC)
MIB = 1024**2
SMALL_BYTES = 100 * MIB
SERVED = (Service.COMPACTION, Service.CLUSTERING, Service.CLEAN, Service.ARCHIVE)
MAX_GROUPS = 30
Group = tuple[str, str]


@dataclass
class Slice:
    """The newest file slice of a file group."""

    base_bytes: int
    logs: int = 0


@dataclass
class RandomTable:
    """A table with a character: how it is written, how often, and into how many partitions."""

    seed: int
    now_ms: int = 0
    active: list[Instant] = field(default_factory=list)
    commits: dict[str, CommitMetadata] = field(default_factory=dict)
    slices: dict[Group, Slice] = field(default_factory=dict)
    last_runs: LastRuns = NO_LAST_RUNS
    useful: Counter[Service] = field(default_factory=Counter)
    useless: Counter[Service] = field(default_factory=Counter)
    most_small_files: int = 0
    most_unmerged_commits: int = 0
    _unmerged: int = 0
    _replaced_by: list[str] = field(default_factory=list)
    _files: int = 0
    _runs: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        choose = self.rng.choice
        self.is_mor = self.rng.random() < 0.6
        self.every_s = choose([30, 300, 600, 3600, 3600, 86_400])
        self.partitions = [f"p{n:03d}" for n in range(choose([1, 1, 6, 40, 120]))]
        self.writes_all = self.rng.random() < 0.3
        self.shares = [(kind, self.rng.random() ** 2) for kind in ("insert", "upsert", "overwrite", "delete")]
        self.file_bytes = choose([1, 10, 150]) * MIB
        clustering = choose(
            [
                ClusteringPolicy(),
                ClusteringPolicy(enabled=True),
                ClusteringPolicy(enabled=True, commits=20, small_files=None),
            ]
        )
        compaction = choose([CompactionPolicy(), CompactionPolicy(), CompactionPolicy(max_age_s=600)])
        self.policy = TablePolicy(
            hudi_options={LOCK_PROVIDER: "x.ZookeeperBasedLockProvider"}, clustering=clustering, compaction=compaction
        )

    # --- The manager

    def live(self, commits: int) -> None:
        for _ in range(commits):
            self.now_ms += self.every_s * 1000
            self._write()
            for _ in range(12):  # of one evaluation after the other, until none starts a run
                due = self._evaluate()
                if due is None:
                    break
                self._run(due)

    def _evaluate(self) -> Decision | None:
        facts, now_ms = TableFacts(self._view()), int(BEGIN.timestamp() * 1000) + self.now_ms
        self.last_runs = remember_shown(facts, self.policy, self.last_runs, now_ms)
        decided = decide(facts, self.policy, now_ms, self.last_runs)
        return next((d for d in decided if d.verdict is Verdict.DUE and d.service in SERVED), None)

    def _run(self, due: Decision) -> None:
        self._runs += 1
        run_id = f"run-{self._runs}"
        last_runs = self.last_runs.started(due, run_id)
        self.now_ms += 1000
        done = {
            Service.COMPACTION: self._compact,
            Service.CLUSTERING: self._cluster,
            Service.CLEAN: self._clean,
            Service.ARCHIVE: self._archive,
        }[due.service](due)
        (self.useful if done else self.useless)[due.service] += 1
        ended_ms = int(BEGIN.timestamp() * 1000) + self.now_ms
        self.last_runs = parse_last_runs(last_runs_to_text(last_runs.ended(run_id, RunEnd.SUCCESS, ended_ms)))

    def _view(self) -> TableView:
        properties = build_table_properties(
            {
                "hoodie.table.name": "t",
                "hoodie.table.type": "MERGE_ON_READ" if self.is_mor else "COPY_ON_WRITE",
                "hoodie.table.version": "9",
                "hoodie.table.timeline.timezone": "UTC",
                "hoodie.table.partition.fields": "p",
            },
            "/lake/t",
        )
        timeline = Timeline(tuple(sorted(self.active, key=lambda instant: instant.sort_key)))
        active = {i.requested_time for i in self.active}
        self.commits = {time: commit for time, commit in self.commits.items() if time in active}
        return TableView("/lake/t", properties, timeline, MappingProxyType(dict(self.commits)), str(self.now_ms))

    # --- The writer

    def _write(self) -> None:
        (kind,) = self.rng.choices([k for k, _ in self.shares], [share for _, share in self.shares])
        many = self.rng.randrange(1, 4)
        wanted = (
            self.partitions if self.writes_all else self.rng.sample(self.partitions, min(many, len(self.partitions)))
        )
        own = [group for group in self.slices if group[0] in wanted]
        if kind == "insert" or not own:
            stats = [self._new(p) for p in wanted]
            self._complete(Action.DELTACOMMIT if self.is_mor else Action.COMMIT, stats)
        elif kind == "overwrite":
            stats = [self._new(p) for p in wanted]
            self._complete(Action.REPLACECOMMIT, stats, "INSERT_OVERWRITE", own)
        elif kind == "delete" and self.rng.random() < 0.3:
            self._complete(Action.REPLACECOMMIT, [], "DELETE_PARTITION", own)
        else:
            touched = self.rng.sample(own, min(len(own), 5))
            if self.is_mor:
                stats = [self._log(group) for group in touched]
            else:
                stats = [
                    self._base(group, self.slices[group].base_bytes + self.rng.randrange(MIB)) for group in touched
                ]
            self._complete(Action.DELTACOMMIT if self.is_mor else Action.COMMIT, stats)
        has_logs = any(found.logs for found in self.slices.values())
        is_delta = self.active[-1].action is Action.DELTACOMMIT
        self._unmerged = self._unmerged + is_delta if has_logs else 0
        self.most_unmerged_commits = max(self.most_unmerged_commits, self._unmerged)
        small = Counter(p for (p, _), found in self.slices.items() if 0 < found.base_bytes < SMALL_BYTES)
        self.most_small_files = max(self.most_small_files, *small.values(), 0)

    def _new(self, partition: str) -> WriteStat:
        self._files += 1
        return self._base((partition, f"g{self._files}"), self.file_bytes, is_new=True)

    def _base(self, group: Group, size_bytes: int, *, is_new: bool = False) -> WriteStat:
        partition, file_id = group
        return WriteStat(partition, file_id, f"{partition}/{file_id}_0_1.parquet", size_bytes, size_bytes, is_new)

    def _log(self, group: Group) -> WriteStat:
        partition, file_id = group
        return WriteStat(partition, file_id, f"{partition}/.{file_id}_1.log.1_0", MIB, MIB)

    # --- Hudi

    def _compact(self, due: Decision) -> bool:
        groups = [group for group, found in self.slices.items() if found.logs]
        if not groups:
            return False
        stats = [self._base(group, self.slices[group].base_bytes + MIB) for group in groups]
        self._complete(Action.COMMIT, stats, "COMPACT")
        self._unmerged = 0
        return True

    def _cluster(self, due: Decision) -> bool:
        limit, selected = int(due.options[SMALL_FILE_LIMIT]), due.options.get(SELECTED)
        named = None if selected is None else set(selected.split(","))
        small: defaultdict[str, list[Group]] = defaultdict(list)
        for group, found in self.slices.items():
            if found.base_bytes < limit and (named is None or group[0] in named):
                small[group[0]].append(group)
        least = 2 if due.options.get(SINGLE_GROUP) == "false" else 1
        taken = [p for p in sorted(small) if len(small[p]) >= least][:MAX_GROUPS]
        if not taken:
            return False
        stats = []
        for partition in taken:
            self._files += 1
            size_bytes = sum(self.slices[group].base_bytes for group in small[partition])
            stats.append(self._base((partition, f"c{self._files}"), size_bytes))
        self._complete(Action.REPLACECOMMIT, stats, "CLUSTER", [group for p in taken for group in small[p]])
        return True

    def _clean(self, due: Decision) -> bool:
        writes = sorted(i.requested_time for i in self._writes())
        retained = int(due.options["hoodie.clean.commits.retained"])
        if len(writes) <= retained:
            return False
        earliest = writes[len(writes) - retained]
        if not any(time < earliest for time in self._replaced_by):
            return False
        self._replaced_by = [time for time in self._replaced_by if time >= earliest]
        self._complete(Action.CLEAN, [])
        return True

    def _archive(self, due: Decision) -> bool:
        writes = sorted(self._writes(), key=lambda instant: instant.requested_time)
        least, most = (int(due.options[f"hoodie.keep.{which}.commits"]) for which in ("min", "max"))
        if len(writes) <= most:
            return False
        held = {i.requested_time for i in writes if i.action is Action.REPLACECOMMIT} & set(self._replaced_by)
        boundary = min(held, default="9")
        if self.is_mor:  # what the compaction's trigger counts from stays
            boundary = min(boundary, self._first_counted_delta(writes))
        old = {i.requested_time for i in writes[: len(writes) - least] if i.requested_time < boundary}
        first = min((i.requested_time for i in writes if i.requested_time not in old), default="9")
        cleans = {i.requested_time for i in self.active if i.action is Action.CLEAN and i.requested_time < first}
        self.active = [i for i in self.active if i.requested_time not in old | cleans]
        return bool(old)

    def _first_counted_delta(self, writes: list[Instant]) -> str:
        last = max((i.requested_time for i in writes if i.action is Action.COMMIT), default="")
        deltas = [i.requested_time for i in writes if i.action is Action.DELTACOMMIT and i.requested_time > last]
        if len(deltas) >= 5:
            return "9"
        return last or (deltas[0] if deltas else "9")

    def _complete(
        self, action: Action, stats: list[WriteStat], operation: str = "UPSERT", replaced: list[Group] | None = None
    ) -> None:
        requested, completed = self._time(), self._time()
        name = f"{requested}_{completed}.{action.value}"
        self.active.append(Instant(requested, action, State.COMPLETED, completed, name))
        if action is Action.CLEAN:
            return
        self.commits[requested] = CommitMetadata(operation, tuple(stats), tuple(replaced or ()))
        for group in replaced or ():
            del self.slices[group]
        replaces = bool(replaced)
        for stat in stats:
            group = (stat.partition, stat.file_id)
            if stat.is_log:
                self.slices[group].logs += 1
                continue
            replaces |= group in self.slices
            self.slices[group] = Slice(stat.file_size_bytes)
        if replaces:
            self._replaced_by.append(requested)

    def _writes(self) -> list[Instant]:
        return [instant for instant in self.active if instant.action is not Action.CLEAN]

    def _time(self) -> str:
        self.now_ms += 1
        moment = BEGIN + timedelta(milliseconds=self.now_ms)
        return f"{moment:%Y%m%d%H%M%S}{moment.microsecond // 1000:03d}"


def play(tables: int) -> list[RandomTable]:
    played = [RandomTable(seed) for seed in range(tables)]
    for table in played:
        table.live(COMMITS)
    return played


def test_service_finds_nothing_once_in_the_life_of_a_table_and_nothing_waits_for_that() -> None:
    """Its first run finds out what lies before the active timeline."""
    useful, useless, repeated = Counter[Service](), Counter[Service](), Counter[Service]()
    for table in play(TABLES):
        useful += table.useful
        useless += table.useless
        repeated += Counter({service: n - 1 for service, n in table.useless.items()})
        if table.is_mor:
            assert table.most_unmerged_commits <= (table.policy.compaction.delta_commits or 0), f"table {table.seed}"
    shown = {service.value: (useless[service], repeated[service], useful[service]) for service in SERVED}
    assert not repeated[Service.COMPACTION], shown
    assert repeated.total() <= 0.004 * useful.total(), shown
    # A manager that starts nothing wastes nothing.
    assert all(useful[service] > TABLES for service in (Service.COMPACTION, Service.CLEAN, Service.ARCHIVE)), shown
    assert useful[Service.CLUSTERING] >= TABLES // 4, shown


@pytest.mark.parametrize(
    ("partitions", "writes_all", "commits"),
    [pytest.param(40, True, 35, id="more-than-a-plan-takes"), pytest.param(12, False, 90, id="few-files-a-commit")],
)
def test_no_partition_has_more_small_files_than_the_rule(partitions: int, commits: int, *, writes_all: bool) -> None:
    table = RandomTable(1)
    table.is_mor, table.every_s, table.shares = False, 600, [("insert", 1.0)]
    table.partitions, table.writes_all = [f"p{n:03d}" for n in range(partitions)], writes_all
    table.file_bytes, table.policy = MIB, table.policy.replace(clustering=ClusteringPolicy(enabled=True))
    table.live(commits)
    assert table.most_small_files <= (table.policy.clustering.small_files or 0)
    assert not table.useless[Service.CLUSTERING]
    assert table.useful[Service.CLUSTERING] < commits / 3, "few runs, not one for each commit"


def test_rule_about_log_files_that_is_switched_off_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TableFacts, "is_nothing_to_merge", lambda *_: False)
    with pytest.raises(AssertionError):
        test_service_finds_nothing_once_in_the_life_of_a_table_and_nothing_waits_for_that()


def test_plan_that_hudi_chooses_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = {SMALL_FILE_LIMIT: str(SMALL_BYTES)}
    monkeypatch.setattr("airflow_lake_provider.planner.compaction.clustering_options", lambda policy, partitions: limit)
    with pytest.raises(AssertionError):
        test_no_partition_has_more_small_files_than_the_rule(40, 35, writes_all=True)


def test_memory_of_the_active_timeline_alone_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "airflow_lake_provider.planner.decide.remember_small_files"
    monkeypatch.setattr(name, lambda facts, policy, known, **_: known)
    with pytest.raises(AssertionError):
        test_no_partition_has_more_small_files_than_the_rule(12, 90, writes_all=False)
