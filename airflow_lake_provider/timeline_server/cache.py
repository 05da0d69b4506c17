"""The timelines of many tables in one process: hints, heartbeats, one refresh at a time per table, bounded memory.

Every reader of this process shares them, and `server.py` serves them to others. Storage is read only on a hint, after a
silence, or when a reader asks for fresher data.
"""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING

from airflow_lake_provider.errors import LakeError, StorageError, TableNotFoundError, backoff
from airflow_lake_provider.hudi.pending import PlanMemory
from airflow_lake_provider.storage.table_storage import StorageCalls, open_storage
from airflow_lake_provider.timeline_server.archive_tail import ArchiveTails
from airflow_lake_provider.timeline_server.cached_table import (
    NO_HINTS,
    NOTHING,
    completed_writes_among,
    find_unnamed,
)
from airflow_lake_provider.timeline_server.schedule import (
    NEVER,
    ChangeLog,
    DueQueue,
    RecordedTimes,
    SharedLimits,
    fraction_of,
    pause_ms,
)
from airflow_lake_provider.timeline_server.snapshot import (
    ANY_AGE,
    PROPERTIES_AFTER_MS,
    Depth,
    Freshness,
    Known,
    TimelineStats,
    folder_time,
    has_same_properties,
    is_folder_time_unreliable,
    refresh,
)
from airflow_lake_provider.timeline_server.table_memory import RETRY_AFTER_MS, FolderTimes, TableMemory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from airflow_lake_provider.hudi.instant import Instant
    from airflow_lake_provider.storage.table_storage import Storage
    from airflow_lake_provider.timeline_server.cached_table import CachedTimeline, Hints
    from airflow_lake_provider.timeline_server.snapshot import TimelineSnapshot

log = logging.getLogger(__name__)

_FIRST_BACKOFF_S = 2.0
_MAX_BACKOFF_S = 600.0
PROPERTIES_AT_LATEST_MS = 1_800_000
"""Every refresh checks the properties after so long: a busy table has no heartbeats."""

_CHECKING = frozenset({Depth.FULL, Depth.FULL_LIST})
"""Refreshes that check the properties."""


