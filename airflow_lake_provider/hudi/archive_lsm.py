"""The archive of layout 2: snapshots of Parquet files that are merged into layers, so the same instants may lie twice.

`_version_` holds the number of the newest snapshot, `manifest_<number>` names its files. A file's name bounds the
requested times in it, but for what Hudi wrote when it upgraded a table of layout 1. Writers continue during a read:
`_version_` is deleted and written again, only a few snapshots are kept, and merged files vanish with the last snapshot
that names them. So the reader first searches again for what is missing.

Source: Hudi 1.2 `LSMTimeline`, `LSMTimelineWriter`, `HoodieLSMTimelineManifest`, `HoodieLSMTimelineInstant`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_lake_provider.errors import DamagedFileError, UnsupportedTableError
from airflow_lake_provider.hudi.instant import (
    ArchivedInstant,
    ArchivedTimeline,
    TimelineProblem,
    archived_timeline_of,
    is_known_stranger,
)
from airflow_lake_provider.shared.actions import Action

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from airflow_lake_provider.hudi.instant import RequestedRange
    from airflow_lake_provider.storage.table_storage import Storage

VERSION_FILE = "_version_"
ROW_VERSION = 1
# Far beyond what Hudi writes (it merges no files above 1 GB), and what a process survives.
MAX_FILE_BYTES = 2 << 30
MAX_UNPACKED_BYTES = 4 << 30
MAX_ROWS = 5_000_000
"""Limit over all files that are read: a table with an instant each minute has them in ten years."""
MIN_BYTES_OF_ROW = 2
"""The least that a packed row takes: each has a time of its own, of 17 digits."""
MAX_MANIFEST_BYTES = 64 << 20
MAX_VERSION_BYTES = 32
ATTEMPTS = 4
BATCH_ROWS = 512

_MANIFEST = re.compile(r"manifest_(\d{1,18})", re.ASCII)
_FILE = re.compile(r"(\d{1,32})_(\d{1,32})_(\d{1,3})\.parquet", re.ASCII)
_UNFINISHED = re.compile(r"(_version_|manifest_\d+)\.[0-9a-f-]{36}", re.ASCII)

_ACTIONS = frozenset(action.value for action in Action)
_TIMES_AND_ACTION = {
    "instantTime": pa.string(),
    "completionTime": pa.string(),
    "action": pa.string(),
    "version": pa.int32(),
}
_CONTENT = {"metadata": pa.binary(), "plan": pa.binary()}


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """One Parquet file of a snapshot; by its name, requested times in it reach from `first` to `last`."""

    name: str
    size_bytes: int
    first: str
    last: str


@dataclass(frozen=True, slots=True)
class _Reading:
    """Which instants of the archive to read, and how many rows the files promised so far."""

    requested: RequestedRange
    names_bound: bool
    with_content: bool
    promised: list[int] = field(default_factory=list)

    def excludes(self, file: ManifestFile) -> bool:
        return self.names_bound and not self.requested.overlaps(file.first, file.last)


@dataclass(frozen=True, slots=True)
class _Folder:
    """The archive's folder as it was listed: sizes by name."""

    storage: Storage
    path: str
    sizes: Mapping[str, int]

    def where(self, name: str) -> str:
        return f"{self.storage.base_path}/{self.path}/{name}"

    def read(self, name: str, limit: int, why: str) -> bytes:
        """Read a whole file; it is measured first, because the store reports how much will be allocated."""
        size = self.sizes.get(name)
        if size is None:
            raise DamagedFileError(f"{self.where(name)}: missing, {why}")
        if size > limit:
            raise DamagedFileError(f"{self.where(name)}: {size} bytes are more than an archive's file can have")
        try:
            return self.storage.read_bytes(f"{self.path}/{name}", limit)
        except FileNotFoundError as error:
            raise DamagedFileError(f"{self.where(name)}: missing, {why}") from error


def load_lsm_archive(
    storage: Storage, history_path: str, requested: RequestedRange, *, names_bound: bool, with_content: bool
) -> ArchivedTimeline:
    """Load the newest snapshot's instants; `names_bound`: files whose names lie beyond the range need not be opened.

    Raises StorageError, DamagedFileError, UnsupportedTableError.
    """
    reading = _Reading(requested, names_bound, with_content)
    last_finding = ""
    for attempt in range(ATTEMPTS):
        reading.promised.clear()
        try:
            sizes = {entry.name: entry.size_bytes for entry in storage.list_entries(history_path)}
        except FileNotFoundError:
            return ArchivedTimeline()
        try:
            return _load_snapshot(_Folder(storage, history_path, sizes), reading)
        except DamagedFileError as error:
            # A writer may have moved on between the steps. The same finding in two reads is no race.
            if str(error) == last_finding or attempt == ATTEMPTS - 1:
                raise
            last_finding = str(error)
    raise AssertionError("unreachable")


