"""Read the markers of a table's active writes again and again, each time only what changed.

One listing with sizes and times shows which `MARKERS<n>` files changed; where a folder's modification time changes with
its children, one stat shows it of a folder of direct markers. What was read once stays read until the writer's folder
vanishes: markers are only ever added, so a file that is met empty or cut off takes nothing back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from airflow_lake_provider.hudi.active_writes import (
    MARKER_FOLDER,
    SERVER_FILE,
    TYPE_FILE,
    MarkerKind,
    is_marker_name,
    parse_direct_marker,
    parse_marker_file,
)
from airflow_lake_provider.hudi.commit_metadata import split_file_group_key
from airflow_lake_provider.shared.actions import Action
from airflow_lake_provider.timeline_server.snapshot import UNKNOWN, folder_time

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from airflow_lake_provider.hudi.instant import Instant
    from airflow_lake_provider.hudi.marker_scan import MarkerScan
    from airflow_lake_provider.storage.store import FileEntry
    from airflow_lake_provider.storage.table_storage import Storage

_NO_STAMP = (UNKNOWN, -1)
_ROOT = ""


MIN_SCANNED_BYTES = 256 * 1024
"""From so much text of one instant on, a scan is quicker, and worth what the import of Arrow takes."""


@dataclass(frozen=True, slots=True, eq=False)
class _Listed:
    """Keys as Python's objects."""

    keys: tuple[bytes, ...] = ()

    @property
    def count(self) -> int:
        return len(self.keys)

    def find_shared(self, mine: frozenset[bytes]) -> frozenset[bytes]:
        return mine.intersection(self.keys)


@dataclass(frozen=True, slots=True, eq=False)
class _Scanned:
    """Keys of a marker file that a scan has, together with those of other files; it is not empty."""

    content: bytes
    scan: MarkerScan

    @property
    def keys(self) -> tuple[bytes, ...]:
        return parse_marker_file(self.content).keys

    @property
    def count(self) -> int:
        return self.content.count(b"\n")

    def find_shared(self, mine: frozenset[bytes]) -> frozenset[bytes]:
        """Return which of the file groups have a marker in this file or in another one of the scan."""
        return self.scan.find_shared(mine)


@dataclass(slots=True, eq=False)
class _Part:
    """The markers of one marker file, or of one folder of direct markers, and its stored state at that time."""

    held: _Listed | _Scanned = field(default_factory=_Listed)
    stamp: tuple[int, int] = _NO_STAMP
    unread: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    """What lies in a folder and is no marker: folders of deeper partitions (a partition may have any name, that of a
    marker or of a timeline server's file too), and the files of a timeline server.
    """
    compared: frozenset[bytes] | None = None
    shared: frozenset[bytes] = frozenset()

    def overlap(self, mine: frozenset[bytes]) -> frozenset[bytes]:
        # The same question about the same markers has the same answer.
        if self.compared is not mine:
            self.compared = mine
            self.shared = self.held.find_shared(mine)
        return self.shared


@dataclass(frozen=True, slots=True, eq=False)
class InstantMarkers:
    """The markers of one instant as far as they were read. `unread` names files that could not be read as markers:
    what stands in them could be any file group, so nothing is known to be free.
    """

    instant: str
    kind: MarkerKind = MarkerKind.NONE
    parts: tuple[_Part, ...] = field(default=(), repr=False)
    _groups: list[frozenset[bytes]] = field(default_factory=list, repr=False)

    @property
    def count(self) -> int:
        """How many markers were read."""
        return sum(part.held.count for part in self.parts)

    @property
    def unread(self) -> tuple[str, ...]:
        """Paths of marker files that could not be read whole, relative to the table."""
        return tuple(name for part in self.parts for name in part.unread)

    def file_groups(self) -> frozenset[bytes]:
        """Return the keys of all file groups."""
        if not self._groups:
            self._groups.append(frozenset().union(*(part.held.keys for part in self.parts)))
        return self._groups[0]

    def overlap(self, mine: frozenset[bytes]) -> frozenset[bytes]:
        """Return which of the file groups have a marker."""
        shared = [keys for part in self.parts if (keys := part.overlap(mine))]
        return frozenset().union(*shared) if shared else frozenset()


