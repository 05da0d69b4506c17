"""What an active write leaves next to its instant: a heartbeat and markers; then the traces of the writers' settings.

A heartbeat is `.hoodie/.heartbeat/<instant>`, whose modification time is the beat. Source: Hudi's
`HoodieHeartbeatClient`. A writer sends it only in multi-writer mode (failed-writes policy LAZY), and so do table
services that guard themselves; a missing file counts as expired there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.hudi.instant import Layout
from airflow_lake_provider.hudi.properties import META_FOLDER, PROPERTIES_FILE
from airflow_lake_provider.hudi.timeline import build_timeline, metadata_storage
from airflow_lake_provider.instant_clock import stamps_of, was_streamed
from airflow_lake_provider.job_contract import (
    DEFAULT_HEARTBEAT_INTERVAL_MS,
    DEFAULT_HEARTBEAT_MISSES,
    HEARTBEAT_INTERVAL,
    HEARTBEAT_MISSES,
    are_of_1_0,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_lake_provider.hudi.commit_metadata import CommitMetadata
    from airflow_lake_provider.hudi.instant import Instant
    from airflow_lake_provider.hudi.properties import TableProperties
    from airflow_lake_provider.instant_clock import Stamp
    from airflow_lake_provider.storage.table_storage import Storage

HEARTBEAT_FOLDER = f"{META_FOLDER}/.heartbeat"
MARKER_FOLDER = f"{META_FOLDER}/.temp"


@dataclass(frozen=True, slots=True)
class HeartbeatRule:
    """When a writer counts as dead. Hudi keeps it in the writers' settings, not in the table's: all must agree."""

    interval_ms: int = DEFAULT_HEARTBEAT_INTERVAL_MS
    tolerable_misses: int = DEFAULT_HEARTBEAT_MISSES

    @property
    def most_ms(self) -> int:
        """The age of the oldest beat that still counts."""
        return self.interval_ms * self.tolerable_misses

    def is_live(self, beat_ms: int | None, now_ms: int) -> bool:
        """Whether the writer of a last beat counts as alive; one that never beat does not."""
        return is_live(beat_ms, now_ms, self.interval_ms, self.tolerable_misses)

    def has_expired(self, beat_ms: int | None, now_ms: int) -> bool:
        """Whether a last beat proves its writer dead; one that never beat proves nothing."""
        return beat_ms is not None and not self.is_live(beat_ms, now_ms)


def heartbeat_rule(hudi_options: Mapping[str, str]) -> HeartbeatRule:
    """Return the rule of a table's Hudi settings. Raises ConfigError for a value that is no whole number from 1."""
    return HeartbeatRule(
        _positive(hudi_options, HEARTBEAT_INTERVAL, DEFAULT_HEARTBEAT_INTERVAL_MS),
        _positive(hudi_options, HEARTBEAT_MISSES, DEFAULT_HEARTBEAT_MISSES),
    )


def _positive(hudi_options: Mapping[str, str], key: str, default: int) -> int:
    text = hudi_options.get(key, str(default)).strip()
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise ConfigError(f"{key}={text!r} must be a whole number from 1")
    return int(text)


def load_heartbeats(storage: Storage) -> dict[str, int]:
    """Return the last beat of each instant, in ms since the epoch; empty where no process ever sent one."""
    try:
        entries = storage.list_entries(HEARTBEAT_FOLDER)
    except FileNotFoundError:
        return {}
    return {entry.name: entry.modified_ms for entry in entries if entry.name.isdigit()}


def is_live(
    beat_ms: int | None,
    now_ms: int,
    interval_ms: int = DEFAULT_HEARTBEAT_INTERVAL_MS,
    tolerable_misses: int = DEFAULT_HEARTBEAT_MISSES,
) -> bool:
    """Whether a beat is young enough for its writer to count as alive: at most interval times misses ago."""
    return beat_ms is not None and now_ms - beat_ms <= interval_ms * tolerable_misses