def _load_snapshot(folder: _Folder, reading: _Reading) -> ArchivedTimeline:
    number, problems = _find_snapshot(folder)
    if number is None:
        return archived_timeline_of((), problems)
    instants: list[ArchivedInstant] = []
    manifest = f"manifest_{number}"
    for file in _read_manifest(folder, manifest):
        # Also of files that the range excludes: a snapshot with a hole is damaged, whichever range is read.
        _check_size(folder, file, folder.sizes.get(file.name, file.size_bytes), manifest)
        if file.name not in folder.sizes or not reading.excludes(file):
            content = folder.read(file.name, MAX_FILE_BYTES, f"but {manifest} names it")
            _check_size(folder, file, len(content), manifest)
            instants += _read_file(content, folder.where(file.name), file, reading, problems)
    return archived_timeline_of(instants, problems)


def _check_size(folder: _Folder, file: ManifestFile, size: int, manifest: str) -> None:
    if size != file.size_bytes:
        raise DamagedFileError(f"{folder.where(file.name)}: has {size} bytes, but {manifest} says {file.size_bytes}")


def _read_file(
    content: bytes, where: str, file: ManifestFile, reading: _Reading, problems: list[TimelineProblem]
) -> Iterator[ArchivedInstant]:
    times: list[str] = []
    for instant in _read_instants(content, where, file.name, reading):
        times.append(instant.requested_time)
        if reading.requested.contains(instant.requested_time):
            yield instant
    if reading.names_bound and (min(times, default=""), max(times, default="")) != (file.first, file.last):
        reason = f"holds {min(times, default='nothing')} to {max(times, default='nothing')}, unlike its name"
        problems.append(TimelineProblem(file.name, reason))


def _find_snapshot(folder: _Folder) -> tuple[int | None, list[TimelineProblem]]:
    """Return the newest snapshot's number, None when there is none yet, and what in the folder is not understood."""
    problems = [
        TimelineProblem(name.encode("utf-8", "backslashreplace").decode(), "not a file of the archive")
        for name in folder.sizes
        if not _belongs(name)
    ]
    numbers = [int(match[1]) for name in folder.sizes if (match := _MANIFEST.fullmatch(name))]
    newest = max(numbers, default=None)
    named = _read_version(folder, problems)
    if newest is None or (named is not None and named > newest):
        if named is not None:
            raise DamagedFileError(f"{folder.where(f'manifest_{named}')}: missing, but {VERSION_FILE} names it")
        problems += [_file_without_manifest(folder, match) for name in folder.sizes if (match := _FILE.fullmatch(name))]
        return None, problems
    if named is None:
        return newest, problems
    # One manifest beyond `_version_` is a writer between two steps, or one that died there: not the archive yet.
    if newest <= named + 1 and named in numbers:
        return named, problems
    problems.append(TimelineProblem(VERSION_FILE, f"names manifest_{named}, but the newest is manifest_{newest}"))
    return newest, problems


def _file_without_manifest(folder: _Folder, match: re.Match[str]) -> TimelineProblem:
    # The first archiver of a table is at work, or died; its instants are still active. No merge happens without
    # manifests.
    if match[3] != "0":
        raise DamagedFileError(f"{folder.where('manifest_*')}: missing, but there is {match[0]}")
    return TimelineProblem(match[0], "no manifest names it: its archiver is writing it, or has died")


def _belongs(name: str) -> bool:
    if name == VERSION_FILE or is_known_stranger(name):
        return True
    return any(pattern.fullmatch(name) for pattern in (_MANIFEST, _FILE, _UNFINISHED))


def _read_version(folder: _Folder, problems: list[TimelineProblem]) -> int | None:
    size = folder.sizes.get(VERSION_FILE, 0)
    if not size:  # deleted, to be written again; or being written
        return None
    try:
        text = (
            folder.storage.read_bytes(f"{folder.path}/{VERSION_FILE}", MAX_VERSION_BYTES).strip()
            if size <= MAX_VERSION_BYTES
            else b""
        )
    except FileNotFoundError:
        return None
    if not (text.isdigit() and len(text) <= MAX_VERSION_BYTES):
        problems.append(TimelineProblem(VERSION_FILE, f"{size} bytes that are not a number: {text[:20]!r}"))
        return None
    return int(text)