MAX_MARKER_BYTES = 128 * 1024 * 1024
"""Limit of all marker files of a table that are read: a million markers. Others count as files that cannot be read."""


class MarkerReader:
    """The markers of one table. Remembers what it read; not to be shared by threads."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._held_bytes: dict[str, int] = {}
        self._parts: dict[str, dict[str, _Part]] = {}
        self._server_based: set[str] = set()
        self._remembered: dict[str, InstantMarkers] = {}

    def list_instants(self) -> tuple[str, ...]:
        """Return the instants that have a marker folder, oldest first; others are forgotten. Raises StorageError."""
        try:
            names = self._storage.list_names(MARKER_FOLDER)
        except FileNotFoundError:
            names = []
        instants = sorted(name for name in names if name.isascii() and name.isdigit())
        for removed in self._parts.keys() - set(instants):
            self._forget(removed)
        return tuple(instants)

    def read(self, instant: str, now_ms: int, partitions: Collection[str] | None = None) -> InstantMarkers:
        """Return an instant's markers; with `partitions`, of direct markers only those in these partitions.

        The same object as before is returned while nothing changed. Raises StorageError.
        """
        folder = f"{MARKER_FOLDER}/{instant}"
        parts = self._parts.setdefault(instant, {})
        try:
            if instant not in self._server_based and self._is_server_based(folder, parts, now_ms):
                self._server_based.add(instant)
            if instant in self._server_based:
                found = self._read_server_files(instant, parts)
                return self._remember(InstantMarkers(instant, MarkerKind.TIMELINE_SERVER_BASED, found))
            found = self._read_direct(folder, parts, now_ms, partitions)
        except FileNotFoundError:  # completed or rolled back
            self._forget(instant)
            return InstantMarkers(instant)
        kind = MarkerKind.DIRECT if any(part.held.count or part.unread for part in found) else MarkerKind.NONE
        return self._remember(InstantMarkers(instant, kind, found))

    def _forget(self, instant: str) -> None:
        self._held_bytes.pop(instant, None)
        self._parts.pop(instant, None)
        self._remembered.pop(instant, None)
        self._server_based.discard(instant)

    def _remember(self, markers: InstantMarkers) -> InstantMarkers:
        last = self._remembered.get(markers.instant)
        if (
            last is not None and last.kind is markers.kind and last.parts == markers.parts
        ):  # parts are equal by identity
            return last
        self._remembered[markers.instant] = markers
        return markers

    def _is_server_based(self, folder: str, parts: dict[str, _Part], now_ms: int) -> bool:
        root = self._read_folder(folder, _ROOT, parts, now_ms)
        if not any(_is_of_server(name) for name in root.others):
            return False
        # A partition may be called so; then it is a folder, and all markers are direct.
        return any(_is_of_server(entry.name) and not entry.is_folder for entry in self._storage.list_entries(folder))

    def _read_server_files(self, instant: str, parts: dict[str, _Part]) -> tuple[_Part, ...]:
        folder = f"{MARKER_FOLDER}/{instant}"
        entries = self._storage.list_entries(folder)
        files = {entry.name: entry for entry in entries if SERVER_FILE.fullmatch(entry.name) and not entry.is_folder}
        size_bytes = sum(entry.size_bytes for entry in files.values())
        others_bytes = sum(held for other, held in self._held_bytes.items() if other != instant)
        if size_bytes + others_bytes > MAX_MARKER_BYTES:
            return tuple(_Part(unread=(f"{folder}/{name}",)) for name in sorted(files))
        self._held_bytes[instant] = size_bytes
        read: dict[str, bytes] = {}
        for name, entry in files.items():
            before = parts.get(name)
            if before is None or before.stamp != (entry.modified_ms, entry.size_bytes):
                content = self._read_server_file(folder, name)
                if content is None:
                    parts[name] = _Part(before.held if before else _Listed(), _NO_STAMP, (f"{folder}/{name}",))
                else:
                    read[name] = content
        plain = [name for name, content in read.items() if _only_adds(parts.get(name), content, files[name])]
        scan = _scan([read[name] for name in plain])
        for name, content in read.items():
            if scan is not None and name in plain:
                parts[name] = _Part(_Scanned(content, scan), _stamp_of(files[name], content))
            else:
                parts[name] = _parse_server_file(f"{folder}/{name}", files[name], content, parts.get(name) or _Part())
        known = {name: part for name, part in parts.items() if SERVER_FILE.fullmatch(name)}
        for name, part in known.items():
            if name not in files and not part.unread:  # removed to be written again, as some stores do it
                known[name] = parts[name] = _Part(part.held, _NO_STAMP, (f"{folder}/{name}",))
        return tuple(part for _, part in sorted(known.items()))

    def _read_server_file(self, folder: str, name: str) -> bytes | None:
        try:
            return self._storage.read_bytes(f"{folder}/{name}", MAX_MARKER_BYTES)
        except FileNotFoundError:
            # Only when the instant's folder has vanished too nothing conflicts any more; this raises then.
            self._storage.list_names(folder)
            return None

    def _read_direct(
        self, folder: str, parts: dict[str, _Part], now_ms: int, partitions: Collection[str] | None
    ) -> tuple[_Part, ...]:
        if partitions is not None:
            return tuple(self._read_known_folder(folder, name, parts, now_ms) for name in sorted(partitions))
        found = [parts[_ROOT]]
        waiting = list(parts[_ROOT].others)
        while waiting:
            part = self._read_known_folder(folder, waiting.pop(), parts, now_ms)
            found.append(part)
            waiting += part.others
        return tuple(found)

    def _read_known_folder(self, root: str, partition: str, parts: dict[str, _Part], now_ms: int) -> _Part:
        try:
            return self._read_folder(root, partition, parts, now_ms)
        except FileNotFoundError:  # no marker in it yet, or a stray file
            return parts.setdefault(partition, _Part())

    def _read_folder(self, root: str, partition: str, parts: dict[str, _Part], now_ms: int) -> _Part:
        path = f"{root}/{partition}" if partition else root
        known = parts.get(partition)
        folder_ms = folder_time(self._storage, path, now_ms)
        if known is not None and folder_ms != UNKNOWN and known.stamp == (folder_ms, 0):
            return known
        part = self._sort_names(self._storage.list_names(path), root, partition, (folder_ms, 0))
        if known is not None:
            before = known.held.keys
            now = part.held.keys
            listed = set(now)
            keys = (*(key for key in before if key not in listed), *now)
            part.held = _Listed(keys)
            if (before, known.unread, known.others) == (keys, part.unread, part.others):
                known.stamp = part.stamp
                return known
        parts[partition] = part
        return part

    def _sort_names(self, names: Collection[str], root: str, partition: str, stamp: tuple[int, int]) -> _Part:
        prefix = f"{partition}/" if partition else ""
        keys = []
        odd = []
        others = []
        for name in sorted(names):
            if is_marker_name(name):
                key = parse_direct_marker(f"{prefix}{name}")
                if key is None:
                    odd.append(name)
                else:
                    keys.append(key)
            elif not _is_checksum(name):
                others.append(f"{prefix}{name}")
        unread = []
        if odd:  # damaged markers, or partitions that are called like one
            entries = self._storage.list_entries(f"{root}/{partition}" if partition else root)
            folders = {entry.name for entry in entries if entry.is_folder}
            others += [f"{prefix}{name}" for name in odd if name in folders]
            unread = [f"{prefix}{name}" for name in odd if name not in folders]
        return _Part(_Listed(tuple(keys)), stamp, tuple(unread), tuple(others))


def _only_adds(before: _Part | None, content: bytes, entry: FileEntry) -> bool:
    """Whether a marker file holds all that it held, without a comparison of its keys."""
    if before is None:
        return len(content) >= entry.size_bytes
    held = before.held
    return len(content) >= entry.size_bytes and isinstance(held, _Scanned) and content.startswith(held.content)


def _scan(contents: Sequence[bytes]) -> MarkerScan | None:
    if sum(map(len, contents)) < MIN_SCANNED_BYTES:
        return None
    # Not at the top: a task that meets few markers need not pay for the import of Arrow.
    from airflow_lake_provider.hudi.marker_scan import scan_marker_files

    return scan_marker_files(contents)


def _stamp_of(entry: FileEntry, content: bytes) -> tuple[int, int]:
    return (entry.modified_ms, entry.size_bytes) if len(content) == entry.size_bytes else _NO_STAMP


def _parse_server_file(path: str, entry: FileEntry, content: bytes, before: _Part) -> _Part:
    parsed = parse_marker_file(content)
    # One that is shorter than it was is being written again, and will hold all that it held before.
    is_whole = parsed.is_whole and len(content) >= entry.size_bytes
    stamp = _stamp_of(entry, content) if is_whole else _NO_STAMP
    keys = parsed.keys
    known = before.held.keys
    if known and not set(known) <= set(keys):
        keys, stamp = (*known, *keys), _NO_STAMP
    return _Part(_Listed(keys), stamp, () if is_whole else (path,))


def _is_of_server(name: str) -> bool:
    return name == TYPE_FILE or SERVER_FILE.fullmatch(name) is not None


def _is_checksum(name: str) -> bool:
    """Whether it is Hadoop's checksum file of a marker; any other name may be a partition's."""
    return name.startswith(".") and name.endswith(".crc") and is_marker_name(name[1:].removesuffix(".crc"))


# --- The active instants of a table: pending instants, heartbeats and marker folders, combined


class Role(StrEnum):
    """What an instant does to file groups."""

    WRITER = "writer"
    """Users' writes, and heartbeats or markers without an instant on the timeline."""
    CLUSTERING = "clustering"
    COMPACTION = "compaction"
    LOG_COMPACTION = "log_compaction"


