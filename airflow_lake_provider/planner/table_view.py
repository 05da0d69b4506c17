"""Everything that deciding needs of a table: the shared timeline, and the metadata of its commits, read once each."""

from __future__ import annotations

import json
import logging
import threading
import zlib
from collections import OrderedDict
from dataclasses import astuple, dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from cachetools import LRUCache

from airflow_lake_provider.errors import DamagedFileError, UnsupportedTableError
from airflow_lake_provider.hudi.active_writes import load_heartbeats, load_touched_ms, load_writer_signs
from airflow_lake_provider.hudi.archive import load_archived_behind
from airflow_lake_provider.hudi.commit_metadata import (
    CommitMetadata,
    MeasuredCommits,
    WriteStat,
    load_commit_metadata,
    require_readable_commits,
)
from airflow_lake_provider.hudi.instant import TimelineProblem
from airflow_lake_provider.hudi.pending import find_lost_files, resolve_clusterings
from airflow_lake_provider.hudi.properties import load_timeline_files
from airflow_lake_provider.hudi.rewrite_block import load_rewrite_block
from airflow_lake_provider.hudi.timeline import load_metadata_timeline
from airflow_lake_provider.planner.write_history import WriteHistories
from airflow_lake_provider.shared.hudi_settings import INITIAL_VERSION, TABLE_PARTITION_FIELDS, TABLE_RECORD_KEY
from airflow_lake_provider.table_layout import HASHING_METADATA
from airflow_lake_provider.timeline_server.cache import SharedTimelines
from airflow_lake_provider.timeline_server.saved import read_records, write_records
from airflow_lake_provider.timeline_server.snapshot import ANY_AGE, NOW, Freshness

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from airflow_lake_provider.hudi.active_writes import WriterSigns
    from airflow_lake_provider.hudi.instant import Instant
    from airflow_lake_provider.hudi.properties import TableProperties, TimelineFiles
    from airflow_lake_provider.hudi.timeline import Timeline
    from airflow_lake_provider.storage.table_storage import Storage
    from airflow_lake_provider.timeline_head import ArchivedBehind
    from airflow_lake_provider.timeline_server.snapshot import TimelineSnapshot

log = logging.getLogger(__name__)

# --- Everything that deciding needs to know of one table, as one value


@dataclass(frozen=True, slots=True)
class TableView:
    """A table at one moment. `version` changes when, and only when, its timeline does."""

    base_path: str
    properties: TableProperties
    timeline: Timeline
    """As `resolve_clusterings` returns it: a pending clustering has that action in every layout."""
    commits: Mapping[str, CommitMetadata]
    """Metadata of completed writes on the active timeline, by requested time; damaged ones are in `problems`."""
    version: str
    problems: tuple[TimelineProblem, ...] = ()
    heartbeats_ms: Mapping[str, int] | None = None
    """Last beat of each instant that has one, ms since the epoch; None when the view was loaded without them."""
    touched_ms: Mapping[str, int] | None = None
    """When pending plans in question, or their markers, last changed, ms since the epoch; None when not loaded."""
    metadata_timeline: Timeline | None = None
    """The metadata table's own timeline; None when it was not loaded, or when there is none."""
    archived_behind: ArchivedBehind | None = None
    """Archived writes that Hudi no longer takes for what they are; None when not loaded, or when there are none."""
    histories: WriteHistories = field(default_factory=WriteHistories, compare=False, repr=False)
    """What was replayed of the table's writes; the views of a table hand it on."""


MAX_HOT_FILES = 256_000
"""So many files of commits' metadata are kept as objects, 350 to 500 bytes each; a table counts as a thousand."""
MIN_FILES = 1_000
PACKED_BYTES = 4_096
"""So many bytes a table, of all tables together, are kept of the metadata of those that were not evaluated lately."""


MAX_REFUSED = 1_000
"""So many tables whose commits take too much are remembered."""