def _read_manifest(folder: _Folder, name: str) -> list[ManifestFile]:
    content = folder.read(name, MAX_MANIFEST_BYTES, f"but {VERSION_FILE} names it")
    try:
        body = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(f"{folder.where(name)}: damaged JSON: {error}") from error
    entries = body.get("files") if isinstance(body, dict) else None
    if not isinstance(entries, list):
        raise DamagedFileError(f"{folder.where(name)}: a manifest without a list of files")
    return [_parse_entry(entry, folder.where(name)) for entry in entries]


def _parse_entry(entry: Any, where: str) -> ManifestFile:
    name, size = (entry.get("fileName"), entry.get("fileLen")) if isinstance(entry, dict) else (None, None)
    match = _FILE.fullmatch(name) if isinstance(name, str) else None
    if match is None or type(size) is not int or size < 0:
        raise DamagedFileError(f"{where}: not the name and size of an archived file: {str(entry)[:200]!r}")
    return ManifestFile(match[0], size, match[1], match[2])


def _read_instants(content: bytes, where: str, file_name: str, reading: _Reading) -> Iterator[ArchivedInstant]:
    columns = _TIMES_AND_ACTION | (_CONTENT if reading.with_content else {})
    try:
        parquet = pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True)
        _check_shape(parquet, columns, where, len(content))
        _count_rows(parquet.metadata.num_rows, reading, where)
        rows = 0
        for batch in parquet.iter_batches(BATCH_ROWS, columns=list(columns), use_threads=False):
            rows += batch.num_rows
            for row in batch.to_pylist():
                yield _instant_of(row, where, file_name)
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise DamagedFileError(f"{where}: damaged Parquet file: {type(error).__name__} {error}") from error
    if rows != parquet.metadata.num_rows:  # a row group can be missing without an error
        raise DamagedFileError(f"{where}: damaged Parquet file: {rows} rows of {parquet.metadata.num_rows}")


def _check_shape(parquet: pq.ParquetFile, columns: Mapping[str, pa.DataType], where: str, size_bytes: int) -> None:
    """Refuse columns that are not known, and sizes that are not to be believed, before anything is unpacked."""
    schema = parquet.schema_arrow
    for name, data_type in columns.items():
        found = schema.field(name).type if name in schema.names else None
        if found != data_type:
            raise UnsupportedTableError(f"{where}: its column {name} is {found}, this package reads {data_type}")
    metadata = parquet.metadata
    unpacked = sum(
        metadata.row_group(group).column(column).total_uncompressed_size
        for group in range(metadata.num_row_groups)
        for column in range(metadata.num_columns)
        if metadata.schema.column(column).name in columns
    )
    most_rows = min(MAX_ROWS, size_bytes // MIN_BYTES_OF_ROW)
    if not (0 <= metadata.num_rows <= most_rows and 0 <= unpacked <= MAX_UNPACKED_BYTES):
        raise DamagedFileError(
            f"{where}: promises {metadata.num_rows} rows of {unpacked} bytes, which {size_bytes} bytes cannot hold"
        )


def _count_rows(rows: int, reading: _Reading, where: str) -> None:
    reading.promised.append(rows)
    if sum(reading.promised) > MAX_ROWS:
        raise DamagedFileError(f"{where}: with it the archive has more than {MAX_ROWS} rows")


def _instant_of(row: Mapping[str, Any], where: str, file_name: str) -> ArchivedInstant:
    if row["version"] != ROW_VERSION:
        raise UnsupportedTableError(f"{where}: a row of version {row['version']}, this package reads {ROW_VERSION}")
    requested_time = row["instantTime"]
    completed_time = row["completionTime"]
    for time in (requested_time, completed_time or "0"):
        if not (time and time.isascii() and time.isdigit()):
            raise DamagedFileError(f"{where}: not an instant time: {str(time)[:50]!r}")
    if row["action"] not in _ACTIONS:
        raise UnsupportedTableError(f"{where}: {requested_time} has the unknown action {str(row['action'])[:50]!r}")
    return ArchivedInstant(
        requested_time,
        Action(row["action"]),
        completed_time or None,
        file_name,
        row.get("metadata"),
        row.get("plan"),
    )
