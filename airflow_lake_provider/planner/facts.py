"""What the decisions about one table rest on: computed from its view at most once per evaluation. Pure.

File sizes come from commit metadata alone; no data files are listed.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from airflow_lake_provider.hudi.commit_metadata import newest_file_ids_of
from airflow_lake_provider.hudi.instant import Layout
from airflow_lake_provider.hudi.properties import zone_of_jobs
from airflow_lake_provider.instant_clock import HOUR_MS, MARGIN_COMMITS_OF_HOURS, commits_to_keep, format_instant_time
from airflow_lake_provider.planner.write_history import COMPACT_OPERATION, LOG_COMPACT_OPERATION
from airflow_lake_provider.shared.actions import WRITE_ACTIONS, Action
from airflow_lake_provider.shared.hudi_settings import COMPACTION_STRATEGY

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import tzinfo

    from airflow_lake_provider.config.policies import TablePolicy
    from airflow_lake_provider.hudi.commit_metadata import CommitMetadata
    from airflow_lake_provider.hudi.instant import Instant
    from airflow_lake_provider.hudi.properties import TableProperties
    from airflow_lake_provider.hudi.timeline import Timeline
    from airflow_lake_provider.planner.rules import Hold
    from airflow_lake_provider.planner.table_view import TableView
    from airflow_lake_provider.planner.write_history import CompactionBacklog, WriteHistory
    from airflow_lake_provider.storage.table_storage import Storage

_AFTER = "0"
"""Makes of a moment one that sorts behind it, and before any later one."""

_CHOOSES_SLICES = (COMPACTION_STRATEGY, "hoodie.compaction.target.io", "hoodie.compaction.logfile")
"""Settings by which a compaction takes a part of the file slices; by default it takes up to 500 GB."""


@dataclass(frozen=True)
class TableFacts:
    """One table at the moment of an evaluation. A fact is computed when the first decision reads it, and then kept."""

    view: TableView
    hold: Hold | None = None
    """What the slowest sink of replication, or reader, still needs; None while nothing is held."""

    @property
    def timeline(self) -> Timeline:
        """The table's active timeline."""
        return self.view.timeline

    @property
    def properties(self) -> TableProperties:
        """The table's properties."""
        return self.view.properties

    @property
    def writes(self) -> tuple[Instant, ...]:
        """The completed writes, by completion."""
        return self.view.timeline.completed_writes

    def writes_after(self, after: str) -> tuple[Instant, ...]:
        """Return the writes that completed after a moment (exclusive), by completion."""
        return self.writes[bisect_right(self.writes, after, key=lambda write: write.ordering_time) :]

    @cached_property
    def newest_file_ids(self) -> frozenset[str]:
        """The file ids of the newest write that wrote files, clusterings aside; empty when the timeline shows none."""
        times = (write.requested_time for write in reversed(self.writes))
        return newest_file_ids_of(self.view.commits[time] for time in times if time in self.view.commits)

    @cached_property
    def last_clean(self) -> Instant | None:
        """The completed clean that was requested last."""
        return self.timeline.last_completed(Action.CLEAN)

    @cached_property
    def first_savepoint(self) -> Instant | None:
        """The oldest savepoint."""
        return next((i for i in self.timeline.instants if i.action is Action.SAVEPOINT and i.is_completed), None)

    @cached_property
    def last_metadata_compaction(self) -> Instant | None:
        """The metadata table's last completed compaction; None without one, or while that timeline is not read."""
        metadata = self.view.metadata_timeline
        return None if metadata is None else metadata.last_completed(Action.COMMIT)

    @property
    def backlog(self) -> CompactionBacklog:
        """What waits for compaction."""
        return self.history.backlog

    @cached_property
    def history(self) -> WriteHistory:
        """What the completed writes together left behind."""
        return self.view.histories.find(self.writes, self.view.commits)

    @cached_property
    def replacing_writes(self) -> tuple[Instant, ...]:
        """The completed writes that may have replaced a file, by completion."""
        return tuple(write for write, _, _ in self._replaced)

    @cached_property
    def _replaced(self) -> tuple[tuple[Instant, int, int], ...]:
        """The same, each with how many files it replaced, and about how many bytes."""
        commits = self.view.commits
        counted = self.history.replaced
        return tuple(
            (write, *counted.get(write.requested_time, (0, 0)))
            for write in self.writes
            if may_have_replaced(commits.get(write.requested_time))
        )

    @cached_property
    def held_commits(self) -> int:
        """How many of the newest writes a job keeps for the hold; 0 without one."""
        return 0 if self.hold is None else commits_to_keep([w.requested_time for w in self.writes], self.hold.instant)

    def zone(self, policy: TablePolicy) -> tzinfo:
        """Return the zone in which the table's instants are named. Raises ConfigError."""
        return zone_of_jobs(self.properties.time_zone, policy.spark_conf).zone

    def retained_writes(self, policy: TablePolicy, now_ms: int) -> int:
        """Return for how many of the newest writes a clean keeps what they replaced; 0 when it counts versions."""
        retained = self.retained_by_policy(policy, now_ms)
        # The job keeps more than is held (lake_jobs/hudi/settings.py).
        return retained if self.hold is None else max(retained, self.held_commits + 2)

    def retained_by_policy(self, policy: TablePolicy, now_ms: int) -> int:
        """Return how many of the newest writes the policy alone retains; those of the last hours, and some more."""
        rules = policy.clean
        if rules.policy == "versions":
            return 0
        if rules.retained_hours is None:
            return rules.retained_commits
        since = format_instant_time(now_ms - rules.retained_hours * HOUR_MS, self.zone(policy))
        return commits_to_keep([write.requested_time for write in self.writes], since, MARGIN_COMMITS_OF_HOURS)

    def find_retained_from(self, kept: int) -> str:
        """Return from which moment on (completed times) what writes replaced stays, when a clean keeps so many writes.

        A clean passes neither the oldest pending write nor a savepoint. Empty when there are no more writes than kept.
        """
        if not self.writes or len(self.writes) <= kept:
            return ""
        moments = [self.writes[-kept].ordering_time if kept else f"{self.writes[-1].ordering_time}{_AFTER}"]
        moments += [instant.requested_time for instant in self.timeline.pending(*WRITE_ACTIONS)]
        moments += [self.first_savepoint.requested_time] if self.first_savepoint is not None else []
        return min(moments)

    def count_replaced(self, after: str, before: str) -> tuple[int, int]:
        """Return how many files writes replaced that completed between two moments, and about how many bytes.

        They are base files, the log files that were merged into the next one, and what replaced file groups held. A
        base file that the active timeline does not show counts as large as the one that replaced it, or, when its file
        group was replaced, as 0 bytes.
        """
        between = [found for found in self._replaced if after <= found[0].ordering_time < before]
        return sum(files for _, files, _ in between), sum(size_bytes for _, _, size_bytes in between)

    def find_replacing(self, cleaned_before: str, retained_from: str) -> Instant | None:
        """Return the first write between two moments that may have replaced a file; None when there is none."""
        between = (w for w in self.replacing_writes if cleaned_before <= w.ordering_time < retained_from)
        return next(between, None)

    def is_nothing_replaced(self, cleaned_before: str, retained_from: str) -> bool:
        """Whether it is certain that no write between two moments replaced a file: the first is where all was cleaned.

        What lies before the active timeline is not known.
        """
        if not cleaned_before or not retained_from:
            return False
        if retained_from <= cleaned_before:
            return True
        return self.reaches_back_to(cleaned_before) and self.find_replacing(cleaned_before, retained_from) is None

    def is_nothing_to_merge(self, policy: TablePolicy, merged_until: str) -> bool:
        """Whether it is certain that no file slice has a log file: none came after the moment when all were merged.

        What lies before the active timeline, or in a damaged file, is not known; nor is what a compaction left out that
        takes a part of the file slices only.
        """
        last = self.backlog.last_compaction or ""  # on the active timeline
        since = max(merged_until, last)
        if not since or self.backlog.log_files or self.is_restored_after(since):
            return False
        if since != last and not self.reaches_back_to(since):
            return False
        if any(name.startswith(_CHOOSES_SLICES) for name in policy.hudi_options):
            return False
        return all(write.requested_time in self.view.commits for write in self.writes_after(since))

    def is_restored_after(self, moment: str) -> bool:
        """Whether a restore took writes back after a moment: compactions may be among them."""
        restore = self.timeline.latest_completed(Action.RESTORE)
        return restore is not None and restore.ordering_time > moment

    def reaches_back_to(self, moment: str) -> bool:
        """Whether the active timeline shows all writes that completed after a moment."""
        return bool(self.writes) and self.writes[0].ordering_time <= moment