@dataclass(frozen=True, slots=True)
class RefusedCommits:
    """The oldest completed writes of a table, which take too much together: none of their files ever changes."""

    first: str
    last: str
    count: int
    reason: str

    def begin(self, names: Sequence[str]) -> bool:
        """Whether these writes, by their files' names, begin with those."""
        return len(names) >= self.count and (names[0], names[self.count - 1]) == (self.first, self.last)


@dataclass
class CommitMemory:
    """Views of the tables that were evaluated last; the commit metadata of all others, packed. Both are bounded.

    What has no place is forgotten, the least recently used first, and read again when its table is evaluated. Safe from
    any thread.
    """

    most_hot_files: int
    most_packed_bytes: int
    most_tables: int = 10_000
    hot_files: int = 0
    packed_bytes: int = 0
    kept: int = 0
    """How many views were kept so far."""
    _views: OrderedDict[str, TableView] = field(default_factory=OrderedDict)
    _packed: dict[str, bytes] = field(default_factory=dict)
    """The least recently used one is the first. A plain dict: an ordered one takes 70 bytes more for each."""
    _refused: LRUCache[str, RefusedCommits] = field(default_factory=lambda: LRUCache(MAX_REFUSED))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def refuse(self, base_path: str, names: Sequence[str], error: UnsupportedTableError) -> None:
        """Remember that the files of a table's oldest writes take too much together."""
        with self._lock:
            self._refused[base_path] = RefusedCommits(names[0], names[-1], len(names), str(error))

    def require_not_refused(self, base_path: str, names: Sequence[str]) -> None:
        """Raise UnsupportedTableError while the writes that took too much together are all still there."""
        with self._lock:
            refused = self._refused.get(base_path)
        if refused is not None and refused.begin(names):
            raise UnsupportedTableError(refused.reason)

    def get(self, base_path: str) -> TableView | None:
        """Return the view that a table had when it was last read, if it is kept as it is."""
        with self._lock:
            if base_path in self._views:
                self._views.move_to_end(base_path)
            return self._views.get(base_path)

    def find_commits(self, base_path: str, properties: TableProperties) -> Mapping[str, CommitMetadata]:
        """Return the commit metadata that is known of a table, by `content_key`.

        Nothing is known of another table that had this path before.
        """
        with self._lock:
            view = self._views.get(base_path)
            packed = self._packed.get(base_path)
        if view is not None and identity_of(view.properties) == identity_of(properties):
            names = {instant.requested_time: content_key(instant) for instant in view.timeline.completed_writes}
            return {names[time]: commit for time, commit in view.commits.items() if time in names}
        return {} if packed is None else _unpack(packed, identity_of(properties))

    def keep(self, view: TableView) -> None:
        """Keep a view, and pack those that it displaces."""
        displaced = []
        with self._lock:
            self._drop(view.base_path)
            self._views[view.base_path] = view
            self.kept += 1
            self.hot_files += _files(view)
            # The table at hand was as large while it was read; packing it would cost more than all of its evaluation.
            while self.hot_files > self.most_hot_files and len(self._views) > 1:
                _, oldest = self._views.popitem(last=False)
                self.hot_files -= _files(oldest)
                displaced.append(oldest)
        for oldest in displaced:
            self._keep_packed(oldest.base_path, _pack(oldest))

    def entries(self) -> Iterator[tuple[str, bytes]]:
        """Return what is known of each table, packed, the least recently used first."""
        with self._lock:
            packed = list(self._packed.items())
            views = list(self._views.values())
        yield from packed
        for view in views:
            yield view.base_path, _pack(view)

    def restore(self, base_path: str, packed: bytes) -> None:
        """Take an entry of an earlier process, unless this one has read the table already."""
        with self._lock:
            is_known = base_path in self._packed
        if not is_known:
            self._keep_packed(base_path, packed)

    def _keep_packed(self, base_path: str, packed: bytes) -> None:
        with self._lock:
            if base_path in self._views or len(packed) > self.most_packed_bytes:
                return  # read again meanwhile; or it would displace all others, and itself
            self._drop(base_path)
            self._packed[base_path] = packed
            self.packed_bytes += len(packed)
            while self.packed_bytes > self.most_packed_bytes or len(self) > self.most_tables:
                self.packed_bytes -= len(self._packed.pop(next(iter(self._packed))))

    def _drop(self, base_path: str) -> None:
        if (view := self._views.pop(base_path, None)) is not None:
            self.hot_files -= _files(view)
        if (packed := self._packed.pop(base_path, None)) is not None:
            self.packed_bytes -= len(packed)

    def __len__(self) -> int:
        return len(self._views) + len(self._packed)


