"""What the completed writes of a table left behind: file sizes, and the log files that wait to be merged. Pure.

A table has up to some hundred thousand files on its active timeline, and is evaluated after each commit. So a history
is a value that the next one shares: a write costs as much as it has files, and the writes before it cost nothing
again. `WriteHistories` keeps the last one with the table's view, for all its readers.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, TypeAlias
from zlib import crc32

from airflow_lake_provider.shared.actions import Action
from airflow_lake_provider.table_layout import CLUSTER_OPERATION

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from airflow_lake_provider.hudi.commit_metadata import CommitMetadata, WriteStat
    from airflow_lake_provider.hudi.instant import Instant

FileGroup = tuple[str, str]
"""Partition path and file id."""

COMPACT_OPERATION = "COMPACT"
LOG_COMPACT_OPERATION = "LOG_COMPACT"


FileGroupSizes: TypeAlias = "tuple[int | None, tuple[str, ...], tuple[int, ...], int]"
"""The newest file slice of a file group, as far as the active timeline shows it: the bytes of its base file (None when
that was written before the active timeline begins), when the write of each of its log files completed, the bytes of
each, and of all. A plain tuple: there are as many as files, and Python's collector of garbage passes over those."""

_NO_FILES: FileGroupSizes = (None, (), (), 0)


@lru_cache(maxsize=1 << 16)
def hash_of_file_id(file_id: str) -> str:
    """Return eight characters by which a file is known where its id would take too much place."""
    return f"{crc32(file_id.encode()):08x}"


class SmallBaseFiles(NamedTuple):
    """The base files of a partition below a limit."""

    files: int
    size_bytes: int
    hashes: tuple[str, ...]
    """Of the first ones, so many as were asked for."""


class BaseFiles(NamedTuple):
    """Base files that the active timeline shows."""

    files: int
    size_bytes: int


NO_BASE_FILES = BaseFiles(0, 0)


@dataclass
class _Counted:
    """What was counted of a partition so far."""

    base: BaseFiles | None = None
    small: dict[tuple[int, int], SmallBaseFiles] = field(default_factory=dict)
    shown: frozenset[str] | None = None


@dataclass(frozen=True)
class PartitionFiles:
    """The file groups of one partition. What is counted of it is counted once, as long as no write changes it."""

    groups: Mapping[str, FileGroupSizes]
    replaced: frozenset[str]
    """File ids of groups that a write on the active timeline replaced."""
    counted: _Counted = field(default_factory=_Counted, compare=False, repr=False)

    def base_files(self) -> BaseFiles:
        """Return its base files."""
        if self.counted.base is None:
            sizes = [size for size, _, _, _ in self.groups.values() if size]
            self.counted.base = BaseFiles(len(sizes), sum(sizes))
        return self.counted.base

    def small_files(self, limit_bytes: int, most_hashes: int) -> SmallBaseFiles:
        """Return the base files that have fewer bytes."""
        found = self.counted.small.get((limit_bytes, most_hashes))
        if found is None:
            small = {f: size for f, (size, _, _, _) in self.groups.items() if size and 0 < size < limit_bytes}
            hashes = tuple(map(hash_of_file_id, islice(small, most_hashes)))
            found = SmallBaseFiles(len(small), sum(small.values()), hashes)
            self.counted.small[limit_bytes, most_hashes] = found
        return found

    def shown_hashes(self) -> frozenset[str]:
        """Return the hashes of all file groups whose base file, or whose end, the active timeline shows."""
        if self.counted.shown is None:
            sized = (file_id for file_id, (size, _, _, _) in self.groups.items() if size is not None)
            self.counted.shown = frozenset(map(hash_of_file_id, (*sized, *self.replaced)))
        return self.counted.shown


class _OpenPartition:
    """A partition that is written to."""

    __slots__ = ("before", "groups", "has_new_bases", "newly_shown", "replaced")

    def __init__(self, before: PartitionFiles | None) -> None:
        self.before = before
        self.groups = {} if before is None else dict(before.groups)
        self.replaced: set[str] = set() if before is None else set(before.replaced)
        self.has_new_bases = False
        self.newly_shown: list[str] = []

    def close(self) -> PartitionFiles:
        """Return it as it is now, with what was counted before and still holds: most writes add log files alone."""
        counted = _Counted()
        if self.before is not None:
            before = self.before.counted
            if not self.has_new_bases:
                counted.small = before.small
                counted.base = before.base
            if before.shown is not None:
                counted.shown = before.shown.union(map(hash_of_file_id, self.newly_shown))
        return PartitionFiles(self.groups, frozenset(self.replaced), counted)


