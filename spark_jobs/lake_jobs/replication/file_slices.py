"""Which files of a file group held its rows before a commit, and which after it; pure, from names and the timeline.

Hudi's own queries answer this for readers at an instant, by requested time, and cut a slice at pending compactions; so
a commit that completed after a compaction was planned is missing in the slices "as of" that commit. Commits are
replicated in the order of completion, so the question here is which files were complete by then.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.errors import DamagedFileError
from lake_jobs.hudi.plan_path_rules import leads_elsewhere

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

_BASE = re.compile(r"(?P<id>[^_]+)_(?P<token>[^_]+)_(?P<instant>\d+)(?P<ending>\.\w+)")
_LOG = re.compile(r"\.(?P<id>.+)_(?P<instant>\d+)\.log\.(?P<version>\d+)(_(?P<token>[^.]+))?(?P<suffix>\..+)?")
_INSTANT_OF_LOG = re.compile(r"_(\d+)\.log\.\d")
_ENTRY = re.compile(
    r"StoragePathInfo\{path=(.+?), length=(\d+), isDirectory=\w+, blockReplication=-?\d+, blockSize=-?\d+, "
    r"modificationTime=-?\d+, locations=",
    re.DOTALL,
)
_CDC = ".cdc"
FIRST_VERSION_OF_OWN_LOGS = 8
"""From this table version on a log file carries the instant that wrote it; before, that of its slice's base file."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A base or log file of a file group. `instant` is in its name; `handle` is the store's own description of it."""

    name: str
    file_id: str
    instant: str
    is_log: bool
    handle: Any = field(default=None, compare=False)
    length: int = field(default=0, compare=False)
    """In bytes."""


@dataclass(frozen=True, slots=True)
class FileSlice:
    """What a reader merges to see a file group's rows: a base file, if any, and log files in any order."""

    base: DataFile | None
    logs: tuple[DataFile, ...]

    @property
    def instant(self) -> str:
        """The instant that Hudi calls the slice's base instant."""
        return self.base.instant if self.base is not None else min(log.instant for log in self.logs)

    @property
    def files(self) -> tuple[DataFile, ...]:
        """All files, the base file first."""
        return (*((self.base,) if self.base is not None else ()), *self.logs)

    @property
    def length(self) -> int:
        """The bytes of all files."""
        return sum(file.length for file in self.files)


@dataclass(frozen=True, slots=True)
class CompletedInstants:
    """The writes of the active timeline, services included, that are complete."""

    times: Mapping[str, str]
    """Completion time by requested time."""
    begins: str
    """The oldest write of the active timeline in any state: what is older was completed, and archived."""
    archived: Mapping[str, str] = field(default_factory=dict)
    """Completion times of archived writes, where they are known."""

    def find_completion(self, instant: str) -> str | None:
        """Return when an instant completed, itself where that is archived and unknown; None when it did not."""
        found = self.times.get(instant) or self.archived.get(instant)
        return found or (instant if instant < self.begins else None)


def parse_name(name: str, handle: Any = None, length: int = 0) -> DataFile | None:
    """Return what a file's name says; None for what holds no rows (change data, markers, checksums)."""
    found = _LOG.fullmatch(name)
    if found is not None:
        suffix = found["suffix"] or ""
        is_log = not suffix
        return DataFile(name, found["id"], found["instant"], is_log, handle, length) if is_log else None
    found = _BASE.fullmatch(name)
    if found is None or found["ending"] == _CDC:
        return None
    return DataFile(name, found["id"], found["instant"], is_log=False, handle=handle, length=length)


def parse_entries(listing: str, count: int) -> list[tuple[str, int]]:
    """Return path and length, in bytes, of each file of a listing as Hudi prints it. Raises ValueError.

    `count` is how many there are: a listing in another form must not pass for a shorter one.
    """
    found = [(path, int(length)) for path, length in _ENTRY.findall(listing)]
    if len(found) != count:
        raise ValueError(f"Hudi prints files in an unknown form: {listing[:200]}")
    return found


def find_instant_of_logs(paths: str) -> str:
    """Return the instant in the name of the first log file of a text of paths; empty without one."""
    found = _INSTANT_OF_LOG.search(paths)
    return "" if found is None else found[1]


def find_slice(
    files: Collection[DataFile], instants: CompletedInstants, until: tuple[str, str], version: int
) -> FileSlice | None:
    """Return the slice of a file group's files that was complete in the order of completion; None without one.

    `until` is the completed and requested time of the last write to include. The files are of one file group.
    """
    if version < FIRST_VERSION_OF_OWN_LOGS:
        return _find_old_slice(files, instants, until[1])
    held = []
    for file in files:
        completed = instants.find_completion(file.instant)
        if completed is not None and (completed, file.instant) <= until:
            held.append((file, completed))
    base = max((file for file, _ in held if not file.is_log), key=lambda file: file.instant, default=None)
    # A log file belongs to the newest slice whose instant is not after the log's completion (Hudi's rule): a
    # compaction merges what completed before it was planned.
    begins = base.instant if base is not None else ""
    logs = tuple(file for file, completed in held if file.is_log and completed >= begins)
    return FileSlice(base, logs) if base is not None or logs else None