def _files(view: TableView) -> int:
    files = sum(len(commit.stats) + len(commit.replaced_file_groups) for commit in view.commits.values())
    return max(MIN_FILES, files)


# What a table is called and made of when it is created, and the version that names its instants.
_IDENTITY = (TABLE_RECORD_KEY, TABLE_PARTITION_FIELDS, INITIAL_VERSION)
_MAX_JSON_BYTES = 256 * 1024 * 1024


def content_key(instant: Instant) -> str:
    """Return what a completed instant's file is known by: it has another content when this is another one.

    In layout 1 the name has no completion time, and a file that was overwritten, or restored from a backup, has the
    same name.
    """
    return f"{instant.file_name} {instant.completed_time}"


def identity_of(properties: TableProperties) -> list[str]:
    """Return what distinguishes a table from another one that is created at its path later."""
    own = (properties.database, properties.name, properties.table_type, str(properties.version))
    return [*own, *(properties.raw.get(name, "") for name in _IDENTITY)]


def _pack(view: TableView) -> bytes:
    names = {instant.requested_time: content_key(instant) for instant in view.timeline.completed_writes}
    rows = [
        (
            names[time],
            commit.operation,
            commit.replaced_file_groups,
            tuple(map(astuple, commit.stats)),
            commit.checkpoints,
            commit.changed_rows,
            commit.columns,
        )
        for time, commit in view.commits.items()
        if time in names
    ]
    return zlib.compress(json.dumps([identity_of(view.properties), rows], separators=(",", ":")).encode(), 6)


def _unpack(packed: bytes, identity: list[str]) -> dict[str, CommitMetadata]:
    """Return what was packed of the table with this identity; nothing when it is of another one, or damaged."""
    try:
        unpacker = zlib.decompressobj()
        text = unpacker.decompress(packed, _MAX_JSON_BYTES)
        found, rows = json.loads(text) if unpacker.eof else ((), ())
        if found != identity:
            return {}
        return {
            name: CommitMetadata(
                operation,
                tuple(WriteStat(*stat) for stat in stats),
                tuple((partition, file_id) for partition, file_id in replaced),
                tuple(checkpoints),
                changed_rows,
                columns,
            )
            for name, operation, replaced, stats, checkpoints, changed_rows, columns in rows
        }
    except (zlib.error, ValueError, TypeError, RecursionError) as error:
        log.warning("a table's commits are read again: what is kept of them is damaged: %s", error)
        return {}


_MAGIC = b"lake commits 5\n"


class CommitFile:
    """What is known of commits, on local disk: the next process reads only commits that came meanwhile.

    A hint like every cache: an entry counts for the table that it was made of (`identity_of`), and for the instants
    that its timeline still has. The file is as large as the memory at most. A damaged one is used up to the damage.
    """

    def __init__(self, path: Path, memory: CommitMemory) -> None:
        self._path = path
        self._memory = memory
        self._saved = 0

    def save(self) -> None:
        """Write the file if there is something new. Raises OSError."""
        kept = self._memory.kept
        if kept != self._saved:
            write_records(
                self._path, _MAGIC, (({"base_path": path}, packed) for path, packed in self._memory.entries())
            )
            self._saved = kept

    def restore(self) -> None:
        """Take what the file has; a missing file has nothing."""
        restored = 0
        try:
            with self._path.open("rb") as stream:
                for header, packed in read_records(stream, _MAGIC, self._path):
                    self._memory.restore(str(header["base_path"]), packed)
                    restored += 1
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, DamagedFileError) as error:
            log.warning("the file of commits %s is used up to table %d: %s", self._path, restored, error)
        log.info("commits of %d tables restored from %s", restored, self._path)