@dataclass(frozen=True, slots=True)
class CompactionBacklog:
    """What waits for compaction. Sizes count file groups whose base file's size is on the active timeline."""

    delta_commits: int
    first_delta_commit: Instant | None
    """The one of them that completed first."""
    log_files: int
    most_log_files: int
    """In one file slice."""
    log_bytes: int
    base_bytes: int
    unsized_file_groups: int
    """File groups with log files whose base file was written before the active timeline begins."""
    last_compaction: str | None
    """Requested time of the last completed compaction."""
    newest_write: str | None
    """Requested time of the completed write, compactions aside, that completed last."""
    merged_groups: int = 0
    """File groups with log files: those that a compaction rewrites."""
    merged_base_bytes: int = 0
    """Of their base files, as far as the sizes are known."""

    @property
    def log_to_base_ratio(self) -> float | None:
        """Log bytes over base bytes; None while no base file's size is known."""
        return self.log_bytes / self.base_bytes if self.base_bytes else None


@dataclass(frozen=True)
class WriteHistory:
    """The completed writes of the active timeline, replayed."""

    backlog: CompactionBacklog
    partitions: Mapping[str, PartitionFiles]
    last_merge: str
    """Requested time of the newest compaction or log compaction; empty when there is none."""
    last_clustering: str
    """Completed time of the clustering that completed last; empty when there is none."""
    replaced: Mapping[str, tuple[int, int]]
    """By a write's requested time: how many files it replaced, and about how many bytes; writes that replaced some."""
    delta_commits: tuple[Instant, ...]
    """Those that wait for compaction, by completion."""
    log_counts: Mapping[int, int]
    """How many file slices have so many log files, for each number of log files above 0."""

    @cached_property
    def base_file_bytes(self) -> Mapping[FileGroup, int]:
        """Size of each file group's newest base file, where the active timeline shows it."""
        return {group: size for group, (size, _, _, _) in self._file_groups() if size is not None}

    @cached_property
    def base_files(self) -> BaseFiles:
        """The base files of all partitions, where the active timeline shows them."""
        counts = [partition.base_files() for partition in self.partitions.values()]
        return BaseFiles(sum(one.files for one in counts), sum(one.size_bytes for one in counts))

    @cached_property
    def log_files(self) -> Mapping[FileGroup, tuple[int, int]]:
        """Number and bytes of the log files that each file group's newest file slice has, if it has any."""
        return {group: (len(times), total) for group, (_, times, _, total) in self._file_groups() if times}

    def _file_groups(self) -> Iterable[tuple[FileGroup, FileGroupSizes]]:
        for partition, files in self.partitions.items():
            for file_id, sizes in files.groups.items():
                yield (partition, file_id), sizes


NO_WRITES = WriteHistory(
    CompactionBacklog(0, None, 0, 0, 0, 0, 0, None, None), MappingProxyType({}), "", "", MappingProxyType({}), (), {}
)


def replay_writes(
    writes: Iterable[tuple[Instant, CommitMetadata | None]], before: WriteHistory = NO_WRITES
) -> WriteHistory:
    """Return the history with more writes, in the order of completion; one without metadata is left out."""
    draft = _Draft(before)
    for instant, metadata in writes:
        if metadata is not None:
            draft.add(instant, metadata)
    return draft.finish()