# --- Markers: the files that an active write has begun, by file group
#
# Source: Hudi `WriteMarkers`, `MarkerDirState`, `MarkerUtils` (RFC-56 builds on them). A marker is the path of a data
# file, relative to the table, and `.marker.CREATE`, `.MERGE` or `.APPEND`:
#
#     city=Oslo/6c1f…-0_0-23-45_20261121104100123.parquet.marker.MERGE
#     city=Oslo/.6c1f…-0_20261121104100123.log.1_0-23-45.marker.CREATE
#
# Direct markers are empty files of that name below `.hoodie/.temp/<instant>/`. A timeline server writes them as lines
# into `MARKERS0`, `MARKERS1`, … there, next to `MARKERS.type`; it rewrites such a file each time it adds to it, so a
# reader can meet it empty or cut off.
#
# One key of bytes identifies a file group, `<partition>/<file id>`: an instant may have 100,000 markers, and nothing
# else keeps a comparison of all of them quick. Hudi's own detector cuts the path at its first underscore, which makes
# one of all partitions `event_date=…`; here only the file's name is cut.

TYPE_FILE = "MARKERS.type"
SERVER_FILE = re.compile(r"MARKERS\d+", re.ASCII)

KIND = rb"\.marker\.(?:MERGE|CREATE|APPEND)"
# Base file: <file id>_<write token>_<instant>.<format>; log file: .<file id>_<instant>.log.<version>_<write token>,
# with .cdc behind it for a change log.
_SUFFIX = rb"_(?:[0-9A-Za-z-]+_\d+(?:_\d+)?\.[a-z]+|\d+(?:_\d+)?\.log\.\d+(?:_[0-9A-Za-z-]+)?(?:\.cdc)?)" + KIND
_LINE_END = re.compile(_SUFFIX + rb"\n")
_MARKER_END = re.compile(_SUFFIX + rb"(?:[\n,]|\r\n)?")
_ONE_MARKER = re.compile(rb"(.+)" + _SUFFIX, re.DOTALL)
_ANY_MARKER = re.compile(rb".*" + KIND, re.DOTALL)


class MarkerKind(StrEnum):
    """How an instant writes its markers; the spelling of `MARKERS.type`."""

    NONE = "NONE"
    """It has written none yet, or they are removed: it completed or was rolled back."""
    DIRECT = "DIRECT"
    TIMELINE_SERVER_BASED = "TIMELINE_SERVER_BASED"


@dataclass(frozen=True, slots=True)
class ParsedMarkers:
    """The keys in one marker file, as often as they stand in it. `is_whole` is false when something is not a marker:
    what is missing could be any file group.
    """

    keys: tuple[bytes, ...]
    is_whole: bool


def is_marker_name(name: str) -> bool:
    """Whether a file below an instant's marker folder is a direct marker, of a file that is understood or not."""
    return _ANY_MARKER.fullmatch(name.encode("utf-8", "surrogateescape")) is not None


def parse_direct_marker(relative_path: str) -> bytes | None:
    """Return the file group's key of a direct marker, by its path below its instant's folder; None for another path."""
    found = _ONE_MARKER.fullmatch(relative_path.encode("utf-8", "surrogateescape"))
    return None if found is None else _without_dot(found.group(1))


def parse_marker_file(content: bytes) -> ParsedMarkers:
    """Return what stands in a `MARKERS<n>` file. An empty one is not whole: its writer is about to fill it."""
    # All lines in one go in C; right when each line ended as a marker does, and holds no second one.
    *paths, rest = _LINE_END.split(content)
    joined = b"".join(paths)
    if rest or b"" in paths or b"\n" in joined or b".marker." in joined:
        return _parse_odd_file(content)
    # Names that begin with a dot are those of log files.
    keys = map(_without_dot, paths) if b".log." in content else paths
    return ParsedMarkers(tuple(keys), bool(paths))