# --- Whether a write left something to clean
#
# With KEEP_LATEST_COMMITS, by which retention by hours is counted as well, Hudi deletes a file slice or a replaced file
# group when the write that replaced it is older than the commits to retain
# (`CleanPlanner.getFilesToCleanKeepingLatestCommits`). A table that is only appended to never has one, and Hudi then
# plans no clean and leaves nothing on the timeline.


def may_have_replaced(metadata: CommitMetadata | None) -> bool:
    """Whether a write may have replaced a file; of one without metadata that is not known."""
    return metadata is None or metadata.operation == COMPACT_OPERATION or metadata.may_replace


# --- How far are these figures from the files that lie there? Of a few partitions, now and then
#
# The names of the files say by themselves what belongs to a file group's newest file slice: a log file of layout 2 has
# the time of its commit, one of layout 1 that of its base file (Hudi `FSUtils`, `HoodieFileGroup`).

_LOG_NAME = re.compile(r"\.([^.].*)_(\d{14,17})\.log\.\d+(?:_[^.]*)?$")
_BASE_NAME = re.compile(r"([^_]+)_[^_]+_(\d{14,17})\.(?:parquet|orc|hfile|lance)$")


@dataclass(frozen=True, slots=True)
class FigureCheck:
    """The log files of some partitions' newest file slices: by commit metadata, and as they were listed."""

    partitions: int
    expected_files: int
    expected_bytes: int
    listed_files: int
    listed_bytes: int

    @property
    def error(self) -> float:
        """By how much the bytes are wrong, as a share of what was listed; 1 when there is nothing of what is expected.

        Of files that were appended to (layout 1) the number is that of the appends, so it does not count here.
        """
        wrong = abs(self.expected_bytes - self.listed_bytes)
        return wrong / (self.listed_bytes or self.expected_bytes) if wrong else 0.0