class _Draft:
    """A history that is written to: of a partition it copies the file groups at the first change."""

    def __init__(self, before: WriteHistory) -> None:
        backlog = before.backlog
        self._partitions = dict(before.partitions)
        self._open: dict[str, _OpenPartition] = {}
        self._log_counts = dict(before.log_counts)
        self._log_files = backlog.log_files
        self._log_bytes = backlog.log_bytes
        self._base_bytes = backlog.base_bytes
        self._unsized = backlog.unsized_file_groups
        self._merged_base_bytes = backlog.merged_base_bytes
        self._delta_commits = list(before.delta_commits)
        self._last_compaction = backlog.last_compaction
        self._newest_write = backlog.newest_write
        self._last_merge = before.last_merge
        self._last_clustering = before.last_clustering
        self._replaced = dict(before.replaced)

    def add(self, instant: Instant, metadata: CommitMetadata) -> None:
        gone = self._drop_replaced(metadata)
        time = instant.requested_time
        if metadata.operation == COMPACT_OPERATION:
            self._last_compaction = time
            self._last_merge = max(self._last_merge, time)
            gone += self._compact(metadata.stats, time)
            self._delta_commits = [i for i in self._delta_commits if i.ordering_time > time]
        elif metadata.operation == LOG_COMPACT_OPERATION:
            self._last_merge = max(self._last_merge, time)
            self._merge_logs(metadata.stats, instant)
        else:
            if metadata.operation == CLUSTER_OPERATION:
                self._last_clustering = instant.ordering_time
            # Not the compaction itself: its time is the key of the run that executed its plan.
            self._newest_write = time
            if instant.action is Action.DELTACOMMIT:
                self._delta_commits.append(instant)
            gone += self._write(metadata, instant.ordering_time)
        if gone:
            self._replaced[time] = len(gone), sum(gone)

    def _drop_replaced(self, metadata: CommitMetadata) -> list[int]:
        """Drop the file groups that a write replaces; return the size of each of their files, 0 if it is not known."""
        gone: list[int] = []
        for partition, file_id in metadata.replaced_file_groups:
            opened = self._open_partition(partition)
            opened.replaced.add(file_id)
            opened.newly_shown.append(file_id)
            opened.has_new_bases = True
            before = opened.groups.pop(file_id, _NO_FILES)
            self._count(before, -1)
            size, _, log_sizes, _ = before
            gone += (size or 0, *log_sizes)
        return gone

    def _write(self, metadata: CommitMetadata, ordering_time: str) -> list[int]:
        """Add the files of a write; return the size of each file that they replace."""
        gone: list[int] = []
        counts = self._log_counts
        times_of_one = (ordering_time,)
        log_files = log_bytes = unsized = merged_base_bytes = 0
        for stat, is_log in zip(metadata.stats, metadata.are_logs, strict=True):
            opened = self._open.get(stat.partition) or self._open_partition(stat.partition)
            file_id = stat.file_id
            if file_id in opened.replaced:
                continue  # an older plan may add to it
            groups = opened.groups
            if not is_log:
                before = groups.get(file_id, _NO_FILES)
                _, times, sizes, total = before
                gone += self._begin_slice(opened, stat, before)
                self._put(groups, file_id, before, (stat.file_size_bytes, times, sizes, total))
                continue
            # Most files of a large table are these: what `_count` does, for one log file more.
            written = stat.written_bytes
            size, times, sizes, total = groups.get(file_id, _NO_FILES)
            groups[file_id] = size, times + times_of_one, (*sizes, written), total + written
            had = len(times)
            log_files += 1
            counts[had + 1] = counts.get(had + 1, 0) + 1
            if had:
                counts[had] -= 1
            if size is None:
                unsized += not had
            else:
                log_bytes += written
                merged_base_bytes += 0 if had else size
        self._log_files += log_files
        self._log_bytes += log_bytes
        self._unsized += unsized
        self._merged_base_bytes += merged_base_bytes
        return gone

    def _compact(self, stats: Sequence[WriteStat], requested_time: str) -> list[int]:
        """Add the files of a compaction; return the size of each file that they replace."""
        gone: list[int] = []
        for opened, before, stat in self._slices_of(stats):
            _, times, sizes, _ = before
            gone += self._begin_slice(opened, stat, before)
            # A log file that completed after the plan was made belongs to the slice that the compaction begins, not to
            # the one that it merges (file slicing by completion time, table version 8).
            gone += (size for time, size in zip(times, sizes, strict=True) if time <= requested_time)
            after = (stat.file_size_bytes, *_newer(times, sizes, requested_time))
            self._put(opened.groups, stat.file_id, before, after)
        return gone

    def _merge_logs(self, stats: Sequence[WriteStat], instant: Instant) -> None:
        for opened, before, stat in self._slices_of(stats):
            base_bytes, old_times, old_sizes, _ = before
            times, sizes, total = _newer(old_times, old_sizes, instant.requested_time)
            written = stat.written_bytes
            after = base_bytes, (*times, instant.ordering_time), (*sizes, written), total + written
            self._put(opened.groups, stat.file_id, before, after)

    def _slices_of(self, stats: Sequence[WriteStat]) -> Iterator[tuple[_OpenPartition, FileGroupSizes, WriteStat]]:
        """Return what a service wrote with its file groups as they are: without replaced ones."""
        for stat in stats:
            opened = self._open_partition(stat.partition)
            if stat.file_id not in opened.replaced:
                yield opened, opened.groups.get(stat.file_id, _NO_FILES), stat

    def _begin_slice(self, opened: _OpenPartition, stat: WriteStat, before: FileGroupSizes) -> tuple[int, ...]:
        """Note a new base file; return the size of the one that it replaces, or nothing where there was none."""
        before_bytes = before[0]
        opened.has_new_bases = True
        if before_bytes is None:
            opened.newly_shown.append(stat.file_id)
        if stat.is_new_group:
            return ()
        return (stat.file_size_bytes if before_bytes is None else before_bytes,)

    def _put(
        self, groups: dict[str, FileGroupSizes], file_id: str, before: FileGroupSizes, after: FileGroupSizes
    ) -> None:
        groups[file_id] = after
        self._count(before, -1)
        self._count(after, 1)

    def _count(self, group: FileGroupSizes, sign: int) -> None:
        """Count a file group as it is now, or no longer as it was. One without files counts for nothing."""
        size, times, _, log_bytes = group
        if times:
            files = len(times)
            self._log_counts[files] = self._log_counts.get(files, 0) + sign
            self._log_files += sign * files
            if size is None:
                self._unsized += sign
            else:
                self._log_bytes += sign * log_bytes
                self._merged_base_bytes += sign * size
        if size is not None:
            self._base_bytes += sign * size

    def _open_partition(self, partition: str) -> _OpenPartition:
        found = self._open.get(partition)
        if found is None:
            found = self._open[partition] = _OpenPartition(self._partitions.get(partition))
        return found

    def finish(self) -> WriteHistory:
        self._partitions |= {partition: opened.close() for partition, opened in self._open.items()}
        log_counts = {files: groups for files, groups in self._log_counts.items() if groups}
        backlog = CompactionBacklog(
            delta_commits=len(self._delta_commits),
            first_delta_commit=self._delta_commits[0] if self._delta_commits else None,
            log_files=self._log_files,
            most_log_files=max(log_counts, default=0),
            log_bytes=self._log_bytes,
            base_bytes=self._base_bytes,
            unsized_file_groups=self._unsized,
            last_compaction=self._last_compaction,
            newest_write=self._newest_write,
            merged_groups=sum(log_counts.values()),
            merged_base_bytes=self._merged_base_bytes,
        )
        return WriteHistory(
            backlog,
            MappingProxyType(self._partitions),
            self._last_merge,
            self._last_clustering,
            MappingProxyType(self._replaced),
            tuple(self._delta_commits),
            MappingProxyType(log_counts),
        )