class SharedTimelines:
    """Returns snapshots to readers. It calls `on_unannounced` for commits without a notice, and `on_loaded` for tables
    that were not known before: only a caller with a record of them can decide whether they changed meanwhile.
    """

    def __init__(
        self,
        limits: SharedLimits | None = None,
        open_table: Callable[[str], Storage] = open_storage,
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
    ) -> None:
        self.limits = limits or SharedLimits()
        self.log = ChangeLog()
        self.stats = TimelineStats()
        self.calls = StorageCalls()
        self.now_ms = now_ms
        self.on_unannounced: Callable[[str, tuple[Instant, ...]], None] = lambda _base_path, _instants: None
        self.on_loaded: Callable[[str, TimelineSnapshot], None] = lambda _base_path, _snapshot: None
        self.folder_times = FolderTimes(now_ms())
        self.archives = ArchiveTails(self.limits.max_tables)
        self.plans = PlanMemory()
        self.memory = TableMemory(self.limits, lambda base_path: self._open(open_table, base_path))
        self.due = DueQueue(RecordedTimes(self.memory))

    def _open(self, open_table: Callable[[str], Storage], base_path: str) -> Storage:
        storage = open_table(base_path)
        storage.calls = self.calls
        return storage

    # --- hints and watches ---------------------------------------------------------------------------------

    def hint(self, base_path: str, instants: Iterable[str] = (), mark: int = 0, *, is_by_writer: bool = False) -> None:
        """Record that the table may have changed; it is refreshed soon, unless it shows the named instants already.

        `mark` is the number of the durable mark that this hint stands for.
        """
        cached = self.memory.get(base_path)
        with self.memory.lock:
            marks = (mark,) if mark else ()
            cached.hints = cached.hints.and_one(tuple(instants), marks, is_by_writer=is_by_writer)
        self.stats.count("hints")
        self.due.hint(cached.base_path)

    def outdate(self, base_path: str, mark: int) -> None:
        """Record that a table without waiting readers may have changed: the next reader reads it."""
        cached = self.memory.find(base_path)
        if cached is not None:
            with self.memory.lock:
                cached.hints = cached.hints.and_one((), (mark,) if mark else (), is_by_writer=False)

    def is_polled(self, base_path: str) -> bool:
        """Whether a reader polls the table."""
        cached = self.memory.find(base_path)
        return cached is not None and cached.watched_until_ms > self.now_ms()

    def watch(
        self, base_path: str, poll_interval_s: float, until_ms: int, unannounced_interval_s: float | None = None
    ) -> None:
        """Record that a reader waits for the table, which it would otherwise poll at this interval.

        `unannounced_interval_s` holds for what no writer announces; None when the reader does not wait for that.
        """
        cached = self.memory.get(base_path)
        now_ms = self.now_ms()
        if unannounced_interval_s is not None:
            pause_s = cached.unannounced_pause_s(now_ms)
            cached.unannounced_s = unannounced_interval_s if pause_s is None else min(unannounced_interval_s, pause_s)
            cached.unannounced_until_ms = max(cached.unannounced_until_ms, until_ms)
        others_s = cached.watched_pause_s(now_ms)
        cached.watched_s = poll_interval_s if others_s is None else min(poll_interval_s, others_s)
        cached.watched_until_ms = max(cached.watched_until_ms, until_ms)
        if cached.as_of_ms:
            self.due.put_earlier(
                cached.base_path, cached.as_of_ms + pause_ms(base_path, cached, self.limits.heartbeat, now_ms)
            )

    def end_watch(self, base_path: str, until_ms: int) -> None:
        """End what `watch` recorded until this moment, unless another reader has asked for longer since."""
        cached = self.memory.find(base_path)
        if cached is not None:
            now_ms = self.now_ms()
            if cached.watched_until_ms == until_ms:
                cached.watched_until_ms = now_ms
            if cached.unannounced_until_ms == until_ms:
                cached.unannounced_until_ms = now_ms

    def register(self, base_path: str, fixed_pause_s: float | None = None, *, was_announced: bool = False) -> None:
        """Watch the table permanently; `fixed_pause_s` replaces its adaptive heartbeat.

        `was_announced`: its last notice, to any process, came from a writer.
        """
        cached = self.memory.get(base_path)
        cached.is_announced = cached.is_announced or (was_announced and not cached.begun)
        cached.fixed_pause_s = fixed_pause_s
        if not cached.is_registered:
            cached.is_registered = True
            spread_ms = int(self.limits.cold_start_s * 1000 * fraction_of(base_path))
            self.due.put_earlier(cached.base_path, self.now_ms() + spread_ms)

    # --- reading -------------------------------------------------------------------------------------------

    def snapshot(self, base_path: str, freshness: Freshness = ANY_AGE, covering: int = 0) -> TimelineSnapshot:
        """Return the table's timeline; read the storage only if the cached snapshot is too old.

        It is too old when its age exceeds the freshness, when a hint waits, or when the durable mark `covering` came
        after it. Raises what a refresh raises.
        """
        known = self.find_current(base_path, freshness, covering)
        if known is not None:
            return known
        cached = self.memory.get(base_path)
        if cached.error is not None and cached.failed_ms + RETRY_AFTER_MS > self.now_ms():
            raise cached.error
        if cached.hints.is_hinted and freshness == ANY_AGE:
            return self.refresh(base_path, Depth.LIST, covering)
        # A request for the table as it is now includes its properties.
        is_now = freshness.most_s(is_announced=cached.is_announced) == 0
        return self.refresh(base_path, Depth.FULL if is_now else Depth.GATE, covering)

    def confirm_properties(self, snapshot: TimelineSnapshot) -> TimelineSnapshot:
        """Return the snapshot, or a newer one if hoodie.properties changed since it was read; one stat.

        Writers change the properties without an instant that shows it: they begin an index with a commit, or drop one.
        """
        cached = self.memory.get(snapshot.base_path)
        if cached.version == snapshot.version and has_same_properties(cached.storage, cached.properties_stamp):
            return snapshot
        return self.refresh(snapshot.base_path, Depth.FULL_LIST)

    def find_current(
        self, base_path: str, freshness: Freshness = ANY_AGE, covering: int = 0
    ) -> TimelineSnapshot | None:
        """Return the snapshot in memory if it is fresh enough (see `snapshot`), else None; reads no storage."""
        cached = self.memory.get(base_path)
        known = self.memory.known(base_path, cached) if self._is_current(cached, freshness, covering) else None
        return None if known is None else known.snapshot

    def is_current(self, base_path: str, freshness: Freshness = ANY_AGE) -> bool:
        """Whether `find_current` has an answer, as far as that shows without unpacking it."""
        cached = self.memory.get(base_path)
        is_current = self._is_current(cached, freshness, 0)
        cached.was_used = cached.was_used or is_current
        return is_current

    def find_shown(self, base_path: str) -> TimelineSnapshot | None:
        """Return the last refresh's result if it is cached, even when a hint waits; reads no storage."""
        cached = self.memory.get(base_path)
        known = self.memory.known(base_path, cached) if cached.shown and cached.error is None else None
        return None if known is None else known.snapshot

    def _is_current(self, cached: CachedTimeline, freshness: Freshness, covering: int) -> bool:
        # A restored snapshot that is not refreshed yet is compared with the storage first.
        if not cached.shown or cached.error is not None or cached.hints.is_hinted or cached.covered_mark < covering:
            return False
        most_s = freshness.most_s(is_announced=cached.is_announced)
        # A clock that was set back makes an answer no younger.
        return most_s == math.inf or 0 <= self.now_ms() - cached.as_of_ms < most_s * 1000

    def unreadable(self) -> int:
        """Return how many tables' last refresh failed."""
        return sum(cached.error is not None for cached in self.memory.timelines())

    def pause_ms(self, base_path: str) -> int:
        """Return how long the table may stay silent before it is refreshed."""
        return pause_ms(base_path, self.memory.get(base_path), self.limits.heartbeat, self.now_ms())

    # --- refreshing ----------------------------------------------------------------------------------------

    def refresh(self, base_path: str, depth: Depth, covering: int = 0) -> TimelineSnapshot:
        """Refresh from the storage, or share a refresh that began after this call. Raises what the refresh raises."""
        cached = self.memory.get(base_path)
        begun_before = cached.begun
        with self.memory.refreshing.hold(base_path):
            known = self.memory.known(base_path, cached)
            has_checked = depth not in _CHECKING or cached.properties_checked > begun_before
            if cached.shown > begun_before and depth is not Depth.VERIFY and has_checked:
                if cached.error is not None:
                    raise cached.error
                if known is not None:
                    cached.covered_mark = max(cached.covered_mark, covering)
                    return known.snapshot
            with self.memory.lock:
                hints, cached.hints = cached.hints, NO_HINTS
                cached.begun += 1
            cached.unnamed = cached.unnamed - hints.named or NOTHING
            if hints.is_by_writer:
                cached.is_announced = not cached.unnamed
            # A job of the provider may have changed the properties, which a writer's commit rarely does.
            if depth is Depth.LIST and hints.is_hinted and not hints.is_by_writer:
                depth = Depth.FULL_LIST
            may_be_shown = depth is Depth.LIST and cached.error is None and cached.begun > 1
            is_change = False
            if known is not None and may_be_shown and hints.are_shown_by(known.snapshot, cached.covered_mark):
                self.stats.count("hints_shown_already")
                self._schedule(base_path, cached)
            else:
                known, is_change = self._refresh_from_storage(base_path, cached, known, (depth, hints, covering))
            cached.shown = cached.begun
            cached.covered_mark = max(cached.covered_mark, hints.mark, covering)
            self._publish(base_path, cached, is_change=is_change)
            return known.snapshot

    def await_refresh(self, base_path: str, version: str) -> None:
        """Refresh soon, then log the table if its version differs from the given one, changed or not.

        A reader with that version that has to wait gets its answer through the log.
        """
        cached = self.memory.get(base_path)
        with self.memory.lock:
            if version not in cached.awaited:  # a set of one would take 216 bytes, of each table when all are loaded
                cached.awaited = (*cached.awaited, version)
        self.due.put_earlier(cached.base_path, self.now_ms())

    def _publish(self, base_path: str, cached: CachedTimeline, *, is_change: bool) -> None:
        # After `shown` is set: a reader of the log finds the snapshot, and a later reader requests a refresh.
        with self.memory.lock:
            awaited, cached.awaited = cached.awaited, ()
        if is_change or any(version != cached.version for version in awaited):
            self.log.add(cached.base_path)

    def refresh_if_due(self, base_path: str, *, is_hinted: bool) -> bool:
        """Refresh a table that the due queue returned; the entry stores errors. Return whether no table is there."""
        try:
            if is_hinted or not self._is_gate_unchanged(base_path):
                self.refresh(base_path, Depth.LIST if is_hinted else Depth.GATE)
        except LakeError as error:
            log.warning("timeline of %s cannot be read: %s", base_path, error)
            return isinstance(error, TableNotFoundError)
        finally:
            self.due.give_back(base_path)
        return False

    def forget(self, base_path: str) -> None:
        """Stop watching a table and drop its snapshot; a later request or hint loads it again."""
        self.memory.forget(base_path)
        self.due.put(base_path, NEVER)

    def _is_gate_unchanged(self, base_path: str) -> bool:
        """Do a heartbeat's refresh with one stat and nothing unpacked; false when it takes more than that."""
        cached = self.memory.get(base_path)
        now_ms = self.now_ms()
        with self.memory.refreshing.hold(base_path):
            is_gated = cached.folder_ms and cached.shown and not cached.hints.is_hinted and cached.error is None
            if not is_gated or self._depth(cached, Depth.GATE, now_ms) is not Depth.GATE:
                return False
            if folder_time(cached.storage, cached.timeline_path, now_ms) != cached.folder_ms:
                return False
            cached.begun += 1
            cached.shown = cached.begun
            cached.as_of_ms = now_ms
            self.stats.count("refreshes_gate")
            self._schedule(base_path, cached)
            self._publish(base_path, cached, is_change=False)
            return True

    def verify_one(self) -> str | None:
        """List one table at random although its folder's time is unchanged; return it.

        The server calls it once a minute: tables that were left alone since are packed only.
        """
        self.memory.cool()
        base_path = self.memory.pick_gated()
        if base_path is None:
            return None
        try:
            self.refresh(base_path, Depth.VERIFY)
        except LakeError as error:
            log.warning("timeline of %s cannot be verified: %s", base_path, error)
        return base_path

    def _refresh_from_storage(
        self, base_path: str, cached: CachedTimeline, before: Known | None, why: tuple[Depth, Hints, int]
    ) -> tuple[Known, bool]:
        """Refresh; return what is known now, and whether readers that wait for changes need an answer."""
        requested, hints, covering = why
        now_ms = self.now_ms()
        depth = self._depth(cached, requested, now_ms)
        try:
            after = refresh(cached.storage, before, depth, now_ms)
        except Exception as error:
            raise self._fail(base_path, cached, error, hints) from error
        self.stats.count(f"refreshes_{depth}")
        if depth in _CHECKING or before is None:
            cached.properties_ms = now_ms
            cached.properties_checked = cached.begun
        if before is not None and self.folder_times.may_compare(depth, now_ms):
            self._judge_folder_time(base_path, cached, before, after)
        new_names = cached.keep(before, after)
        is_change = new_names is not None or not cached.changed_ms
        if is_change:
            cached.changed_ms = now_ms
            self.stats.count("changes" if new_names is not None else "loads")
        new = () if new_names is None else completed_writes_among(new_names, after.snapshot)
        commits = () if hints.is_hinted else new
        marks = max(hints.mark, covering) - cached.covered_mark
        own_marks = sum(mark > cached.covered_mark for mark in hints.named_marks)
        unnamed = find_unnamed(new, after, hints, max(marks - own_marks, 0))
        active = {instant.requested_time for instant in after.snapshot.timeline.instants}
        cached.unnamed = (cached.unnamed | unnamed) & active or NOTHING
        if unnamed and hints.is_hinted:
            # A writer that announces nothing is at work as well, unless its callback is still on its way.
            cached.is_announced = False
            self.stats.count("unannounced_commits", len(unnamed))
        if commits:
            # Its callback may still be on its way; the table is trusted again when one arrives.
            cached.is_announced = False
            self.stats.count("unannounced_commits", len(commits))
            self.on_unannounced(base_path, commits)
        if before is None and not hints.is_hinted:
            self.on_loaded(base_path, after.snapshot)
        before_ms = 0 if before is None else before.snapshot.as_of_ms
        for dropped in self.memory.keep(base_path, cached, after, now_ms, before_ms):
            self.due.put(dropped, NEVER)
        self._schedule(base_path, cached)
        return after, is_change

    def _judge_folder_time(self, base_path: str, cached: CachedTimeline, before: Known, after: Known) -> None:
        if not self.folder_times.is_unreliable(cached) and is_folder_time_unreliable(cached.storage, before, after):
            self.stats.count("is_gate_unreliable")
            self.folder_times.distrust(cached)
            log.error(
                "the folder time of %s did not change with its timeline; the server lists all tables of %s from now on",
                base_path,
                cached.volume,
            )

    def _depth(self, cached: CachedTimeline, requested: Depth, now_ms: int) -> Depth:
        unchecked_ms = now_ms - cached.properties_ms
        if requested is Depth.VERIFY:
            return requested
        must_list = requested in {Depth.LIST, Depth.FULL_LIST} or self.folder_times.is_unreliable(cached)
        if requested in _CHECKING or unchecked_ms > (PROPERTIES_AT_LATEST_MS if must_list else PROPERTIES_AFTER_MS):
            return Depth.FULL_LIST if must_list else Depth.FULL
        return Depth.LIST if must_list else Depth.GATE

    def _fail(self, base_path: str, cached: CachedTimeline, error: Exception, hints: Hints) -> LakeError:
        cached.failures += 1
        cached.failed_ms = self.now_ms()
        cached.error = error if isinstance(error, LakeError) else StorageError(f"{base_path}: {error!r}")
        cached.shown = cached.begun
        if hints.is_hinted:  # the announced instants are still to be read
            with self.memory.lock:
                cached.hints = cached.hints.and_one(hints.instants, hints.marks, is_by_writer=hints.is_by_writer)
        self.stats.count("failed_refreshes")
        if cached.failures == 1:
            self.log.add(cached.base_path)  # waiting readers need to know that it cannot be read
        self._schedule(base_path, cached)
        return cached.error

    # --- caching -------------------------------------------------------------------------------------------

    def restore(self, base_path: str, known: Known, *, is_announced: bool) -> None:
        """Restore a snapshot from an earlier process; the next refresh compares it with the storage."""
        cached = self.memory.get(base_path)
        with self.memory.refreshing.hold(base_path):
            if cached.begun:
                return
            cached.take(known)
            cached.is_announced = is_announced
            cached.changed_ms = known.snapshot.as_of_ms
            self.memory.keep(base_path, cached, None, self.now_ms())

    def _schedule(self, base_path: str, cached: CachedTimeline) -> None:
        now_ms = self.now_ms()
        if cached.is_followed(now_ms):
            pause = pause_ms(base_path, cached, self.limits.heartbeat, now_ms)
            if cached.error is not None:
                pause = int(backoff(_FIRST_BACKOFF_S, cached.failures, _MAX_BACKOFF_S) * 1000)
            self.due.put(cached.base_path, now_ms + pause)
            return
        # No reader waits for a refresh; the next one requests it.
        self.due.put(base_path, NEVER)
        if cached.error is not None and cached.error.retriable:
            self.memory.forget_soon(base_path, now_ms)
        elif cached.error is not None:
            self.memory.forget(base_path)
