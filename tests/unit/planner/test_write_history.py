"""A history that goes on from commit to commit is what all writes make at once, and costs what was added."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.config.service_policies import ClusteringPolicy
from airflow_lake_provider.hudi.commit_metadata import CommitMetadata, WriteStat
from airflow_lake_provider.planner.decide import decide, remember_shown
from airflow_lake_provider.planner.facts import TableFacts
from airflow_lake_provider.planner.last_runs import NO_LAST_RUNS
from airflow_lake_provider.planner.table_view import TableViewCache
from airflow_lake_provider.planner.write_history import WriteHistories, WriteHistory, replay_writes
from airflow_lake_provider.shared.actions import Action
from tests.support.tables import HandMadeTable
from tests.unit.planner.views import NOW_MS, base, commit, completed, log, view

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_lake_provider.hudi.instant import Instant

Write = tuple["Instant", CommitMetadata | None]


@dataclass
class PlainGroup:
    base_bytes: int | None = None
    logs: list[tuple[str, int]] = field(default_factory=list)


def write_plainly(group: PlainGroup, stat: WriteStat, operation: str, instant: Instant) -> list[int]:
    newer = [entry for entry in group.logs if entry[0] > instant.requested_time]
    if operation == "LOG_COMPACT" or (operation != "COMPACT" and stat.is_log):
        group.logs = newer if operation == "LOG_COMPACT" else group.logs
        group.logs.append((instant.ordering_time, stat.written_bytes))
        return []
    gone = [] if stat.is_new_group else [stat.file_size_bytes if group.base_bytes is None else group.base_bytes]
    group.base_bytes = stat.file_size_bytes
    if operation == "COMPACT":
        gone += [size for time, size in group.logs if time <= instant.requested_time]
        group.logs = newer
    return gone


def replay_plainly(writes: list[Write]) -> dict[str, object]:
    """The rules of Hudi's file slices, write for write over all file groups, with nothing kept and nothing counted."""
    groups: dict[tuple[str, str], PlainGroup] = {}
    replaced: set[tuple[str, str]] = set()
    freed: dict[str, tuple[int, int]] = {}
    for instant, metadata in writes:
        if metadata is None:
            continue
        gone = []
        for key in metadata.replaced_file_groups:
            replaced.add(key)
            old = groups.pop(key, PlainGroup())
            gone += [old.base_bytes or 0, *(size for _, size in old.logs)]
        for stat in metadata.stats:
            key = (stat.partition, stat.file_id)
            if key in replaced:
                continue
            group = groups.setdefault(key, PlainGroup())
            gone += write_plainly(group, stat, metadata.operation, instant)
        if gone:
            freed[instant.requested_time] = len(gone), sum(gone)
    sized = [group for group in groups.values() if group.base_bytes is not None]
    merged = [group for group in groups.values() if group.logs]
    return {
        "base_file_bytes": {key: g.base_bytes for key, g in groups.items() if g.base_bytes is not None},
        "base_files": (sum(1 for g in sized if g.base_bytes), sum(g.base_bytes or 0 for g in sized)),
        "log_files": {key: (len(g.logs), sum(n for _, n in g.logs)) for key, g in groups.items() if g.logs},
        "replaced_groups": replaced,
        "replaced": freed,
        "figures": (
            sum(len(g.logs) for g in merged),
            max((len(g.logs) for g in merged), default=0),
            sum(n for g in sized for _, n in g.logs),
            sum(g.base_bytes or 0 for g in sized),
            len(groups) - len(sized),
            len(merged),
            sum(g.base_bytes or 0 for g in merged),
        ),
    }


def described(history: WriteHistory) -> dict[str, object]:
    backlog = history.backlog
    return {
        "base_file_bytes": dict(history.base_file_bytes),
        "base_files": tuple(history.base_files),
        "log_files": dict(history.log_files),
        "replaced_groups": {(p, file_id) for p, files in history.partitions.items() for file_id in files.replaced},
        "replaced": dict(history.replaced),
        "figures": (
            backlog.log_files,
            backlog.most_log_files,
            backlog.log_bytes,
            backlog.base_bytes,
            backlog.unsized_file_groups,
            backlog.merged_groups,
            backlog.merged_base_bytes,
        ),
    }


def random_writes(rng: random.Random, count: int) -> list[Write]:
    """Writes of all kinds, by completion; some compactions were planned before writes that completed first."""
    writes: list[Write] = []
    for n in range(count):
        files = [(rng.choice("pqr"), f"f{rng.randrange(8)}") for _ in range(rng.randrange(1, 6))]
        operation = rng.choices(
            ("UPSERT", "INSERT", "COMPACT", "LOG_COMPACT", "CLUSTER", "INSERT_OVERWRITE"), (8, 3, 2, 2, 1, 1)
        )[0]
        took_s = rng.randrange(1, 3) if operation not in {"COMPACT", "LOG_COMPACT"} else rng.randrange(1, 8)
        begins = max(0, n + 1 - took_s)
        action = {"UPSERT": Action.DELTACOMMIT, "INSERT": Action.DELTACOMMIT, "LOG_COMPACT": Action.DELTACOMMIT}.get(
            operation, Action.COMMIT if operation == "COMPACT" else Action.REPLACECOMMIT
        )
        instant = completed(begins, action, took_s=n + 1 - begins)
        size = rng.randrange(0, 500)
        is_log = operation == "LOG_COMPACT" or (operation == "UPSERT" and rng.random() < 0.7)
        stats = tuple(
            log(f, size, p) if is_log else base(f, size, p, is_new=operation != "COMPACT" and rng.random() < 0.4)
            for p, f in files
        )
        gone = operation in {"CLUSTER", "INSERT_OVERWRITE"}
        replaced = tuple((rng.choice("pqr"), f"f{rng.randrange(8)}") for _ in range(rng.randrange(3))) if gone else ()
        metadata = commit(*stats, operation=operation, replaced=replaced)
        writes.append((instant, metadata if rng.random() < 0.95 else None))
    return writes