def _newer(times: tuple[str, ...], sizes: tuple[int, ...], moment: str) -> tuple[tuple[str, ...], tuple[int, ...], int]:
    """Return the log files that completed after a moment, with their bytes, of each and of all."""
    kept = [(time, size) for time, size in zip(times, sizes, strict=True) if time > moment]
    return tuple(time for time, _ in kept), tuple(size for _, size in kept), sum(size for _, size in kept)


# --- The last history of a table, shared by all its evaluations


@dataclass(frozen=True, slots=True)
class _Replayed:
    writes: tuple[Instant, ...] = ()
    metadata: tuple[CommitMetadata | None, ...] = ()
    history: WriteHistory = NO_WRITES


class WriteHistories:
    """The history of a table, carried on from view to view. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = _Replayed()
        self.replayed_files = 0
        """How many files of writes were replayed so far."""

    def find(self, writes: tuple[Instant, ...], commits: Mapping[str, CommitMetadata]) -> WriteHistory:
        """Return the history of these writes. It replays those that came; all, when one that was there is gone."""
        metadata = tuple(commits.get(write.requested_time) for write in writes)
        with self._lock:
            last = self._last
            known = len(last.writes)
            is_longer = known <= len(writes) and last.writes == writes[:known]
            if not is_longer or any(a is not b for a, b in zip(last.metadata, metadata, strict=False)):
                known = 0
                last = _Replayed()
            added = list(zip(writes[known:], metadata[known:], strict=True))
            history = replay_writes(added, last.history) if added else last.history
            self.replayed_files += sum(len(found.stats) for _, found in added if found is not None)
            self._last = _Replayed(writes, metadata, history)
            return history