def _find_old_slice(files: Collection[DataFile], instants: CompletedInstants, until: str) -> FileSlice | None:
    """Return the slice of a table before version 8; log files may hold later blocks, which the reader leaves out.

    The order is that of requested times: conflicting writers of one file group never complete in another one, and
    completion times are file times in these tables, which a copy of the table changes.
    """
    bases = [file for file in files if not file.is_log and file.instant <= until]
    base = max(
        (file for file in bases if instants.find_completion(file.instant) is not None),
        key=lambda file: file.instant,
        default=None,
    )
    begins = base.instant if base is not None else ""
    logs = tuple(file for file in files if file.is_log and begins <= file.instant <= until)
    return FileSlice(base, logs) if base is not None or logs else None


@dataclass(frozen=True, slots=True)
class GroupStatistics:
    """What a commit says that it wrote to one file group."""

    partition: str
    file_id: str
    paths: tuple[str, ...]
    """Relative to the table's base path."""
    previous: str
    """The instant of the base file that was there before; empty for a new file group."""
    inserts: int
    updates: int
    deletes: int
    rows: int
    """Rows of the new base files, unchanged ones included; of log files, the records in them."""
    is_log: bool
    """The commit appended to the group and wrote no base file."""
    is_replaced: bool = False
    """The commit removed the group with all of its rows, and counts none of them."""
    lacks_change_data: bool = False
    """The commit rewrote a base file and logged no change data: Hudi's own query of them fails.

    Hudi 1.2 does so where the operation `insert` adds rows to a small file (`HoodieConcatHandle`).
    """


def read_statistics(metadata: Mapping[str, Any]) -> tuple[GroupStatistics, ...]:
    """Return a commit's statistics by file group, in order; `metadata` is Hudi's commit metadata as JSON.

    Raises DamagedFileError for one that names a file outside of its table.
    """
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for path in _named_paths(metadata):
        if leads_elsewhere(path):
            raise DamagedFileError(f"a commit names {path!r}, which is not in its table; nothing was read there")
    for partition, found in (metadata.get("partitionToWriteStats") or {}).items():
        for stat in found:
            groups.setdefault((partition, str(stat["fileId"])), []).append(stat)
    written = [_sum_up(partition, file_id, stats) for (partition, file_id), stats in groups.items()]
    replaced = [
        GroupStatistics(partition, str(file_id), (), "", 0, 0, 0, 0, is_log=False, is_replaced=True)
        for partition, ids in (metadata.get("partitionToReplaceFileIds") or {}).items()
        for file_id in ids
        if (partition, str(file_id)) not in groups
    ]
    return tuple(sorted([*written, *replaced], key=lambda group: (group.partition, group.file_id)))


def _named_paths(metadata: Mapping[str, Any]) -> Iterator[str]:
    """Yield the partitions and the files that a commit names."""
    yield from metadata.get("partitionToReplaceFileIds") or ()
    for partition, stats in (metadata.get("partitionToWriteStats") or {}).items():
        yield partition
        for stat in stats:
            yield str(stat.get("path") or "")
            yield from stat.get("cdcStats") or ()


def _sum_up(partition: str, file_id: str, stats: Sequence[Mapping[str, Any]]) -> GroupStatistics:
    paths = tuple(str(stat["path"]) for stat in stats if stat.get("path"))
    previous = {str(stat.get("prevCommit") or "null") for stat in stats} - {"null"}
    return GroupStatistics(
        partition,
        file_id,
        paths,
        max(previous, default=""),
        inserts=sum(int(stat.get("numInserts") or 0) for stat in stats),
        updates=sum(int(stat.get("numUpdateWrites") or 0) for stat in stats),
        deletes=sum(int(stat.get("numDeletes") or 0) for stat in stats),
        rows=sum(int(stat.get("numWrites") or 0) for stat in stats),
        is_log=all(map(_is_log, paths)),
        lacks_change_data=any(_lacks_change_data(stat) for stat in stats),
    )


def _is_log(path: str) -> bool:
    return ".log." in path.rpartition("/")[2]


def _lacks_change_data(stat: Mapping[str, Any]) -> bool:
    """As Hudi's `HoodieCDCExtractor.parseWriteStat` finds that there should be some."""
    rows = int(stat.get("numWrites") or 0)
    deletes = int(stat.get("numDeletes") or 0)
    if stat.get("cdcStats") or _is_log(str(stat.get("path"))) or (not rows and deletes):
        return False
    return int(stat.get("numUpdateWrites") or 0) != 0 or rows != int(stat.get("numInserts") or 0)