class TableViewCache:
    """Hands out current views; what was read of commits is kept within a bound (`CommitMemory`)."""

    def __init__(self, timelines: SharedTimelines | None = None, memory: CommitMemory | None = None) -> None:
        self._timelines = timelines if timelines is not None else SharedTimelines()
        most = self._timelines.limits.max_tables
        most_hot = min(MAX_HOT_FILES, MIN_FILES * most)
        self.memory = memory if memory is not None else CommitMemory(most_hot, PACKED_BYTES * most, most)

    def refresh(self, base_path: str, covering: int | None = None) -> TableView:
        """Return the table as it is now, or, with a mark, as it is since that mark. Raises what a refresh raises."""
        if covering is None:
            snapshot = self._timelines.snapshot(base_path, NOW)
        else:
            snapshot = self._timelines.snapshot(base_path, ANY_AGE, covering)
        # Commit metadata is read once, however many wait for it. Each table has its own lock: a store that never
        # answers must not hold up tables of others.
        with self._timelines.memory.reading_commits.hold(base_path):
            return self._refresh(snapshot)

    def find_snapshot(self, base_path: str, covering: int, max_age_s: float) -> TimelineSnapshot | None:
        """Return the timeline in memory if it is current for a mark and no older than so many seconds, else None.

        It reads no storage and never waits.
        """
        return self._timelines.find_current(base_path, Freshness(max_age_s), covering)

    def _refresh(self, snapshot: TimelineSnapshot) -> TableView:
        known = self.memory.get(snapshot.base_path)
        if known is not None and known.version == snapshot.version and not _has_damaged_files(known):
            return known
        view = self._load(snapshot, self.memory.find_commits(snapshot.base_path, snapshot.properties))
        if known is not None:
            view = replace(view, histories=known.histories)
        self.memory.keep(view)
        return view

    def supplement(
        self,
        view: TableView,
        *,
        heartbeats: bool,
        metadata_timeline: bool,
        plans: Sequence[Instant] = (),
        archive: bool = False,
    ) -> TableView:
        """Return the view with the requested parts, read afresh: one listing each. Raises StorageError.

        `plans` are the pending plans whose last change the decision needs.
        """
        if not heartbeats and not metadata_timeline and not plans and not archive:
            return view
        storage = self._timelines.memory.get(view.base_path).storage
        return replace(
            view,
            heartbeats_ms=MappingProxyType(load_heartbeats(storage)) if heartbeats else None,
            metadata_timeline=load_metadata_timeline(storage) if metadata_timeline else None,
            archived_behind=_load_archived_behind(storage, view) if archive else None,
            touched_ms=MappingProxyType(
                {plan.requested_time: load_touched_ms(storage, view.properties.timeline_path, plan) for plan in plans}
            ),
        )

    def storage(self, base_path: str) -> Storage:
        """Return the storage that the table's view is read from. Raises what opening it raises."""
        return self._timelines.memory.get(base_path).storage

    def load_timeline_files(self, view: TableView) -> TimelineFiles:
        """Return the timeline's files, read afresh: one listing, and one stat. Raises StorageError."""
        return load_timeline_files(self._timelines.memory.get(view.base_path).storage, view.properties)

    def has_hashing_metadata(self, view: TableView) -> bool:
        """Return whether the table has buckets by consistent hashing: one stat. Raises StorageError."""
        return self._timelines.memory.get(view.base_path).storage.stat(HASHING_METADATA) is not None

    def load_rewrite_block(self, view: TableView) -> str:
        """Return why no service may rewrite the table's rows, read afresh; empty when they may. Raises StorageError."""
        return load_rewrite_block(self._timelines.memory.get(view.base_path).storage)

    def find_lost_files(self, view: TableView, requested_times: Sequence[str]) -> str:
        """Return which files of pending plans are gone or not whole, in words, read afresh. Raises StorageError."""
        storage = self._timelines.memory.get(view.base_path).storage
        plans = [plan for plan in view.timeline.pending() if plan.requested_time in requested_times]
        found = (find_lost_files(storage, view.properties, view.timeline, plan) for plan in plans)
        return ", ".join(lost for lost in found if lost)

    def load_signs(self, view: TableView, commits: Sequence[Instant], *, reads_headers: bool) -> WriterSigns:
        """Return the traces of the table's writers, read afresh. Raises StorageError."""
        metadata = {
            i.requested_time: view.commits[i.requested_time] for i in commits if i.requested_time in view.commits
        }
        return load_writer_signs(
            self._timelines.memory.get(view.base_path).storage,
            view.properties,
            view.timeline.pending_writes(),
            metadata,
            reads_headers=reads_headers,
        )

    def __len__(self) -> int:
        return len(self.memory)

    def _load(self, snapshot: TimelineSnapshot, known: Mapping[str, CommitMetadata]) -> TableView:
        snapshot = self._timelines.confirm_properties(snapshot)
        storage = self._timelines.memory.get(snapshot.base_path).storage
        commits, problems = _load_commits(storage, snapshot, known, self.memory)
        if problems:
            # A writer may have been writing, or archiving, just then: refresh once more before reporting damage.
            snapshot = self._timelines.snapshot(snapshot.base_path, NOW)
            commits, problems = _load_commits(storage, snapshot, known, self.memory)
        return TableView(
            base_path=snapshot.base_path,
            properties=snapshot.properties,
            timeline=resolve_clusterings(storage, snapshot.properties, snapshot.timeline),
            commits=MappingProxyType(commits),
            version=snapshot.version,
            problems=(*snapshot.timeline.problems, *problems),
        )