_ROLES: Mapping[Action, Role] = {
    Action.COMMIT: Role.WRITER,
    Action.DELTACOMMIT: Role.WRITER,
    Action.REPLACECOMMIT: Role.WRITER,
    Action.CLUSTERING: Role.CLUSTERING,
    Action.COMPACTION: Role.COMPACTION,
    Action.LOGCOMPACTION: Role.LOG_COMPACTION,
}


@dataclass(frozen=True, slots=True)
class ActiveInstant:
    """One instant that may touch file groups now.

    `action` is empty where the timeline has no such instant: a writer that is about to begin, or a reservation.
    `beat_ms` is None without a heartbeat; a log compaction that was begun counts as live without one. `planned` are the
    file groups of a service's plan, or those that a writer announced to update; `partitions` all that it will touch,
    None while it has announced nothing.
    """

    instant: str
    action: str
    role: Role
    beat_ms: int | None
    is_live: bool
    markers: InstantMarkers
    planned: frozenset[bytes] = frozenset()
    partitions: frozenset[str] | None = None
    overwritten: frozenset[str] | None = frozenset()
    """Partitions of which it replaces every file group, as far as it declares; None: of the whole table."""
    plan_problem: str = ""
    """What cannot be known of its plan; then it may hold any file group."""

    @property
    def unread(self) -> tuple[str, ...]:
        """What could not be read of it."""
        return (*self.markers.unread, self.plan_problem) if self.plan_problem else self.markers.unread

    def overlap(self, mine: frozenset[bytes]) -> frozenset[bytes]:
        """Return which of the file groups it touches, as far as that can be read."""
        if self.overwritten is None:
            return mine
        shared = self.markers.overlap(mine) | (self.planned & mine)
        if not self.overwritten:
            return shared
        return shared | {key for key in mine if split_file_group_key(key)[0] in self.overwritten}


def role_of(instant: Instant, *, is_clustering: bool = False) -> Role | None:
    """Return what a pending instant does to file groups; None for those that write none (clean, rollback, ...).

    In layout 1 a clustering is a `replacecommit`, as an insert overwrite is; only its plan distinguishes them.
    """
    return Role.CLUSTERING if is_clustering else _ROLES.get(instant.action)