def check_figures(
    storage: Storage, facts: TableFacts, choose: Callable[[Sequence[str], int], list[str]], most_partitions: int = 4
) -> FigureCheck | None:
    """List some of the partitions that have log files by `facts`, and compare; None when no partition has any.

    `choose` takes so many of them. What was written after the facts is left out. Raises StorageError.
    """
    expected = facts.history.log_files
    having = sorted({partition for partition, _ in expected})
    if not having:
        return None
    partitions = choose(having, min(most_partitions, len(having)))
    listed: list[int] = []
    for partition in partitions:
        try:
            entries = storage.list_entries(partition)
        except FileNotFoundError:  # deleted by a partition's TTL meanwhile, or lost
            continue
        listed += _newest_log_bytes(facts, partition, {entry.name: entry.size_bytes for entry in entries})
    counted = [figures for (partition, _), figures in expected.items() if partition in partitions]
    return FigureCheck(
        len(partitions), sum(n for n, _ in counted), sum(size for _, size in counted), len(listed), sum(listed)
    )


def _newest_log_bytes(facts: TableFacts, partition: str, sizes: Mapping[str, int]) -> list[int]:
    """Return the size of each log file of a partition that readers of the newest file slices open."""
    completed = {write.requested_time: write.ordering_time for write in facts.writes}
    open_times = {instant.requested_time for instant in facts.timeline.pending()}
    first = min(completed, default="")
    bases: defaultdict[str, str] = defaultdict(str)
    logs: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)

    def end_of(time: str) -> str:
        # What is older than the active timeline is archived, and so completed.
        return completed.get(time) or (time if time < first and time not in open_times else "")

    is_by_base = facts.properties.layout is Layout.V1
    for name, size in sizes.items():
        if (log := _LOG_NAME.match(name)) is not None:
            logs[log[1]].append((log[2], size))
        elif (base := _BASE_NAME.match(name)) is not None and end_of(base[2]):
            bases[base[1]] = max(bases[base[1]], base[2])
    replaced = {group for commit in facts.view.commits.values() for group in commit.replaced_file_groups}
    merged_until = _merged_until(facts, partition)
    found: list[int] = []
    for file_id, files in logs.items():
        if (partition, file_id) in replaced:
            continue
        newest = bases[file_id] or (max(time for time, _ in files) if is_by_base else "")
        merged = merged_until.get(file_id, "")
        for time, size in files:
            is_newest = time == newest if is_by_base else end_of(time) > newest
            if is_newest and (is_by_base or not merged or time == merged or end_of(time) > merged):
                found.append(size)
    return found


def _merged_until(facts: TableFacts, partition: str) -> dict[str, str]:
    """Return when each file group was log-compacted last, as requested times: its own log file has that time."""
    found: dict[str, str] = {}
    for time, commit in facts.view.commits.items():
        if commit.operation == LOG_COMPACT_OPERATION:
            for stat in commit.stats:
                if stat.partition == partition:
                    found[stat.file_id] = max(time, found.get(stat.file_id, ""))
    return found