def _parse_odd_file(content: bytes) -> ParsedMarkers:
    """Take what can be understood.

    A timeline server that takes over markers of an earlier one joins them with commas, and the first new one follows
    without any separator (`MarkerDirState.syncMarkersFromFileSystem`).
    """
    pieces = _MARKER_END.split(content)
    is_whole = not pieces.pop() and bool(pieces) and b"" not in pieces
    keys = []
    for piece in pieces:
        # Lines that are no markers stand before one that is.
        *strange, path = piece.split(b"\n")
        is_whole = is_whole and not strange
        if path:
            keys.append(_without_dot(path))
    return ParsedMarkers(tuple(keys), is_whole)


def _without_dot(path: bytes) -> bytes:
    # A log file's name begins with a dot, its file group's id does not.
    folder, slash, name = path.rpartition(b"/")
    return folder + slash + name[1:] if name.startswith(b".") else path


# --- When a pending instant last showed a sign of life other than its heartbeat: its file or its markers changed


def load_markers_ms(storage: Storage, requested_time: str) -> int:
    """Return when an instant's markers last changed, ms since the epoch; 0 without any. Raises StorageError."""
    # One level is enough: server-based markers are files here, and a direct marker changes the folder that it is in.
    try:
        entries = storage.list_entries(f"{MARKER_FOLDER}/{requested_time}")
    except FileNotFoundError:
        return 0
    return max((entry.modified_ms for entry in entries), default=0)


def load_touched_ms(storage: Storage, timeline_path: str, instant: Instant) -> int:
    """Return when a pending instant's file or its markers last changed, ms since the epoch. Raises StorageError."""
    entry = storage.stat(f"{timeline_path}/{instant.file_name}")
    return max(0 if entry is None else entry.modified_ms, load_markers_ms(storage, instant.requested_time))


# --- The traces that writers leave of their settings, read once for the report on them (`planner.conformance`)

LOCK_FILE = f"{META_FOLDER}/lock"
"""Of Hudi's FileSystemBasedLockProvider, unless its path is set."""


@dataclass(frozen=True, slots=True)
class WriterSigns:
    """Traces of a table's writers. Times are ms since the epoch, by the store's clock."""

    pending: frozenset[str] = frozenset()
    """Requested times of what was pending both before and after the heartbeats were listed."""
    heartbeats_ms: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """Listed where a write is pending, or folders have times."""
    heartbeats_changed_ms: int | None = None
    """When the heartbeats' folder changed last; 0 where there is none, None where folders have no times."""
    meta_changed_ms: int | None = None
    """When the folder changed last in which the lock's file is made; None while that file is there, as above."""
    stamps: tuple[Stamp, ...] = ()
    made_ms: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """When each file on the timeline was made, by name."""
    streamed: Mapping[str, bool] = field(default_factory=lambda: MappingProxyType({}))
    """Whether writes streamed their update of the metadata table, by requested time; those that show it."""
    unlisted: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """Commits that the metadata table, which is older than they are, does not have, each with its end."""
    metadata_built_ms: int = 0
    """When the metadata table was built; 0 where there is none."""
    is_of_1_0: bool | None = None
    """Whether Hudi 1.0 made one of the last writes; None where it was not read, or does not show."""