def _load_archived_behind(storage: Storage, view: TableView) -> ArchivedBehind | None:
    try:
        return load_archived_behind(storage, view.properties, view.timeline)
    except (DamagedFileError, UnsupportedTableError) as error:
        log.warning("the archive of %s cannot be read, so its jobs ask Hudi: %s", view.base_path, error)
        return None


def _has_damaged_files(view: TableView) -> bool:
    return len(view.problems) > len(view.timeline.problems)


def _load_commits(
    storage: Storage, snapshot: TimelineSnapshot, known: Mapping[str, CommitMetadata], memory: CommitMemory
) -> tuple[dict[str, CommitMetadata], list[TimelineProblem]]:
    commits: dict[str, CommitMetadata] = {}
    problems: list[TimelineProblem] = []
    path = snapshot.properties.timeline_path
    writes = snapshot.timeline.completed_writes
    names = [write.file_name for write in writes]
    memory.require_not_refused(snapshot.base_path, names)
    unknown = {write.file_name for write in writes if content_key(write) not in known}
    require_readable_commits(storage, path, unknown)
    measured = MeasuredCommits(snapshot.base_path)
    for number, instant in enumerate(writes, 1):
        try:
            commit = known.get(content_key(instant)) or load_commit_metadata(storage, path, instant)
        except FileNotFoundError:
            problems.append(TimelineProblem(instant.file_name, "vanished while the timeline was read"))
            continue
        except DamagedFileError as error:
            problems.append(TimelineProblem.of(instant.file_name, error))
            continue
        try:
            commits[instant.requested_time] = measured.add(commit)
        except UnsupportedTableError as error:
            memory.refuse(snapshot.base_path, names[:number], error)
            raise
    return commits, problems