@pytest.mark.parametrize("seed", range(60))
def test_history_of_each_step_is_that_of_all_writes_at_once(seed: int) -> None:
    """Writes come one by one or several together; the oldest are archived, and damaged ones become readable."""
    rng = random.Random(seed)
    writes = random_writes(rng, 45)
    histories = WriteHistories()
    first = shown = 0
    steps = []
    while shown < len(writes):
        shown = min(len(writes), shown + rng.randrange(0, 4))
        if rng.random() < 0.1:
            first = rng.randrange(first, shown + 1)
        if rng.random() < 0.1:
            writes = [(i, m if m is not None else commit(base("f1", 77))) for i, m in writes]
        active = writes[first:shown]
        commits = {instant.requested_time: metadata for instant, metadata in active if metadata is not None}
        # Two instants may have one requested time here, but not on a timeline.
        active = [(instant, commits.get(instant.requested_time)) for instant, _ in active]
        found = histories.find(tuple(instant for instant, _ in active), commits)
        at_once = replay_writes(active)
        assert found == at_once
        for partition, files in found.partitions.items():
            fresh = at_once.partitions[partition]
            assert files.shown_hashes() == fresh.shown_hashes()
            assert files.small_files(300, 9) == fresh.small_files(300, 9)
        expected = replay_plainly(active)
        assert described(found) == expected
        steps.append((found, expected))
    for found, expected in steps:
        assert described(found) == expected, "a later write changes no earlier history"


def large_write(second: int, files: int, first: int = 0) -> tuple[Instant, CommitMetadata]:
    stats = tuple(log(f"f{n}", 100, f"p{n % 40}") for n in range(first, first + files))
    return completed(second), commit(*stats)


def test_evaluation_replays_the_files_of_new_commits_only() -> None:
    policy = TablePolicy(clustering=ClusteringPolicy(enabled=True))
    bases = tuple(base(f"f{n}", 100, f"p{n % 40}", is_new=True) for n in range(2000))
    writes = [(completed(0), commit(*bases)), *(large_write(n, 2000) for n in range(1, 20))]
    table = view(*writes)
    runs = NO_LAST_RUNS
    costs = []
    for added in (None, large_write(20, 3), None, large_write(21, 7, first=50)):
        if added is not None:
            writes.append(added)
            newer = view(*writes)
            # As the cache of views does it.
            object.__setattr__(newer, "histories", table.histories)
            table = newer
        before = table.histories.replayed_files
        for _ in range(3):
            facts = TableFacts(table)
            runs = remember_shown(facts, policy, runs, NOW_MS)
            decide(facts, policy, NOW_MS, runs)
        costs.append(table.histories.replayed_files - before)
    assert costs == [40_000, 3, 0, 7]


def test_partitions_that_no_write_touched_are_not_counted_again() -> None:
    first = replay_writes([large_write(1, 80)])
    second = replay_writes([large_write(2, 1, first=7)], first)
    assert [p for p in second.partitions if second.partitions[p] is not first.partitions[p]] == ["p7"]


def test_cache_of_views_hands_the_history_on_and_a_large_table_stays(tmp_path: Path) -> None:
    """The files of one table may be more than are kept of all: those of the table at hand are not packed."""
    table = HandMadeTable.create(tmp_path / "t")
    for second in range(1, 5):
        table.commit(second)
    cache = TableViewCache()
    cache.memory.most_hot_files = 1
    before = cache.refresh(str(table.path))
    assert TableFacts(before).history.backlog.newest_write is not None
    table.commit(9)
    after = cache.refresh(str(table.path))
    assert len(after.commits) == len(before.commits) + 1
    assert TableFacts(after).history != TableFacts(before).history
    assert after.histories is before.histories
    newest = max(after.commits)
    assert TableFacts(cache.refresh(str(table.path))).history.backlog.newest_write == newest


def test_whether_a_file_is_a_log_file_follows_its_name_alone() -> None:
    names = {
        "p/.f_1.log.1_0-1-0": True,
        ".f_1.log.1_0-1-0": True,
        "p.log.x/f_1.parquet": False,
        ".log.p/f_1.parquet": False,
        "p/f.log.1": False,
        "p/.f.parquet": False,
    }
    assert {name: WriteStat("p", "f", name, 1, 1).is_log for name in names} == names