def load_writer_signs(
    storage: Storage,
    properties: TableProperties,
    pending: Sequence[Instant],
    commits: Mapping[str, CommitMetadata],
    *,
    reads_headers: bool,
) -> WriterSigns:
    """Read the traces: two listings and four stats; on a store whose folders have no times one listing, or two while a
    write is pending.

    `commits` are the newest commits of writers, whose updates of the metadata table are examined: two stats each.
    `reads_headers` also reads files of the metadata table: one listing, at most three files. Raises StorageError.
    """
    beats = load_heartbeats(storage) if pending or storage.has_folder_times else {}
    is_locked = storage.has_folder_times and storage.stat(LOCK_FILE) is not None
    changed_ms = _changed_ms(storage, HEARTBEAT_FOLDER)
    meta_ms = None if is_locked else _changed_ms(storage, META_FOLDER)
    try:
        entries = [entry for entry in storage.list_entries(properties.timeline_path) if not entry.is_folder]
    except FileNotFoundError:  # moved or dropped meanwhile, which the next refresh reports
        entries = []
    made_ms = {entry.name: entry.modified_ms for entry in entries}
    has_metadata = "files" in properties.metadata_partitions
    built = metadata_storage(storage).stat(PROPERTIES_FILE) if has_metadata else None
    built_ms = 0 if built is None else built.modified_ms
    streamed, unlisted = _load_streamed(storage, properties, commits, made_ms, built_ms)
    # After the heartbeats: what is pending still was pending all the time.
    still = frozenset(instant.requested_time for instant in build_timeline(properties.layout, made_ms).pending())
    return WriterSigns(
        pending=still & {instant.requested_time for instant in pending},
        heartbeats_ms=MappingProxyType(beats),
        heartbeats_changed_ms=changed_ms,
        meta_changed_ms=meta_ms,
        stamps=stamps_of(made_ms.items()),
        made_ms=MappingProxyType(made_ms),
        streamed=MappingProxyType(streamed),
        unlisted=MappingProxyType(unlisted),
        metadata_built_ms=built_ms,
        is_of_1_0=_load_is_of_1_0(storage, properties) if reads_headers else None,
    )


def _changed_ms(storage: Storage, folder: str) -> int | None:
    if not storage.has_folder_times:
        return None
    entry = storage.stat(folder)
    return 0 if entry is None else entry.modified_ms


def _load_streamed(
    storage: Storage,
    properties: TableProperties,
    commits: Mapping[str, CommitMetadata],
    made_ms: Mapping[str, int],
    built_ms: int,
) -> tuple[dict[str, bool], dict[str, int]]:
    """Return which of the commits streamed their update of the metadata table, and which of them it does not have."""
    streamed: dict[str, bool] = {}
    unlisted: dict[str, int] = {}
    if properties.layout is Layout.V1 or not built_ms:
        return streamed, unlisted
    metadata = metadata_storage(storage)
    for requested_time, commit in commits.items():
        request = metadata.stat(f"{properties.timeline_path}/{requested_time}.deltacommit.requested")
        if request is None:
            ended_ms = max((ms for name, ms in made_ms.items() if name.startswith(f"{requested_time}_")), default=0)
            if built_ms < ended_ms:  # one that was built since has all files that earlier commits left
                unlisted[requested_time] = ended_ms
            continue
        path = commit.stats[0].path if commit.stats else ""
        written = storage.stat(path) if _is_inside(path) else None
        is_streamed = None if written is None else was_streamed(request.modified_ms, written.modified_ms)
        if is_streamed is not None:
            streamed[requested_time] = is_streamed
    return streamed, unlisted


def _is_inside(path: str) -> bool:
    # Commit metadata is a writer's text, and the table's folder is all that it may show.
    return bool(path) and "\0" not in path and not path.startswith("/") and ".." not in path.split("/")


_MAX_HEADERS = 3
_MAX_HEADER_BYTES = 4_194_304
"""A larger file is no log of file names, and would fill this process's memory."""


def _load_is_of_1_0(storage: Storage, properties: TableProperties) -> bool | None:
    metadata = metadata_storage(storage)
    if "files" not in properties.metadata_partitions:
        return None
    try:
        entries = [
            entry
            for entry in metadata.list_entries("files")
            if ".log." in entry.name
            and not entry.name.endswith(".crc")
            and not entry.is_folder
            and entry.size_bytes <= _MAX_HEADER_BYTES
        ]
        newest = sorted(entries, key=lambda entry: entry.modified_ms, reverse=True)[:_MAX_HEADERS]
        headers = [metadata.read_bytes(f"files/{entry.name}", _MAX_HEADER_BYTES) for entry in newest]
    except FileNotFoundError:  # cleaned just now
        return None
    return are_of_1_0(headers) if headers else None
